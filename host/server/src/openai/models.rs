//! `/v1/models`.

use serde::Serialize;
use utoipa::ToSchema;

/// A model that is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelCard {
    /// What requests call it.
    pub id: String,
    /// `model`
    pub object: &'static str,
    /// When it was loaded, Unix seconds.
    pub created: u64,
    /// `guesthouse`
    pub owned_by: &'static str,
    /// The id of the model itself, where this entry is another name of it.
    pub root: String,
    /// Longest sequence, tokens.
    pub max_model_len: u32,
}

/// All models that are served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`
    pub object: &'static str,
    /// The models.
    pub data: Vec<ModelCard>,
}
