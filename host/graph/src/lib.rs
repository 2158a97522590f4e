//! The model graph: what a guest builds and a device executes.
//!
//! A guest describes a model op by op through [`GraphBuilder`], which checks every op at once and names op, operands and
//! scope when something does not fit. The result is a [`Graph`]: SSA over a ragged token batch, with load-time weight
//! expressions and declared caches. [`optimize`] rewrites it (merged linears, fused norms, rope with cache writes, rows
//! gathered early), and [`Plan::compile`] gives each value a place in memory. [`verify`] checks a whole graph, wherever it
//! comes from. [`dump_graph`], [`dump_plan`] and [`dot`] show it to people.
//!
//! This crate knows shapes, types and storage schemes. It must not know bytes: it reads no tensor, allocates no device
//! memory and computes nothing. It knows neither batches nor sequences nor guests.
//!
//! # Modules
//! - `ids`, `ir`, `op`: the types. `name`, `text`, `visit`: what can be asked of them.
//! - `catalog`: what tensors there are.
//! - `builder`: one method per function of `wit/graph/builder.wit`.
//! - `rules`: what each op takes and gives, by family; shared by builder and verifier.
//! - `verify`: a graph as a whole.
//! - `passes`: rewrites, IR to IR.
//! - `plan`: views, memory layout, cache groups.
//! - `dump`: text and pictures.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//!
//! use guesthouse_graph::{
//!     AssumedCatalog, BuilderLimits, GraphBuilder, ModelInfo, PassOptions, Plan, PlanOptions, Sharding, dump_graph,
//!     optimize,
//! };
//! use guesthouse_weights::DType;
//!
//! # fn main() -> Result<(), guesthouse_graph::GraphError> {
//! let catalog = Arc::new(AssumedCatalog::new(DType::Bf16));
//! let mut b = GraphBuilder::new(catalog, BuilderLimits::default());
//! let ids = b.token_ids()?;
//! let table = b.param("embed.weight", &[1000, 64])?;
//! let x = b.embedding(table, ids)?;
//! b.scope("head")?;
//! let logits = b.linear(x, table, None, Sharding::Column)?;
//! b.output_logits(logits)?;
//! let graph = b.finish(ModelInfo {
//!     architecture: "BigramForCausalLM".to_owned(),
//!     vocab_size: 1000,
//!     max_position: 2048,
//! })?;
//!
//! let graph = optimize(graph, &PassOptions::default())?;
//! assert!(dump_graph(&graph).contains("%3 = linear(%2) 'embed.weight' [1000, 64] bf16, column -> [outputs, 1000]"));
//!
//! let plan = Plan::compile(graph, &PlanOptions::new(4))?;
//! // ids and one row of the table, 64 f32.
//! assert_eq!(plan.token_bytes, 64 + 256);
//! # Ok(())
//! # }
//! ```

mod builder;
mod catalog;
mod dump;
mod error;
mod ids;
mod ir;
mod name;
mod op;
mod passes;
mod plan;
mod rules;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod testing;
mod text;
mod totals;
mod verify;
mod visit;

pub use builder::*;
pub use catalog::*;
pub use dump::{dot, dump_graph, dump_plan};
pub use error::*;
pub use ids::*;
pub use ir::*;
pub use op::*;
pub use passes::{PassOptions, Switch, optimize};
pub use plan::*;
pub use totals::Totals;
pub use verify::verify;
