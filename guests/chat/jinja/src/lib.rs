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
//!
//! ```
//! use guesthouse_chat_jinja::conversation::{Fields, Turn};
//! use guesthouse_chat_jinja::template::{ChatTemplate, Segment};
//!
//! let source = "{% for m in messages %}<|start|>{{ m.role }}: {{ m.content }}{% endfor %}";
//! let files = [("chat_template.jinja".to_owned(), source.to_owned())];
//! let mut template = ChatTemplate::new(&files, vec![(7, "<|start|>".to_owned())])?;
//! let messages = r#"[{"role": "user", "content": "Hi <|start|>"}]"#;
//! let fields = Fields { messages, tools: None, documents: None, kwargs: None, turn: Turn::Answer };
//! let prompt = template.render(&fields, 0)?.segments;
//! assert_eq!(prompt, [Segment::Special(7), Segment::Text("user: Hi <|start|>".to_owned())]);
//! # Ok::<(), guesthouse_chat_jinja::error::Error>(())
//! ```

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
