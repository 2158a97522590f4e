//! Timing of launches.

use std::sync::Arc;

use crate::cuda::driver::{Buffer, Event, Gpu};
use crate::error::Result;

/// Written before each run, so that nothing is found in L2: larger than any.
const FLUSH: usize = 256 << 20;

/// Runs that count, after one that does not.
const RUNS: usize = 11;

/// A stopwatch for launches with a cold L2.
pub(crate) struct Timer {
    gpu: Arc<Gpu>,
    flush: Buffer,
    start: Event,
    end: Event,
}

impl Timer {
    /// Allocates what is written between runs.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Ok(Self {
            flush: gpu.allocate(FLUSH, "timing")?,
            start: gpu.event()?,
            end: gpu.event()?,
            gpu: Arc::clone(gpu),
        })
    }

    /// Median seconds of what `launch` enqueues.
    ///
    /// # Errors
    /// What `launch` says, or the GPU.
    pub(crate) fn time(&self, mut launch: impl FnMut() -> Result<()>) -> Result<f64> {
        launch()?;
        let mut times = Vec::with_capacity(RUNS);
        for run in 0..RUNS {
            self.gpu.fill(self.flush.address(), run as u8, FLUSH)?;
            self.start.record()?;
            launch()?;
            self.end.record()?;
            self.end.wait()?;
            times.push(f64::from(self.end.since(&self.start)?) / 1e3);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[RUNS / 2])
    }

    /// Bytes per second that a large copy within the GPU reads and writes.
    ///
    /// # Errors
    /// When memory is short or the GPU is lost.
    pub(crate) fn bandwidth(&self) -> Result<f64> {
        const BYTES: usize = 1 << 30;
        let from = self.gpu.allocate(BYTES, "measuring bandwidth")?;
        let to = self.gpu.allocate(BYTES, "measuring bandwidth")?;
        self.gpu.fill(from.address(), 0x5a, BYTES)?;
        let seconds = self.time(|| self.gpu.copy(from.address(), to.address(), BYTES))?;
        Ok(2.0 * BYTES as f64 / seconds)
    }
}
