//! What several tests need.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::{DefaultGuard, set_default, with_default};
use tracing_subscriber::fmt::MakeWriter;

/// Takes down what this thread logs, as JSON lines.
#[derive(Clone, Default)]
pub(crate) struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    fn subscriber(&self) -> impl tracing::Subscriber + Send + Sync + use<> {
        tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .with_max_level(LevelFilter::DEBUG)
            .with_writer(self.clone())
            .finish()
    }

    /// While `work` runs.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        with_default(self.subscriber(), work)
    }

    /// Until the guard is dropped.
    pub(crate) fn start(&self) -> DefaultGuard {
        set_default(self.subscriber())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The lines with this message.
    pub(crate) fn lines(&self, message: &str) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines
            .filter(|line: &Value| line["message"] == message)
            .collect()
    }
}

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Logs {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
