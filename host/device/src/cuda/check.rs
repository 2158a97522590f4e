//! The machine and the kernels, looked at (`guesthouse doctor`).

mod report;

pub use report::{Environment, Gpu, KernelReport, Library, Need, Verdict};

use crate::error::Result;

/// Libraries and GPUs of this machine. Changes nothing and loads no kernel.
#[must_use]
pub fn environment() -> Environment {
    Environment {
        absent: Some(super::ABSENT.to_owned()),
        ..Environment::default()
    }
}

/// Runs the checks whose name contains `filter` and reports each as it ends.
///
/// # Errors
/// When there is no GPU, or it is lost.
pub fn run(_filter: Option<&str>, _report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    Err(super::absent())
}
