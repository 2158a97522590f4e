//! What the administrator writes: references, registries, hosts.

use super::{OciError, SCHEME};
use axum::http::uri::Authority;
use oci_client::Reference;
use std::fmt;
use std::str::FromStr;

/// An artifact of a registry, by its digest: `oci://registry/repository@sha256:DIGEST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedReference {
    reference: Reference,
    /// `sha256:` and 64 hexadecimal digits in lower case.
    digest: String,
}

impl PinnedReference {
    pub(super) fn reference(&self) -> &Reference {
        &self.reference
    }

    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// Host, and port where one is given.
    #[must_use]
    pub fn registry(&self) -> &str {
        self.reference.registry()
    }
}

impl FromStr for PinnedReference {
    type Err = OciError;

    fn from_str(text: &str) -> Result<Self, OciError> {
        let refuse = |what: &str| OciError::Reference {
            found: text.chars().take(300).collect(),
            what: what.to_owned(),
        };
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return Err(refuse("it does not begin with oci://"));
        };
        // Without it, the first part of a path would be looked for at Docker Hub.
        let registry = rest.split_once('/').map_or("", |(registry, _)| registry);
        if !registry.contains(['.', ':']) && registry != "localhost" {
            return Err(refuse("it does not name a registry"));
        }
        let reference: Reference = rest
            .parse()
            .map_err(|error: oci_client::ParseError| refuse(&error.to_string()))?;
        let digest = match reference.digest() {
            Some(digest) if is_sha256(digest) => digest.to_owned(),
            Some(_) => return Err(refuse("its digest is not sha256: and 64 of 0-9 and a-f")),
            None => {
                return Err(refuse(
                    "it has no digest; what a tag means can change, so modules are pinned by @sha256:",
                ));
            }
        };
        Ok(Self { reference, digest })
    }
}

impl fmt::Display for PinnedReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.reference)
    }
}

/// Whether it is `sha256:` and 64 hexadecimal digits in lower case.
pub(super) fn is_sha256(digest: &str) -> bool {
    let hex = digest.strip_prefix("sha256:");
    let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    hex.is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_digit))
}

/// A host as URLs have it, in lower case, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// A name, or an address (of IPv6 without brackets).
    pub host: String,
    /// The port.
    pub port: u16,
}

impl HostPort {
    pub(super) fn new(host: &str, port: u16) -> Self {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Self {
            host: host.trim_end_matches('.').to_ascii_lowercase(),
            port,
        }
    }

    fn parse(text: &str, default: u16) -> Option<Self> {
        let authority: Authority = text.parse().ok()?;
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            None => default,
        };
        let host = authority.host();
        // No user, no trailing colon.
        let whole = text == host || text == format!("{host}:{port}");
        (whole && !host.is_empty() && port != 0).then(|| Self::new(host, port))
    }
}

impl FromStr for HostPort {
    type Err = OciError;

    /// The port is 443 where none is given.
    fn from_str(text: &str) -> Result<Self, OciError> {
        Self::parse(text, HTTPS).ok_or_else(|| OciError::Host {
            found: text.to_owned(),
            also: "",
        })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// How to speak to a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// With TLS.
    Https,
    /// Without.
    Plain,
}

const HTTP: u16 = 80;
const HTTPS: u16 = 443;

impl Transport {
    fn port(self) -> u16 {
        match self {
            Self::Https => HTTPS,
            Self::Plain => HTTP,
        }
    }
}

/// A registry that modules may come from: `HOST[:PORT]`, or `http://HOST[:PORT]` for one without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryAddress {
    /// How to speak to it.
    pub transport: Transport,
    /// Where it is.
    pub at: HostPort,
}

impl RegistryAddress {
    /// Whether a reference's registry is this one.
    pub(super) fn is(&self, registry: &str) -> bool {
        HostPort::parse(registry, self.transport.port()).as_ref() == Some(&self.at)
    }
}

impl FromStr for RegistryAddress {
    type Err = OciError;

    fn from_str(text: &str) -> Result<Self, OciError> {
        let (transport, rest) = match text.strip_prefix("http://") {
            Some(rest) => (Transport::Plain, rest),
            None => (
                Transport::Https,
                text.strip_prefix("https://").unwrap_or(text),
            ),
        };
        let at = HostPort::parse(rest, transport.port()).ok_or_else(|| OciError::Host {
            found: text.to_owned(),
            also: ", or http://HOST:PORT for a registry without TLS",
        })?;
        Ok(Self { transport, at })
    }
}

impl fmt::Display for RegistryAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport {
            Transport::Https => self.at.fmt(f),
            Transport::Plain => write!(f, "http://{}", self.at),
        }
    }
}
