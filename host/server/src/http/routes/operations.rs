//! What operators ask: health, metrics, version.

use super::super::AppState;
use super::super::access::{Caller, Sees};
use super::super::metrics::{Measured, render, render_own};
use crate::openai::{ApiError, ErrorBody};
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use guesthouse_engine::Health;
use serde_json::{Value, json};

/// Whether the engines make progress.
#[utoipa::path(
    get,
    path = "/health",
    tag = "operations",
    responses((status = 200, description = "All engines are alive"), (status = 503, body = ErrorBody, description = "One is dead or stuck"))
)]
pub(in crate::http) async fn health(
    State(state): State<AppState>,
) -> Result<Json<Value>, ApiError> {
    for entry in state.models().iter() {
        let id = &entry.model.id;
        let trouble = match entry.model.engine.health() {
            Health::Idle => continue,
            Health::Working(since) if since < state.config().stuck_after => continue,
            Health::Working(since) => format!(
                "the engine of `{id}` is stuck: no step ended for {} s",
                since.as_secs()
            ),
            Health::Stopped => format!("the engine of `{id}` has been shut down"),
            Health::Dead => format!(
                "the engine of `{id}` is dead; restart the server, and see its log for the cause"
            ),
        };
        return Err(ApiError::Unavailable { message: trouble });
    }
    Ok(Json(json!({"status": "ok"})))
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
