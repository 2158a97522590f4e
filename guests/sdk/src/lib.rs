//! What a Guesthouse guest is written with.
//!
//! A guest is a WebAssembly component with one role. This crate wraps the bindings of each role's WIT world, so that a
//! guest is a type, a trait and one macro; choose the role by feature: `graph`, `sampling` or `chat`. A guest enables
//! exactly one. The crate knows nothing of the host beyond the WIT packages in `wit/`.
//!
//! - [`config`]: typed reading of JSON (a model's `config.json`, a request) with errors that name the field;
//! - [`error`]: the one error type, an answer to the host and not a trap;
//! - `graph`: building a model: [`graph::Model`], [`export_model!`], scopes, weights, rope;
//! - `sampling`: [`sampling::Sampler`], [`export_sampler!`], [`export_step_sampler!`];
//! - `chat`: [`chat::Template`], [`chat::Parser`], [`export_chat!`].
//!
//! A guest is a `cdylib` built for `wasm32-unknown-unknown` with `wasm-component-ld` as linker, which yields a component
//! without WASI imports. A whole model, an embedding and a head:
//!
//! ```
//! # #[cfg(feature = "graph")] mod guest {
//! use guesthouse_sdk::graph::{ModelInfo, Model, Scope, Sharding, builder};
//! use guesthouse_sdk::{Config, Error};
//!
//! struct Bigram;
//!
//! impl Model for Bigram {
//!     const ARCHITECTURES: &'static [&'static str] = &["BigramForCausalLM"];
//!
//!     fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
//!         let (vocab, hidden) = (config.u32("vocab_size")?, config.u32("hidden_size")?);
//!         let root = Scope::root("");
//!         let model = root.enter("model");
//!         let table = model.param("embed_tokens.weight", &[vocab, hidden]);
//!         let x = builder::embedding(table, builder::token_ids());
//!         let x = builder::gather_outputs(x);
//!         builder::output_logits(root.linear("lm_head", vocab, hidden, Sharding::Column).apply(x));
//!         Ok(ModelInfo { architecture: architecture.into(), vocab_size: vocab, max_position: 2048, ext: vec![] })
//!     }
//! }
//!
//! guesthouse_sdk::export_model!(Bigram);
//! # }
//! ```

pub mod config;
pub mod error;

#[cfg(feature = "chat")]
pub mod chat;
#[cfg(feature = "graph")]
pub mod graph;
#[cfg(feature = "sampling")]
pub mod sampling;

pub use config::Config;
pub use error::Error;

/// Sends a panic's message and place to `log` before the trap, since a guest has no stderr.
#[doc(hidden)]
pub fn log_panics(log: fn(&str)) {
    std::panic::set_hook(Box::new(move |info| log(&info.to_string())));
}
