//! Which modules a tenant pinned for a model.

use crate::serving::ServedModel;
use guesthouse_tenants::{Pins, Tenant};

/// What holds for requests that call a model by one of its names.
pub(super) struct Pinned {
    pub(super) modules: Pins,
}

/// Pins of the name that a request uses stand before those of the model's id, and these before those of all models.
pub(super) fn of(tenant: &Tenant, model: &ServedModel, name: &str) -> Pinned {
    let policy = &tenant.policy;
    Pinned {
        modules: policy.pins_of(name).or(policy.pins_for(&model.id)),
    }
}

impl Pinned {
    /// Whether the model was loaded with the graph module that is pinned for it.
    pub(super) fn serves(&self, model: &ServedModel) -> bool {
        let graph = self.modules.graph.as_ref();
        graph.is_none_or(|graph| *graph == model.graph)
    }
}
