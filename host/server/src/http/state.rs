//! What all handlers share.

use super::HttpConfig;
use super::metrics::ModelMetrics;
use crate::modules::ModuleDesk;
use crate::openai::{ApiError, ModelFacts};
use crate::serving::{EmbeddingFacts, ServedModel};
use guesthouse_engine::{SubmitError, Task};
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

/// Shared by all handlers; cheap to clone.
#[derive(Clone)]
pub struct AppState {
    models: Arc<RwLock<Arc<[ModelEntry]>>>,
    config: Arc<HttpConfig>,
    /// Where tenants bring modules, if they can.
    modules: Option<ModuleDesk>,
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

    pub(super) fn modules(&self) -> Option<&ModuleDesk> {
        self.modules.as_ref()
    }

    pub(super) fn config(&self) -> &HttpConfig {
        &self.config
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

    /// The model that a request means.
    pub(super) fn model(&self, name: Option<&str>) -> Result<ModelEntry, ApiError> {
        let models = self.models();
        let found = match name {
            None => models.first(),
            Some(name) => models.iter().find(|entry| entry.model.answers_to(name)),
        };
        found.cloned().ok_or_else(|| ApiError::ModelNotFound {
            name: name.unwrap_or_default().to_owned(),
        })
    }

    /// The model that a request for text means.
    pub(super) fn generating(&self, name: Option<&str>) -> Result<ModelEntry, ApiError> {
        let entry = self.model(name)?;
        if entry.model.embedding.is_some() {
            return Err(wrong_task(&entry.model, Task::Embed));
        }
        Ok(entry)
    }

    /// The model that a request for vectors means.
    pub(super) fn embedding(
        &self,
        name: Option<&str>,
    ) -> Result<(ModelEntry, EmbeddingFacts), ApiError> {
        let entry = self.model(name)?;
        match entry.model.embedding {
            Some(facts) => Ok((entry, facts)),
            None => Err(wrong_task(&entry.model, Task::Generate)),
        }
    }

    pub(super) fn facts(&self, model: &ServedModel) -> ModelFacts {
        ModelFacts {
            max_n: self.config.max_n,
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
