#![allow(clippy::unwrap_used)]
use super::*;

fn tenant(name: &str) -> Arc<str> {
    name.into()
}

fn now(slots: &Slots, name: &str) -> Result<Slot, ComponentError> {
    slots.acquire_within(Duration::ZERO, &tenant(name), "m")
}

/// As many as it gets.
fn all(slots: &Slots, name: &str) -> Vec<Slot> {
    std::iter::from_fn(|| now(slots, name).ok()).collect()
}

#[test]
fn one_tenant_never_takes_the_last_place() {
    let slots = Slots::new(Role::Chat, 12);
    let a = all(&slots, "a");
    assert_eq!(a.len(), 6, "half");
    let b = all(&slots, "b");
    assert_eq!(b.len(), 3, "half of the rest");
    assert_eq!(all(&slots, "c").len(), 2, "of three");
    // Freed at once: again three are left, and whoever holds none finds one.
    assert!(now(&slots, "d").is_ok());
    drop(a);
    // 9 are free, b holds 3.
    let more = all(&slots, "b");
    assert_eq!(b.len() + more.len(), 6);
    assert_eq!(all(&slots, "").len(), 6, "the host's own calls take all");
}

#[test]
fn who_waits_gets_what_comes_free() {
    let slots = Slots::new(Role::Chat, 2);
    let first = now(&slots, "a").unwrap();
    assert_eq!(now(&slots, "a").map(drop).unwrap_err().label(), "busy");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            slots
                .acquire_within(Duration::from_secs(60), &tenant("a"), "m")
                .map(drop)
        });
        while slots.shared.lock().waiting.is_empty() {
            std::thread::yield_now();
        }
        // Another tenant passes it by.
        drop(now(&slots, "b").unwrap());
        drop(first);
        waits.join().unwrap().unwrap();
    });
    let state = slots.shared.lock();
    assert_eq!((state.free, state.held.len()), (2, 0));
}
