//! Certificates and keys in PEM files.

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{Error as RustlsError, ServerConfig};
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Largest file that is read, bytes.
const MAX_FILE: u64 = 1 << 20;

/// Where the server's certificate and key are.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// PEM: the server's own certificate, then those that lead to its root.
    pub certificates: PathBuf,
    /// PEM: the first certificate's key, in PKCS #8, PKCS #1 or SEC 1.
    pub key: PathBuf,
}

/// Why TLS cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error(
        "cannot read {path}: {cause}; --ssl-certfile and --ssl-keyfile name PEM files that the server's user may read"
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// A file is no certificate and no key.
    #[error(
        "{path} is larger than {MAX_FILE} bytes; expected a PEM file of certificates or of a key"
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A file is not PEM.
    #[error("{path} is not valid PEM: {what}; export it again")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, without its contents.
        what: &'static str,
    },
    /// There is no certificate.
    #[error(
        "{path} holds no certificate; expected PEM with `-----BEGIN CERTIFICATE-----`, the server's own first and then its chain"
    )]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// There is no key.
    #[error(
        "{path} holds no private key; expected PEM with `-----BEGIN PRIVATE KEY-----` (PKCS #8), RSA PRIVATE KEY (PKCS #1) or \
         EC PRIVATE KEY (SEC 1)"
    )]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The key needs a passphrase.
    #[error(
        "the key in {path} is encrypted; write it without a passphrase: openssl pkey -in {path} -out NEW"
    )]
    EncryptedKey {
        /// The file.
        path: PathBuf,
    },
    /// Another certificate's key.
    #[error(
        "the key in {key} is not that of the first certificate in {certificates}; give the two that were made together, the \
         server's own certificate first"
    )]
    OtherKey {
        /// The certificates' file.
        certificates: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// They are of a kind that is not supported.
    #[error(
        "TLS cannot be served with {certificates} and {key}: {cause}; expected an X.509 certificate with an RSA, ECDSA or Ed25519 key"
    )]
    Unusable {
        /// The certificates' file.
        certificates: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why.
        cause: RustlsError,
    },
}

/// What the files hold, parsed.
pub(super) struct Contents {
    /// Of both files' bytes: the key itself is not kept to compare with.
    pub(super) digest: [u8; 32],
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl TlsFiles {
    pub(super) fn read(&self) -> Result<Contents, TlsError> {
        let certificates = read(&self.certificates)?;
        let key = read(&self.key)?;
        let mut hash = Sha256::new();
        hash.update((certificates.len() as u64).to_le_bytes());
        hash.update(&certificates);
        hash.update(&key);
        Ok(Contents {
            digest: hash.finalize().into(),
            chain: chain(&self.certificates, &certificates)?,
            key: private_key(&self.key, &key)?,
        })
    }

    /// TLS 1.2 and 1.3, for HTTP/1.1.
    pub(super) fn config(&self, contents: Contents) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let unusable = |cause| match cause {
            RustlsError::InconsistentKeys(_) => TlsError::OtherKey {
                certificates: self.certificates.clone(),
                key: self.key.clone(),
            },
            cause => TlsError::Unusable {
                certificates: self.certificates.clone(),
                key: self.key.clone(),
                cause,
            },
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(contents.chain, contents.key)
            .map_err(unusable)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |cause| TlsError::Unreadable {
        path: path.to_owned(),
        cause,
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(TlsError::TooLarge {
            path: path.to_owned(),
        });
    }
    Ok(bytes)
}

fn chain(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(|error| malformed(path, &error))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate {
            path: path.to_owned(),
        });
    }
    Ok(chain)
}

fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| {
        let encrypted = memchr::memmem::find(pem, b"ENCRYPTED").is_some();
        let path = path.to_owned();
        match error {
            _ if encrypted => TlsError::EncryptedKey { path },
            PemError::NoItemsFound => TlsError::NoKey { path },
            error => malformed(&path, &error),
        }
    })
}

fn malformed(path: &Path, error: &PemError) -> TlsError {
    // The library's own texts quote the file.
    let what = match error {
        PemError::MissingSectionEnd { .. } => "a section does not end",
        PemError::IllegalSectionStart { .. } => "a section's first line is malformed",
        PemError::Base64Decode(_) => "a section is not base64",
        _ => "it cannot be parsed",
    };
    TlsError::Malformed {
        path: path.to_owned(),
        what,
    }
}
