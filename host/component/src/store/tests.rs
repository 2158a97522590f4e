#![allow(clippy::unwrap_used)]
use super::*;

fn memory(budget: &Arc<Budget>, limit: usize) -> Memory {
    Memory {
        budget: Arc::clone(budget),
        used: 0,
        limit,
        refused: None,
    }
}

#[test]
fn memory_is_charged_to_store_and_process_until_dropped() {
    let budget = Arc::new(Budget::new(100));
    let mut first = memory(&budget, 60);
    assert!(first.memory_growing(0, 50, None).unwrap());
    assert!(!first.memory_growing(50, 61, None).unwrap());
    assert_eq!(
        first.refused,
        Some(LimitKind::Memory {
            wanted: 61,
            limit: 60
        })
    );
    assert_eq!(budget.used(), 50, "a refusal costs nothing");

    let mut second = memory(&budget, 60);
    assert!(second.memory_growing(0, 40, None).unwrap());
    assert!(!second.memory_growing(40, 51, None).unwrap());
    assert_eq!(
        second.refused,
        Some(LimitKind::ProcessMemory {
            wanted: 101,
            limit: 100
        })
    );
    assert_eq!(budget.used(), 90);

    drop(first);
    assert_eq!(budget.used(), 40);
    assert!(second.memory_growing(40, 51, None).unwrap());
    drop(second);
    assert_eq!(budget.used(), 0);
}

#[test]
fn sizes_that_overflow_are_refused() {
    let budget = Arc::new(Budget::new(usize::MAX));
    let mut store = memory(&budget, 1 << 20);
    assert!(store.memory_growing(0, 10, None).unwrap());
    assert!(!store.memory_growing(10, usize::MAX, None).unwrap());
    assert!(!store.table_growing(0, usize::MAX, None).unwrap());
    assert_eq!(budget.used(), 10);
}
