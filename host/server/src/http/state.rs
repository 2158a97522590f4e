//! What all handlers share.

use super::access::Caller;
use super::limits::{GuestClock, Limits};
use super::metrics::ModelMetrics;
use super::trace::AccessLog;
use super::{HttpConfig, pins};
use crate::modules::ModuleDesk;
use crate::openai::{ApiError, ModelFacts};
use crate::serving::{EmbeddingFacts, ServedModel};
use guesthouse_engine::{SubmitError, Task};
use guesthouse_tenants::{Pins, Tenant, UsageDay};
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

/// A model and what was measured of its requests.
#[derive(Clone)]
pub(super) struct ModelEntry {
    pub(super) model: Arc<ServedModel>,
    pub(super) metrics: Arc<ModelMetrics>,
}

impl ModelEntry {
    fn new(model: Arc<ServedModel>) -> Self {
        Self {
            model,
            metrics: Arc::default(),
        }
    }
}

/// A model as one request means it.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) entry: ModelEntry,
    /// Who asks.
    pub(super) caller: Caller,
    /// What it pinned for the model.
    pub(super) pins: Pins,
}

/// Shared by all handlers; cheap to clone.
#[derive(Clone)]
pub struct AppState {
    models: Arc<RwLock<Arc<[ModelEntry]>>>,
    config: Arc<HttpConfig>,
    /// Where tenants bring modules, if they can.
    modules: Option<ModuleDesk>,
    limits: Arc<Limits>,
}

impl AppState {
    /// The first model answers requests that name none.
    #[must_use]
    pub fn new(models: Vec<Arc<ServedModel>>, config: HttpConfig) -> Self {
        let entries = models.into_iter().map(ModelEntry::new);
        Self {
            models: Arc::new(RwLock::new(entries.collect())),
            config: Arc::new(config),
            modules: None,
            limits: Arc::default(),
        }
    }

    /// The same with routes under `/v1/modules`.
    #[must_use]
    pub fn with_modules(self, desk: ModuleDesk) -> Self {
        Self {
            modules: Some(desk),
            ..self
        }
    }

    /// The same with limits on the CPU time of guests, which `clock` tells.
    #[must_use]
    pub fn with_guest_clock(self, clock: GuestClock) -> Self {
        Self {
            limits: Arc::new(Limits::with_clock(clock)),
            ..self
        }
    }

    pub(super) fn modules(&self) -> Option<&ModuleDesk> {
        self.modules.as_ref()
    }

    pub(super) fn config(&self) -> &HttpConfig {
        &self.config
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What tenants used since the last call; it counts for the day of `unix_seconds`.
    #[must_use]
    pub fn take_used(&self, unix_seconds: u64) -> Vec<UsageDay> {
        self.limits.take_used(unix_seconds)
    }

    /// The numbers of all tenants that there are.
    pub(super) fn tenants(&self) -> BTreeSet<u64> {
        let listed = self.config.directory.as_ref().map(|d| d.numbers());
        let mut numbers = listed.unwrap_or_default();
        numbers.extend(self.config.api_keys.numbers());
        numbers
    }

    /// Counts what a tenant's guests used by now against its limit; a request does that of its tenant before it begins.
    pub fn charge_guests(&self, tenant: &Tenant) {
        self.limits.charge_guests(tenant);
    }

    /// Forgets what tenants that are gone hold of their limits.
    pub fn forget_gone(&self) {
        self.limits.retain(&self.tenants());
    }

    pub(crate) fn access_log(&self) -> AccessLog {
        self.config.access_log
    }

    /// The models of this moment.
    pub(super) fn models(&self) -> Arc<[ModelEntry]> {
        Arc::clone(&self.models.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The models of this moment, for whoever loads and unloads them.
    #[must_use]
    pub fn served(&self) -> Vec<Arc<ServedModel>> {
        let models = self.models();
        models.iter().map(|e| Arc::clone(&e.model)).collect()
    }

    /// Serves one more model.
    ///
    /// # Errors
    /// The first of its names that another model has; nothing changes.
    pub fn add(&self, model: Arc<ServedModel>) -> Result<(), String> {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        let mut names = std::iter::once(&model.id).chain(&model.aliases);
        if let Some(taken) = names.find(|name| models.iter().any(|e| e.model.answers_to(name))) {
            return Err(taken.clone());
        }
        *models = models
            .iter()
            .cloned()
            .chain([ModelEntry::new(model)])
            .collect();
        Ok(())
    }

    /// Serves a model no longer. Requests that run hold it until they are done; then its engine ends.
    #[must_use]
    pub fn remove(&self, id: &str) -> Option<Arc<ServedModel>> {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        let removed = models.iter().find(|e| e.model.id == id)?.model.clone();
        *models = models
            .iter()
            .filter(|e| e.model.id != id)
            .cloned()
            .collect();
        Some(removed)
    }

    /// The models that a tenant may use, with the names by which it may.
    pub(super) fn available(&self, caller: &Caller) -> Vec<(ModelEntry, Vec<String>)> {
        let models = self.models();
        let named = models.iter().map(|entry| {
            let names = std::iter::once(&entry.model.id).chain(&entry.model.aliases);
            let names = names.filter(|name| {
                let asked = pins::of(&caller.tenant, &entry.model, name);
                caller.tenant.policy.allows_model(name) && asked.serves(&entry.model)
            });
            (entry.clone(), names.cloned().collect::<Vec<_>>())
        });
        named.filter(|(_, names)| !names.is_empty()).collect()
    }

    /// What a request that names no model means: the first that the tenant may use and that serves its pins, else the first
    /// that it may use.
    fn first_name(&self, caller: &Caller) -> Option<String> {
        let mut available = self.available(caller).into_iter();
        if let Some(name) = available.find_map(|(_, names)| names.into_iter().next()) {
            return Some(name);
        }
        let models = self.models();
        let mut names = models
            .iter()
            .flat_map(|entry| std::iter::once(&entry.model.id).chain(&entry.model.aliases));
        let allowed = names.find(|name| caller.tenant.policy.allows_model(name));
        allowed.cloned()
    }

    /// The model that a request means, and what the tenant pinned for it.
    pub(super) fn model(&self, caller: &Caller, name: Option<&str>) -> Result<Asked, ApiError> {
        let Some(name) = name else {
            let name = self.first_name(caller).unwrap_or_default();
            return self.model(caller, Some(&name));
        };
        let models = self.models();
        let found = models.iter().find(|entry| entry.model.answers_to(name));
        let allowed = found.filter(|_| caller.tenant.policy.allows_model(name));
        let entry = allowed.cloned().ok_or_else(|| ApiError::ModelNotFound {
            name: name.to_owned(),
        })?;
        let pins = pins::of(&caller.tenant, &entry.model, name);
        if let (false, Some(graph)) = (pins.serves(&entry.model), &pins.modules.graph) {
            return Err(ApiError::OtherGraph {
                name: name.to_owned(),
                pinned: graph.clone(),
                loaded: entry.model.graph.clone(),
            });
        }
        Ok(Asked {
            entry,
            caller: caller.clone(),
            pins: pins.modules,
        })
    }

    /// The model that a request for text means.
    pub(super) fn generating(
        &self,
        caller: &Caller,
        name: Option<&str>,
    ) -> Result<Asked, ApiError> {
        let asked = self.model(caller, name)?;
        if asked.entry.model.embedding.is_some() {
            return Err(wrong_task(&asked.entry.model, Task::Embed));
        }
        Ok(asked)
    }

    /// The model that a request for vectors means.
    pub(super) fn embedding(
        &self,
        caller: &Caller,
        name: Option<&str>,
    ) -> Result<(Asked, EmbeddingFacts), ApiError> {
        let asked = self.model(caller, name)?;
        match asked.entry.model.embedding {
            Some(facts) => Ok((asked, facts)),
            None => Err(wrong_task(&asked.entry.model, Task::Generate)),
        }
    }

    pub(super) fn facts(&self, model: &ServedModel) -> ModelFacts {
        ModelFacts {
            max_n: self.config.max_n,
            max_choices: self.config.max_sequences,
            max_logprobs: self.config.max_logprobs,
            ..ModelFacts::of(model)
        }
    }
}

/// Of a model that was made for `task`.
fn wrong_task(model: &ServedModel, task: Task) -> ApiError {
    let why = SubmitError::WrongTask(task);
    ApiError::invalid("model", format!("`{}`: {why}", model.id))
}
