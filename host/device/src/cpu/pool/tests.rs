#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

#[test]
fn barriers_order_the_phases() {
    for workers in 1..4 {
        let mut pool = Pool::new(workers).unwrap();
        for _ in 0..200 {
            let sums: Vec<AtomicUsize> = (0..20).map(|_| AtomicUsize::new(0)).collect();
            pool.run(&|_, barrier| {
                for phase in 0..20 {
                    if phase > 0 {
                        assert_eq!(sums[phase - 1].load(Ordering::Relaxed), workers);
                    }
                    sums[phase].fetch_add(1, Ordering::Relaxed);
                    barrier.wait();
                }
            });
        }
    }
}

#[test]
fn a_panic_ends_the_run_and_reaches_the_caller() {
    let mut pool = Pool::new(3).unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| {
        pool.run(&|worker, barrier| {
            barrier.wait();
            if worker == 1 {
                panic!("broken kernel");
            }
            barrier.wait();
        });
    }));
    let panic = result.unwrap_err();
    let text = panic.downcast_ref::<&str>().copied();
    assert!(text == Some("broken kernel") || text == Some("another worker panicked"));
}
