//! What can go wrong between a guest's bytes and its answer.

use std::path::PathBuf;
use std::time::Duration;

use crate::Role;

/// Every failure of this crate. Each names the module; those of a call name the function too.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComponentError {
    /// The engine cannot start on this machine.
    #[error(
        "cannot start the WebAssembly engine: {reason}; lower the pool sizes, or lift the limit on address space (ulimit -v)"
    )]
    Engine {
        /// Wasmtime's words.
        reason: String,
    },
    /// The bytes are no component.
    #[error(
        "module {module}: expected a WebAssembly component, found {found}; build it for wasm32-unknown-unknown with wasm-component-ld, or for wasm32-wasip2"
    )]
    NotAComponent {
        /// Module name.
        module: String,
        /// What the first bytes look like.
        found: String,
    },
    /// The bytes are broken.
    #[error("module {module}: malformed at byte {offset}: {reason}")]
    Malformed {
        /// Module name.
        module: String,
        /// Where.
        offset: u64,
        /// The parser's words.
        reason: String,
    },
    /// The module is bigger than the host accepts.
    #[error("module {module}: {what} is {found}, the limit is {limit}")]
    TooLarge {
        /// Module name.
        module: String,
        /// Which measure.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What is accepted.
        limit: u64,
    },
    /// The module's exports do not name exactly one role.
    #[error(
        "module {module}: expected the exports of exactly one role (guesthouse:graph/model, guesthouse:chat/template with parsing, or guesthouse:sampling/plan), found {found}"
    )]
    Roles {
        /// Module name.
        module: String,
        /// The exports seen.
        found: String,
    },
    /// An export or import belongs to a version of the interfaces that this host does not have.
    #[error(
        "module {module}: made for {found}, this host has {expected}; rebuild the module against the host's wit/ folder"
    )]
    Version {
        /// Module name.
        module: String,
        /// Interface of the module.
        found: String,
        /// Interface of the host.
        expected: String,
    },
    /// The module wants something its role is not given.
    #[error(
        "module {module}: imports {import}, which a {role} guest is not given; allowed are {allowed}"
    )]
    ForbiddenImport {
        /// Module name.
        module: String,
        /// The import.
        import: String,
        /// The module's role.
        role: Role,
        /// What the role may import.
        allowed: &'static str,
    },
    /// The module was used as something it is not.
    #[error("module {module}: expected a {expected} guest, found a {found} guest")]
    WrongRole {
        /// Module name.
        module: String,
        /// Wanted.
        expected: Role,
        /// What it is.
        found: Role,
    },
    /// An import or export has a type the host does not know.
    #[error("module {module}: does not fit this host's interfaces: {reason}")]
    Link {
        /// Module name.
        module: String,
        /// Wasmtime's words.
        reason: String,
    },
    /// Cranelift refused the module.
    #[error("module {module}: cannot be compiled: {reason}")]
    Compile {
        /// Module name.
        module: String,
        /// Wasmtime's words.
        reason: String,
    },
    /// The process that compiles the module went over a limit, or broke.
    #[error("module {module}: its compilation {failure}")]
    CompileChild {
        /// Module name.
        module: String,
        /// How.
        failure: CompileFailure,
    },
    /// The folder for compiled code cannot be trusted or used.
    #[error("compiled-code folder {}: {reason}", path.display())]
    Cache {
        /// The folder.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// No room for another guest within the time the caller may wait.
    #[error(
        "module {module}: all {slots} places for {role} guests are taken; try again, or raise the pool size"
    )]
    Busy {
        /// Module name.
        module: String,
        /// Role of the pool.
        role: Role,
        /// Its size.
        slots: usize,
    },
    /// The guest trapped: a panic, an overflow, an access out of bounds.
    #[error("module {module}: {function} failed: {cause}")]
    Trap {
        /// Module name.
        module: String,
        /// Exported function.
        function: &'static str,
        /// The guest's panic message where there is one, and the kind of trap.
        cause: String,
    },
    /// The guest went over one of its limits.
    #[error("module {module}: {function} went over its limit: {limit}")]
    Limit {
        /// Module name.
        module: String,
        /// Exported function.
        function: &'static str,
        /// Which limit, with numbers.
        limit: LimitKind,
    },
    /// The guest did not finish in time.
    #[error("module {module}: {function} did not finish in time: {} ms of CPU time (budget {} ms) within {} ms (budget {} ms)", cpu.as_millis(), cpu_budget.as_millis(), wall.as_millis(), wall_budget.as_millis())]
    Timeout {
        /// Module name.
        module: String,
        /// Exported function.
        function: &'static str,
        /// CPU time of the calling thread.
        cpu: Duration,
        /// What the call may use.
        cpu_budget: Duration,
        /// Time since the call began.
        wall: Duration,
        /// What the call may take.
        wall_budget: Duration,
    },
    /// The guest answered with an error. Its instance stays usable.
    #[error("{function} of module {module}: {kind}: {message}")]
    Guest {
        /// Module name.
        module: String,
        /// Exported function.
        function: &'static str,
        /// Which case of `guesthouse:common/types.error`.
        kind: GuestErrorKind,
        /// The guest's words.
        message: String,
    },
    /// The graph that a guest builds is wrong.
    #[error("module {module}: {source}")]
    Graph {
        /// Module name.
        module: String,
        /// The builder's finding.
        #[source]
        source: Box<guesthouse_graph::GraphError>,
    },
    /// The guest's answer makes no sense.
    #[error("module {module}: {function} gave an invalid answer: {reason}")]
    InvalidAnswer {
        /// Module name.
        module: String,
        /// Exported function.
        function: &'static str,
        /// What was expected and found.
        reason: String,
    },
    /// The guest wants something this host cannot do.
    #[error("module {module}: {function} asks for {what}, which this host does not support yet")]
    Unsupported {
        /// Module name.
        module: String,
        /// Exported function.
        function: &'static str,
        /// The thing.
        what: String,
    },
    /// An earlier call ended this session.
    #[error(
        "module {module}: {function} called after an earlier call of this session failed or was cancelled"
    )]
    Ended {
        /// Module name.
        module: String,
        /// Exported function.
        function: &'static str,
    },
}

impl ComponentError {
    /// Stable name for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Engine { .. } => "engine",
            Self::NotAComponent { .. } => "not_a_component",
            Self::Malformed { .. } => "malformed",
            Self::TooLarge { .. } => "too_large",
            Self::Roles { .. } => "roles",
            Self::Version { .. } => "version",
            Self::ForbiddenImport { .. } => "forbidden_import",
            Self::WrongRole { .. } => "wrong_role",
            Self::Link { .. } => "link",
            Self::Compile { .. } => "compile",
            Self::CompileChild { failure, .. } => failure.label(),
            Self::Cache { .. } => "cache",
            Self::Busy { .. } => "busy",
            Self::Trap { .. } => "trap",
            Self::Limit { limit, .. } => limit.label(),
            Self::Timeout { .. } => "timeout",
            Self::Guest { kind, .. } => kind.label(),
            Self::Graph { .. } => "graph",
            Self::InvalidAnswer { .. } => "invalid_answer",
            Self::Unsupported { .. } => "unsupported",
            Self::Ended { .. } => "ended",
        }
    }

    /// The guest's error, where the guest answered with one.
    #[must_use]
    pub fn guest_kind(&self) -> Option<GuestErrorKind> {
        match self {
            Self::Guest { kind, .. } => Some(*kind),
            _ => None,
        }
    }
}

/// How a compilation in a child failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompileFailure {
    /// Processor time.
    #[error("used more than {} s of processor time; make its functions smaller, or bring fewer", limit.as_secs())]
    Cpu {
        /// What it may use.
        limit: Duration,
    },
    /// Time in all.
    #[error("did not end within {} s; try again when the machine is less busy", limit.as_secs())]
    Wall {
        /// What it may take.
        limit: Duration,
    },
    /// Memory.
    #[error("needs more than {} MiB of memory; make its functions smaller, or bring fewer", limit >> 20)]
    Memory {
        /// Address space it may have, bytes.
        limit: u64,
    },
    /// Compiled code.
    #[error("makes more than {} MiB of code; make the module smaller", limit >> 20)]
    Output {
        /// Bytes it may make.
        limit: u64,
    },
    /// The child could not be started or talked to.
    #[error("could not be started: {0}; the server must be able to run its own program again")]
    Start(String),
    /// It ended in a way that is none of the above.
    #[error("broke off ({status}): {words}")]
    Ended {
        /// Exit status or signal.
        status: String,
        /// The end of its standard error.
        words: String,
    },
}

impl CompileFailure {
    /// Stable name for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Cpu { .. } => "compile_cpu",
            Self::Wall { .. } => "compile_wall",
            Self::Memory { .. } => "compile_memory",
            Self::Output { .. } => "compile_output",
            Self::Start(_) => "compile_start",
            Self::Ended { .. } => "compile_ended",
        }
    }
}

/// Which limit a guest went over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitKind {
    /// Linear memory or tables of the store.
    #[error("wanted {wanted} bytes of memory, a store may have {limit}")]
    Memory {
        /// Bytes asked for, all memories of the store together.
        wanted: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// Memory of all guests together.
    #[error("all guests together would hold {wanted} bytes of memory, the process allows {limit}")]
    ProcessMemory {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// Memory of all guests of a tenant.
    #[error("all guests of this tenant would hold {wanted} bytes of memory, it may have {limit}")]
    TenantMemory {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// Bytes that cross between guest and host in one call.
    #[error("a call between guest and host carried more than {limit} bytes")]
    Transfer {
        /// Bytes allowed.
        limit: usize,
    },
    /// Resource handles.
    #[error("more than {limit} resource handles")]
    Handles {
        /// Handles allowed.
        limit: usize,
    },
    /// Instructions, where they are counted instead of time.
    #[error("more than {limit} instructions, which stand for its time")]
    Instructions {
        /// Instructions allowed.
        limit: u64,
    },
    /// Recursion.
    #[error("the call stack is used up (unbounded recursion?)")]
    Stack,
}

impl LimitKind {
    /// Stable name for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Memory { .. } => "limit_memory",
            Self::ProcessMemory { .. } => "limit_process_memory",
            Self::TenantMemory { .. } => "limit_tenant_memory",
            Self::Transfer { .. } => "limit_transfer",
            Self::Handles { .. } => "limit_handles",
            Self::Instructions { .. } => "limit_instructions",
            Self::Stack => "limit_stack",
        }
    }
}

/// Cases of `guesthouse:common/types.error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuestErrorKind {
    /// The model's files do not make sense.
    #[error("invalid configuration")]
    InvalidConfig,
    /// The client's request does not make sense: HTTP 400.
    #[error("invalid request")]
    InvalidRequest,
    /// Valid, but this guest cannot do it.
    #[error("unsupported")]
    Unsupported,
    /// Anything else.
    #[error("error")]
    Other,
}

impl GuestErrorKind {
    /// Stable name for metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::InvalidConfig => "guest_invalid_config",
            Self::InvalidRequest => "guest_invalid_request",
            Self::Unsupported => "guest_unsupported",
            Self::Other => "guest_other",
        }
    }
}
