//! What the CUDA device is told at load.

use std::path::PathBuf;

use guesthouse_weights::DType;
use half::{bf16, f16};

use crate::error::{DeviceError, Result};

/// Type of weights and activations on the GPU; sums are f32 in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CudaDtype {
    /// The upper half of an f32.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// IEEE 754 binary32, without TF32.
    F32,
}

impl CudaDtype {
    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Whether values of this type hold all values of a stored one.
    pub(crate) const fn stores(self, stored: DType) -> bool {
        matches!(
            (self, stored),
            (Self::F32, DType::F32 | DType::F16 | DType::Bf16)
                | (Self::F16, DType::F16)
                | (Self::Bf16, DType::Bf16)
        )
    }

    /// Elements of this type as floats; all of its values are.
    pub(crate) fn floats(self, bytes: &[u8]) -> Vec<f32> {
        let pairs = || bytes.as_chunks().0.iter();
        match self {
            Self::Bf16 => pairs().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
            Self::F16 => pairs().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            Self::F32 => {
                let words = bytes.as_chunks().0.iter();
                words.map(|b| f32::from_le_bytes(*b)).collect()
            }
        }
    }

    /// As the command line writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
            Self::F32 => "float32",
        }
    }
}

/// Memory for keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KvMemory {
    /// What is left of this share of the GPU's whole memory after weights, activations, graphs and what other programs
    /// hold (`--gpu-memory-utilization`).
    Utilization(f64),
    /// So many bytes, divided among the groups.
    Bytes(usize),
    /// So many blocks in each group.
    Blocks(u32),
}

/// How decode steps are launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CudaGraphs {
    /// As CUDA graphs, captured per batch bucket.
    #[default]
    Captured,
    /// Kernel by kernel (`--enforce-eager`).
    Eager,
}

/// Whether a row's results may depend on what else is in its batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// Kernels, tiles and splits are chosen for the batch at hand; results agree within rounding.
    #[default]
    Fast,
    /// Results are bitwise the same in every batch (`--batch-invariant`).
    BatchInvariant,
}

/// Sizes and choices of a CUDA device.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaOptions {
    /// Which GPU, as CUDA counts those that `CUDA_VISIBLE_DEVICES` leaves.
    pub ordinal: usize,
    /// Type of weights and activations.
    pub dtype: CudaDtype,
    /// Memory for keys and values.
    pub kv: KvMemory,
    /// Positions per block, a multiple of 16.
    pub block_size: u32,
    /// Most tokens in one step.
    pub max_step_tokens: u32,
    /// Sequences that can run at once.
    pub max_slots: u32,
    /// Most drafts of a sequence in one step. There is room for the logits of `max_slots * (1 + drafts)` positions, but not
    /// for more than those of a step's tokens, nor for less than 256: `vocab` elements each, which at 256 sequences, 4
    /// drafts, a vocabulary of 128,256 and bf16 is 328 MB.
    pub drafts: u32,
    /// Longest sequence, tokens.
    pub max_len: u32,
    /// How decode steps are launched.
    pub graphs: CudaGraphs,
    /// Whether results may depend on the batch.
    pub numerics: Numerics,
    /// Where compiled kernels and algorithm choices are kept; none keeps nothing.
    pub cache_dir: Option<PathBuf>,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            ordinal: 0,
            dtype: CudaDtype::Bf16,
            kv: KvMemory::Utilization(0.92),
            block_size: 16,
            max_step_tokens: 8192,
            max_slots: 256,
            drafts: 0,
            max_len: 8192,
            graphs: CudaGraphs::Captured,
            numerics: Numerics::Fast,
            cache_dir: None,
        }
    }
}

impl CudaOptions {
    /// Positions of one step from which tokens can be sampled.
    pub(crate) fn sampled_positions(&self) -> u32 {
        let all = self.max_slots.saturating_mul(1 + self.drafts);
        all.min(self.max_step_tokens.max(self.max_slots))
    }

    pub(crate) fn check(&self) -> Result<()> {
        let check = |option, ok: bool, expected: &str, found: String| {
            let expected = expected.to_owned();
            if ok {
                Ok(())
            } else {
                Err(DeviceError::Option {
                    option,
                    expected,
                    found,
                })
            }
        };
        let block = self.block_size;
        check(
            "block_size",
            block > 0 && block.is_multiple_of(16) && block <= 1024,
            "a multiple of 16 up to 1024",
            block.to_string(),
        )?;
        for (option, value, most) in [
            ("max_step_tokens", self.max_step_tokens, 1 << 20),
            ("max_slots", self.max_slots, 1 << 14),
            ("max_len", self.max_len, 1 << 26),
            ("drafts", self.drafts, 64),
        ] {
            let least = u32::from(option != "drafts");
            let expected = format!("{least} to {most}");
            check(
                option,
                (least..=most).contains(&value),
                &expected,
                value.to_string(),
            )?;
        }
        match self.kv {
            KvMemory::Utilization(share) => check(
                "gpu_memory_utilization",
                share > 0.0 && share <= 1.0,
                "a number above 0, at most 1",
                share.to_string(),
            ),
            KvMemory::Bytes(_) | KvMemory::Blocks(_) => Ok(()),
        }
    }
}
