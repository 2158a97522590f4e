//! `/v1/models`.

use super::super::AppState;
use crate::openai::{ApiError, ErrorBody, ModelCard, ModelList};
use crate::serving::ServedModel;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};

fn card(model: &ServedModel, id: &str) -> ModelCard {
    ModelCard {
        id: id.to_owned(),
        object: "model",
        created: model.created,
        owned_by: "guesthouse",
        root: model.id.clone(),
        max_model_len: model.max_model_len,
    }
}

/// Lists the models that are served, each under all of its names.
#[utoipa::path(get, path = "/v1/models", tag = "models", responses((status = 200, body = ModelList)))]
pub(in crate::http) async fn list_models(State(state): State<AppState>) -> Json<ModelList> {
    let models = state.models();
    let names = models.iter().flat_map(|entry| {
        let model = &entry.model;
        std::iter::once(&model.id)
            .chain(&model.aliases)
            .map(|id| card(model, id))
    });
    Json(ModelList {
        object: "list",
        data: names.collect(),
    })
}

/// Describes one model.
#[utoipa::path(
    get,
    path = "/v1/models/{model}",
    tag = "models",
    params(("model" = String, Path, description = "The model's id")),
    responses((status = 200, body = ModelCard), (status = 404, body = ErrorBody))
)]
pub(in crate::http) async fn retrieve_model(
    State(state): State<AppState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    let Path(id) = id.map_err(|error| ApiError::invalid("model", error.body_text()))?;
    let entry = state.model(Some(&id))?;
    Ok(Json(card(&entry.model, &id)))
}
