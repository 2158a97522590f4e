//! Runs guests: WebAssembly components that define model graphs, chat templates and samplers.
//!
//! It turns a module's bytes into something safe to call: checks them, compiles them (or takes verified compiled code
//! from a folder of its own), gives every call or request a fresh store with all limits set, and turns whatever a guest
//! does into a value or a [`ComponentError`] that names module, function and cause.
//!
//! It must not know HTTP, tokenizers, devices or scheduling. No type of wasmtime appears in its interface.
//!
//! # Map
//! - [`Runtime`]: engine, ticker, linkers, pools; [`RuntimeConfig`], [`Limits`].
//! - [`Module`]: a checked, compiled, linked guest of one [`Role`]; `precheck`, `cache`.
//! - [`Compiler`], [`compile_module`]: compiling in a child process with limits.
//! - `slots`: places for guests, shared between tenants.
//! - `tenant_threads`, `give_way`: where calls of tenants' own modules run: behind everything else; [`Turns`]: how many at once.
//! - `store`, `meter`, `ticker`, `guest_log`: what one store may use, and the clock of its deadlines.
//! - [`GraphModule`], [`ChatModule`], [`SamplerModule`]: the three roles.
//! - [`Stepping`], [`SamplerThreads`]: samplers that choose tokens themselves, and the threads they run on.
//! - `linkers`, `wasi`, `wasi_stub`: what each world may import.
//! - [`Recorder`], [`RecordedRun`]: guest calls written down and run again.
//! - [`builtin`]: the guests embedded in this binary.
//!
//! # Example
//! ```
//! use guesthouse_component::{Origin, Runtime, RuntimeConfig};
//!
//! let runtime = Runtime::new(RuntimeConfig::default())?;
//! // Not a component: a clear error, nothing else happens.
//! let error = runtime.load("mine", b"#!/bin/sh", Origin::File).unwrap_err();
//! assert_eq!(error.label(), "not_a_component");
//! # Ok::<(), guesthouse_component::ComponentError>(())
//! ```

mod answer;
mod bindings;
mod block_on;
pub mod builtin;
mod cache;
mod chat;
mod compiler;
mod context;
mod engine;
mod error;
mod give_way;
mod graph;
mod guest_log;
mod limits;
mod linkers;
mod meter;
mod module;
mod precheck;
mod record;
mod runtime;
mod sampling;
mod slots;
mod store;
mod tenant_threads;
mod threads;
mod ticker;
mod turns;
mod wasi;
mod wasi_stub;

pub use cache::{CodeDigest, CodeDigests};
pub use chat::{ChatModule, ChatSession, Conversation, Delta, ParserId, Segment};
pub use compiler::{ChildCompiler, CompileLimits, Compiler, compile_module};
pub use context::CallContext;
pub use error::{CompileFailure, ComponentError, GuestErrorKind, LimitKind};
pub use graph::GraphModule;
pub use limits::{Clock, Limits, PoolSizes, RuntimeConfig};
pub use module::{CodeSource, Module, ModuleDigest, Origin, Role};
pub use record::{
    Difference, RECORD_VERSION, RecordError, RecordedCall, RecordedRun, Recorder, ReplayReport,
};
pub use runtime::Runtime;
pub use sampling::{Grammar, ModelFacts, PlannedSampling, SamplerModule, Stepping, Verdict};
pub use tenant_threads::TenantThreads;
pub use threads::{LaneUsage, RowDraw, SamplerThreads, ThreadsConfig};
pub use turns::Turns;
