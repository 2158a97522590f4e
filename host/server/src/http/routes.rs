//! The routes.

mod chat;
mod completions;
mod embeddings;
mod generate;
mod models;
mod modules;
mod operations;
mod tokenize;

pub(super) use self::{
    chat::*, completions::*, embeddings::*, generate::*, models::*, modules::*, operations::*,
    tokenize::*,
};

use super::auth::check_key;
use super::limits::meter;
use super::trace::{Telling, note_tenant, traced};
use super::{AppState, CorsOrigins, docs, openapi, request_id};
use crate::openai::ApiError;
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::any::Any;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, Any as AnyHeader, CorsLayer};

/// All routes with what stands around them.
pub fn router(state: AppState) -> Router {
    let cors = cors(&state.config().cors);
    let mut router = Router::new()
        .route("/v1/models", get(list_models))
        // Ids may hold slashes.
        .route("/v1/models/{*model}", get(retrieve_model))
        .route("/v1/modules", get(list_modules))
        .route(
            "/v1/modules/{name}",
            get(retrieve_module).put(put_module).delete(delete_module),
        )
        .route("/v1/modules/{name}/history", get(module_history))
        .route("/v1/modules/{name}/rollback", post(roll_back_module))
        .route("/v1/completions", post(create_completion))
        .route("/v1/chat/completions", post(create_chat_completion))
        .route("/v1/embeddings", post(create_embedding))
        .route("/generate", post(create_generation))
        .route("/tokenize", post(create_tokens))
        .route("/detokenize", post(create_text))
        .route("/health", get(health))
        .route("/ping", get(health).post(health))
        .route("/metrics", get(metrics))
        .route("/version", get(version))
        .route("/docs", get(docs::page))
        .route("/openapi.json", get(openapi::serve))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(state.clone(), meter))
        .layer(from_fn(note_tenant))
        .layer(from_fn_with_state(state.clone(), check_key));
    if let Some(cors) = cors {
        router = router.layer(cors);
    }
    let telling = Telling {
        log: state.config().access_log,
        traces: state.config().traces.clone(),
    };
    traced(router.layer(CatchPanicLayer::custom(panicked)), telling).with_state(state)
}

fn cors(origins: &CorsOrigins) -> Option<CorsLayer> {
    let origins = match origins {
        CorsOrigins::None => return None,
        CorsOrigins::Any => AllowOrigin::any(),
        CorsOrigins::These(list) => AllowOrigin::list(
            list.iter()
                .filter_map(|origin| HeaderValue::from_str(origin).ok()),
        ),
    };
    let layer = CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AnyHeader)
        .expose_headers(exposed());
    Some(layer)
}

/// Headers of answers that scripts of web pages may read.
fn exposed() -> [HeaderName; 8] {
    [
        header::RETRY_AFTER,
        request_id::HEADER,
        HeaderName::from_static("x-ratelimit-limit-requests"),
        HeaderName::from_static("x-ratelimit-limit-tokens"),
        HeaderName::from_static("x-ratelimit-remaining-requests"),
        HeaderName::from_static("x-ratelimit-remaining-tokens"),
        HeaderName::from_static("x-ratelimit-reset-requests"),
        HeaderName::from_static("x-ratelimit-reset-tokens"),
    ]
}

async fn unknown_path(request: Request) -> ApiError {
    ApiError::NotFound {
        path: request.uri().path().to_owned(),
    }
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::MethodNotAllowed {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
    }
}

fn panicked(cause: Box<dyn Any + Send + 'static>) -> Response {
    // Its message may hold what a client sent; the panic hook logged the place.
    drop(cause);
    tracing::error!("a handler panicked");
    ApiError::Internal {
        message: "the server failed at this request; its log has the cause".to_owned(),
    }
    .into_response()
}
