//! What a check of the machine and of the kernels finds.

use std::fmt;

/// Libraries and GPUs of this machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Environment {
    /// Libraries that the CUDA device looks for, found or not.
    pub libraries: Vec<Library>,
    /// Usable GPUs; empty where the driver or every GPU is missing.
    pub gpus: Vec<Gpu>,
    /// Why there is no GPU, where there is none.
    pub absent: Option<String>,
}

/// One library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Such as `libnvrtc`.
    pub name: &'static str,
    /// Where it was loaded from, with its version; or none.
    pub found: Option<String>,
    /// The command that installs it.
    pub install: &'static str,
    /// Whether a model runs without it.
    pub need: Need,
}

/// Whether a library must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing runs without it.
    Required,
    /// Only some features need it.
    Optional,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// As CUDA counts.
    pub ordinal: usize,
    /// Marketing name.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of memory.
    pub memory: usize,
    /// Bytes that no program holds.
    pub free: usize,
    /// Bytes per second that a large device copy reads and writes, where measured.
    pub bandwidth: Option<f64>,
}

/// Outcome of a kernel's check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Within tolerance.
    Pass,
    /// Off by more than the tolerance, or not finite.
    Fail,
    /// This GPU has no such kernel.
    Skipped,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pass => "ok",
            Self::Fail => "FAIL",
            Self::Skipped => "skipped",
        })
    }
}

/// A kernel against its CPU reference on one case.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelReport {
    /// The kernel, such as `attention/decode`.
    pub name: &'static str,
    /// Shape, dtype and what is special about it, such as `bf16 64×1100 32/8×128`.
    pub case: String,
    /// Largest difference to the reference, as a share of the largest reference value. NaN counts as infinite.
    pub error: f64,
    /// Largest error that passes.
    pub tolerance: f64,
    /// Median time of a run with a cold L2, where timed.
    pub seconds: Option<f64>,
    /// Bytes that must be moved, where that bounds the kernel.
    pub bytes: Option<f64>,
    /// Floating-point operations, where those bound it.
    pub flops: Option<f64>,
    /// Outcome.
    pub verdict: Verdict,
}

impl KernelReport {
    /// A report without times whose verdict follows from error and tolerance.
    #[must_use]
    pub fn new(name: &'static str, case: impl Into<String>, error: f64, tolerance: f64) -> Self {
        let (verdict, error) = if error.is_nan() {
            (Verdict::Fail, f64::INFINITY)
        } else if error <= tolerance {
            (Verdict::Pass, error)
        } else {
            (Verdict::Fail, error)
        };
        Self {
            name,
            case: case.into(),
            error,
            tolerance,
            seconds: None,
            bytes: None,
            flops: None,
            verdict,
        }
    }

    /// The kernel does not exist for this GPU.
    #[must_use]
    pub fn skipped(name: &'static str, case: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Skipped,
            ..Self::new(name, case, 0.0, 0.0)
        }
    }

    /// Bytes per second, where timed.
    #[must_use]
    pub fn bandwidth(&self) -> Option<f64> {
        Some(self.bytes? / self.seconds.filter(|s| *s > 0.0)?)
    }

    /// Operations per second, where timed.
    #[must_use]
    pub fn throughput(&self) -> Option<f64> {
        Some(self.flops? / self.seconds.filter(|s| *s > 0.0)?)
    }
}
