//! Which device a model goes to, and in what form.

use crate::model::{LoadError, LoadOptions};
use guesthouse_device::{
    CpuDevice, CpuOptions, CudaDevice, CudaDtype, CudaOptions, DeviceExecutor, KvBudget, KvMemory,
    LoadProgress,
};
use guesthouse_graph::Plan;
use guesthouse_weights::{DType, WeightSource};
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Tokens per step where nothing is said.
const CPU_STEP_TOKENS: u32 = 2048;
const CUDA_STEP_TOKENS: u32 = 8192;

/// What runs a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first GPU where one is usable, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU.
    Cuda {
        /// As CUDA counts.
        ordinal: usize,
    },
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda { ordinal: 0 }),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|n| n.parse().ok())
                .map(|ordinal| Self::Cuda { ordinal })
                .ok_or_else(|| "expected auto, cpu, cuda or cuda:N".to_owned()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda { ordinal } => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// Type of weights and activations on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DtypeChoice {
    /// The checkpoint's; bfloat16 for those in float32 or quantized.
    #[default]
    Auto,
    /// This one.
    Exactly(CudaDtype),
}

impl DtypeChoice {
    /// The type for a checkpoint whose configuration names `stored`.
    #[must_use]
    pub fn resolve(self, stored: Option<DType>) -> CudaDtype {
        match (self, stored) {
            (Self::Exactly(dtype), _) => dtype,
            (Self::Auto, Some(DType::F16)) => CudaDtype::F16,
            (Self::Auto, _) => CudaDtype::Bf16,
        }
    }
}

/// The device that a choice comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Computes in f32, with weights as they are stored.
    Cpu,
    /// A GPU.
    Cuda {
        /// As CUDA counts.
        ordinal: usize,
        /// Type of weights and activations.
        dtype: CudaDtype,
    },
}

impl Target {
    /// Resolves what was left to the host. `stored` is the type that the checkpoint's configuration names.
    ///
    /// # Errors
    /// When a GPU was asked for by name and is not usable.
    pub fn choose(options: &LoadOptions, stored: Option<DType>) -> Result<Self, LoadError> {
        let cuda = |ordinal| Self::Cuda {
            ordinal,
            dtype: options.dtype.resolve(stored),
        };
        let target = match options.device {
            DeviceChoice::Cpu => Self::Cpu,
            DeviceChoice::Cuda { ordinal } => {
                CudaDevice::probe(ordinal)?;
                cuda(ordinal)
            }
            DeviceChoice::Auto => match CudaDevice::probe(0) {
                Ok(gpu) => {
                    tracing::info!(gpu = %gpu.name, "the model goes to the GPU");
                    cuda(0)
                }
                Err(why) => {
                    tracing::debug!(%why, "the model goes to the CPU");
                    Self::Cpu
                }
            },
        };
        if target == Self::Cpu
            && !matches!(
                options.dtype,
                DtypeChoice::Auto | DtypeChoice::Exactly(CudaDtype::F32)
            )
        {
            tracing::warn!("the CPU computes in float32, whatever --dtype says");
        }
        Ok(target)
    }

    /// Bytes of one activation or cached number.
    #[must_use]
    pub const fn model_bytes(self) -> usize {
        match self {
            Self::Cpu => 4,
            Self::Cuda { dtype, .. } => dtype.bytes(),
        }
    }

    /// Tokens per step.
    #[must_use]
    pub fn step_tokens(self, options: &LoadOptions) -> u32 {
        options.max_num_batched_tokens.unwrap_or(match self {
            Self::Cpu => CPU_STEP_TOKENS,
            Self::Cuda { .. } => CUDA_STEP_TOKENS,
        })
    }

    /// Puts a model's weights on the device. Blocks.
    pub(super) fn load(
        self,
        plan: &Arc<Plan>,
        weights: &dyn WeightSource,
        max_len: u32,
        options: &LoadOptions,
    ) -> Result<DeviceExecutor, LoadError> {
        let bar = ProgressBar::new(0).with_message("loading weights");
        if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} tensors") {
            bar.set_style(style);
        }
        let mut progress = |progress: LoadProgress| {
            bar.set_length(progress.total as u64);
            bar.set_position(progress.done as u64);
        };
        let executor = match self {
            Self::Cpu => CpuDevice::load(
                plan,
                weights,
                &self.cpu(plan, max_len, options),
                &mut progress,
            ),
            Self::Cuda { ordinal, dtype } => {
                let sizes = CudaOptions::default();
                let cuda = CudaOptions {
                    ordinal,
                    dtype,
                    kv: match options.kv_cache_bytes {
                        Some(bytes) => {
                            KvMemory::Bytes(usize::try_from(bytes).unwrap_or(usize::MAX))
                        }
                        None => KvMemory::Utilization(options.gpu_memory_utilization),
                    },
                    block_size: options.block_size.unwrap_or(sizes.block_size),
                    max_step_tokens: self.step_tokens(options),
                    max_slots: options.max_num_seqs,
                    drafts: options.generation.drafts,
                    max_len,
                    graphs: options.graphs,
                    numerics: options.numerics,
                    cache_dir: crate::paths::kernels().ok(),
                };
                CudaDevice::load(plan, weights, &cuda, &mut progress)
            }
        };
        bar.finish_and_clear();
        Ok(executor?)
    }

    fn cpu(self, plan: &Plan, max_len: u32, options: &LoadOptions) -> CpuOptions {
        let per_position: u64 = plan
            .groups
            .iter()
            .map(|g| g.bytes_per_position(plan.model_bytes) as u64)
            .sum();
        let kv = kv_bytes(options.kv_cache_bytes, per_position, max_len);
        let sizes = CpuOptions::default();
        CpuOptions {
            threads: options.threads.unwrap_or(0),
            kv: KvBudget::Bytes(usize::try_from(kv).unwrap_or(usize::MAX)),
            block_size: options.block_size.unwrap_or(sizes.block_size),
            max_step_tokens: self.step_tokens(options),
            max_slots: options.max_num_seqs,
            max_len,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu float32"),
            Self::Cuda { ordinal, dtype } => write!(f, "cuda:{ordinal} {}", dtype.name()),
        }
    }
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

#[cfg(test)]
mod tests;
