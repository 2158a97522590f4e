//! Chat guest `jinja`: renders a model's own Hugging Face chat template with minijinja, inside the sandbox.
//!
//! The template's author may write control tokens, the client may not. So control tokens are marked where the
//! *template* spells them, before anything of the client's is known (see [`controls`] and [`marking`]), and what comes
//! out of the renderer is cut at those marks into segments. All other output is text, whatever it looks like.
//!
//! - [`controls`]: control tokens, the code points that stand for them, and finding literals in text
//! - [`marking`]: which string constants of a template are output and which are only compared
//! - [`python`]: Python's `str` and `json.dumps`, which templates rely on
//! - [`environment`]: minijinja set up as transformers sets up Jinja
//! - [`conversation`]: the request's messages as templates expect them
//! - [`probe`]: what a template does with harmless conversations
//! - [`template`]: construction and rendering
//! - [`answer`]: taking the model's text apart while it streams
//!
//! The crate knows nothing of tokenizers or models, and reads no file: the host hands it everything.

pub mod answer;
pub mod controls;
pub mod conversation;
pub mod environment;
pub mod error;
pub mod marking;
pub mod probe;
pub mod python;
pub mod template;

#[cfg(target_arch = "wasm32")]
mod guest;
