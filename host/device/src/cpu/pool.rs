//! Threads that run one function together, meeting at barriers.
//!
//! A waiting thread spins for some microseconds and then sleeps, so an idle pool takes no CPU time. The caller of
//! [`Pool::run`] works along as worker 0.

#![allow(unsafe_code)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::Result;

#[cfg(test)]
mod tests;

/// Turns of the spin loop before sleeping: around 5 µs.
const SPINS: usize = 200;

/// Something to wait for: a number that others raise.
struct Signal {
    value: AtomicUsize,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Signal {
    fn new() -> Self {
        Self {
            value: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    fn get(&self) -> usize {
        self.value.load(Ordering::SeqCst)
    }

    fn add(&self, n: usize) -> usize {
        let value = self.value.fetch_add(n, Ordering::SeqCst).wrapping_add(n);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.lock));
            self.wake.notify_all();
        }
        value
    }

    /// Returns once `done(value)` holds.
    fn wait(&self, done: impl Fn(usize) -> bool) {
        for _ in 0..SPINS {
            if done(self.get()) {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.lock);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !done(self.get()) {
            guard = self
                .wake
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Where the workers of one run wait for each other.
pub(crate) struct Barrier {
    workers: usize,
    arrived: AtomicUsize,
    generation: Signal,
    broken: AtomicBool,
}

impl Barrier {
    fn new(workers: usize) -> Self {
        Self {
            workers,
            arrived: AtomicUsize::new(0),
            generation: Signal::new(),
            broken: AtomicBool::new(false),
        }
    }

    /// Returns once all workers of the run have called it. What they wrote before is visible afterwards.
    ///
    /// # Panics
    /// When another worker has panicked.
    pub(crate) fn wait(&self) {
        if self.workers == 1 {
            return;
        }
        let generation = self.generation.get();
        if self.arrived.fetch_add(1, Ordering::SeqCst) + 1 == self.workers {
            self.arrived.store(0, Ordering::SeqCst);
            self.generation.add(1);
        } else {
            self.generation.wait(|g| g != generation);
        }
        if self.broken.load(Ordering::SeqCst) {
            resume_unwind(Box::new("another worker panicked"));
        }
    }

    fn break_up(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.generation.add(1);
    }
}

/// A job's address; the pool waits for all workers before the job goes away.
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn(usize, &Barrier) + Sync));

// SAFETY: the function is Sync, and `Pool::run` keeps it alive until all workers are done with it.
unsafe impl Send for Job {}

struct Shared {
    barrier: Barrier,
    job: Mutex<Option<Job>>,
    /// Raised once per job, and once to stop.
    started: Signal,
    /// Workers done with jobs, over all jobs.
    finished: Signal,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Some threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    jobs: usize,
}

impl Pool {
    /// A pool of `workers` (at least 1), the caller of [`Pool::run`] among them.
    pub(crate) fn new(workers: usize) -> Result<Self> {
        let workers = workers.max(1);
        let shared = Arc::new(Shared {
            barrier: Barrier::new(workers),
            job: Mutex::new(None),
            started: Signal::new(),
            finished: Signal::new(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = Self {
            shared,
            threads: Vec::new(),
            jobs: 0,
        };
        for worker in 1..workers {
            let shared = Arc::clone(&pool.shared);
            let name = format!("cpu-{worker}");
            let thread = std::thread::Builder::new()
                .name(name)
                .spawn(move || work(&shared, worker))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Workers.
    pub(crate) fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `f(worker, barrier)` on every worker and returns when all are done.
    ///
    /// # Panics
    /// When one of them did, once all have ended. The pool is of no use then.
    pub(crate) fn run(&mut self, f: &(dyn Fn(usize, &Barrier) + Sync)) {
        if self.threads.is_empty() {
            f(0, &self.shared.barrier);
            return;
        }
        // SAFETY: only the lifetime changes. Workers use the job before they raise `finished`, which is awaited below.
        let job = unsafe {
            std::mem::transmute::<
                &(dyn Fn(usize, &Barrier) + Sync),
                &'static (dyn Fn(usize, &Barrier) + Sync),
            >(f)
        };
        *lock(&self.shared.job) = Some(Job(job));
        self.jobs = self.jobs.wrapping_add(1);
        self.shared.started.add(1);
        call(&self.shared, 0, f);
        let all = self.jobs.wrapping_mul(self.threads.len());
        self.shared.finished.wait(|n| n == all);
        *lock(&self.shared.job) = None;
        if let Some(panic) = lock(&self.shared.panic).take() {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.started.add(1);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn call(shared: &Shared, worker: usize, f: &(dyn Fn(usize, &Barrier) + Sync)) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| f(worker, &shared.barrier))) {
        let mut first = lock(&shared.panic);
        if first.is_none() {
            *first = Some(panic);
        }
        drop(first);
        shared.barrier.break_up();
    }
}

fn work(shared: &Shared, worker: usize) {
    let mut seen = 0;
    loop {
        shared.started.wait(|n| n != seen);
        seen = seen.wrapping_add(1);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let job = *lock(&shared.job);
        if let Some(Job(f)) = job {
            // SAFETY: `Pool::run` keeps the function alive until this worker raises `finished`.
            call(shared, worker, unsafe { &*f });
        }
        shared.finished.add(1);
    }
}
