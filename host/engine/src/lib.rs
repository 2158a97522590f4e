//! The batching engine: requests in, events out, one step of the device at a time.
//!
//! It decides who runs, on which slots and blocks, and when; an [`Executor`] runs what it decides. It must not know
//! about HTTP, text, templates, wasm, CUDA, async run times or the time of day: tokens go in, tokens come out, and
//! every test runs on a laptop against [`MockExecutor`]. Only [`EngineThread`] owns a thread and reads a clock.
//!
//! # The walk of a request
//! `HTTP body → ValidRequest → Prompt (segments) → Sequence → Batch → StepOutput → Event (SSE)`. The first three are
//! the server's and the chat guest's; the walk here begins with tokens:
//!
//! 1. [`Request`]: a prompt, [`GenerationParams`], a sampling plan, a seed. [`Limits`] refuses what could never run.
//! 2. `Sequence` (`sequence.rs`): one choice. A request with `n` choices starts as one; the others branch off when the
//!    prompt is computed, share its blocks, and copy the last one before they write it.
//! 3. `admit.rs` gives a waiting sequence a slot and the blocks that the prefix cache finds.
//! 4. `scheduler.rs` lets sequences advance: decodes by one token, prefills by a chunk. Whoever lacks blocks preempts
//!    those behind it (`preempt.rs`); they are recomputed later.
//! 5. `batch.rs` writes this down as a [`StepPlan`]. An input token may be one that the step before has yet to sample.
//! 6. [`Executor::launch`], [`sample`](Executor::sample) and, one step later, [`collect`](Executor::collect). So two
//!    steps are under way, and the device never waits for the host.
//! 7. `collect.rs` applies the [`StepOutput`]: tokens become [`Event`]s, completed blocks become findable, what ended
//!    is freed. A sequence whose stop token shows only now has one more row under way; its result counts nowhere, and
//!    its slot and blocks stay taken until it is collected.
//! 8. Where a guest chooses ([`Draw::Candidates`], [`Draw::Row`]), a step brings no token but what to choose from.
//!    `stepping.rs` asks the request's [`Chooser`] when all its branches have theirs, waits a twentieth of a step for the
//!    answer, and lets branches go on, fork and finish. Late ones sit out; the loop goes on without them.
//!
//! # Modules
//! | | |
//! |---|---|
//! | [`Engine`] (`engine.rs`) | the loop |
//! | `state.rs` | all queues and tables, and how a sequence changes its phase |
//! | `admit.rs`, `scheduler.rs`, `preempt.rs` | policies: who runs, how far, who makes room |
//! | `fair.rs`, `lineup.rs`, `quota.rs` | policies between tenants: whose turn it is, who sits out, who is at its limits |
//! | `queue.rs`, `shares.rs` | sequences by order and tenant; what each tenant has used |
//! | `batch.rs`, `collect.rs` | the two ends of a step |
//! | `block_pool.rs`, `prefix_cache.rs`, `layout.rs` | blocks, which of them are found again, block arithmetic |
//! | `stepping.rs` | requests whose tokens guests choose: asking, waiting, forking, groups |
//! | `integrity.rs` | proof that all of that agrees |
//! | `thread.rs` | [`EngineThread`] and its handle |
//! | `step.rs`, `executor.rs`, `sampling.rs`, `ids.rs` | the contract with the executor |
//! | `mock.rs` | an executor that checks the contract, and guests in virtual time |
//!
//! # Example
//! ```
//! use guesthouse_engine::{
//!     CacheSalt, Engine, EngineConfig, Event, GenerationParams, MockExecutor, Owner, Priority, Progress, Request, RequestId,
//!     SamplingPlan,
//! };
//! use std::sync::{Arc, mpsc};
//!
//! let mut engine = Engine::new(MockExecutor::new(MockExecutor::small_info()), EngineConfig::default());
//! let request = Request {
//!     id: RequestId(1),
//!     cache_salt: CacheSalt::default(),
//!     prompt: vec![3, 1, 4, 1, 5],
//!     params: GenerationParams { max_tokens: 4, ..GenerationParams::default() },
//!     sampling: Arc::new(SamplingPlan::greedy()),
//!     seed: 0,
//!     priority: Priority::default(),
//!     owner: Owner::default(),
//! };
//! let (sender, events) = mpsc::channel();
//! engine.submit(request, Box::new(sender))?;
//! while engine.step()? != Progress::Idle {}
//!
//! let tokens = events.try_iter().filter(|event| matches!(event, Event::Token { .. })).count();
//! assert_eq!(tokens, 4);
//! assert_eq!(engine.stats().blocks_used, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admit;
mod batch;
mod block_pool;
mod chooser;
mod collect;
mod config;
mod constrain;
mod constraint;
mod engine;
mod error;
mod event;
mod executor;
mod fair;
mod ids;
mod integrity;
mod layout;
mod limits;
mod lineup;
mod mock;
mod preempt;
mod prefix_cache;
mod queue;
mod quota;
mod request;
mod sampling;
mod scheduler;
mod sequence;
mod shares;
mod speculate;
mod state;
mod stats;
mod step;
mod stepping;
mod thread;

pub use chooser::*;
pub use config::*;
pub use constraint::*;
pub use engine::*;
pub use error::*;
pub use event::*;
pub use executor::*;
pub use ids::*;
pub use limits::*;
pub use mock::*;
pub use request::*;
pub use sampling::*;
pub use shares::TenantShare;
pub use stats::*;
pub use step::*;
pub use stepping::{AnswerQueue, Clock, SystemClock};
pub use thread::*;
