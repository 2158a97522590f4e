//! The administrator's API: modules and models come and go while others serve.
//!
//! It listens on an address of its own, on this machine alone, or on a socket that only its user opens; wants a key of its
//! own, and is absent without one. Unlike
//! [`crate::http`] it knows how models are loaded.
//!
//! | | |
//! |---|---|
//! | `GET /admin/v1/modules` | live and built-in modules, and files of `--modules` that were not taken |
//! | `PUT /admin/v1/modules/{name}` | a component, as the body, or `{"source": "oci://…@sha256:…"}` as JSON; it serves once it passed its check |
//! | `GET`, `DELETE /admin/v1/modules/{name}` | one live module |
//! | `GET /admin/v1/modules/{name}/history` | its versions that are kept |
//! | `POST /admin/v1/modules/{name}/rollback` | `{"digest": …}`: an earlier version serves again |
//! | `?tenant=ID` with any of these | a tenant's own modules |
//! | `GET /admin/v1/models` | loaded models and their modules |
//! | `POST /admin/v1/models` | load one: [`models::LoadRequest`] |
//! | `GET`, `DELETE /admin/v1/models/{name}` | one model; its running requests go on to their end |
//! | `GET /admin/v1/tenants` | tenants, their policies and the names of their keys |
//! | `POST /admin/v1/tenants` | add one: `id` and `policy`; its key is shown this once |
//! | `GET`, `DELETE /admin/v1/tenants/{id}` | one tenant |
//! | `PATCH /admin/v1/tenants/{id}` | change its policy, by a JSON merge patch |
//! | `POST /admin/v1/tenants/{id}/keys` | a further key, shown this once; older ones end after `keep_old_seconds` |
//! | `GET /admin/v1/tenants/{id}/usage` | what it used on each of the last 31 days |

mod models;
mod modules;
mod tenants;
#[cfg(test)]
mod tests;

use crate::http::{ApiKeys, AppState, Telling, traced};
use crate::model::{LoadOptions, LoadedModel, ModuleStore};
use crate::modules::ModuleDesk;
use crate::openai::ApiError;
use axum::Router;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use guesthouse_tenants::Registry;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

pub use models::LoadRequest;
pub(crate) use tenants::TenantCard;

/// Largest body of a load, bytes.
const MAX_REQUEST: usize = 64 << 10;

/// What the routes share; cheap to clone.
#[derive(Clone)]
pub struct Admin(Arc<Inner>);

struct Inner {
    state: AppState,
    modules: Arc<ModuleStore>,
    desk: ModuleDesk,
    /// Of loads that say nothing else.
    options: LoadOptions,
    keys: ApiKeys,
    tenants: Option<Arc<Registry>>,
    /// What is known of each loaded model, by id.
    loaded: Mutex<BTreeMap<String, models::Loaded>>,
    /// One load at a time: it takes all that the machine has.
    loading: tokio::sync::Mutex<()>,
}

impl Admin {
    /// `keys` must hold one; `options` are those of loads that say nothing else. Without a registry there are no tenants.
    #[must_use]
    pub fn new(
        state: AppState,
        desk: ModuleDesk,
        options: LoadOptions,
        keys: ApiKeys,
        tenants: Option<Arc<Registry>>,
    ) -> Self {
        Self(Arc::new(Inner {
            state,
            modules: Arc::clone(desk.store()),
            desk,
            options,
            keys,
            tenants,
            loaded: Mutex::default(),
            loading: tokio::sync::Mutex::default(),
        }))
    }

    /// Tells of a model that was loaded from `source` by other ways and is in the state already.
    pub fn announce(&self, source: &str, model: &LoadedModel) {
        self.remember(source, model);
    }
}

/// All routes, behind the key.
pub fn router(admin: Admin) -> Router {
    let modules = get(modules::get)
        .put(modules::put)
        .delete(modules::delete)
        .layer(DefaultBodyLimit::disable());
    let tenant = get(tenants::get)
        .patch(tenants::change)
        .delete(tenants::remove);
    let telling = Telling {
        log: admin.0.state.access_log(),
        traces: None,
    };
    let routes = Router::new()
        .route("/admin/v1/modules", get(modules::list))
        .route("/admin/v1/modules/{name}", modules)
        .route("/admin/v1/modules/{name}/history", get(modules::history))
        .route(
            "/admin/v1/modules/{name}/rollback",
            post(modules::roll_back),
        )
        .route("/admin/v1/models", get(models::list).post(models::load))
        .route(
            "/admin/v1/models/{*name}",
            get(models::get).delete(models::unload),
        )
        .route("/admin/v1/tenants", get(tenants::list).post(tenants::add))
        .route("/admin/v1/tenants/{id}", tenant)
        .route("/admin/v1/tenants/{id}/keys", post(tenants::rotate))
        .route("/admin/v1/tenants/{id}/usage", get(tenants::usage))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        .layer(from_fn_with_state(admin.clone(), guard));
    traced(routes, telling).with_state(admin)
}

/// Lets in who shows the key; logs what was done.
async fn guard(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    let keys = &admin.0.keys;
    let shown = crate::http::shown_key(request.headers());
    if keys.is_empty() || shown.and_then(|key| keys.tenant(key)).is_none() {
        return ApiError::Unauthorized.into_response();
    }
    if let Some(found) = request.headers().get(header::CONTENT_ENCODING) {
        let found = String::from_utf8_lossy(found.as_bytes()).into_owned();
        return ApiError::ContentEncoding { found }.into_response();
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    tracing::info!(%method, path, status = response.status().as_u16(), "admin");
    response
}

async fn unknown_path(request: Request) -> ApiError {
    let path = request.uri().path().to_owned();
    ApiError::NotFound { path }
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::MethodNotAllowed {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
    }
}

/// A body that did not arrive.
fn from_body(error: &BytesRejection, limit: usize) -> ApiError {
    if error.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return ApiError::BodyTooLarge { limit };
    }
    ApiError::BodyRead {
        message: error.body_text(),
    }
}
