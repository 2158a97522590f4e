//! `/admin/v1/models`.

use super::{Admin, MAX_REQUEST, from_body};
use crate::blocking::blocking;
use crate::model::{
    GuestChoice, LoadFormat, LoadOptions, LoadedModel, ModuleRef, load as load_model,
};
use crate::modules::Deleted;
use crate::openai::ApiError;
use crate::serving::ServedModel;
use crate::source::ModelRef;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use guesthouse_component::Module;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, MutexGuard, PoisonError};

/// Longest name of a model.
const NAME: usize = 128;

/// Body of a load. What is absent is as the server's own flags say; modules are names or files.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadRequest {
    /// A folder, a `.gguf` file, or whatever else `guesthouse serve` takes.
    pub model: String,
    /// What requests call it; absent: `model` as written.
    pub name: Option<String>,
    /// Branch, tag or commit of a hub model.
    pub revision: Option<String>,
    /// The module that builds the graph; absent: one that builds the architecture.
    pub graph: Option<String>,
    /// The module that renders conversations.
    pub chat: Option<String>,
    /// The module that plans sampling.
    pub sampler: Option<String>,
    /// `auto`, `safetensors`, `gguf` or `dummy`; absent: `auto`.
    pub load_format: Option<LoadFormat>,
    /// Longest sequence, tokens; absent: what the model was made for.
    pub max_model_len: Option<u32>,
    /// Sequences that run at once.
    pub max_num_seqs: Option<u32>,
    /// Memory for keys and values, bytes.
    pub kv_cache_memory_bytes: Option<u64>,
    /// Share of a GPU's memory, above 0 and at most 1.
    pub gpu_memory_utilization: Option<f64>,
}

/// What is known of a loaded model beside [`ServedModel`].
#[derive(Clone, Debug, Serialize)]
pub(super) struct Loaded {
    /// As it was named to the server.
    source: String,
    device: String,
    architecture: String,
    modules: ModelModules,
}

#[derive(Clone, Debug, Serialize)]
struct ModelModules {
    graph: ModuleVersion,
    chat: ModuleVersion,
    sampler: ModuleVersion,
}

#[derive(Clone, Debug, Serialize)]
struct ModuleVersion {
    name: String,
    digest: String,
}

impl From<&Module> for ModuleVersion {
    fn from(module: &Module) -> Self {
        Self {
            name: module.name().to_owned(),
            digest: format!("sha256:{}", module.digest()),
        }
    }
}

/// A loaded model.
#[derive(Debug, Serialize)]
pub(super) struct AdminModelCard {
    id: String,
    object: &'static str,
    aliases: Vec<String>,
    created: u64,
    max_model_len: u32,
    vocab_size: u32,
    #[serde(flatten)]
    loaded: Option<Loaded>,
}

#[derive(Debug, Serialize)]
pub(super) struct AdminModelList {
    object: &'static str,
    data: Vec<AdminModelCard>,
}

impl Admin {
    fn known(&self) -> MutexGuard<'_, std::collections::BTreeMap<String, Loaded>> {
        self.0.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn remember(&self, source: &str, model: &LoadedModel) {
        let modules = &model.modules;
        let loaded = Loaded {
            source: source.to_owned(),
            device: model.target.to_string(),
            architecture: model.plan.graph.info.architecture.clone(),
            modules: ModelModules {
                graph: modules.graph_module.as_ref().into(),
                chat: modules.chat.current().as_ref().into(),
                sampler: modules.sampler.current().as_ref().into(),
            },
        };
        self.known().insert(model.served.id.clone(), loaded);
    }

    fn card(&self, model: &ServedModel) -> AdminModelCard {
        AdminModelCard {
            id: model.id.clone(),
            object: "model",
            aliases: model.aliases.clone(),
            created: model.created,
            max_model_len: model.max_model_len,
            vocab_size: model.vocab,
            loaded: self.known().get(&model.id).cloned(),
        }
    }

    fn model(&self, id: &str) -> Result<Arc<ServedModel>, ApiError> {
        let models = self.0.state.served();
        let found = models.into_iter().find(|model| model.id == id);
        found.ok_or_else(|| ApiError::ModelNotFound {
            name: id.to_owned(),
        })
    }
}

pub(super) async fn list(State(admin): State<Admin>) -> Json<AdminModelList> {
    let models = admin.0.state.served();
    Json(AdminModelList {
        object: "list",
        data: models.iter().map(|model| admin.card(model)).collect(),
    })
}

pub(super) async fn get(
    State(admin): State<Admin>,
    Path(id): Path<String>,
) -> Result<Json<AdminModelCard>, ApiError> {
    let model = admin.model(&id)?;
    Ok(Json(admin.card(&model)))
}

pub(super) async fn load(
    State(admin): State<Admin>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<AdminModelCard>), ApiError> {
    let body = body.map_err(|error| from_body(&error, MAX_REQUEST))?;
    let request: LoadRequest =
        serde_json::from_slice(&body).map_err(|error| ApiError::Invalid {
            param: None,
            message: format!("the body is not a load: {error}"),
        })?;
    // The load goes on to its end when the client leaves.
    let work = tokio::spawn(async move {
        let _one = admin.0.loading.lock().await;
        run(&admin, request).await
    });
    work.await.unwrap_or_else(|error| {
        Err(ApiError::Internal {
            message: format!("the load failed: {error}"),
        })
    })
}

async fn run(
    admin: &Admin,
    request: LoadRequest,
) -> Result<(StatusCode, Json<AdminModelCard>), ApiError> {
    let options = options(&admin.0.options, &request)?;
    let name = request.name.unwrap_or_else(|| request.model.clone());
    check_name(&name)?;
    let taken = |name: &str| ApiError::Conflict {
        message: format!(
            "a model named '{name}' is served already; unload it first, or give another `name`"
        ),
    };
    if admin.0.state.served().iter().any(|m| m.answers_to(&name)) {
        return Err(taken(&name));
    }
    let (modules, source, revision) = (
        Arc::clone(&admin.0.modules),
        request.model.clone(),
        request.revision,
    );
    let loaded = blocking(move || {
        let local = ModelRef::parse(&source, revision.as_deref())
            .and_then(|model| model.fetch())
            .map_err(|error| error.to_string())?;
        load_model(&name, &local, &modules, &options).map_err(|error| error.to_string())
    });
    let loaded = loaded.await?.map_err(|message| ApiError::Invalid {
        param: Some("model".to_owned()),
        message,
    })?;
    let served = Arc::clone(&loaded.served);
    admin
        .0
        .state
        .add(Arc::clone(&served))
        .map_err(|name| taken(&name))?;
    admin.remember(&request.model, &loaded);
    tracing::info!(model = %served.id, max_model_len = served.max_model_len, "a model was loaded");
    Ok((StatusCode::CREATED, Json(admin.card(&served))))
}

/// The server's options with what the request says.
fn options(base: &LoadOptions, request: &LoadRequest) -> Result<LoadOptions, ApiError> {
    let module = |field: &'static str, text: &Option<String>| -> Result<_, ApiError> {
        let parsed = text.as_deref().map(str::parse::<ModuleRef>).transpose();
        parsed.map_err(|error| ApiError::invalid(field, error.to_string()))
    };
    let share = request.gpu_memory_utilization;
    if share.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
        return Err(ApiError::invalid(
            "gpu_memory_utilization",
            "expected a number above 0 and at most 1",
        ));
    }
    if request.max_num_seqs == Some(0) {
        return Err(ApiError::invalid("max_num_seqs", "expected at least 1"));
    }
    let mut options = base.clone();
    options.guests = GuestChoice {
        graph: module("graph", &request.graph)?,
        chat: module("chat", &request.chat)?,
        sampler: module("sampler", &request.sampler)?,
    };
    // Length and format of the server's first model are no measure for others.
    options.load_format = request.load_format.unwrap_or_default();
    options.max_model_len = request.max_model_len;
    options.max_num_seqs = request.max_num_seqs.unwrap_or(base.max_num_seqs);
    options.kv_cache_bytes = request.kv_cache_memory_bytes.or(base.kv_cache_bytes);
    options.gpu_memory_utilization = share.unwrap_or(base.gpu_memory_utilization);
    Ok(options)
}

/// Names stand in URLs, metrics and logs.
fn check_name(name: &str) -> Result<(), ApiError> {
    let fits = |c: u8| c.is_ascii_alphanumeric() || b"-_./:".contains(&c);
    if name.is_empty() || name.len() > NAME || !name.bytes().all(fits) {
        return Err(ApiError::invalid(
            "name",
            format!("expected 1 to {NAME} of letters, digits and -_./: in `name`"),
        ));
    }
    Ok(())
}

pub(super) async fn unload(
    State(admin): State<Admin>,
    Path(id): Path<String>,
) -> Result<Json<Deleted>, ApiError> {
    let Some(model) = admin.0.state.remove(&id) else {
        return Err(ApiError::ModelNotFound { name: id });
    };
    admin.known().remove(&id);
    // Ends the engine when this, and every request that runs, has let go of it.
    drop(model);
    tracing::info!(model = %id, "a model was unloaded");
    Ok(Json(Deleted {
        id,
        object: "model",
        deleted: true,
    }))
}
