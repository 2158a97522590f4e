#![allow(clippy::unwrap_used)]
use std::time::Instant;

use super::*;

/// Waits for something another thread does; long, as the machine may be busy.
#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A ticker that counts instead of advancing an epoch.
fn counting() -> (Arc<Shared>, Arc<AtomicUsize>, JoinHandle<()>) {
    let shared = Arc::new(Shared {
        calls: AtomicUsize::new(0),
        parked: AtomicBool::new(false),
        stop: AtomicBool::new(false),
    });
    let ticks = Arc::new(AtomicUsize::new(0));
    let (theirs, count) = (Arc::clone(&shared), Arc::clone(&ticks));
    let join = std::thread::spawn(move || {
        run(&theirs, || {
            count.fetch_add(1, Ordering::SeqCst);
        });
    });
    (shared, ticks, join)
}

#[test]
fn ticks_come_during_calls_and_stop_after_them() {
    let (shared, ticks, join) = counting();
    let ticker = Ticker {
        shared,
        thread: join.thread().clone(),
        join: Some(join),
    };
    eventually("it parks without calls", || ticker.is_parked());
    let before = ticks.load(Ordering::SeqCst);
    assert!(before <= IDLE_TICKS as usize);
    for _ in 0..3 {
        let (first, second) = (ticker.enter(), ticker.enter());
        drop(first);
        let now = ticks.load(Ordering::SeqCst);
        eventually("it ticks while one call is left", || {
            ticks.load(Ordering::SeqCst) > now + 100
        });
        drop(second);
        eventually("it parks again", || ticker.is_parked());
    }
    let shared = Arc::clone(&ticker.shared);
    drop(ticker);
    assert_eq!(Arc::strong_count(&shared), 1, "the thread is gone");
}
