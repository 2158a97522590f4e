//! Log lines of one store: capped, escaped, tagged.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{CallContext, Limits};

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

impl LogLevel {
    fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// Bytes of the last error that are kept to explain a trap.
const LAST_ERROR_BYTES: usize = 1024;

/// Handle of a store's log; the guest's output streams hold others.
#[derive(Clone)]
pub(crate) struct GuestLog {
    module: Arc<str>,
    request: Arc<str>,
    tenant: Arc<str>,
    quota: Arc<Mutex<Quota>>,
}

/// What is left, and the last error line.
struct Quota {
    lines: u32,
    bytes: usize,
    last_error: Option<String>,
    /// Lines since they were last taken, where somebody takes them.
    kept: Option<Vec<String>>,
}

impl GuestLog {
    pub(crate) fn new(module: Arc<str>, context: &CallContext, limits: &Limits) -> Self {
        let quota = Quota {
            lines: limits.log_lines,
            bytes: limits.log_bytes,
            last_error: None,
            kept: None,
        };
        Self {
            module,
            request: Arc::clone(&context.request),
            tenant: Arc::clone(&context.tenant),
            quota: Arc::new(Mutex::new(quota)),
        }
    }

    pub(crate) fn module(&self) -> &str {
        &self.module
    }

    fn quota(&self) -> MutexGuard<'_, Quota> {
        self.quota.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps lines for [`GuestLog::take_lines`].
    pub(crate) fn keep_lines(&self) {
        self.quota().kept = Some(Vec::new());
    }

    /// The lines written since the last time, "level: text".
    pub(crate) fn take_lines(&self) -> Vec<String> {
        self.quota()
            .kept
            .as_mut()
            .map_or_else(Vec::new, std::mem::take)
    }

    /// The last error line, usually a panic message.
    pub(crate) fn take_last_error(&self) -> Option<String> {
        self.quota().last_error.take()
    }

    /// Bytes of an output stream.
    pub(crate) fn write_bytes(&self, level: LogLevel, bytes: &[u8]) {
        // Four bytes may become one replacement character, never fewer; what lies beyond the quota is not decoded.
        let kept = bytes
            .len()
            .min(4 * LAST_ERROR_BYTES.max(self.quota().bytes));
        let text = String::from_utf8_lossy(&bytes[..kept]);
        let text = text.trim_end();
        if !text.is_empty() {
            self.write(level, text);
        }
    }

    /// Writes one line, or drops it when the quota is used up. An error line is always remembered: it costs no more
    /// than its cap and explains the trap that follows a panic.
    pub(crate) fn write(&self, level: LogLevel, message: &str) {
        let mut quota = self.quota();
        if level == LogLevel::Error {
            quota.last_error = Some(escape(clip(message, LAST_ERROR_BYTES)));
        }
        if quota.lines == 0 || quota.bytes == 0 {
            return;
        }
        let text = clip(message, quota.bytes);
        quota.lines -= 1;
        quota.bytes -= text.len().max(1).min(quota.bytes);
        let text = escape(text);
        if let Some(kept) = &mut quota.kept {
            kept.push(format!("{}: {text}", level.name()));
        }
        let (module, request, tenant) = (&*self.module, &*self.request, &*self.tenant);
        match level {
            LogLevel::Debug => tracing::debug!(target: "guest", module, request, tenant, "{text}"),
            LogLevel::Info => tracing::info!(target: "guest", module, request, tenant, "{text}"),
            LogLevel::Warn => tracing::warn!(target: "guest", module, request, tenant, "{text}"),
            LogLevel::Error => tracing::error!(target: "guest", module, request, tenant, "{text}"),
        }
        if quota.lines == 0 || quota.bytes == 0 {
            tracing::warn!(target: "guest", module, request, tenant, "log quota used up; further lines are dropped");
        }
    }
}

/// The longest prefix of at most `bytes` bytes.
fn clip(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// Control characters, and those that reorder text on a terminal, as escapes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            // Writing to a string cannot fail.
            let _ = write!(out, "{}", c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests;
