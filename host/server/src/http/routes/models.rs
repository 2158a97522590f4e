//! `/v1/models`.

use super::super::AppState;
use super::super::access::Caller;
use crate::openai::{ApiError, ErrorBody, ModelCard, ModelList};
use crate::serving::ServedModel;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::{Extension, Json};

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

/// Lists the models that the caller may use, each under all of its names.
#[utoipa::path(get, path = "/v1/models", tag = "models", responses((status = 200, body = ModelList)))]
pub(in crate::http) async fn list_models(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
) -> Json<ModelList> {
    let models = state.available(&caller);
    let names = models.iter().flat_map(|(entry, names)| {
        let model = &entry.model;
        names.iter().map(|id| card(model, id))
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
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    let Path(id) = id.map_err(|error| ApiError::invalid("model", error.body_text()))?;
    let asked = state.model(&caller, Some(&id))?;
    Ok(Json(card(&asked.entry.model, &id)))
}
