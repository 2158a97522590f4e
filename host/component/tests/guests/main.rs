//! Guests that misbehave: each ends its own call with an error that names it, and nothing else happens.
#![allow(clippy::unwrap_used, clippy::panic)]

mod built_in_chat;
mod chat;
mod common;
mod compiling;
mod foreign;
mod graph;
mod languages;
mod loading;
mod record;
mod sampler;
mod stepping;
mod threads;
mod trusted;
