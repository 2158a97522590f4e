//! The threads.

use std::sync::Arc;
use std::thread::Builder;
use std::time::Instant;

use super::lane::Lane;
use super::pool::{Job, Next, Pool, nanoseconds};
use super::session::{On, Work};
use crate::give_way::give_way;
use crate::meter::thread_cpu;

/// Wasm frames and those of host functions: the engine lets a guest have 512 KiB of it.
const STACK: usize = 2 << 20;
/// Calls that one reading of the CPU clock, a system call, is shared out to.
const CLOCKED: usize = 32;
/// A call of so many nanoseconds has the clock read at once.
const LONG: u64 = 100_000;

/// Whether a thread could be made.
pub(super) fn start_shared(pool: &Arc<Pool>) -> bool {
    let pool = Arc::clone(pool);
    let thread = Builder::new().name("sampler".into()).stack_size(STACK);
    thread.spawn(move || shared(&pool)).is_ok()
}

/// Whether a thread could be made.
pub(super) fn start_own(pool: &Arc<Pool>) -> bool {
    let pool = Arc::clone(pool);
    let thread = Builder::new().name("sampler-slow".into()).stack_size(STACK);
    thread.spawn(move || own(&pool)).is_ok()
}

/// A thread that has given way for a foreign module ends after it: no other may have to wait for it.
fn shared(pool: &Arc<Pool>) {
    let mut clock = Clock::new(nanoseconds(pool.config.slow));
    loop {
        let job = match pool.try_shared() {
            Some(job) => job,
            None => {
                clock.read();
                match pool.next_shared() {
                    Next::Run(job) => job,
                    Next::Leave => return,
                }
            }
        };
        let lane = Arc::clone(&job.session.lane);
        let caught = run(pool, job, On::Shared, &mut clock);
        if caught && lane.is_foreign() {
            clock.read();
            return pool.replaced();
        }
        if caught && !pool.released() {
            return;
        }
    }
}

fn own(pool: &Arc<Pool>) {
    let mut clock = Clock::new(nanoseconds(pool.config.slow));
    while let Some(lane) = pool.next_lane() {
        if lane.is_foreign() {
            give_way();
        }
        let mut done = 0;
        while let Some(job) = pool.next_of(&lane, done) {
            run(pool, job, On::Own, &mut clock);
            done += 1;
        }
        clock.read();
        if lane.is_foreign() {
            return pool.left_foreign();
        }
    }
}

/// Whether the thread lost its place in the call.
fn run(pool: &Pool, job: Box<Job>, on: On, clock: &mut Clock) -> bool {
    let Job { session, work } = *job;
    let counts = !matches!(work, Work::End);
    let began = Instant::now();
    let (told, caught) = session.run(work, on, pool.config.draw);
    if counts {
        clock.ran(&session.lane, nanoseconds(began.elapsed()));
    }
    if let Some(told) = told {
        told.send();
    }
    caught
}

/// Charges CPU time to lanes. The clock is read once for several short calls, and its time shared out by their durations.
struct Clock {
    slow: u64,
    last: u64,
    calls: Vec<(Arc<Lane>, u64)>,
}

impl Clock {
    fn new(slow: u64) -> Self {
        Self {
            slow,
            last: thread_cpu(),
            calls: Vec::with_capacity(CLOCKED),
        }
    }

    fn ran(&mut self, lane: &Arc<Lane>, wall: u64) {
        self.calls.push((Arc::clone(lane), wall));
        if self.calls.len() == CLOCKED || wall >= LONG {
            self.read();
        }
    }

    fn read(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let now = thread_cpu();
        let cpu = now.saturating_sub(self.last);
        self.last = now;
        let wall: u64 = self.calls.iter().map(|(_, wall)| wall).sum();
        for (lane, part) in self.calls.drain(..) {
            let share = u128::from(cpu) * u128::from(part) / u128::from(wall.max(1));
            lane.charge(u64::try_from(share).unwrap_or(u64::MAX), self.slow);
        }
    }
}
