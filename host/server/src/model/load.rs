//! From files to a running engine.

use crate::model::{GuestChoice, ModelFiles, Modules, guests::ModelGuests};
use crate::serving::ServedModel;
use crate::source::{LocalModel, SourceError};
use crate::text::EncodingLimits;
use guesthouse_component::{ComponentError, ModelFacts, Runtime};
use guesthouse_device::{
    CpuDevice, CpuOptions, DeviceError, DeviceExecutor, KvBudget, LoadProgress,
};
use guesthouse_engine::{CacheSalt, Engine, EngineConfig, EngineThread, PrefixCaching};
use guesthouse_graph::{Catalog, Graph, GraphError, PassOptions, Plan, PlanOptions, SourceCatalog};
use guesthouse_tokenizer::TokenizerError;
use guesthouse_weights::{WeightSource, WeightsError};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Settings of a load. `None` leaves the choice to the host.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Longest sequence, tokens; at most what the model was made for.
    pub max_model_len: Option<u32>,
    /// Sequences that run at once.
    pub max_num_seqs: u32,
    /// Tokens per step.
    pub max_num_batched_tokens: u32,
    /// Requests that may wait.
    pub max_waiting: usize,
    /// Memory for keys and values, bytes.
    pub kv_cache_bytes: Option<u64>,
    /// Whether computed blocks are kept.
    pub prefix_caching: PrefixCaching,
    /// Worker threads.
    pub threads: Option<usize>,
    /// Modules named by the administrator.
    pub guests: GuestChoice,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            max_model_len: None,
            max_num_seqs: 256,
            max_num_batched_tokens: 2048,
            max_waiting: 4096,
            kv_cache_bytes: None,
            prefix_caching: PrefixCaching::On,
            threads: None,
            guests: GuestChoice::default(),
        }
    }
}

/// A running model.
pub struct LoadedModel {
    /// For requests.
    pub served: Arc<ServedModel>,
    /// The graph as its guest built it.
    pub plan: Arc<Plan>,
}

/// Why a model did not load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The model could not be had.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A file is missing or malformed.
    #[error("{} {what}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The checkpoint.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A guest.
    #[error(transparent)]
    Component(#[from] ComponentError),
    /// The graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Nobody builds this architecture.
    #[error(
        "no guest builds {found}; built in are {known}. Another one can be added without recompiling: write a \
         graph guest (docs/guests.md) and name its .wasm with --graph-module"
    )]
    UnknownArchitecture {
        /// What was asked for, in words.
        found: String,
        /// Those of the built-in guests.
        known: String,
    },
    /// The binary was built without a guest.
    #[error(
        "the built-in guest '{name}' is missing from this binary; name a module of your own, or rebuild"
    )]
    MissingBuiltin {
        /// Which.
        name: String,
    },
    /// `max_model_len` is out of range.
    #[error(
        "max_model_len is {asked}, but this model was made for at most {limit} tokens, and at least 2 are needed"
    )]
    MaxModelLen {
        /// Asked for.
        asked: u32,
        /// The model's own.
        limit: u32,
    },
    /// The system refused a thread.
    #[error("the engine's thread did not start: {0}")]
    Thread(std::io::Error),
}

impl LoadError {
    pub(crate) fn file(path: &Path, what: &str) -> Self {
        Self::File {
            path: path.to_owned(),
            what: what.to_owned(),
        }
    }
}

/// The graph of a model as its guest builds it, and the guests.
///
/// # Errors
/// When no guest builds it, or the graph does not fit the checkpoint.
pub fn build_graph(
    runtime: &Arc<Runtime>,
    files: &ModelFiles,
    choice: &GuestChoice,
) -> Result<(Graph, Modules), LoadError> {
    let modules = Modules::choose(runtime, choice, &files.architectures())?;
    let catalog: Arc<dyn Catalog> = Arc::new(SourceCatalog::new(Arc::clone(&files.weights)));
    let graph = modules.graph.build(&files.config.to_string(), catalog)?;
    let unused = guesthouse_graph::unused_params(&graph, &files.weights.names());
    if !unused.is_empty() {
        tracing::warn!(count = unused.len(), first = %unused[0], "the model's graph does not use all tensors of its checkpoint");
    }
    Ok((graph, modules))
}

/// A model on its device.
pub struct OnDevice {
    /// Runs steps.
    pub executor: DeviceExecutor,
    /// What it runs.
    pub plan: Arc<Plan>,
    /// Its guests.
    pub modules: Modules,
    /// Longest sequence, tokens.
    pub max_len: u32,
}

/// Builds a model's graph and puts its weights on the device. Blocks.
///
/// # Errors
/// When a guest or the device does not do.
pub fn on_device(
    files: &ModelFiles,
    runtime: &Arc<Runtime>,
    options: &LoadOptions,
) -> Result<OnDevice, LoadError> {
    let (graph, modules) = build_graph(runtime, files, &options.guests)?;
    let limit = graph.info.max_position;
    let max_len = match options.max_model_len {
        Some(asked) if asked < 2 || asked > limit => {
            return Err(LoadError::MaxModelLen { asked, limit });
        }
        Some(asked) => asked,
        None => limit,
    };
    let graph = guesthouse_graph::optimize(graph, &PassOptions::default())?;
    let plan = Arc::new(Plan::compile(graph, &PlanOptions::new(size_of::<f32>()))?);
    let executor = executor(&plan, files.weights.as_ref(), max_len, options)?;
    Ok(OnDevice {
        executor,
        plan,
        modules,
        max_len,
    })
}

/// Loads a model and starts its engine. Blocks; takes as long as reading the weights.
///
/// # Errors
/// When a file, guest or the device does not do; nothing is left running.
pub fn load(
    name: &str,
    model: &LocalModel,
    runtime: &Arc<Runtime>,
    options: &LoadOptions,
) -> Result<LoadedModel, LoadError> {
    let files = ModelFiles::open(model)?;
    let tokenizer = files.tokenizer()?;
    let OnDevice {
        executor,
        plan,
        modules,
        max_len,
    } = on_device(&files, runtime, options)?;
    let config = EngineConfig {
        max_waiting: options.max_waiting,
        max_running: options.max_num_seqs as usize,
        max_step_tokens: options.max_num_batched_tokens,
        prefix_cache: options.prefix_caching,
    };
    let engine = EngineThread::spawn(Engine::new(executor, config)).map_err(LoadError::Thread)?;
    let vocab = plan.graph.info.vocab_size;
    let stop_tokens: Vec<u32> = files
        .stop_tokens(&tokenizer)
        .into_iter()
        .filter(|id| *id < vocab)
        .collect();
    let facts = ModelFacts {
        vocab_size: vocab,
        stop_tokens: stop_tokens.clone(),
        max_len,
    };
    let cache_salt = cache_salt(&files, &modules);
    let defaults = files.sampling_defaults();
    let guests = ModelGuests::new(&modules, files.template_files, &tokenizer, facts);
    let served = ServedModel {
        id: name.to_owned(),
        aliases: Vec::new(),
        created: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs()),
        max_model_len: max_len,
        vocab,
        encoding: EncodingLimits::of(&tokenizer),
        tokenizer,
        engine,
        guests: Arc::new(guests),
        stop_tokens,
        cache_salt,
        defaults,
    };
    Ok(LoadedModel {
        served: Arc::new(served),
        plan,
    })
}

fn executor(
    plan: &Arc<Plan>,
    weights: &dyn WeightSource,
    max_len: u32,
    options: &LoadOptions,
) -> Result<DeviceExecutor, LoadError> {
    let per_position: u64 = plan
        .groups
        .iter()
        .map(|g| g.bytes_per_position(plan.model_bytes) as u64)
        .sum();
    let cpu = CpuOptions {
        threads: options.threads.unwrap_or(0),
        kv: KvBudget::Bytes(
            usize::try_from(kv_bytes(options.kv_cache_bytes, per_position, max_len))
                .unwrap_or(usize::MAX),
        ),
        max_step_tokens: options.max_num_batched_tokens,
        max_slots: options.max_num_seqs,
        max_len,
        ..CpuOptions::default()
    };
    let bar = ProgressBar::new(0).with_message("loading weights");
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} tensors") {
        bar.set_style(style);
    }
    let executor = CpuDevice::load(plan, weights, &cpu, &mut |progress: LoadProgress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
    });
    bar.finish_and_clear();
    Ok(executor?)
}

/// What was asked for; else a quarter of what is free, at most 4 GiB; never less than one whole sequence takes.
fn kv_bytes(asked: Option<u64>, per_position: u64, max_len: u32) -> u64 {
    let one_sequence = per_position.saturating_mul(u64::from(max_len) + 16);
    let quarter = available_memory().map_or(1 << 30, |free| (free / 4).min(4 << 30));
    asked.unwrap_or_else(|| quarter.max(one_sequence))
}

/// Memory that can be had without swapping, bytes; none where the system does not say.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
    line.split_whitespace()
        .nth(1)?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

/// Root of prefix-cache keys: all that keys and values depend on beside tokens.
fn cache_salt(files: &ModelFiles, modules: &Modules) -> CacheSalt {
    let mut hash = Sha256::new();
    hash.update(files.identity);
    hash.update(files.config.to_string());
    hash.update(modules.graph_module.digest().0);
    CacheSalt(hash.finalize().into())
}
