#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::{
    Answer, Asked, Branching, CacheSalt, Choice, Choices, Chooser, Content, Draw, EngineConfig,
    FinishReason, Finished, GenerationParams, Hidden, MockExecutor, MockFailure, Next, Owner,
    Priority, Reply, Rows, SamplingPlan, Ticket,
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
        owner: Owner::default(),
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

/// A guest on a thread of its own, which takes the best candidate.
struct Remote(std::sync::mpsc::Sender<(Rows, Reply)>);

impl Remote {
    fn spawn() -> Box<dyn Chooser> {
        let (sender, questions) = channel::<(Rows, Reply)>();
        std::thread::spawn(move || {
            for (rows, reply) in questions {
                let Content::Candidates { n, tokens, .. } = &rows.content else {
                    panic!("no candidates");
                };
                let best = tokens.iter().step_by(*n as usize);
                let branches = best.zip(0..).map(|(&token, row)| Choice {
                    row,
                    token,
                    next: Next::Continue,
                    score: 0.0,
                });
                let branches = branches.collect();
                reply.send(Ok(Answer::Choices(Choices { branches })));
            }
        });
        Box::new(Self(sender))
    }
}

impl Chooser for Remote {
    fn module(&self) -> &str {
        "remote"
    }

    fn choose(&mut self, rows: Rows, reply: Reply) {
        let _ = self.0.send((rows, reply));
    }

    fn select(&mut self, _: Finished, _: Reply) {}
}

fn submit_chosen(handle: &EngineHandle, chooser: Box<dyn Chooser>) -> Receiver<Event> {
    let asked = Asked {
        candidates: 2,
        branching: Branching::Choices,
        hidden: Hidden::Kept,
    };
    let request = Request {
        sampling: Arc::new(SamplingPlan {
            stages: Vec::new(),
            draw: Draw::Candidates(asked),
        }),
        ..request(handle, 1, 20)
    };
    let (sender, receiver) = channel();
    let attachments = Attachments {
        chooser: Some(chooser),
        ..Attachments::from(Box::new(sender))
    };
    handle.submit(request, attachments).unwrap();
    receiver
}

#[test]
fn guests_answer_from_other_threads() {
    let handle = small();
    let expected = finish(&submit(&handle, request(&handle, 1, 20)).unwrap());
    let all: Vec<_> = (0..8)
        .map(|_| submit_chosen(&handle, Remote::spawn()))
        .collect();
    handle.shutdown(Drain::Yes);
    for events in &all {
        assert_eq!(finish(events), expected);
    }
    handle.join();
    assert_eq!(handle.health(), Health::Stopped);
}

/// A guest that keeps its questions.
struct Silent(Vec<Reply>, std::sync::mpsc::Sender<()>);

impl Chooser for Silent {
    fn module(&self) -> &str {
        "silent"
    }

    fn choose(&mut self, _: Rows, reply: Reply) {
        self.0.push(reply);
        let _ = self.1.send(());
    }

    fn select(&mut self, _: Finished, _: Reply) {}
}

#[test]
fn the_thread_serves_and_ends_while_a_guest_is_silent() {
    let handle = small();
    let (asked, was_asked) = channel();
    let silent = submit_chosen(&handle, Box::new(Silent(Vec::new(), asked)));
    was_asked.recv().unwrap();
    let events = submit(&handle, request(&handle, 2, 20)).unwrap();
    assert_eq!(finish(&events).1, Some(FinishReason::Length));
    handle.shutdown(Drain::No);
    handle.join();
    let last = silent.iter().last().unwrap();
    assert!(matches!(
        last,
        Event::Failed {
            error: EngineError::Aborted,
            ..
        }
    ));
    assert_eq!(handle.health(), Health::Stopped);
}
