//! Tenants: who may use the server, what for and how much.
//!
//! Knows nothing of HTTP, models or guests.
//!
//! | | |
//! |---|---|
//! | [`TenantId`], [`Tenant`] | who |
//! | [`Policy`], [`Quotas`], [`Pins`] | what each may do |
//! | [`Registry`] | who there is, in one SQLite file; keys, module versions, counters |
//! | [`Usage`] | how much each uses right now, against its limits |
//!
//! ```
//! use guesthouse_tenants::{Policy, TenantId};
//!
//! let id = TenantId::parse("acme-2")?;
//! assert_eq!(id.as_str(), "acme-2");
//! assert!(TenantId::parse("Acme").is_err());
//! assert!(Policy::default().allows_model("any"));
//! # Ok::<(), guesthouse_tenants::BadName>(())
//! ```

mod digest;
mod error;
mod id;
mod key;
mod policy;
mod quota;
mod registry;

pub use digest::Sha256Digest;
pub use error::TenantsError;
pub use id::{BadName, TenantId};
pub use key::{KeyId, NewKey};
pub use policy::{ModelAccess, Pins, Policy, Quotas};
pub use quota::{Bucket, Level, Levels, Refused, Reservation, Usage};
pub use registry::{
    CodeRecord, Counted, KeyInfo, ModuleState, ModuleVersion, NewModule, Registry, TenantRecord,
    UsageDay, day_of,
};

use std::sync::Arc;

/// Who asks, as of the moment when the request came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its name.
    pub id: TenantId,
    /// Its number, never given twice; 0 is of requests without a key.
    pub number: u64,
    /// What it may do.
    pub policy: Policy,
}

impl Tenant {
    /// Everyone, where no keys are needed.
    #[must_use]
    pub fn anonymous() -> Arc<Self> {
        Arc::new(Self {
            id: TenantId::anonymous(),
            number: 0,
            policy: Policy::default(),
        })
    }
}
