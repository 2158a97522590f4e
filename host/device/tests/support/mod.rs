//! Llama-like graphs, and an engine's side of the contract.

#![allow(dead_code)] // Each test binary uses a part.

pub mod drive;
pub mod llama;
