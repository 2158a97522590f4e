//! Records read back.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::decode::Fields;
use super::{FILE_BYTES, RECORD_VERSION};
use crate::{ComponentError, Limits};

/// Bytes of one line.
const LINE_BYTES: u64 = 256 << 20;
/// Calls of one record.
const CALLS: usize = 1 << 20;

/// Why a record cannot be read or run again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file cannot be read.
    #[error("record {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// The file is of another format.
    #[error("record, line 1: version {found}, this program reads version {RECORD_VERSION}")]
    Version {
        /// What the header says.
        found: String,
    },
    /// A line makes no sense.
    #[error("record, line {line}: {reason}")]
    Line {
        /// From 1.
        line: u64,
        /// What was expected and found.
        reason: String,
    },
    /// A module whose calls were recorded is not at hand.
    #[error(
        "record, line {line}: calls of {role} module {module} (sha256 {digest}), which is not part of this program; give its file"
    )]
    ModuleMissing {
        /// From 1.
        line: u64,
        /// Its role.
        role: String,
        /// Its name.
        module: String,
        /// Hex.
        digest: String,
    },
    /// The guest cannot be run.
    #[error(transparent)]
    Component(#[from] ComponentError),
}

impl RecordError {
    pub(super) fn line(line: u64, reason: impl Into<String>) -> Self {
        Self::Line {
            line,
            reason: reason.into(),
        }
    }
}

/// One guest call of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedCall {
    /// Line of the file, from 1.
    pub line: u64,
    /// Number of the call, from 1.
    pub call: u64,
    /// "chat" or "sampler".
    pub role: String,
    /// Module name.
    pub module: String,
    /// Hex of the SHA-256 of the module's bytes.
    pub digest: String,
    /// Exported function, such as "stepping.step".
    pub function: String,
    /// What went in.
    pub input: Value,
    /// `{"ok": answer}` or `{"error": {"label", "message"}}`.
    pub output: Value,
    /// Log lines, each "level: text".
    pub log: Vec<String>,
}

/// All guest calls of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRun {
    /// Tag of the request.
    pub request: String,
    /// Unix seconds that guests saw.
    pub now: u64,
    /// Seed of guests' random numbers.
    pub seed: u64,
    /// Hex of the engine's compatibility hash.
    pub engine: String,
    /// Of chat sessions.
    pub chat: Limits,
    /// Of plans.
    pub sampler: Limits,
    /// Of steps.
    pub step: Limits,
    /// In the order in which they ended.
    pub calls: Vec<RecordedCall>,
    /// Why the recording ended before the request, if it did.
    pub broken: Option<String>,
}

impl RecordedRun {
    /// Reads a file.
    ///
    /// # Errors
    /// Says which line makes no sense, and what was expected.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let failed = |reason: String| RecordError::File {
            path: path.to_owned(),
            reason,
        };
        let file = File::open(path).map_err(|error| failed(error.to_string()))?;
        let size = file.metadata().map(|meta| meta.len());
        let most = FILE_BYTES as u64 + (1 << 20);
        match size {
            Ok(size) if size > most => {
                return Err(failed(format!("{size} bytes, expected at most {most}")));
            }
            Ok(_) => {}
            Err(error) => return Err(failed(error.to_string())),
        }
        Self::read(BufReader::new(file))
    }

    /// Reads lines.
    ///
    /// # Errors
    /// As [`RecordedRun::open`].
    pub fn read(mut from: impl BufRead) -> Result<Self, RecordError> {
        let mut number = 0;
        let mut next = || -> Result<Option<(u64, Value)>, RecordError> {
            number += 1;
            line(&mut from, number).map(|value| value.map(|value| (number, value)))
        };
        let Some((_, first)) = next()? else {
            return Err(RecordError::line(1, "the file is empty"));
        };
        let mut run = header(&first)?;
        loop {
            let Some((line, value)) = next()? else {
                let last = run.calls.last().map_or(1, |call| call.line);
                return Err(RecordError::line(
                    last,
                    "the record ends after this line, without its end line: it was cut off",
                ));
            };
            if value.get("end").is_some() {
                let count = run.calls.len() as u64;
                let end = Fields::of(&value).whole("end");
                match end {
                    Ok(end) if end == count || value.get("broken").is_some() => {}
                    Ok(end) => {
                        let reason = format!("the end line says {end} calls, found {count}");
                        return Err(RecordError::line(line, reason));
                    }
                    Err(reason) => return Err(RecordError::line(line, reason)),
                }
                let broken = value.get("broken").and_then(Value::as_str);
                run.broken = broken.map(str::to_owned);
                if next()?.is_some() {
                    let reason = "more lines after the end line";
                    return Err(RecordError::line(line + 1, reason));
                }
                return Ok(run);
            }
            if run.calls.len() == CALLS {
                let reason = format!("more than {CALLS} calls");
                return Err(RecordError::line(line, reason));
            }
            let found = call(line, &value).map_err(|reason| RecordError::line(line, reason))?;
            let expected = run.calls.len() as u64 + 1;
            if found.call != expected {
                let reason = format!("call {}, expected call {expected}", found.call);
                return Err(RecordError::line(line, reason));
            }
            run.calls.push(found);
        }
    }
}

fn line(from: &mut impl BufRead, number: u64) -> Result<Option<Value>, RecordError> {
    let mut bytes = Vec::new();
    let read = from.take(LINE_BYTES).read_until(b'\n', &mut bytes);
    read.map_err(|error| RecordError::line(number, error.to_string()))?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() as u64 == LINE_BYTES {
        let reason = format!("the line is longer than {LINE_BYTES} bytes");
        return Err(RecordError::line(number, reason));
    }
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_eof() => Err(RecordError::line(
            number,
            format!(
                "the line ends too early at byte {}: it was cut off",
                bytes.len()
            ),
        )),
        Err(error) => Err(RecordError::line(number, format!("no JSON: {error}"))),
    }
}

fn header(value: &Value) -> Result<RecordedRun, RecordError> {
    let wrong = |reason| RecordError::line(1, reason);
    let version = value.get("guesthouse-record");
    let version = version
        .ok_or_else(|| wrong("no record: the key guesthouse-record is missing".to_owned()))?;
    if version.as_u64() != Some(RECORD_VERSION) {
        return Err(RecordError::Version {
            found: version.to_string().chars().take(64).collect(),
        });
    }
    let fields = Fields::of(value);
    let limits = |name| limits(fields.inner("limits")?.inner(name)?);
    let read = || -> Result<RecordedRun, String> {
        Ok(RecordedRun {
            request: fields.text("request")?.to_owned(),
            now: fields.whole("now")?,
            seed: fields.whole("seed")?,
            engine: fields.text("engine")?.to_owned(),
            chat: limits("chat")?,
            sampler: limits("sampler")?,
            step: limits("step")?,
            calls: Vec::new(),
            broken: None,
        })
    };
    read().map_err(wrong)
}

/// Bounded by what a host that replays is ready to give.
fn limits(fields: Fields<'_>) -> Result<Limits, String> {
    let size = |name: &str, most: u64| -> Result<usize, String> {
        let found = fields.whole(name)?;
        if found > most {
            return Err(format!("{name}: {found}, expected at most {most}"));
        }
        usize::try_from(found).map_err(|error| format!("{name}: {error}"))
    };
    let fuel = size("fuel", 1 << 50)? as u64;
    Ok(Limits {
        memory: size("memory", 1 << 32)?,
        transfer: size("transfer", 1 << 32)?,
        handles: size("handles", 1 << 20)?,
        resources: size("resources", 1 << 20)?,
        log_lines: fields.small("log_lines")?,
        log_bytes: size("log_bytes", 1 << 30)?,
        cpu: Limits::cpu_of(fuel),
        ..Limits::sampler()
    })
}

fn call(line: u64, value: &Value) -> Result<RecordedCall, String> {
    let fields = Fields::of(value);
    let output = match (value.get("ok"), value.get("error")) {
        (Some(ok), None) => serde_json::json!({ "ok": ok }),
        (None, Some(error)) => serde_json::json!({ "error": error }),
        _ => return Err("expected one of the fields \"ok\" and \"error\"".to_owned()),
    };
    let log = fields.get("log")?.as_array();
    let log = log.and_then(|lines| {
        let text = |line: &Value| Some(line.as_str()?.to_owned());
        lines.iter().map(text).collect()
    });
    Ok(RecordedCall {
        line,
        call: fields.whole("call")?,
        role: fields.text("role")?.to_owned(),
        module: fields.text("module")?.to_owned(),
        digest: fields.text("digest")?.to_owned(),
        function: fields.text("function")?.to_owned(),
        input: fields.get("in")?.clone(),
        output,
        log: log.ok_or("log: expected strings")?,
    })
}
