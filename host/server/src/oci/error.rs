//! Why there is no module from a registry.

use super::PinnedReference;
use crate::printable::printable;
use std::net::IpAddr;

/// Most characters of what a registry says.
const SHOWN: usize = 500;

/// Why a module was not pulled. For the administrator alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OciError {
    /// The reference cannot be read, or pins nothing.
    #[error(
        "{found:?} is no reference to a module: {what}; expected oci://registry/repository@sha256:DIGEST"
    )]
    Reference {
        /// As written.
        found: String,
        /// What is wrong with it.
        what: String,
    },
    /// A host and port cannot be read.
    #[error("{found:?} is no registry or host: expected HOST or HOST:PORT{also}")]
    Host {
        /// As written.
        found: String,
        /// What else is taken.
        also: &'static str,
    },
    /// No module may come from there.
    #[error(
        "the registry {registry} is not allowed ({allowed}); start the server with --oci-registry {registry}"
    )]
    Registry {
        /// As the reference has it.
        registry: String,
        /// Those that are.
        allowed: String,
    },
    /// A connection would go to an address where none may go.
    #[error(
        "a connection to {host}:{port} is refused: it is at {address}, which is {what}{}",
        if *.openable { format!("; if that is meant, start the server with --oci-private {host}:{port}") } else { String::new() }
    )]
    Address {
        /// As the URL has it.
        host: String,
        /// Likewise.
        port: u16,
        /// What it was looked up to.
        address: IpAddr,
        /// What kind of address.
        what: &'static str,
        /// Whether the administrator can allow it.
        openable: bool,
    },
    /// A URL without TLS, of another host than the registry.
    #[error(
        "a connection without TLS to {host}:{port} is refused; only registries of --oci-registry http://HOST:PORT have none"
    )]
    Plain {
        /// As the URL has it.
        host: String,
        /// Likewise.
        port: u16,
    },
    /// The host cannot be reached.
    #[error("{host}:{port} cannot be reached: {what}")]
    Unreachable {
        /// As the URL has it.
        host: String,
        /// Likewise.
        port: u16,
        /// Why.
        what: String,
    },
    /// The registry sent more than its answers may take.
    #[error("{host} sent more than the {limit} bytes that its answers may take")]
    Flood {
        /// Who.
        host: String,
        /// The limit.
        limit: u64,
    },
    /// The registry does not give it, or breaks the protocol.
    #[error("{reference}: {what}")]
    Failed {
        /// What was asked for.
        reference: String,
        /// What the registry or the connection did.
        what: String,
    },
    /// Other bytes than were pinned.
    #[error("{reference}: the registry sent bytes of digest {found}, expected {expected}")]
    Digest {
        /// What was asked for.
        reference: String,
        /// What was pinned, by the reference or by the manifest.
        expected: String,
        /// What came.
        found: String,
    },
    /// The artifact is no WebAssembly module.
    #[error("{reference} is no WebAssembly artifact: {what}")]
    Artifact {
        /// What was asked for.
        reference: String,
        /// What is wrong with it.
        what: String,
    },
    /// The module is too large.
    #[error("{reference}: the module is larger than the limit of {limit} bytes")]
    TooLarge {
        /// What was asked for.
        reference: String,
        /// The limit.
        limit: u64,
    },
    /// It took too long.
    #[error("{reference} did not arrive within {seconds} s")]
    Timeout {
        /// What was asked for.
        reference: String,
        /// The limit.
        seconds: u64,
    },
    /// The client or its way out cannot be made here.
    #[error("no connection to registries can be made: {0}")]
    Client(String),
}

impl OciError {
    pub(super) fn failed(from: &PinnedReference, error: &dyn std::error::Error) -> Self {
        Self::Failed {
            reference: from.to_string(),
            what: shown(&chain(error)),
        }
    }
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// What a registry says, cut and without control characters.
pub(super) fn shown(text: &str) -> String {
    printable(&text.chars().take(SHOWN).collect::<String>())
}
