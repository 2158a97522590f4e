//! Options of TLS.

use crate::http::{Tls, TlsFiles};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

/// Certificate and key; both or none.
#[derive(Debug, Args)]
pub(super) struct TlsOptions {
    /// Serve HTTPS with this PEM file's certificates: the server's own first, then its chain. Read again when it changes.
    #[arg(
        long,
        value_name = "FILE",
        visible_alias = "tls-cert",
        requires = "ssl_keyfile"
    )]
    ssl_certfile: Option<PathBuf>,
    /// PEM file of the certificate's key, without a passphrase.
    #[arg(
        long,
        value_name = "FILE",
        visible_alias = "tls-key",
        requires = "ssl_certfile"
    )]
    ssl_keyfile: Option<PathBuf>,
}

impl TlsOptions {
    /// None where HTTP is served.
    pub(super) fn open(&self) -> Result<Option<Tls>> {
        let (Some(certificates), Some(key)) = (&self.ssl_certfile, &self.ssl_keyfile) else {
            return Ok(None);
        };
        Ok(Some(Tls::open(TlsFiles {
            certificates: certificates.clone(),
            key: key.clone(),
        })?))
    }
}
