//! The crate's error type.

use guesthouse_weights::WeightsError;

/// What can go wrong on a device.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The graph has an operation that this device does not run.
    #[error("{op} in {scope}: {why}")]
    Unsupported {
        /// The operation's name.
        op: String,
        /// Where the guest put it.
        scope: String,
        /// What is missing and what to do.
        why: String,
    },
    /// The plan contradicts itself or this device.
    #[error(
        "the compiled plan cannot run: {what}; recompile the graph with PlanOptions of this device"
    )]
    Plan {
        /// What was expected and what was found, and where.
        what: String,
    },
    /// A weight could not be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A weight does not fit its use.
    #[error("weight '{name}': {what}")]
    Weight {
        /// Checkpoint name, or a description of the expression.
        name: String,
        /// What was expected and what was found.
        what: String,
    },
    /// An option is out of range.
    #[error("{option}: expected {expected}, found {found}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What is allowed.
        expected: String,
        /// What was given.
        found: String,
    },
    /// Memory could not be had.
    #[error(
        "cannot allocate {bytes} bytes for {what}; lower the memory options or use a smaller model"
    )]
    Memory {
        /// What it was for.
        what: &'static str,
        /// How much.
        bytes: usize,
    },
    /// A kernel did not compile or load.
    #[error(
        "kernel {file}: {what}; this is a bug unless a library is damaged, see `guesthouse doctor`"
    )]
    Kernel {
        /// Path below `kernels/`.
        file: String,
        /// What the compiler or the driver said.
        what: String,
    },
    /// The GPU's driver or a library refused something.
    #[error("the GPU failed while {doing}: {what}; see `guesthouse doctor` and the system's log")]
    Gpu {
        /// What was being done.
        doing: &'static str,
        /// What was said.
        what: String,
    },
    /// Too little memory is left on the GPU.
    #[error("{0}")]
    GpuMemory(String),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}; check the process limits")]
    Thread(#[from] std::io::Error),
    /// A step's plan breaks the contract between engine and executor.
    #[error("step {ticket} breaks the executor's contract: {what}; this is a bug in the engine")]
    Step {
        /// The step.
        ticket: u64,
        /// What was expected and what was found.
        what: String,
    },
    /// No token can be drawn from a row of logits.
    #[error("cannot draw from a row of {found} logits: {why}")]
    Logits {
        /// Elements of the row.
        found: usize,
        /// Why.
        why: String,
    },
    /// The device is not part of this build or machine.
    #[error("{device}: {why}")]
    Absent {
        /// The device's name.
        device: &'static str,
        /// Why, and what to do.
        why: String,
    },
}

impl DeviceError {
    /// A short stable name of the variant, for metrics and logs.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } => "device_unsupported",
            Self::Plan { .. } => "device_plan",
            Self::Weights(_) => "device_weights",
            Self::Weight { .. } => "device_weight",
            Self::Option { .. } => "device_option",
            Self::Memory { .. } => "device_memory",
            Self::Kernel { .. } => "device_kernel",
            Self::Gpu { .. } => "device_gpu",
            Self::GpuMemory(_) => "device_gpu_memory",
            Self::Thread(_) => "device_thread",
            Self::Step { .. } => "device_step",
            Self::Logits { .. } => "device_logits",
            Self::Absent { .. } => "device_absent",
        }
    }

    pub(crate) fn plan(what: impl Into<String>) -> Self {
        Self::Plan { what: what.into() }
    }
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, DeviceError>;
