//! What operators ask: health, metrics, version.

use super::super::AppState;
use super::super::access::{Caller, Sees};
use super::super::metrics::{Measured, render, render_own};
use super::super::state::ModelEntry;
use crate::openai::{ApiError, ErrorBody};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use guesthouse_engine::Health;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use utoipa::IntoParams;

/// Whose health is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct HealthOf {
    /// Only this model's; without it, all engines'.
    model: Option<String>,
}

/// Whether the engines make progress. By `model` it answers for one, and needs a key where there are keys; unless a key that
/// may use the model is shown, no answer names one.
#[utoipa::path(
    get,
    path = "/health",
    tag = "operations",
    params(HealthOf),
    responses(
        (status = 200, description = "All engines are alive"),
        (status = 401, body = ErrorBody, description = "`model` needs a key"),
        (status = 404, body = ErrorBody, description = "No such model for this key"),
        (status = 503, body = ErrorBody, description = "One is dead or stuck")
    )
)]
pub(in crate::http) async fn health(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    of: Result<Query<HealthOf>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(of) = of.map_err(|error| ApiError::invalid("model", error.body_text()))?;
    let stuck_after = state.config().stuck_after;
    let models = match of.model {
        Some(_) if caller.is_stranger() => return Err(ApiError::Unauthorized),
        Some(name) => vec![state.model(&caller, Some(&name))?.entry],
        None => state.models().to_vec(),
    };
    for ModelEntry { model, .. } in &models {
        let Some(trouble) = trouble(model.engine.health(), stuck_after) else {
            continue;
        };
        let known = !caller.is_stranger() && state.model(&caller, Some(&model.id)).is_ok();
        let whose = if known {
            format!("the engine of `{}`", model.id)
        } else {
            "an engine".to_owned()
        };
        return Err(ApiError::Unavailable {
            message: format!("{whose} {trouble}"),
        });
    }
    Ok(Json(json!({"status": "ok"})))
}

/// What is wrong with an engine, if anything is.
fn trouble(health: Health, stuck_after: Duration) -> Option<String> {
    match health {
        Health::Idle => None,
        Health::Working(since) if since < stuck_after => None,
        Health::Working(since) => {
            let seconds = since.as_secs();
            Some(format!("is stuck: no step ended for {seconds} s"))
        }
        Health::Stopped => Some("has been shut down".to_owned()),
        Health::Dead => {
            Some("is dead; restart the server, and see its log for the cause".to_owned())
        }
    }
}

/// Metrics in Prometheus' text format, under vLLM's names: everyone's for the administrator's key and where no key is needed,
/// else those of the caller's own requests on models that it may use.
#[utoipa::path(get, path = "/metrics", tag = "operations", responses((status = 200, body = String, content_type = "text/plain")))]
pub(in crate::http) async fn metrics(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
) -> impl IntoResponse {
    let served = match caller.sees {
        Sees::All => state.models().to_vec(),
        Sees::Own => {
            let available = state.available(&caller).into_iter();
            available.map(|(entry, _)| entry).collect()
        }
    };
    let models: Vec<_> = served
        .iter()
        .map(|entry| Measured {
            name: &entry.model.id,
            max_model_len: entry.model.max_model_len,
            metrics: &entry.metrics,
            stats: entry.model.engine.stats(),
        })
        .collect();
    let refused = &state.limits().refused;
    let text = match caller.sees {
        Sees::All => {
            let known = state.tenants();
            render(&models, refused, &|number| known.contains(&number))
        }
        Sees::Own => render_own(&models, &caller.tenant, refused),
    };
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
}

/// The server's version.
#[utoipa::path(get, path = "/version", tag = "operations", responses((status = 200, description = "`{\"version\": …}`")))]
pub(in crate::http) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}
