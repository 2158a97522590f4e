//! The machine and the kernels, looked at (`guesthouse doctor`).

mod attention;
mod attention_decode;
mod attention_generic;
mod attention_latent;
mod attention_prefill;
mod experts;
mod gemm;
mod head_linear;
mod kv_prefix;
mod memory;
mod norm;
mod pointwise;
mod quant;
mod recurrent;
mod report;
mod rope;
mod sample;
mod shape;
mod timing;

pub use report::{Environment, Gpu, KernelReport, Library, Need, Verdict};
pub(crate) use timing::Timer;

use super::{driver, libs};
use crate::error::{DeviceError, Result};

/// All that is looked for.
const LIBRARIES: [libs::Wanted; 4] = [libs::DRIVER, libs::BUILTINS, libs::NVRTC, libs::CUBLASLT];

/// A GPU on which a model could run.
///
/// # Errors
/// What is missing and the command that installs it.
pub(crate) fn probe(ordinal: usize) -> Result<Gpu> {
    for wanted in LIBRARIES {
        libs::load(wanted)?;
    }
    describe(ordinal)
}

/// A GPU that the driver sees.
fn describe(ordinal: usize) -> Result<Gpu> {
    let properties = driver::properties(ordinal)?;
    if properties.capability < (8, 0) {
        let (major, minor) = properties.capability;
        return Err(DeviceError::Absent {
            device: "cuda",
            why: format!(
                "{} has compute capability {major}.{minor}; 8.0 (Ampere) or later is needed",
                properties.name
            ),
        });
    }
    Ok(Gpu {
        ordinal,
        name: properties.name,
        capability: properties.capability,
        multiprocessors: properties.multiprocessors,
        memory: properties.memory,
        free: properties.memory,
        bandwidth: None,
    })
}

/// With what only an open GPU tells, where it can be opened.
fn measured(found: Gpu) -> Gpu {
    let Ok(gpu) = driver::Gpu::open(found.ordinal, None) else {
        return found;
    };
    let free = gpu.free_memory().unwrap_or(found.free);
    Gpu {
        free,
        bandwidth: super::device::bandwidth(&gpu, free).ok().flatten(),
        ..found
    }
}

/// Libraries and GPUs of this machine. Changes nothing and loads no kernel.
#[must_use]
pub fn environment() -> Environment {
    let libraries = LIBRARIES
        .into_iter()
        .map(|wanted| Library {
            name: wanted.name,
            found: libs::load(wanted)
                .ok()
                .map(|path| path.display().to_string()),
            install: wanted.install,
            need: Need::Required,
        })
        .collect();
    let (gpus, absent) = match driver::count() {
        Ok(0) => (Vec::new(), Some("the driver sees no GPU".to_owned())),
        Ok(count) => (
            (0..count)
                .filter_map(|i| describe(i).ok().map(measured))
                .collect(),
            None,
        ),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    Environment {
        libraries,
        gpus,
        absent,
    }
}

/// Runs the checks whose name contains `filter` and reports each as it ends.
///
/// # Errors
/// When there is no GPU, or it is lost.
pub fn run(filter: Option<&str>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    let gpu = driver::Gpu::open(0, None)?;
    for (name, check) in CHECKS {
        if filter.is_none_or(|f| name.contains(f)) {
            check(&gpu, report)?;
        }
    }
    Ok(())
}

/// Checks one kind of kernel.
type Check = fn(&std::sync::Arc<driver::Gpu>, &mut dyn FnMut(KernelReport)) -> Result<()>;

/// Every check by name.
const CHECKS: &[(&str, Check)] = &[
    ("norm", norm::check),
    ("rope", rope::check),
    ("pointwise", pointwise::check),
    ("shape", shape::check),
    ("quant", quant::check),
    ("recurrent", recurrent::check),
    ("sample", sample::check),
    ("attention/decode", attention_decode::check),
    ("attention/generic", attention_generic::check),
    ("attention/prefill", attention_prefill::check),
    ("attention/latent", attention_latent::check),
    ("gemm/heads", head_linear::check),
    ("kv/prefix", kv_prefix::check),
    ("gemm", gemm::check),
    ("moe", experts::check),
];
