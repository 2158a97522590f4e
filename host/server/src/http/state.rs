//! What all handlers share.

use super::HttpConfig;
use super::metrics::ModelMetrics;
use crate::openai::{ApiError, ModelFacts};
use crate::serving::ServedModel;
use std::sync::Arc;

/// A model and what was measured of its requests.
#[derive(Clone)]
pub(super) struct ModelEntry {
    pub(super) model: Arc<ServedModel>,
    pub(super) metrics: Arc<ModelMetrics>,
}

/// Shared by all handlers; cheap to clone.
#[derive(Clone)]
pub struct AppState {
    models: Arc<[ModelEntry]>,
    config: Arc<HttpConfig>,
}

impl AppState {
    /// The first model answers requests that name none.
    #[must_use]
    pub fn new(models: Vec<Arc<ServedModel>>, config: HttpConfig) -> Self {
        let entries = models.into_iter().map(|model| ModelEntry {
            model,
            metrics: Arc::default(),
        });
        Self {
            models: entries.collect(),
            config: Arc::new(config),
        }
    }

    pub(super) fn config(&self) -> &HttpConfig {
        &self.config
    }

    pub(super) fn models(&self) -> &[ModelEntry] {
        &self.models
    }

    /// The model that a request means.
    pub(super) fn model(&self, name: Option<&str>) -> Result<&ModelEntry, ApiError> {
        let found = match name {
            None => self.models.first(),
            Some(name) => self
                .models
                .iter()
                .find(|entry| entry.model.answers_to(name)),
        };
        found.ok_or_else(|| ApiError::ModelNotFound {
            name: name.unwrap_or_default().to_owned(),
        })
    }

    pub(super) fn facts(&self, model: &ServedModel) -> ModelFacts {
        ModelFacts {
            max_n: self.config.max_n,
            max_logprobs: self.config.max_logprobs,
            ..ModelFacts::of(model)
        }
    }
}
