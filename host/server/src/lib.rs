//! The server: command line, HTTP API, model sources, and the library interface [`llm::Llm`].
//!
//! It puts the other crates together and knows no device and no guest by itself: cudarc and wasmtime are out of its
//! reach.
//!
//! - [`source`], [`paths`]: where models come from, and our own folders
//! - [`model`]: from files over the graph guest, the plan and the device to a running engine
//! - [`serving`]: what the layers above need of a loaded model
//! - [`openai`]: request and answer types; unvalidated input stops here
//! - [`text`]: tokens to text: detokenizer, stop strings, log-probabilities
//! - [`http`]: routes, streams, metrics, limits
//! - [`modules`]: modules that tenants and the administrator bring over HTTP
//! - [`oci`]: modules from registries
//! - [`admin`]: modules and models that come and go while others serve
//! - [`llm`]: models inside a program of one's own
//! - `lock`, `blocking`, `printable`: small things that all parts need
//! - `process`: what a server asks of its own process
//! - [`cli`]: the `guesthouse` command
//!
//! ```no_run
//! use guesthouse_server::llm::{Llm, SamplingParams};
//!
//! let llm = Llm::load("smollm2")?;
//! let params = SamplingParams { temperature: Some(0.0), max_tokens: Some(8), ..SamplingParams::default() };
//! let answers = llm.generate(["The capital of France is"], &params)?;
//! println!("{}", answers[0].choices[0].text);
//! # Ok::<(), guesthouse_server::llm::LlmError>(())
//! ```

pub mod admin;
mod blocking;
pub mod cli;
pub mod http;
pub mod llm;
mod lock;
pub mod model;
pub mod modules;
pub mod oci;
pub mod openai;
pub mod paths;
mod printable;
mod process;
pub mod serving;
pub mod source;
#[cfg(test)]
mod testing;
pub mod text;
