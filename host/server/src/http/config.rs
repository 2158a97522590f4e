//! Limits and switches of the HTTP server.

use guesthouse_engine::CacheSalt;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// Settings of the HTTP server.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Keys of which a client must show one; none set lets everyone in.
    pub api_keys: ApiKeys,
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
    /// Most connections; more wait in the listener's queue.
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
    /// Most choices per prompt.
    pub max_n: u32,
    /// Most alternatives per log-probability (vLLM's `--max-logprobs`).
    pub max_logprobs: u32,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            api_keys: ApiKeys::default(),
            max_body_bytes: 8 << 20,
            body_timeout: Duration::from_secs(60),
            header_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(120),
            max_headers: 100,
            max_header_bytes: 64 << 10,
            max_connections: 4096,
            drain_timeout: Duration::from_secs(120),
            stuck_after: Duration::from_secs(60),
            keep_alive: Duration::from_secs(15),
            retry_after: 1,
            cors: CorsOrigins::None,
            max_n: 128,
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

/// Accepted API keys, as SHA-256 digests.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<[u8; 32]>);

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({} keys)", self.0.len())
    }
}

impl ApiKeys {
    /// Keys as the administrator wrote them; empty ones are passed over.
    pub fn new<S: AsRef<str>>(keys: impl IntoIterator<Item = S>) -> Self {
        let keys = keys.into_iter().filter(|key| !key.as_ref().is_empty());
        Self(
            keys.map(|key| Sha256::digest(key.as_ref().as_bytes()).into())
                .collect(),
        )
    }

    /// Whether everyone may come in.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose key `shown` is, if it is one. Takes as long for a wrong key as for a right one.
    #[must_use]
    pub fn tenant(&self, shown: &str) -> Option<Tenant> {
        let digest: [u8; 32] = Sha256::digest(shown.as_bytes()).into();
        let found = self.0.iter().fold(false, |found, key| {
            let differing = key
                .iter()
                .zip(&digest)
                .fold(0, |bits, (a, b)| bits | (a ^ b));
            found | (std::hint::black_box(differing) == 0)
        });
        found.then_some(Tenant(digest))
    }
}

/// Who asks: the digest of the key shown, or zeros where everyone may come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenant([u8; 32]);

impl Tenant {
    /// Root of prefix-cache keys: requests share blocks only within one tenant, and with equal `cache_salt` fields.
    #[must_use]
    pub fn salt(&self, model: CacheSalt, client: Option<&str>) -> CacheSalt {
        let mut hash = Sha256::new();
        hash.update(model.0);
        hash.update(self.0);
        hash.update(client.unwrap_or_default().as_bytes());
        CacheSalt(hash.finalize().into())
    }
}
