//! Decode steps as CUDA graphs: one per bucket of rows, captured when the bucket is met for the second time.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::driver::{Gpu, failed};
use crate::error::Result;

/// Rows of a bucket: 1, 2, 4, then multiples of 8, of 16 from 64 on, and of 32 from 256 on.
pub(crate) fn bucket(rows: u32) -> u32 {
    match rows {
        0..=2 => rows.max(1),
        3..=4 => 4,
        5..=64 => rows.next_multiple_of(8),
        65..=256 => rows.next_multiple_of(16),
        _ => rows.next_multiple_of(32),
    }
}

/// A captured step.
struct Captured {
    exec: sys::CUgraphExec,
}

// SAFETY: a graph may be launched from any thread in which its context is current.
unsafe impl Send for Captured {}

enum State {
    /// Ran once kernel by kernel: everything that only a first run does is done.
    Seen,
    Captured(Captured),
}

/// The graphs of one model.
pub(crate) struct Graphs {
    gpu: Arc<Gpu>,
    buckets: BTreeMap<u32, State>,
}

impl Graphs {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            buckets: BTreeMap::new(),
        }
    }

    /// Runs a bucket's step: `enqueue` kernel by kernel the first time, captured the second, replayed from then on.
    ///
    /// # Errors
    /// What `enqueue` says, or the driver.
    pub(crate) fn run(&mut self, bucket: u32, enqueue: impl Fn() -> Result<()>) -> Result<()> {
        match self.buckets.get(&bucket) {
            None => {
                enqueue()?;
                self.buckets.insert(bucket, State::Seen);
                return Ok(());
            }
            Some(State::Seen) => {
                match self.capture(&enqueue) {
                    Ok(captured) => self.buckets.insert(bucket, State::Captured(captured)),
                    // What other threads ask of the driver meanwhile, as when they load a model, may end a capture.
                    Err(error) => {
                        tracing::debug!(%error, "not captured; to be tried again");
                        return enqueue();
                    }
                };
            }
            Some(State::Captured(_)) => {}
        }
        let Some(State::Captured(graph)) = self.buckets.get(&bucket) else {
            return enqueue();
        };
        // SAFETY: the graph is instantiated, and what its kernels use lives as long as the device.
        unsafe { result::graph::launch(graph.exec, self.gpu.stream()) }
            .map_err(failed("launching a graph"))
    }

    fn capture(&self, enqueue: impl Fn() -> Result<()>) -> Result<Captured> {
        let stream = self.gpu.stream();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive; capture is ended below in every case.
        unsafe { result::stream::begin_capture(stream, mode) }
            .map_err(failed("capturing a graph"))?;
        let enqueued = enqueue();
        // SAFETY: capture was begun above.
        let graph = unsafe { result::stream::end_capture(stream) };
        enqueued?;
        let graph = graph.map_err(failed("capturing a graph"))?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph was just captured; it is not needed once instantiated.
        let status = unsafe {
            let status = sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0);
            let _ = result::graph::destroy(graph);
            status
        };
        status.result().map_err(failed("instantiating a graph"))?;
        Ok(Captured { exec })
    }
}

impl Drop for Graphs {
    fn drop(&mut self) {
        if self.gpu.bind().is_err() || self.gpu.synchronize().is_err() {
            return;
        }
        for state in self.buckets.values() {
            if let State::Captured(graph) = state {
                // SAFETY: instantiated by `capture`, destroyed once, not running.
                let _ = unsafe { result::graph::exec_destroy(graph.exec) };
            }
        }
    }
}
