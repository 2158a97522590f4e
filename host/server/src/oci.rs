//! Modules from OCI registries, for the administrator: WebAssembly artifacts by digest.
//!
//! - [`PinnedReference`], [`HostPort`], [`RegistryAddress`]: what the administrator writes;
//! - [`Registries`]: where modules may come from, and the pull;
//! - `address`: what kind of network an address is of;
//! - `gate`: the only way out of a pull, a proxy on loopback that connects to the addresses it has checked.
//!
//! Format: <https://tag-runtime.cncf.io/wgs/wasm/deliverables/wasm-oci-artifact/>.

mod address;
mod error;
mod gate;
mod reference;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use error::OciError;
pub use reference::{HostPort, PinnedReference, RegistryAddress, Transport};

use futures::TryStreamExt as _;
use gate::Gate;
use guesthouse_component::ModuleDigest;
use oci_client::Client;
use oci_client::client::{Certificate, CertificateEncoding, ClientConfig, ClientProtocol};
use oci_client::manifest::{OCI_IMAGE_MEDIA_TYPE, OciDescriptor, OciImageManifest};
use oci_client::secrets::RegistryAuth;
use std::sync::Arc;
use std::time::Duration;

/// How references begin.
pub const SCHEME: &str = "oci://";
/// Media type of the artifact's one layer.
const LAYER: &str = "application/wasm";
/// Media type of the artifact's configuration.
const CONFIG: &str = "application/vnd.wasm.config.v0+json";
/// Largest manifest, bytes: what registries must take.
const MANIFEST: u64 = 4 << 20;
/// Beside manifest or layer: headers, handshakes, tokens, redirects; bytes.
const OVERHEAD: u64 = 1 << 20;

/// What is allowed; by default nothing is.
#[derive(Clone, Debug)]
pub struct OciConfig {
    /// Registries that modules may come from.
    pub registries: Vec<RegistryAddress>,
    /// Where connections to private addresses may go, by the name and port that URLs have.
    pub private: Vec<HostPort>,
    /// Further authorities of certificates, PEM.
    pub authorities: Vec<Vec<u8>>,
    /// Longest time to look a name up, and to connect.
    pub connect: Duration,
    /// Longest time for all of a pull.
    pub total: Duration,
}

impl Default for OciConfig {
    fn default() -> Self {
        Self {
            registries: Vec::new(),
            private: Vec::new(),
            authorities: Vec::new(),
            connect: Duration::from_secs(10),
            total: Duration::from_secs(300),
        }
    }
}

/// Where modules may come from. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Registries(Arc<OciConfig>);

impl Registries {
    /// As configured.
    #[must_use]
    pub fn new(config: OciConfig) -> Self {
        Self(Arc::new(config))
    }

    /// The module of an artifact, at most `limit` bytes of it.
    ///
    /// # Errors
    /// When its registry is not allowed, it is not what was pinned, larger, late, or no module; or a connection would go to
    /// where none may.
    pub async fn pull(&self, from: &PinnedReference, limit: u64) -> Result<Vec<u8>, OciError> {
        let registry = self.allowed(from)?;
        let total = self.0.total;
        let pulled = tokio::time::timeout(total, self.pull_from(registry, from, limit)).await;
        pulled.unwrap_or(Err(OciError::Timeout {
            reference: from.to_string(),
            seconds: total.as_secs(),
        }))
    }

    fn allowed(&self, from: &PinnedReference) -> Result<&RegistryAddress, OciError> {
        let all = &self.0.registries;
        let found = all.iter().find(|registry| registry.is(from.registry()));
        found.ok_or_else(|| OciError::Registry {
            registry: from.registry().to_owned(),
            allowed: match all.as_slice() {
                [] => "none is".to_owned(),
                all => all
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(", "),
            },
        })
    }

    async fn pull_from(
        &self,
        registry: &RegistryAddress,
        from: &PinnedReference,
        limit: u64,
    ) -> Result<Vec<u8>, OciError> {
        let gate = Gate::open(Arc::clone(&self.0), registry).await?;
        let pulled = self.through(&gate, registry, from, limit).await;
        // What the client has seen of it is a broken connection.
        match (gate.refused(), pulled) {
            (_, Err(error @ OciError::TooLarge { .. })) => Err(error),
            (Some(refused), _) => Err(refused),
            (None, Err(error @ OciError::Failed { .. })) => Err(gate.strayed().unwrap_or(error)),
            (None, pulled) => pulled,
        }
    }

    async fn through(
        &self,
        gate: &Gate,
        registry: &RegistryAddress,
        from: &PinnedReference,
        limit: u64,
    ) -> Result<Vec<u8>, OciError> {
        let client = self.client(gate, registry)?;
        let failed =
            |error: oci_client::errors::OciDistributionError| OciError::failed(from, &error);
        gate.allow(MANIFEST + OVERHEAD);
        let pulling = client.pull_manifest_raw(
            from.reference(),
            &RegistryAuth::Anonymous,
            &[OCI_IMAGE_MEDIA_TYPE],
        );
        let (manifest, _) = pulling.await.map_err(failed)?;
        is_pinned(from, &manifest, from.digest())?;
        let layer = layer(from, &manifest, limit)?;
        gate.allow(limit + limit / 4 + OVERHEAD);
        let pulling = client.pull_blob_stream(from.reference(), &layer);
        let mut stream = pulling.await.map_err(failed)?.stream;
        let mut bytes = Vec::new();
        let failed = |error: std::io::Error| OciError::failed(from, &error);
        while let Some(part) = stream.try_next().await.map_err(failed)? {
            if (bytes.len() + part.len()) as u64 > limit {
                return Err(OciError::TooLarge {
                    reference: from.to_string(),
                    limit,
                });
            }
            bytes.extend_from_slice(&part);
        }
        is_pinned(from, &bytes, &layer.digest)?;
        Ok(bytes)
    }

    fn client(&self, gate: &Gate, registry: &RegistryAddress) -> Result<Client, OciError> {
        // One that another part of this process installed does as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let authorities = self.0.authorities.iter().map(|pem| Certificate {
            encoding: CertificateEncoding::Pem,
            data: pem.clone(),
        });
        let config = ClientConfig {
            protocol: match registry.transport {
                Transport::Https => ClientProtocol::Https,
                Transport::Plain => ClientProtocol::Http,
            },
            extra_root_certificates: authorities.collect(),
            platform_resolver: None,
            user_agent: concat!("guesthouse/", env!("CARGO_PKG_VERSION")),
            https_proxy: Some(gate.proxy()),
            http_proxy: Some(gate.proxy()),
            ..ClientConfig::default()
        };
        Client::try_from(config).map_err(|error| OciError::Client(error::chain(&error)))
    }
}

/// Whether bytes have the digest, `sha256:` and hexadecimal digits.
fn is_pinned(from: &PinnedReference, bytes: &[u8], expected: &str) -> Result<(), OciError> {
    let found = format!("sha256:{}", ModuleDigest::of(bytes));
    if found == expected {
        return Ok(());
    }
    Err(OciError::Digest {
        reference: from.to_string(),
        expected: expected.to_owned(),
        found,
    })
}

/// The artifact's one layer.
fn layer(from: &PinnedReference, manifest: &[u8], limit: u64) -> Result<OciDescriptor, OciError> {
    let refuse = |what: String| OciError::Artifact {
        reference: from.to_string(),
        what: error::shown(&what),
    };
    let manifest: OciImageManifest = serde_json::from_slice(manifest).map_err(|error| {
        refuse(format!(
            "its manifest is no image manifest ({error}); pin an artifact, not an index"
        ))
    })?;
    if manifest.config.media_type != CONFIG {
        return Err(refuse(format!(
            "its configuration has the media type {:?}, expected {CONFIG:?}",
            manifest.config.media_type
        )));
    }
    let [layer] = &manifest.layers[..] else {
        let found = manifest.layers.len();
        return Err(refuse(format!("it has {found} layers, expected one")));
    };
    if layer.media_type != LAYER {
        let found = &layer.media_type;
        return Err(refuse(format!(
            "its layer has the media type {found:?}, expected {LAYER:?}"
        )));
    }
    if !reference::is_sha256(&layer.digest) {
        let found = &layer.digest;
        return Err(refuse(format!(
            "its layer has the digest {found:?}, expected sha256: and 64 hexadecimal digits"
        )));
    }
    // Only to refuse early: what arrives is counted.
    if u64::try_from(layer.size).is_ok_and(|size| size > limit) {
        return Err(OciError::TooLarge {
            reference: from.to_string(),
            limit,
        });
    }
    Ok(layer.clone())
}
