#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::{
    CacheSalt, EngineConfig, FinishReason, GenerationParams, MockExecutor, MockFailure, Priority,
    SamplingPlan, Ticket,
};
use std::sync::mpsc::{Receiver, channel};

fn spawn(executor: MockExecutor, config: EngineConfig) -> EngineHandle {
    EngineThread::spawn(Engine::new(executor, config)).unwrap()
}

fn small() -> EngineHandle {
    spawn(
        MockExecutor::new(MockExecutor::small_info()),
        EngineConfig::default(),
    )
}

fn request(handle: &EngineHandle, first: u32, max_tokens: u32) -> Request {
    Request {
        id: handle.next_id(),
        cache_salt: CacheSalt::default(),
        prompt: vec![first, 2, 3, 4, 5],
        params: GenerationParams {
            max_tokens,
            ..GenerationParams::default()
        },
        sampling: Arc::new(SamplingPlan::greedy()),
        seed: 0,
        priority: Priority::default(),
    }
}

fn submit(handle: &EngineHandle, request: Request) -> Result<Receiver<Event>, SubmitError> {
    let (sender, receiver) = channel();
    handle.submit(request, Box::new(sender)).map(|()| receiver)
}

/// Tokens and end of a single choice; waits for it.
fn finish(events: &Receiver<Event>) -> (Vec<u32>, Option<FinishReason>) {
    let (mut tokens, mut end) = (Vec::new(), None);
    for event in events {
        match event {
            Event::Token { sampled, .. } => tokens.push(sampled.token),
            Event::Finished { reason, .. } => end = Some(reason),
            Event::Failed { error, .. } => panic!("{error}"),
            _ => {}
        }
    }
    (tokens, end)
}

/// A sink that keeps the engine's thread inside `send` until the test lets go.
struct Blocking {
    entered: std::sync::mpsc::Sender<()>,
    proceed: Receiver<()>,
}

impl crate::EventSink for Blocking {
    fn send(&mut self, _: Event) -> Result<(), crate::Disconnected> {
        let _ = self.entered.send(());
        let _ = self.proceed.recv();
        Ok(())
    }
}

#[test]
fn many_threads_get_what_each_gets_alone() {
    let handle = small();
    let expected: Vec<_> = (0..10)
        .map(|first| finish(&submit(&small(), request(&handle, first, 20)).unwrap()))
        .collect();
    std::thread::scope(|scope| {
        for first in 0..10 {
            let (handle, expected) = (handle.clone(), &expected);
            scope.spawn(move || {
                for _ in 0..5 {
                    let events = submit(&handle, request(&handle, first, 20)).unwrap();
                    assert_eq!(finish(&events), expected[first as usize]);
                }
            });
        }
    });
    handle.shutdown(Drain::Yes);
    handle.join();
    assert_eq!(handle.health(), Health::Stopped);
    assert_eq!(handle.stats().generation_tokens, 50 * 20);
    assert_eq!(
        (
            handle.stats().blocks_used,
            handle.stats().running,
            handle.stats().waiting
        ),
        (0, 0, 0)
    );
}

#[test]
fn draining_finishes_what_was_accepted() {
    let handle = small();
    let events = submit(&handle, request(&handle, 1, 50)).unwrap();
    handle.shutdown(Drain::Yes);
    assert_eq!(
        submit(&handle, request(&handle, 1, 50)).unwrap_err(),
        SubmitError::ShuttingDown
    );
    assert_eq!(finish(&events).1, Some(FinishReason::Length));
    handle.join();
}

#[test]
fn without_draining_requests_are_aborted() {
    let handle = small();
    let (entered, has_entered) = channel();
    let (proceed, may_proceed) = channel();
    let blocking = Blocking {
        entered,
        proceed: may_proceed,
    };
    handle
        .submit(request(&handle, 1, 50), Box::new(blocking))
        .unwrap();
    has_entered.recv().unwrap();
    let events = submit(&handle, request(&handle, 1, 50)).unwrap();
    handle.shutdown(Drain::No);
    drop(proceed);
    handle.join();
    let last = events.iter().last().unwrap();
    assert_eq!(
        last,
        Event::Failed {
            choice: None,
            error: EngineError::Aborted
        }
    );
    assert_eq!(handle.health(), Health::Stopped);
}

#[test]
fn dropping_the_last_handle_drains() {
    let handle = small();
    let events = submit(&handle, request(&handle, 1, 50)).unwrap();
    drop(handle);
    assert_eq!(finish(&events).1, Some(FinishReason::Length));
}

#[test]
fn the_queue_is_bounded_before_the_thread_sees_it() {
    let config = EngineConfig {
        max_waiting: 3,
        ..EngineConfig::default()
    };
    let handle = spawn(MockExecutor::new(MockExecutor::small_info()), config);
    let (entered, has_entered) = channel();
    let (proceed, may_proceed) = channel();
    let blocking = Blocking {
        entered,
        proceed: may_proceed,
    };
    handle
        .submit(request(&handle, 1, 1), Box::new(blocking))
        .unwrap();
    has_entered.recv().unwrap();
    assert!(matches!(handle.health(), Health::Working(_)));
    // The thread stands in the first request's sink; that request may still count as waiting.
    let accepted: Vec<_> = (0..10)
        .map(|_| submit(&handle, request(&handle, 2, 4)))
        .collect();
    let refused = accepted.iter().filter(|result| result.is_err()).count();
    assert!((7..=8).contains(&refused), "{refused}");
    assert_eq!(
        accepted[9].as_ref().unwrap_err(),
        &SubmitError::QueueFull {
            waiting: 3,
            max_waiting: 3
        }
    );
    drop(proceed);
    for events in accepted.into_iter().flatten() {
        assert_eq!(finish(&events).1, Some(FinishReason::Length));
    }
}

#[test]
fn cancelling_ends_the_events() {
    let handle = small();
    let (entered, has_entered) = channel();
    let (proceed, may_proceed) = channel();
    let request = request(&handle, 1, 100);
    let id = request.id;
    handle
        .submit(
            request,
            Box::new(Blocking {
                entered,
                proceed: may_proceed,
            }),
        )
        .unwrap();
    has_entered.recv().unwrap();
    handle.cancel(id);
    drop(proceed);
    handle.shutdown(Drain::Yes);
    handle.join();
    assert_eq!(handle.stats().cancelled, 1);
    assert!(handle.stats().generation_tokens < 100);
}

#[test]
fn a_lost_device_is_reported() {
    let executor =
        MockExecutor::new(MockExecutor::small_info()).with_failure(MockFailure::Collect(Ticket(4)));
    let handle = spawn(executor, EngineConfig::default());
    let events = submit(&handle, request(&handle, 1, 50)).unwrap();
    let last = events.iter().last().unwrap();
    assert!(matches!(
        last,
        Event::Failed {
            error: EngineError::Executor(_),
            ..
        }
    ));
    handle.join();
    assert_eq!(handle.health(), Health::Dead);
    assert_eq!(
        submit(&handle, request(&handle, 1, 50)).unwrap_err(),
        SubmitError::Dead
    );
}
