//! Limits and switches of the HTTP server.

use super::trace::{AccessLog, Traces};
use super::{Access, ApiKeys, Directory};
use std::sync::Arc;
use std::time::Duration;

/// Settings of the HTTP server.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Keys of the command line, of which a client must show one.
    pub api_keys: ApiKeys,
    /// Tenants with keys of their own, beside those.
    pub directory: Option<Arc<dyn Directory>>,
    /// Keys that read all of `/metrics` and `/health`, and nothing else.
    pub admin_keys: ApiKeys,
    /// Whether keys are asked for.
    pub access: Access,
    /// Largest body read, bytes.
    pub max_body_bytes: usize,
    /// Longest time for a body to arrive.
    pub body_timeout: Duration,
    /// Longest time for a request's headers to arrive, and for an idle connection to stay.
    pub header_timeout: Duration,
    /// Longest time that a client may leave the answer unread.
    pub write_timeout: Duration,
    /// Most header fields.
    pub max_headers: usize,
    /// Most bytes of headers.
    pub max_header_bytes: usize,
    /// Most connections. At that many, those that are idle for longest give way to new ones; where none is idle, new ones
    /// wait in the listener's queue.
    pub max_connections: usize,
    /// Longest time that running requests may take after shutdown began.
    pub drain_timeout: Duration,
    /// An engine that has work but ends no step for so long counts as stuck.
    pub stuck_after: Duration,
    /// A comment is sent on a stream that was silent for so long.
    pub keep_alive: Duration,
    /// Told to clients when the queue is full, seconds.
    pub retry_after: u32,
    /// Web pages that may use the API.
    pub cors: CorsOrigins,
    /// Whether a line is logged for each request.
    pub access_log: AccessLog,
    /// Where a span of each request goes, if anywhere.
    pub traces: Option<Traces>,
    /// Characters of each request's body that are logged, control characters escaped; none is the default.
    pub log_bodies: Option<usize>,
    /// Most choices per prompt.
    pub max_n: u32,
    /// Most sequences per request: prompts times choices.
    pub max_sequences: usize,
    /// Most alternatives per log-probability (vLLM's `--max-logprobs`).
    pub max_logprobs: u32,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            api_keys: ApiKeys::default(),
            directory: None,
            admin_keys: ApiKeys::default(),
            access: Access::Keys,
            max_body_bytes: 8 << 20,
            body_timeout: Duration::from_secs(60),
            header_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(120),
            max_headers: 100,
            max_header_bytes: 64 << 10,
            max_connections: 16_384,
            drain_timeout: Duration::from_secs(120),
            stuck_after: Duration::from_secs(60),
            keep_alive: Duration::from_secs(15),
            retry_after: 1,
            cors: CorsOrigins::None,
            access_log: AccessLog::Requests,
            traces: None,
            log_bodies: None,
            max_n: 128,
            max_sequences: 256,
            max_logprobs: 20,
        }
    }
}

/// Which web pages may use the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CorsOrigins {
    /// None: no CORS headers are sent.
    #[default]
    None,
    /// All.
    Any,
    /// These, such as `https://chat.example`.
    These(Vec<String>),
}
