//! From files to a running engine.

use crate::model::device::{DeviceChoice, DtypeChoice, Target};
use crate::model::store::{ModuleError, ModuleStore};
use crate::model::{GuestChoice, LoadFormat, ModelFiles, Modules, Weights, guests::ModelGuests};
use crate::serving::{EmbeddingFacts, GenerationOptions, ServedModel, planning_turns};
use crate::source::{LocalModel, SourceError};
use crate::text::{BreakingTokens, EncodingLimits};
use guesthouse_component::{ComponentError, ModelFacts, Role};
use guesthouse_device::{CudaGraphs, DeviceError, DeviceExecutor, Numerics};
use guesthouse_engine::{
    CacheSalt, Engine, EngineConfig, EngineThread, Executor as _, GroupKind, PrefixCaching,
};
use guesthouse_grammar::{GrammarCompiler, Limits};
use guesthouse_graph::{
    Catalog, DummyCatalog, Graph, GraphError, Op, Output, PassOptions, Plan, PlanOptions,
    SourceCatalog, WeightExpr,
};
use guesthouse_tokenizer::TokenizerError;
use guesthouse_weights::{DummySource, TensorInfo, WeightSource, WeightsError, is_buffer};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Most tensors that a warning lists.
const UNUSED_TOLD: usize = 8;

/// Settings of a load. `None` leaves the choice to the host.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Longest sequence, tokens; at most what the model was made for.
    pub max_model_len: Option<u32>,
    /// Sequences that run at once.
    pub max_num_seqs: u32,
    /// Tokens per step; the device's default is 2048 on the CPU and 8192 on a GPU.
    pub max_num_batched_tokens: Option<u32>,
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
    /// What runs the model.
    pub device: DeviceChoice,
    /// Type of weights and activations on a GPU.
    pub dtype: DtypeChoice,
    /// Where weights come from.
    pub load_format: LoadFormat,
    /// Share of a GPU's memory to use, above 0 and at most 1.
    pub gpu_memory_utilization: f64,
    /// Positions per KV block, a multiple of 16.
    pub block_size: Option<u32>,
    /// How a GPU launches decode steps.
    pub graphs: CudaGraphs,
    /// Whether results on a GPU may depend on the batch.
    pub numerics: Numerics,
    /// How answers are made.
    pub generation: GenerationOptions,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            max_model_len: None,
            max_num_seqs: 256,
            max_num_batched_tokens: None,
            max_waiting: 4096,
            kv_cache_bytes: None,
            prefix_caching: PrefixCaching::On,
            threads: None,
            guests: GuestChoice::default(),
            device: DeviceChoice::Auto,
            dtype: DtypeChoice::Auto,
            load_format: LoadFormat::Auto,
            gpu_memory_utilization: 0.92,
            block_size: None,
            graphs: CudaGraphs::Captured,
            numerics: Numerics::Fast,
            generation: GenerationOptions::default(),
        }
    }
}

/// A running model.
pub struct LoadedModel {
    /// For requests.
    pub served: Arc<ServedModel>,
    /// The graph as its guest built it.
    pub plan: Arc<Plan>,
    /// Where it runs.
    pub target: Target,
    /// Its guests.
    pub modules: Modules,
    /// Bytes per second that a large copy on the device reads and writes, where measured.
    pub bandwidth: Option<f64>,
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
        "no guest builds {found}; there are {known}. Another one can be added without recompiling: `guesthouse module new \
         model NAME` starts one (docs/add-an-architecture.md); put its .wasm into the folder of --modules, or name it with \
         --graph-module"
    )]
    UnknownArchitecture {
        /// What was asked for, in words.
        found: String,
        /// Those that guests build.
        known: String,
    },
    /// Nothing has this name.
    #[error(
        "there is no {role} module named '{name}': neither built in, nor uploaded, nor in the folder of --modules"
    )]
    NoModule {
        /// For what.
        role: Role,
        /// Which.
        name: String,
    },
    /// A module of the store.
    #[error(transparent)]
    Module(#[from] ModuleError),
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

/// A graph as its guest builds it.
pub struct BuiltGraph {
    /// Before any pass.
    pub graph: Graph,
    /// The model's guests.
    pub modules: Modules,
    /// What the graph's parameters are read from.
    pub weights: Arc<dyn WeightSource>,
    /// Tensors of the checkpoint that the graph does not name, buffers aside.
    pub unused: Vec<String>,
}

/// The graph of a model as its guest builds it, and the guests.
///
/// # Errors
/// When no guest builds it, or the graph does not fit the checkpoint.
pub fn build_graph(
    store: &Arc<ModuleStore>,
    files: &ModelFiles,
    choice: &GuestChoice,
) -> Result<BuiltGraph, LoadError> {
    let modules = Modules::choose(store, choice, &files.architectures(), files.chat_template())?;
    let catalog: Arc<dyn Catalog> = match &files.weights {
        Weights::Checkpoint(source) => Arc::new(SourceCatalog::new(Arc::clone(source))),
        Weights::Dummy(dtype) => Arc::new(DummyCatalog { dtype: *dtype }),
    };
    let graph = modules.graph.build(&files.config.to_string(), catalog)?;
    let mut unused = Vec::new();
    let weights: Arc<dyn WeightSource> = match &files.weights {
        Weights::Checkpoint(source) => {
            unused = unused_params(&graph, source.as_ref());
            if let [first, ..] = unused.as_slice() {
                let some = unused[..unused.len().min(UNUSED_TOLD)].join(", ");
                tracing::warn!(count = unused.len(), %first, "the model's graph does not use all tensors of its checkpoint: {some}");
            }
            Arc::clone(source)
        }
        Weights::Dummy(_) => Arc::new(DummySource::new(params(&graph))?),
    };
    Ok(BuiltGraph {
        graph,
        modules,
        weights,
        unused,
    })
}

/// What a graph does not name, be it by another of its names. Buffers of old checkpoints are nothing that it should.
fn unused_params(graph: &Graph, source: &dyn WeightSource) -> Vec<String> {
    let mut unused = guesthouse_graph::unused_params(graph, &source.names());
    let named: HashSet<String> = params(graph)
        .filter_map(|(name, _)| source.resolve(&name))
        .collect();
    let buffer = |name: &str| source.info(name).is_some_and(|info| is_buffer(name, &info));
    unused.retain(|name| !named.contains(name) && !buffer(name));
    unused
}

/// The checkpoint tensors that a graph names.
fn params(graph: &Graph) -> impl Iterator<Item = (String, TensorInfo)> {
    graph
        .weights
        .iter()
        .filter_map(|weight| match &weight.expr {
            WeightExpr::Param { name } => {
                let shape: Vec<usize> = weight.shape.iter().map(|&d| d as usize).collect();
                Some((name.clone(), TensorInfo::new(shape, weight.scheme)))
            }
            _ => None,
        })
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
    /// Where it runs.
    pub target: Target,
}

/// Builds a model's graph and puts its weights on the device. Blocks.
///
/// # Errors
/// When a guest or the device does not do.
pub fn on_device(
    files: &ModelFiles,
    store: &Arc<ModuleStore>,
    options: &LoadOptions,
) -> Result<OnDevice, LoadError> {
    let target = Target::choose(options, files.dtype())?;
    let BuiltGraph {
        graph,
        modules,
        weights,
        unused: _,
    } = build_graph(store, files, &options.guests)?;
    let limit = graph.info.max_position;
    let max_len = match options.max_model_len {
        Some(asked) if asked < 2 || asked > limit => {
            return Err(LoadError::MaxModelLen { asked, limit });
        }
        Some(asked) => asked,
        None => limit,
    };
    let graph = guesthouse_graph::optimize(graph, &PassOptions::default())?;
    let plan = Arc::new(Plan::compile(
        graph,
        &PlanOptions::new(target.model_bytes()),
    )?);
    let executor = target.load(&plan, weights.as_ref(), max_len, options)?;
    Ok(OnDevice {
        executor,
        plan,
        modules,
        max_len,
        target,
    })
}

/// Loads a model and starts its engine. Blocks; takes as long as reading the weights.
///
/// # Errors
/// When a file, guest or the device does not do; nothing is left running.
pub fn load(
    name: &str,
    model: &LocalModel,
    store: &Arc<ModuleStore>,
    options: &LoadOptions,
) -> Result<LoadedModel, LoadError> {
    let files = ModelFiles::open(model, options.load_format)?;
    // What is quickly refused is refused before weights are read.
    let tokenizer = files.tokenizer()?;
    let OnDevice {
        executor,
        plan,
        modules,
        max_len,
        target,
    } = on_device(&files, store, options)?;
    let bandwidth = executor.bandwidth();
    let config = EngineConfig {
        max_waiting: options.max_waiting,
        max_running: options.max_num_seqs as usize,
        max_step_tokens: target.step_tokens(options),
        prefix_cache: options.prefix_caching,
        lookup_min: options.generation.lookup.0,
        lookup_max: options.generation.lookup.1,
        ..EngineConfig::default()
    };
    let recurrent = executor
        .info()
        .groups
        .iter()
        .any(|group| group.kind == GroupKind::Recurrent);
    if options.generation.drafts > 0 && recurrent {
        tracing::warn!(
            "no tokens are guessed: this model keeps recurrent states, which cannot take a refused guess back"
        );
    }
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
        prompt_len: 0,
        max_tokens: 0,
        choices: 1,
    };
    let cache_salt = cache_salt(&files, &modules, target);
    let defaults = files.sampling_defaults();
    let guests = ModelGuests::new(&modules, store, files.template_files, &tokenizer, facts);
    let served = ServedModel {
        id: name.to_owned(),
        aliases: Vec::new(),
        created: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs()),
        max_model_len: max_len,
        vocab,
        encoding: EncodingLimits::of(&tokenizer),
        breaking: BreakingTokens::default(),
        planning: planning_turns(),
        grammars: GrammarCompiler::new(Arc::clone(&tokenizer), vocab as usize, Limits::default()),
        tokenizer,
        engine,
        guests: Arc::new(guests),
        graph: modules.graph_module.name().to_owned(),
        stop_tokens,
        cache_salt,
        defaults,
        generation: options.generation,
        embedding: embedding_facts(&plan.graph),
    };
    if files.config.pointer("/guesthouse/embedding").is_some() && served.embedding.is_none() {
        tracing::warn!(
            "the model's files make it an embedding model, but its graph guest only generates; it is served so"
        );
    }
    Ok(LoadedModel {
        served: Arc::new(served),
        plan,
        target,
        modules,
        bandwidth,
    })
}

/// What vectors the graph makes, if any.
fn embedding_facts(graph: &Graph) -> Option<EmbeddingFacts> {
    let Output::Embedding(vector) = graph.output else {
        return None;
    };
    let made_by = |node: &&guesthouse_graph::Node| node.outputs.contains(&vector);
    let normalized = graph
        .nodes
        .iter()
        .find(made_by)
        .is_some_and(|node| matches!(node.op, Op::L2Norm { .. }));
    Some(EmbeddingFacts {
        width: u32::try_from(graph.value(vector).width()).unwrap_or(u32::MAX),
        normalized,
    })
}

/// Root of prefix-cache keys: all that keys and values depend on beside tokens.
fn cache_salt(files: &ModelFiles, modules: &Modules, target: Target) -> CacheSalt {
    let mut hash = Sha256::new();
    hash.update(files.identity);
    hash.update(files.config.to_string());
    hash.update(modules.graph_module.digest().0);
    hash.update(target.to_string());
    CacheSalt(hash.finalize().into())
}
