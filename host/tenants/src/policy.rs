//! What a tenant may do.

use crate::TenantsError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What a tenant may do. The default is everything but uploads, without limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Models it may use, by the names that requests use.
    pub models: ModelAccess,
    /// Modules that serve it in place of each model's own; `*` stands for all models.
    pub pins: BTreeMap<String, Pins>,
    /// Fields of requests that say nothing of them.
    pub defaults: serde_json::Map<String, serde_json::Value>,
    /// How much of what it may use.
    pub quotas: Quotas,
    /// Whether it may bring modules of its own (chat and sampler).
    pub uploads: bool,
    /// Whether its prefix-cache entries are shared with other tenants that share theirs.
    pub shared_cache: bool,
    /// Smaller runs earlier, before any weighing.
    pub priority: i32,
    /// Its part of the machine, relative to other tenants' of the same priority; at least 1.
    pub weight: u32,
}

/// Models that a tenant may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelAccess {
    /// All.
    #[default]
    All,
    /// These.
    Only(BTreeSet<String>),
}

/// Names of the modules that serve a tenant; its own come before the server's of the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pins {
    /// Its chat template and parser.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat: Option<String>,
    /// Its sampler, where requests name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampler: Option<String>,
    /// Its graph module: of those that the administrator loaded the model with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph: Option<String>,
}

/// Limits of one tenant; none is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quotas {
    /// Requests begun per minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Tokens per minute, of prompts and answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Sequences (prompts times choices) that are accepted and not finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent_sequences: Option<u32>,
    /// KV blocks that its running sequences hold, of all groups together, prefix-cache entries not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_blocks: Option<u32>,
    /// Bytes of its modules and their compiled code on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module_bytes: Option<u64>,
    /// Compilations of its modules per hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compilations_per_hour: Option<u32>,
    /// CPU time of its guests per minute, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_ms_per_minute: Option<u64>,
    /// Linear memory of its guests at once, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_memory_bytes: Option<u64>,
}

impl Pins {
    /// These, and where they say nothing, others.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            chat: self.chat.or(others.chat),
            sampler: self.sampler.or(others.sampler),
            graph: self.graph.or(others.graph),
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            models: ModelAccess::All,
            pins: BTreeMap::new(),
            defaults: serde_json::Map::new(),
            quotas: Quotas::default(),
            uploads: false,
            shared_cache: false,
            priority: 0,
            weight: 1,
        }
    }
}

/// Longest policy as JSON, bytes.
const LONGEST: usize = 64 << 10;

impl Policy {
    /// Whether it makes sense.
    ///
    /// # Errors
    /// [`TenantsError::Policy`]
    pub fn check(&self) -> Result<(), TenantsError> {
        let wrong = |field, found: String, expected| TenantsError::Policy {
            field,
            found,
            expected,
        };
        if self.weight == 0 {
            return Err(wrong("weight", "0".to_owned(), "at least 1"));
        }
        let length = serde_json::to_vec(self).map_or(usize::MAX, |json| json.len());
        if length > LONGEST {
            let found = format!("{length} bytes of JSON");
            return Err(wrong("length", found, "at most 65536 bytes"));
        }
        Ok(())
    }

    /// From JSON, as it stands in files and requests.
    ///
    /// # Errors
    /// When it is no policy or makes no sense.
    pub fn from_json(value: serde_json::Value) -> Result<Self, TenantsError> {
        let policy: Self =
            serde_path_to_error::deserialize(value).map_err(|error| TenantsError::PolicyField {
                path: error.path().to_string(),
                what: error.inner().to_string(),
            })?;
        policy.check()?;
        Ok(policy)
    }

    /// With the changes of a JSON merge patch (RFC 7396): what it does not mention stays, and `null` takes away.
    ///
    /// # Errors
    /// When the outcome is no policy or makes no sense.
    pub fn patched(&self, patch: &serde_json::Value) -> Result<Self, TenantsError> {
        let mut json = serde_json::to_value(self).unwrap_or_default();
        merge(&mut json, patch);
        Self::from_json(json)
    }

    /// Whether it may use a model of this name.
    #[must_use]
    pub fn allows_model(&self, name: &str) -> bool {
        match &self.models {
            ModelAccess::All => true,
            ModelAccess::Only(names) => names.contains(name),
        }
    }

    /// The modules pinned for a model: those of its name, then those of `*`, each on its own.
    #[must_use]
    pub fn pins_for(&self, model: &str) -> Pins {
        self.pins_of(model).or(self.pins_of("*"))
    }

    /// The modules pinned under exactly this name.
    #[must_use]
    pub fn pins_of(&self, name: &str) -> Pins {
        self.pins.get(name).cloned().unwrap_or_default()
    }
}

/// RFC 7396, section 2. As deep as `patch`, whose parser limits that.
fn merge(target: &mut serde_json::Value, patch: &serde_json::Value) {
    use serde_json::Value;
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(target) = target else {
        return;
    };
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            merge(target.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests;
