//! Registries that the administrator may have modules fetched from.

use crate::oci::{HostPort, OciConfig, Registries, RegistryAddress};
use anyhow::{Context, Result};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct OciOptions {
    /// Registry that the admin API may fetch modules from, or http://HOST[:PORT] for one without TLS; may be given several
    /// times (default: none).
    #[arg(long, value_name = "HOST[:PORT]")]
    oci_registry: Vec<RegistryAddress>,
    /// Host, as a registry's references, redirects or tokens name it, that may be at a private address; may be given several
    /// times (default: none).
    #[arg(long, value_name = "HOST[:PORT]")]
    oci_private: Vec<HostPort>,
    /// File of further certificates (PEM) that registries' certificates may be signed by.
    #[arg(long, value_name = "FILE")]
    oci_ca: Vec<PathBuf>,
}

impl OciOptions {
    pub(super) fn registries(&self) -> Result<Registries> {
        let read = |path: &PathBuf| {
            std::fs::read(path).with_context(|| format!("--oci-ca: cannot read {}", path.display()))
        };
        Ok(Registries::new(OciConfig {
            registries: self.oci_registry.clone(),
            private: self.oci_private.clone(),
            authorities: self.oci_ca.iter().map(read).collect::<Result<_>>()?,
            ..OciConfig::default()
        }))
    }
}
