//! Attention: which kernel computes which rows of a step.

use std::sync::Arc;

use guesthouse_graph::{Mask, ValueLayout};

use super::attention_decode::Decode;
use super::attention_generic::{Generic, Which};
use super::attention_latent::Latent;
use super::attention_prefill::Prefill;
use super::{Instr, Limits, Place, Planners, Step, StepKind};
use crate::cuda::compiler::Source;
use crate::cuda::driver::Gpu;
use crate::cuda::options::{CudaDtype, Numerics};
use crate::error::{DeviceError, Result};

/// Attention of one layer over its cache.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttentionSpec {
    /// Index into [`Step::caches`].
    pub cache: usize,
    /// Query heads.
    pub heads: u32,
    /// Key heads; divides `heads`.
    pub kv_heads: u32,
    /// Elements of a query or key head.
    pub k_dim: u32,
    /// Elements of a value head.
    pub v_dim: u32,
    /// Where values live in the cache.
    pub values: ValueLayout,
    /// Multiplies scores.
    pub scale: f32,
    /// Whether the tokens of a prefix see each other, which [`PlanRow`](super::PlanRow) and batch say for each row.
    pub mask: Mask,
    /// Positions a query sees, itself included.
    pub window: Option<u32>,
    /// Bound of scaled scores.
    pub softcap: Option<f32>,
    /// Device address of `[heads]` f32 slopes.
    pub alibi: Option<u64>,
    /// Device address of `[heads]` f32 logits.
    pub sinks: Option<u64>,
    /// `[heads, k_dim]`
    pub q: Place,
    /// `[heads, v_dim]`
    pub y: Place,
    /// Type of q, y and cache.
    pub dtype: CudaDtype,
    /// Positions of a block.
    pub block_size: u32,
    /// Whether a row's result may depend on its batch.
    pub numerics: Numerics,
}

impl AttentionSpec {
    /// With a definition for each feature that the layer has.
    pub(crate) fn features(&self, source: Source) -> Source {
        let features = [
            ("WINDOW", self.window.is_some()),
            ("SOFTCAP", self.softcap.is_some()),
            ("ALIBI", self.alibi.is_some()),
            ("SINKS", self.sinks.is_some()),
            ("PREFIX", self.mask != Mask::Causal),
        ];
        let present = features.iter().filter(|(_, present)| *present);
        present.fold(source, |source, (name, _)| source.flag(name))
    }
}

/// A kernel that computes some of a step's rows.
pub(crate) trait Kernel: Send {
    /// Enqueues it for the rows it is there for: those of one token, or the longer ones.
    ///
    /// # Errors
    /// When the driver refuses the launch.
    fn launch(&self, step: &Step<'_>) -> Result<()>;

    /// Bytes of [`Step::scratch`] that a launch uses.
    fn scratch(&self) -> usize {
        0
    }
}

/// Attention of a step's rows: those of one token by one kernel, longer ones by another.
pub(crate) struct Attend {
    single: Box<dyn Kernel>,
    long: Box<dyn Kernel>,
    scratch: usize,
}

impl Attend {
    /// Chooses the kernels. Where results may not depend on the batch, one kernel computes all rows: a token's result is
    /// then the same whether it came alone or in a prompt.
    ///
    /// # Errors
    /// When no kernel computes such attention.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        spec: &AttentionSpec,
        limits: &Limits,
        planners: &mut Planners,
    ) -> Result<Self> {
        if spec.values == ValueLayout::PrefixOfKey {
            let over_latents = |which, planners: &mut Planners| -> Result<_> {
                match Latent::new(gpu, spec, which, limits, planners)? {
                    Some(latent) => Ok(Some(Box::new(latent) as Box<dyn Kernel>)),
                    None => generic(gpu, spec, which),
                }
            };
            let single = over_latents(Which::Single, planners)?;
            let long = over_latents(Which::Long, planners)?;
            return Self::of(spec, single, long);
        }
        let decode = match spec.numerics {
            Numerics::Fast => Decode::new(gpu, spec, limits, planners)?,
            Numerics::BatchInvariant => None,
        };
        let single: Option<Box<dyn Kernel>> = match decode {
            Some(decode) => Some(Box::new(decode)),
            None => match Prefill::new(gpu, spec, Which::Single, planners)? {
                Some(prefill) => Some(Box::new(prefill)),
                None => generic(gpu, spec, Which::Single)?,
            },
        };
        let long: Option<Box<dyn Kernel>> = match Prefill::new(gpu, spec, Which::Long, planners)? {
            Some(prefill) => Some(Box::new(prefill)),
            None => generic(gpu, spec, Which::Long)?,
        };
        Self::of(spec, single, long)
    }

    fn of(
        spec: &AttentionSpec,
        single: Option<Box<dyn Kernel>>,
        long: Option<Box<dyn Kernel>>,
    ) -> Result<Self> {
        match (single, long) {
            (Some(single), Some(long)) => Ok(Self {
                scratch: single.scratch().max(long.scratch()),
                single,
                long,
            }),
            _ => Err(DeviceError::plan(format!(
                "no kernel for attention of {} heads of {} and {}",
                spec.heads, spec.k_dim, spec.v_dim
            ))),
        }
    }

    /// Bytes of [`Step::scratch`] that a launch uses.
    pub(crate) fn scratch(&self) -> usize {
        self.scratch
    }
}

fn generic(gpu: &Arc<Gpu>, spec: &AttentionSpec, which: Which) -> Result<Option<Box<dyn Kernel>>> {
    let kernel = Generic::new(gpu, spec, which)?;
    Ok(kernel.map(|k| Box::new(k) as Box<dyn Kernel>))
}

impl Instr for Attend {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        if step.kind == StepKind::Decode || step.single_rows > 0 {
            self.single.launch(step)?;
        }
        if step.kind == StepKind::Mixed && step.long_rows > 0 {
            self.long.launch(step)?;
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        "attention"
    }
}
