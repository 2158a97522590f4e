#![allow(clippy::unwrap_used)]
use super::*;

fn memory(budget: &Arc<Budget>, limit: usize) -> Memory {
    Memory {
        budget: Arc::clone(budget),
        account: budget.account(""),
        share: None,
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

#[test]
fn one_tenants_memory_leaves_room_for_others() {
    let budget = Arc::new(Budget::new(100));
    let of = |tenant: &str, share| {
        let mut memory = memory(&budget, 1000);
        memory.account = budget.account(tenant);
        memory.share = share;
        memory
    };
    let mut a = of("a", None);
    assert!(a.memory_growing(0, 50, None).unwrap(), "as much as is free");
    let mut second = of("a", None);
    assert!(!second.memory_growing(0, 1, None).unwrap());
    let limit = 49;
    assert_eq!(
        second.refused,
        Some(LimitKind::TenantMemory { wanted: 51, limit })
    );
    assert_eq!((budget.used(), budget.account("a").used()), (50, 50));
    let mut b = of("b", None);
    assert!(b.memory_growing(0, 25, None).unwrap());
    let mut c = of("c", Some(10));
    assert!(!c.memory_growing(0, 11, None).unwrap());
    assert!(c.memory_growing(0, 10, None).unwrap());
    drop(a);
    assert_eq!((budget.used(), budget.account("a").used()), (35, 0));
}
