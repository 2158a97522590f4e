#![allow(clippy::unwrap_used)]

use super::*;
use futures::FutureExt as _;

fn leaves(seat: &Seat) -> bool {
    seat.evicted().now_or_never().is_some()
}

#[tokio::test]
async fn who_is_idle_for_longest_leaves_first() {
    let idle = Idle::default();
    let seats: Vec<Seat> = (0..3).map(|_| idle.enter()).collect();
    // The first asks, and is idle since later than the others.
    drop(seats[0].ask());
    idle.evict();
    assert_eq!(
        seats.iter().map(leaves).collect::<Vec<_>>(),
        [false, true, false]
    );
    idle.evict();
    assert!(leaves(&seats[2]) && !leaves(&seats[0]));
}

#[tokio::test]
async fn who_asks_stays() {
    let idle = Idle::default();
    let seat = idle.enter();
    let (one, two) = (seat.ask(), seat.ask());
    idle.evict();
    drop(one);
    idle.evict();
    assert!(!leaves(&seat));
    drop(two);
    assert!(!leaves(&seat), "earlier evictions were not for it");
    idle.evict();
    assert!(leaves(&seat));
}

#[tokio::test]
async fn who_asks_after_it_was_asked_to_leave_stays() {
    let idle = Idle::default();
    let seat = idle.enter();
    idle.evict();
    let asking = seat.ask();
    assert!(!leaves(&seat));
    drop(asking);
    assert!(!leaves(&seat));
}

#[test]
fn who_left_is_not_asked() {
    let idle = Idle::default();
    drop(idle.enter());
    drop(idle.enter().ask());
    assert!(lock(&idle.0).waiting.is_empty());
}
