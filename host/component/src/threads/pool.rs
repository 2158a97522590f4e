//! What waits, and who serves it.

use std::cmp::Ordering as Order;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::ThreadsConfig;
use super::lane::{Lane, Lanes};
use super::session::{On, Session, Work};
use super::worker;
use crate::give_way::most_at_once;

/// One call, or the end of a guest.
pub(super) struct Job {
    pub(super) session: Arc<Session>,
    pub(super) work: Work,
}

/// A call that waits for a shared thread.
struct Waiting {
    /// Expected nanoseconds.
    cost: u64,
    /// Order of arrival.
    number: u64,
    job: Box<Job>,
}

impl Ord for Waiting {
    /// The greatest runs first: the cheapest, then the oldest.
    fn cmp(&self, other: &Self) -> Order {
        (other.cost, other.number).cmp(&(self.cost, self.number))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Order::Equal
    }
}

impl Eq for Waiting {}

#[derive(Default)]
pub(super) struct State {
    shared: BinaryHeap<Waiting>,
    arrived: u64,
    /// Shared threads that are not caught in a long call.
    serving: usize,
    /// Those of them that have nothing to do.
    idle: usize,
    /// Slow lanes with jobs and without a thread.
    slow: VecDeque<Arc<Lane>>,
    /// Threads beside the shared ones: of slow lanes, and those caught in a long call.
    own: usize,
    /// Slow lanes of foreign modules that have a thread: no more than [`Pool::most_foreign`].
    foreign: usize,
    /// Of the idle shared threads: 1 if one was told to wake up and has not yet.
    waking: usize,
    /// Threads of slow lanes that have nothing to do.
    own_idle: usize,
    stop: bool,
}

/// Shared by the threads, the choosers and whoever owns them.
pub(super) struct Pool {
    pub(super) config: ThreadsConfig,
    pub(super) lanes: Lanes,
    most_foreign: usize,
    state: Mutex<State>,
    /// Jobs that no thread has seen: whoever brings some does not wait for threads that take theirs.
    intake: Mutex<VecDeque<Box<Job>>>,
    /// Someone was told of the intake, and has not looked since.
    told: AtomicBool,
    /// No thread looks any more.
    stopped: AtomicBool,
    /// For shared threads.
    work: Condvar,
    /// For threads of slow lanes.
    slow_work: Condvar,
}

/// What a thread does next.
pub(super) enum Next {
    Run(Box<Job>),
    /// Its place is another's now.
    Leave,
}

/// How long a thread of slow lanes waits for work before it ends.
const OWN_IDLE: Duration = Duration::from_secs(10);
/// Calls of a slow lane before another lane that waits gets its thread.
const TURN: usize = 16;

impl Pool {
    pub(super) fn new(config: ThreadsConfig) -> Self {
        let config = ThreadsConfig {
            shared: config.shared.max(1),
            own: config.own.max(1),
            ..config
        };
        // Behind all that is known to be cheap.
        let unknown = nanoseconds(config.slow) / 2;
        Self {
            lanes: Lanes::new(unknown),
            most_foreign: most_at_once(),
            config,
            state: Mutex::default(),
            intake: Mutex::default(),
            told: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            work: Condvar::new(),
            slow_work: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn intake(&self) -> MutexGuard<'_, VecDeque<Box<Job>>> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stop(&self) {
        let (jobs, lanes) = {
            let mut state = self.state();
            state.stop = true;
            self.stopped.store(true, Ordering::SeqCst);
            (
                std::mem::take(&mut state.shared),
                std::mem::take(&mut state.slow),
            )
        };
        let own = lanes.iter().map(|lane| std::mem::take(&mut *lane.own()));
        // Dropping a job answers it.
        drop((jobs, own.collect::<Vec<_>>()));
        self.refuse();
        self.work.notify_all();
        self.slow_work.notify_all();
    }

    /// Ends what no thread will see.
    fn refuse(&self) {
        let left = std::mem::take(&mut *self.intake());
        for job in left {
            if matches!(job.work, Work::End) {
                job.session.run(Work::End, On::Own, self.config.draw);
            }
        }
    }

    /// Takes a job. Never blocks for long.
    ///
    /// A job is in the intake before `told` is read, and a thread clears `told` before it looks: either it finds the job, or
    /// whoever brings it tells a thread.
    pub(super) fn put(self: &Arc<Self>, job: Box<Job>) {
        let Some(job) = self.put_if_slow(job) else {
            return;
        };
        self.intake().push_back(job);
        if self.stopped.load(Ordering::SeqCst) {
            self.refuse();
        } else if !self.told.swap(true, Ordering::SeqCst) {
            let mut state = self.state();
            if self.more_threads(&mut state) {
                drop(state);
                self.work.notify_one();
            }
        }
    }

    /// Gives back what is for the shared threads.
    fn put_if_slow(self: &Arc<Self>, job: Box<Job>) -> Option<Box<Job>> {
        if !job.session.lane.is_slow() {
            return Some(job);
        }
        let mut state = self.state();
        if state.stop {
            return Some(job);
        }
        self.put_slow(&mut state, job);
        None
    }

    /// Sorts what came in.
    fn look(self: &Arc<Self>, state: &mut State) {
        self.told.store(false, Ordering::SeqCst);
        let found = std::mem::take(&mut *self.intake());
        for job in found {
            if state.stop {
                drop(job);
            } else if job.session.lane.is_slow() {
                self.put_slow(state, job);
            } else {
                let number = state.arrived;
                state.arrived += 1;
                let cost = job.session.lane.cost();
                state.shared.push(Waiting { cost, number, job });
            }
        }
    }

    /// Starts a shared thread if all are busy and there may be more. Whether one is to be woken instead: not if one is on its
    /// way already, as that one wakes the next. So whoever brings many jobs at once does not pay for waking each thread.
    fn more_threads(self: &Arc<Self>, state: &mut State) -> bool {
        if state.idle > 0 {
            return std::mem::replace(&mut state.waking, 1) == 0;
        }
        if state.serving < self.config.shared && !state.stop {
            self.start_shared(state);
        }
        false
    }

    fn put_slow(self: &Arc<Self>, state: &mut State, job: Box<Job>) {
        let lane = Arc::clone(&job.session.lane);
        let mut own = lane.own();
        own.jobs.push_back(job);
        if std::mem::replace(&mut own.served, true) {
            return;
        }
        drop(own);
        state.slow.push_back(lane);
        if state.own_idle > 0 {
            self.slow_work.notify_one();
        } else if state.own < self.config.own && worker::start_own(self) {
            state.own += 1;
        }
    }

    fn start_shared(self: &Arc<Self>, state: &mut State) {
        if worker::start_shared(self) {
            state.serving += 1;
        }
    }

    /// Called in the middle of a long call on a shared thread: another thread takes that thread's place.
    pub(super) fn caught(self: &Arc<Self>, lane: &Lane, cpu: Duration) {
        if cpu > self.config.slow {
            lane.set_slow();
        }
        let mut state = self.state();
        state.serving -= 1;
        state.own += 1;
        let waits = !state.shared.is_empty() || self.told.load(Ordering::SeqCst);
        if waits && state.idle == 0 && state.own <= self.config.own {
            self.start_shared(&mut state);
        }
    }

    /// A shared thread that was caught is done with its call. Whether it may go on as a shared thread.
    pub(super) fn released(&self) -> bool {
        let mut state = self.state();
        state.own -= 1;
        let room = state.serving < self.config.shared && !state.stop;
        if room {
            state.serving += 1;
        }
        room
    }

    /// A shared thread that was caught is done with its call, and ends.
    pub(super) fn replaced(self: &Arc<Self>) {
        let mut state = self.state();
        state.own -= 1;
        let waits = !state.shared.is_empty() || self.told.load(Ordering::SeqCst);
        if waits && state.idle == 0 && state.serving < self.config.shared && !state.stop {
            self.start_shared(&mut state);
        }
    }

    /// A thread that served a slow lane of a foreign module ends.
    pub(super) fn left_foreign(self: &Arc<Self>) {
        let mut state = self.state();
        state.own -= 1;
        state.foreign -= 1;
        if state.slow.is_empty() || state.stop {
            return;
        }
        if state.own_idle > 0 {
            self.slow_work.notify_one();
        } else if state.own < self.config.own && worker::start_own(self) {
            state.own += 1;
        }
    }

    /// The next job of a shared thread, without waiting.
    pub(super) fn try_shared(self: &Arc<Self>) -> Option<Box<Job>> {
        let mut state = self.state();
        self.pop(&mut state)
    }

    fn pop(self: &Arc<Self>, state: &mut State) -> Option<Box<Job>> {
        if self.told.load(Ordering::SeqCst) {
            self.look(state);
        }
        while let Some(waiting) = state.shared.pop() {
            // Its module was found to be slow while it waited.
            if waiting.job.session.lane.is_slow() {
                self.put_slow(state, waiting.job);
            } else {
                return Some(waiting.job);
            }
        }
        None
    }

    /// The next job of a shared thread.
    pub(super) fn next_shared(self: &Arc<Self>) -> Next {
        let mut state = self.state();
        loop {
            if let Some(job) = self.pop(&mut state) {
                if !state.shared.is_empty() && self.more_threads(&mut state) {
                    drop(state);
                    self.work.notify_one();
                }
                return Next::Run(job);
            }
            if state.stop {
                state.serving -= 1;
                return Next::Leave;
            }
            state.idle += 1;
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            state.waking = 0;
        }
    }

    /// A slow lane to serve, or nothing after a while without one.
    pub(super) fn next_lane(&self) -> Option<Arc<Lane>> {
        let mut state = self.state();
        loop {
            let may = |lane: &Arc<Lane>| !lane.is_foreign() || state.foreign < self.most_foreign;
            let next = state.slow.iter().position(may);
            if let Some(lane) = next.and_then(|next| state.slow.remove(next)) {
                state.foreign += usize::from(lane.is_foreign());
                return Some(lane);
            }
            let mut over = state.stop;
            if !over {
                state.own_idle += 1;
                let (back, timeout) = self
                    .slow_work
                    .wait_timeout(state, OWN_IDLE)
                    .unwrap_or_else(PoisonError::into_inner);
                state = back;
                state.own_idle -= 1;
                over = timeout.timed_out() && state.slow.is_empty();
            }
            if over {
                state.own -= 1;
                return None;
            }
        }
    }

    /// The next job of a slow lane that a thread serves; nothing when that thread is to look for another lane. `done` jobs
    /// were run in this turn.
    pub(super) fn next_of(&self, lane: &Arc<Lane>, done: usize) -> Option<Box<Job>> {
        let mut state = self.state();
        let mut own = lane.own();
        if state.stop {
            let dropped = std::mem::take(&mut own.jobs);
            own.served = false;
            drop((own, state));
            drop(dropped);
            return None;
        }
        if own.jobs.is_empty() {
            own.served = false;
            return None;
        }
        if done >= TURN && !state.slow.is_empty() {
            state.slow.push_back(Arc::clone(lane));
            return None;
        }
        own.jobs.pop_front()
    }
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
