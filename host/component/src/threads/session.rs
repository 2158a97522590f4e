//! One request's guest.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use guesthouse_engine::{
    Answer, Choice, Choices, Chooser, ChooserError, Finished, Next, Reply, Rows,
};

use super::RowDraw;
use super::lane::Lane;
use super::pool::{Job, Pool};
use crate::give_way::give_way;
use crate::{ComponentError, Stepping, Verdict};

/// What the engine holds. Dropping it frees the guest on a sampler thread.
pub(super) struct Pooled {
    pool: Arc<Pool>,
    session: Arc<Session>,
}

/// What the threads hold while they work.
pub(super) struct Session {
    module: Arc<str>,
    pub(super) lane: Arc<Lane>,
    watch: Arc<Watch>,
    /// The engine dropped it.
    ended: AtomicBool,
    stepping: Mutex<Option<Stepping>>,
}

/// How a thread learns, in the middle of a call, that the call takes long.
#[derive(Default)]
struct Watch {
    /// The call runs on a shared thread.
    shared: AtomicBool,
    /// That thread gave up its place.
    caught: AtomicBool,
}

/// What a guest is asked.
pub(super) enum Work {
    Choose(Rows, Reply),
    Select(Finished, Reply),
    /// Free the guest.
    End,
}

impl Pooled {
    pub(super) fn new(pool: Arc<Pool>, mut stepping: Stepping) -> Self {
        let module = stepping.module_name();
        let lane = pool.lanes.lane(&stepping);
        let watch = Arc::new(Watch::default());
        let hook = {
            let (pool, lane, watch) =
                (Arc::downgrade(&pool), Arc::clone(&lane), Arc::clone(&watch));
            move |cpu| {
                if watch.shared.load(Ordering::Relaxed)
                    && !watch.caught.swap(true, Ordering::Relaxed)
                    && let Some(pool) = pool.upgrade()
                {
                    pool.caught(&lane, cpu);
                    if lane.is_foreign() {
                        // This very thread is in the call, and serves no other module after it.
                        give_way();
                    }
                }
            }
        };
        stepping.while_long(Arc::new(hook));
        let session = Session {
            module,
            lane,
            watch,
            ended: AtomicBool::new(false),
            stepping: Mutex::new(Some(stepping)),
        };
        Self {
            pool,
            session: Arc::new(session),
        }
    }

    fn ask(&self, work: Work) {
        self.pool.put(Box::new(Job {
            session: Arc::clone(&self.session),
            work,
        }));
    }
}

impl Chooser for Pooled {
    fn module(&self) -> &str {
        &self.session.module
    }

    fn choose(&mut self, rows: Rows, reply: Reply) {
        self.ask(Work::Choose(rows, reply));
    }

    fn select(&mut self, finished: Finished, reply: Reply) {
        self.ask(Work::Select(finished, reply));
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.session.ended.store(true, Ordering::Relaxed);
        self.ask(Work::End);
    }
}

/// Which kind of thread makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    Shared,
    Own,
}

/// An answer on its way. Sent when its thread is done with the guest: the engine may ask again at once.
pub(super) struct Told {
    reply: Reply,
    answer: Result<Answer, ChooserError>,
}

impl Told {
    fn new(reply: Reply, answer: Result<Answer, ComponentError>) -> Self {
        Self {
            reply,
            answer: answer.map_err(|error| ChooserError(error.to_string())),
        }
    }

    pub(super) fn send(self) {
        self.reply.send(self.answer);
    }
}

impl Session {
    /// Does the work; on one thread at a time. With the answer comes whether the thread lost its place meanwhile.
    pub(super) fn run(&self, work: Work, on: On, draw: RowDraw) -> (Option<Told>, bool) {
        let Ok(mut stepping) = self.stepping.try_lock() else {
            // A second call while one is under way, or a panic in one. The thread in the call frees the guest after it.
            return (self.refuse(work), false);
        };
        self.watch.caught.store(false, Ordering::Relaxed);
        self.watch.shared.store(on == On::Shared, Ordering::Relaxed);
        let told = match (work, &mut *stepping) {
            (Work::Choose(rows, reply), Some(stepping)) if !self.is_ended() => {
                let answer = choose(stepping, rows, draw).map(Answer::Choices);
                Some(Told::new(reply, answer))
            }
            (Work::Select(finished, reply), Some(stepping)) if !self.is_ended() => {
                let answer = stepping.select(finished).map(Answer::Selected);
                Some(Told::new(reply, answer))
            }
            _ => None,
        };
        if self.is_ended() {
            *stepping = None;
        }
        (told, self.watch.caught.load(Ordering::Relaxed))
    }

    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn refuse(&self, work: Work) -> Option<Told> {
        let (function, reply) = match work {
            Work::Choose(_, reply) => ("stepping.step", reply),
            Work::Select(_, reply) => ("stepping.select", reply),
            Work::End => return None,
        };
        let reason = format!(
            "module {}: {function} called while a call is under way",
            self.module
        );
        Some(Told {
            reply,
            answer: Err(ChooserError(reason)),
        })
    }
}

fn choose(
    stepping: &mut Stepping,
    mut rows: Rows,
    draw: RowDraw,
) -> Result<Choices, ComponentError> {
    let random = std::mem::take(&mut rows.random);
    match stepping.step(rows)? {
        Verdict::Choices(choices) => Ok(choices),
        Verdict::Logits(logits) => {
            let vocab = logits.len() / random.len().max(1);
            let rows = random.iter().zip(logits.chunks_exact(vocab.max(1)));
            let draws = rows.enumerate().map(|(row, (&(key, position), logits))| {
                draw(logits, key, position)
                    .map(|token| Choice {
                        row: u32::try_from(row).unwrap_or(u32::MAX),
                        token,
                        next: Next::Continue,
                        score: 0.0,
                    })
                    .map_err(|reason| stepping.refused(format!("row {row}: {reason}")))
            });
            let branches = draws.collect::<Result<Vec<_>, _>>()?;
            Ok(Choices { branches })
        }
    }
}
