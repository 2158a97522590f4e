//! The engine's executor over any device: a thread that owns the device, fed through a channel.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use guesthouse_engine::{
    Executor, ExecutorError, ExecutorInfo, Masks, StepOutput, StepPlan, Ticket,
};

use crate::device::{Device, MemoryUse};
use crate::error::{DeviceError, Result};
use runner::Runner;

mod runner;
mod slots;

#[cfg(test)]
mod tests;

/// Stack of the device's thread.
const STACK: usize = 4 << 20;

enum Job {
    Launch(Box<StepPlan>),
    Sample(Ticket, Masks),
}

type Outcome = (Ticket, std::result::Result<StepOutput, ExecutorError>);

/// Runs steps on a device. `launch` and `sample` only enqueue; `collect` waits. Two or more steps may be under way.
pub struct DeviceExecutor {
    info: ExecutorInfo,
    memory: MemoryUse,
    bandwidth: Option<f64>,
    jobs: Option<Sender<Job>>,
    outcomes: Receiver<Outcome>,
    /// Outcomes that came before they were asked for.
    early: BTreeMap<u64, std::result::Result<StepOutput, ExecutorError>>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceExecutor {
    /// Moves the device to a thread of its own.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start<D: Device + 'static>(device: D) -> Result<Self> {
        let (info, memory) = (device.info().clone(), device.memory());
        let bandwidth = device.bandwidth();
        let (jobs, todo) = channel();
        let (done, outcomes) = channel();
        let thread = std::thread::Builder::new()
            .name("device".to_owned())
            .stack_size(STACK)
            .spawn(move || serve(Runner::new(device), &todo, &done))?;
        Ok(Self {
            info,
            memory,
            bandwidth,
            jobs: Some(jobs),
            outcomes,
            early: BTreeMap::new(),
            thread: Some(thread),
        })
    }

    /// Bytes the device holds.
    #[must_use]
    pub fn memory(&self) -> MemoryUse {
        self.memory
    }

    /// Bytes per second that a large copy reads and writes, where the device has measured it.
    #[must_use]
    pub fn bandwidth(&self) -> Option<f64> {
        self.bandwidth
    }

    fn send(&self, during: &'static str, job: Job) -> std::result::Result<(), ExecutorError> {
        let sent = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok());
        if sent { Ok(()) } else { Err(gone(during)) }
    }
}

fn gone(during: &'static str) -> ExecutorError {
    ExecutorError {
        during,
        message: "the device's thread has ended".to_owned(),
    }
}

impl Executor for DeviceExecutor {
    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn launch(&mut self, plan: StepPlan) -> std::result::Result<Ticket, ExecutorError> {
        let ticket = plan.ticket;
        self.send("launch", Job::Launch(Box::new(plan)))?;
        Ok(ticket)
    }

    fn sample(&mut self, ticket: Ticket, masks: Masks) -> std::result::Result<(), ExecutorError> {
        self.send("sample", Job::Sample(ticket, masks))
    }

    fn collect(&mut self, ticket: Ticket) -> std::result::Result<StepOutput, ExecutorError> {
        loop {
            if let Some(outcome) = self.early.remove(&ticket.0) {
                return outcome;
            }
            let (done, outcome) = self.outcomes.recv().map_err(|_| gone("collect"))?;
            self.early.insert(done.0, outcome);
        }
    }
}

impl Drop for DeviceExecutor {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The device's thread. After an error nothing more is run: every later step gets the same error.
fn serve<D: Device>(mut runner: Runner<D>, todo: &Receiver<Job>, done: &Sender<Outcome>) {
    let mut broken: Option<ExecutorError> = None;
    while let Ok(job) = todo.recv() {
        let (ticket, outcome) = match job {
            Job::Launch(plan) => {
                let ticket = plan.ticket;
                if broken.is_none()
                    && let Err(e) = runner.launch(&plan)
                {
                    broken = Some(failed("launch", &e));
                }
                if broken.is_none() {
                    continue;
                }
                (ticket, None)
            }
            Job::Sample(ticket, masks) => match broken {
                Some(_) => continue,
                None => (ticket, Some(runner.sample(ticket, &masks))),
            },
        };
        let outcome = match outcome {
            Some(Ok(output)) => Ok(output),
            Some(Err(e)) => {
                let error = failed("sample", &e);
                broken = Some(error.clone());
                Err(error)
            }
            None => Err(broken.clone().unwrap_or_else(|| gone("launch"))),
        };
        if done.send((ticket, outcome)).is_err() {
            return;
        }
    }
}

fn failed(during: &'static str, error: &DeviceError) -> ExecutorError {
    tracing::error!(label = error.label(), %error, during, "the device failed");
    ExecutorError {
        during,
        message: error.to_string(),
    }
}
