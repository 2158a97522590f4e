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
    /// Results are waited for.
    Collect(Ticket),
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
        if !self.early.contains_key(&ticket.0) {
            // Ignored when the thread is gone: what it sent before is read below.
            let _ = self.send("collect", Job::Collect(ticket));
        }
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
///
/// A step's results are waited for when they are asked for, or when the next step is to be sampled, whichever is first: by
/// then the device has that step's forward pass to do.
fn serve<D: Device>(runner: Runner<D>, todo: &Receiver<Job>, done: &Sender<Outcome>) {
    let mut served = Served {
        runner,
        done,
        broken: None,
    };
    while let Ok(job) = todo.recv() {
        if served.job(job).is_err() {
            return;
        }
    }
}

struct Served<'a, D> {
    runner: Runner<D>,
    done: &'a Sender<Outcome>,
    broken: Option<ExecutorError>,
}

/// Nobody listens any more.
struct Gone;

impl<D: Device> Served<'_, D> {
    fn job(&mut self, job: Job) -> std::result::Result<(), Gone> {
        match job {
            Job::Launch(plan) => {
                let ticket = plan.ticket;
                if self.broken.is_none()
                    && let Err(e) = self.runner.launch(&plan)
                {
                    self.broken = Some(failed("launch", &e));
                }
                self.refuse(ticket)
            }
            Job::Sample(ticket, masks) => {
                if self.broken.is_some() {
                    return Ok(());
                }
                self.finish_until(None)?;
                if self.broken.is_some() {
                    return self.refuse(ticket);
                }
                if let Err(e) = self.runner.sample(ticket, &masks) {
                    self.broken = Some(failed("sample", &e));
                    return self.refuse(ticket);
                }
                if self.runner.feeds_from_host() {
                    self.finish_until(None)?;
                }
                Ok(())
            }
            Job::Collect(ticket) => {
                self.finish_until(Some(ticket))?;
                // Of a broken device nothing else will come.
                self.refuse(ticket)
            }
        }
    }

    /// Finishes sampled steps, oldest first, up to `last`.
    fn finish_until(&mut self, last: Option<Ticket>) -> std::result::Result<(), Gone> {
        while self.broken.is_none()
            && let Some(ticket) = self.runner.unfinished()
            && last.is_none_or(|last| ticket.0 <= last.0)
        {
            let outcome = self
                .runner
                .finish(ticket)
                .map_err(|e| failed("collect", &e));
            if let Err(error) = &outcome {
                self.broken = Some(error.clone());
            }
            self.done.send((ticket, outcome)).map_err(|_| Gone)?;
        }
        Ok(())
    }

    /// Tells that a step will not come, if the device is broken.
    fn refuse(&self, ticket: Ticket) -> std::result::Result<(), Gone> {
        match &self.broken {
            None => Ok(()),
            Some(error) => self
                .done
                .send((ticket, Err(error.clone())))
                .map_err(|_| Gone),
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
