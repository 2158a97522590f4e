#![allow(clippy::unwrap_used)]
use super::*;
use crate::block_on::block_on;

/// Burns CPU time of this thread.
fn burn(nanoseconds: u64) {
    let start = thread_cpu();
    while thread_cpu() - start < nanoseconds {
        std::hint::spin_loop();
    }
}

#[test]
fn the_first_tick_arms_and_later_ones_tell() {
    let meter = Meter::new(Arc::default());
    meter.begin();
    assert_eq!(meter.tick(), None);
    burn(3_000_000);
    let used = meter.tick().unwrap();
    assert!(
        used.cpu >= Duration::from_millis(3) && used.wall >= used.cpu.min(Duration::from_millis(3))
    );
    meter.begin();
    assert_eq!(meter.tick(), None, "the next call starts anew");
}

#[test]
fn time_between_polls_is_not_charged() {
    let meter = Meter::new(Arc::default());
    meter.begin();
    let mut polls = 0;
    let call = poll_fn(|context| {
        polls += 1;
        if polls > 3 {
            return Poll::Ready(Ok(meter.tick().unwrap().cpu));
        }
        assert!(polls > 1 || meter.tick().is_none());
        burn(2_000_000);
        meter.yields();
        context.waker().wake_by_ref();
        Poll::Pending
    });
    let mut call = Box::pin(metered(&meter, call));
    let others = poll_fn(|context| {
        let answer = call.as_mut().poll(context);
        // Another task of the executor, much longer than the call itself.
        burn(100_000_000);
        answer
    });
    let cpu = block_on(others).unwrap();
    assert!(
        cpu >= Duration::from_millis(4) && cpu < Duration::from_millis(100),
        "{cpu:?}"
    );
}

#[test]
fn waiting_is_ended() {
    let meter = Meter::new(Arc::default());
    meter.begin();
    let error = block_on(metered(
        &meter,
        std::future::pending::<wasmtime::Result<()>>(),
    ))
    .unwrap_err();
    assert!(error.to_string().contains("sleeps or polls"), "{error}");
}

#[test]
fn time_is_charged_whether_or_not_anyone_waits_for_the_answer() {
    let account = Arc::<Account>::default();
    let meter = Meter::new(Arc::clone(&account));
    meter.begin();
    let endless = poll_fn(|context| {
        burn(3_000_000);
        meter.yields();
        context.waker().wake_by_ref();
        Poll::<wasmtime::Result<()>>::Pending
    });
    let mut call = Box::pin(metered(&meter, endless));
    block_on(poll_fn(|context| {
        assert!(call.as_mut().poll(context).is_pending());
        Poll::Ready(())
    }));
    assert_eq!(account.time(), Duration::ZERO, "it is under way");
    drop(call);
    let polled = account.time();
    assert!(polled >= Duration::from_millis(3));
    let charge = Charge::begin(Arc::clone(&account));
    burn(2_000_000);
    drop(charge);
    assert!(account.time() >= polled + Duration::from_millis(2));
}
