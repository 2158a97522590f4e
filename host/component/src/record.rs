//! Every guest call of one request, written down so that it can be run again without model or device.
//!
//! Recorded requests run on a [`Runtime`](crate::Runtime) with [`Clock::Fuel`](crate::Clock::Fuel), whose guests compute the same everywhere. The
//! format is documented in docs/samplers-record-format.md.
//!
//! - [`Recorder`]: writes, line by line; `encode`: calls as JSON;
//! - [`RecordedRun`]: a file read back; `decode`: JSON as calls;
//! - [`ReplayReport`]: what running it again showed; `compare`: the first difference.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};

use crate::guest_log::GuestLog;
use crate::{CallContext, ComponentError, Limits, Module, Role, Runtime};

mod compare;
mod decode;
pub(crate) mod encode;
mod read;
mod replay;

pub use compare::Difference;
pub use read::{RecordError, RecordedCall, RecordedRun};
pub use replay::ReplayReport;

/// Version of the format; the value of a file's first key.
pub const RECORD_VERSION: u64 = 1;
/// Bytes of a file after which nothing more is written but its end.
const FILE_BYTES: usize = 1 << 30;

/// Takes down the guest calls of one request. Clones write to the same place; the end is written when the last is dropped.
#[derive(Clone)]
pub struct Recorder(Arc<Mutex<Inner>>);

struct Inner {
    to: To,
    /// Bytes that may still be written.
    left: usize,
    calls: u64,
    /// Why writing ended early.
    broken: Option<String>,
}

enum To {
    File(BufWriter<File>),
    Memory(Vec<Value>),
}

impl Recorder {
    /// Writes to a new file. `runtime` and `context` are those that the request's guests will have.
    ///
    /// # Errors
    /// When the file exists or cannot be written.
    pub fn create(path: &Path, runtime: &Runtime, context: &CallContext) -> io::Result<Self> {
        let file = File::options().write(true).create_new(true).open(path);
        let file = file.map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        let recorder = Self::to(To::File(BufWriter::new(file)));
        recorder.inner().line(&header(runtime, context));
        let broken = recorder.broken();
        match broken {
            None => Ok(recorder),
            Some(reason) => {
                drop(recorder);
                // It holds nothing.
                drop(std::fs::remove_file(path));
                Err(io::Error::other(format!("{}: {reason}", path.display())))
            }
        }
    }

    pub(crate) fn in_memory() -> Self {
        Self::to(To::Memory(Vec::new()))
    }

    fn to(to: To) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            to,
            left: FILE_BYTES,
            calls: 0,
            broken: None,
        })))
    }

    /// Why the record is not complete, if it is not.
    #[must_use]
    pub fn broken(&self) -> Option<String> {
        self.inner().broken.clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls recorded in memory since the last time.
    pub(crate) fn take(&self) -> Vec<Value> {
        match &mut self.inner().to {
            To::File(_) => Vec::new(),
            To::Memory(calls) => std::mem::take(calls),
        }
    }
}

impl PartialEq for Recorder {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Recorder {}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorder({} calls)", self.inner().calls)
    }
}

impl Inner {
    fn line(&mut self, value: &Value) {
        if self.broken.is_some() {
            return;
        }
        match &mut self.to {
            To::Memory(calls) => calls.push(value.clone()),
            To::File(file) => {
                let mut text = value.to_string();
                text.push('\n');
                if text.len() > self.left {
                    self.broken = Some(format!("the record is longer than {FILE_BYTES} bytes"));
                    return;
                }
                self.left -= text.len();
                let written = file.write_all(text.as_bytes()).and_then(|()| file.flush());
                if let Err(error) = written {
                    self.broken = Some(format!("cannot be written: {error}"));
                }
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let end = match self.broken.take() {
            None => json!({ "end": self.calls }),
            Some(reason) => json!({ "end": self.calls, "broken": reason }),
        };
        if let To::File(file) = &mut self.to {
            // Nothing is left to tell; a reader finds the end missing.
            drop(writeln!(file, "{end}").and_then(|()| file.flush()));
        }
    }
}

fn header(runtime: &Runtime, context: &CallContext) -> Value {
    let config = &runtime.config;
    json!({
        "guesthouse-record": RECORD_VERSION,
        "request": &*context.request,
        "now": context.now,
        "seed": context.seed,
        "engine": runtime.compatibility(),
        "limits": {
            "chat": limits(&config.chat),
            "sampler": limits(&config.sampler),
            "step": limits(&config.step),
        },
    })
}

fn limits(limits: &Limits) -> Value {
    json!({
        "memory": limits.memory,
        "transfer": limits.transfer,
        "handles": limits.handles,
        "resources": limits.resources,
        "log_lines": limits.log_lines,
        "log_bytes": limits.log_bytes,
        "fuel": limits.fuel(),
    })
}

/// Takes down the calls of one store.
pub(crate) struct Recording {
    recorder: Recorder,
    log: GuestLog,
    module: Arc<Module>,
}

impl Recording {
    /// Where the context asks for it. `log` is the store's.
    pub(crate) fn of(context: &CallContext, log: &GuestLog, module: &Arc<Module>) -> Option<Self> {
        Some(Self {
            recorder: context.recorder.clone()?,
            log: log.clone(),
            module: Arc::clone(module),
        })
    }

    /// A call that ended: what went in, what came out, and what it logged.
    pub(crate) fn call<T>(
        &self,
        function: &'static str,
        input: Value,
        answer: &Result<T, ComponentError>,
        encode: impl FnOnce(&T) -> Value,
    ) {
        let (outcome, value) = match answer {
            Ok(answer) => ("ok", encode(answer)),
            Err(error) => {
                let (label, message) = (error.label(), error.to_string());
                ("error", json!({ "label": label, "message": message }))
            }
        };
        let log: Vec<Value> = self.log.take_lines().into_iter().map(Value::from).collect();
        let mut inner = self.recorder.inner();
        inner.calls += 1;
        let mut call = Map::new();
        call.insert("call".into(), inner.calls.into());
        call.insert("role".into(), role_name(self.module.role()).into());
        call.insert("module".into(), self.module.name().into());
        call.insert("digest".into(), self.module.digest().to_string().into());
        call.insert("function".into(), function.into());
        call.insert("in".into(), input);
        call.insert(outcome.into(), value);
        call.insert("log".into(), log.into());
        inner.line(&Value::Object(call));
    }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Graph => "graph",
        Role::Chat => "chat",
        Role::Sampler => "sampler",
    }
}

#[cfg(test)]
mod tests;
