#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn calls_of_a_tenant_take_turns_and_panics_are_errors() {
    let threads = Arc::new(TenantThreads::start().unwrap());
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tenant: Arc<str> = "a".into();
    let callers: Vec<_> = (0..8)
        .map(|number| {
            let (threads, tenant) = (Arc::clone(&threads), Arc::clone(&tenant));
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            std::thread::spawn(move || {
                let call = async move {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    for _ in 0..20 {
                        tokio::task::yield_now().await;
                    }
                    now.fetch_sub(1, Ordering::SeqCst);
                    number
                };
                block_on(threads.run(&tenant, call)).unwrap()
            })
        })
        .collect();
    let answers: Vec<_> = callers.into_iter().map(|c| c.join().unwrap()).collect();
    assert_eq!(answers, (0..8).collect::<Vec<_>>());
    assert!(most.load(Ordering::SeqCst) <= most_at_once());
    let failed = threads.run_blocking(&tenant, || -> u32 { std::panic::panic_any(1) });
    assert!(matches!(failed, Err(ComponentError::Engine { .. })));
    assert_eq!(threads.run_blocking(&tenant, || 7).unwrap(), 7);
}

#[cfg(target_os = "linux")]
#[test]
fn they_give_way() {
    let threads = TenantThreads::start().unwrap();
    let nice = || rustix::process::getpriority_process(None).unwrap();
    let here = nice();
    let tenant: Arc<str> = "a".into();
    let there = threads.run_blocking(&tenant, nice).unwrap();
    assert_eq!(there, (here + 10).min(19));
    assert_eq!(nice(), here, "nobody else does");
}

#[test]
fn a_caller_that_leaves_ends_its_call_and_gives_back_its_turn() {
    let threads = TenantThreads::start().unwrap();
    let tenant: Arc<str> = "a".into();
    for _ in 0..2 * most_at_once() {
        let left = crate::block_on::block_on_within(
            std::time::Duration::from_millis(5),
            threads.run(&tenant, std::future::pending::<()>()),
        );
        assert!(left.is_none());
    }
    let later = async {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        3
    };
    assert_eq!(block_on(threads.run(&tenant, later)).unwrap(), 3);
}
