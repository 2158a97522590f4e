//! The HTTP server: routes, and the way of a request from body to events and back.
//!
//! - `config`, `listen`, `tls`, `server`, `stall`: the listener, its limits, graceful shutdown;
//! - `access`, `pins`, `defaults`, `limits`: tenants, their keys, what they may do, and how much;
//! - `body`, `auth`, `error`: what stands before and after each route;
//! - `request_id`, `trace`: each request's name, and what is told of it when it ended;
//! - `prepare` turns a valid request into a [`Job`](job::Job); `running` submits it and hands out updates as they come;
//! - `embedding` runs prompts through an embedding model;
//! - `format` writes updates as chunks, or collects them into whole answers; `sse` frames chunks;
//! - `routes` holds the handlers; `metrics`, `openapi` and `docs` describe what goes on and what there is.
//!
//! It must not know how models are loaded: it sees [`crate::serving`] alone, and [`crate::modules`] for what tenants bring.

mod access;
mod auth;
mod body;
mod config;
mod defaults;
mod docs;
mod embedding;
mod error;
mod format;
mod grammar;
mod idle;
mod ids;
mod job;
mod limits;
mod listen;
mod metrics;
mod openapi;
mod pins;
mod prepare;
mod request_id;
mod routes;
mod running;
mod server;
mod sse;
mod stall;
mod state;
mod tls;
mod trace;

pub use access::{Access, ApiKeys, Directory};
pub(crate) use auth::shown_key;
pub(crate) use body::media_type;
pub use config::{CorsOrigins, HttpConfig};
pub use limits::GuestClock;
pub use listen::{Listener, PrivateSocket};
pub use openapi::document as openapi_document;
pub use routes::router;
pub use server::{Served, serve, serve_routes};
pub use state::AppState;
pub use tls::{Tls, TlsError, TlsFiles, TlsListener};
pub use trace::{AccessLog, Traces, TracesEndpoint, TracesError};
pub(crate) use trace::{Telling, traced};

#[cfg(test)]
mod tests;
