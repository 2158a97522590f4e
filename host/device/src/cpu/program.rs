//! Running a list of instructions on all workers.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::gemm;
use super::ops::{Ctx, Instr, Units, WorkerScratch};
use super::pack::PANEL;
use super::pool::{Barrier, Pool};
use super::sample::Work;

/// The workers and their memory.
pub(crate) struct Crew {
    pool: Pool,
    scratch: Vec<Mutex<WorkerScratch>>,
    /// Next unit of each instruction.
    counters: Vec<AtomicUsize>,
}

impl Crew {
    pub(crate) fn new(workers: usize) -> crate::error::Result<Self> {
        let scratch = || {
            Mutex::new(WorkerScratch {
                gemm: gemm::Scratch::new(),
                attention: Vec::new(),
                sample: Work::default(),
                panels: Box::new([[0.0; gemm::TOKEN_TILE * PANEL]; 2]),
            })
        };
        Ok(Self {
            pool: Pool::new(workers)?,
            scratch: (0..workers.max(1)).map(|_| scratch()).collect(),
            counters: Vec::new(),
        })
    }

    pub(crate) fn workers(&self) -> usize {
        self.pool.workers()
    }

    /// Runs instructions in order. Each sees what the ones before it wrote.
    pub(crate) fn run(&mut self, program: &[Box<dyn Instr>], ctx: &Ctx<'_>) {
        self.reset(program.len());
        let (scratch, counters) = (&self.scratch, &self.counters);
        self.pool.run(&|worker, barrier: &Barrier| {
            let mut scratch = scratch[worker]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            for (instr, counter) in program.iter().zip(counters) {
                claim(worker, instr.units(ctx), counter, |units| {
                    // SAFETY: instructions are separated by barriers, so inputs are complete; the counter gives each
                    // unit to one worker.
                    unsafe { instr.run(ctx, units, &mut scratch) };
                });
                barrier.wait();
            }
        });
    }

    /// Calls `f` for each index below `count`, spread over the workers.
    pub(crate) fn each(&mut self, count: usize, f: &(dyn Fn(usize, &mut WorkerScratch) + Sync)) {
        self.reset(1);
        let (scratch, counters) = (&self.scratch, &self.counters);
        self.pool.run(&|worker, _| {
            let mut scratch = scratch[worker]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            claim(worker, Units { count, grain: 1 }, &counters[0], |units| {
                for unit in units {
                    f(unit, &mut scratch);
                }
            });
        });
    }

    fn reset(&mut self, counters: usize) {
        if self.counters.len() < counters {
            self.counters.resize_with(counters, || AtomicUsize::new(0));
        }
        for counter in &mut self.counters {
            *counter.get_mut() = 0;
        }
    }
}

/// Takes units until none are left. Work that fits one claim is done by worker 0 without touching the counter.
fn claim(
    worker: usize,
    units: Units,
    counter: &AtomicUsize,
    mut work: impl FnMut(std::ops::Range<usize>),
) {
    let Units { count, grain } = units;
    if count <= grain {
        if worker == 0 && count > 0 {
            work(0..count);
        }
        return;
    }
    loop {
        let start = counter.fetch_add(grain, Ordering::Relaxed);
        if start >= count {
            return;
        }
        work(start..count.min(start + grain));
    }
}
