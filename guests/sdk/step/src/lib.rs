//! What a sampler that chooses tokens itself is written with: tiers 2 and 3 of `guesthouse:sampling`.
//!
//! A [`StepSampler`] is a [`Sampler`] whose plan ends in `Draw::Step` or `Draw::Logits`; it says
//! [`export_step_sampler!`]. It stands apart from `guesthouse-sdk` because the macros of two worlds do not fit into one
//! crate. It knows nothing of the host beyond the WIT packages.
//!
//! - [`Rows`], [`Row`], [`Candidate`]: what the sampler reads; [`Choices`], [`Verdict`]: what it answers;
//! - [`random`]: draws among candidates; [`log`][]: lines of its own, which a trace shows;
//! - [`testing`]: a host for its tests;
//! - `convert`: the two worlds define the same types twice; [`bindings`][]: generated.
//!
//! The most likely token of each row, for ever:
//!
//! ```
//! use guesthouse_sdk::Error;
//! use guesthouse_sdk::sampling::{Asked, Draw, ModelFacts, Request, Sampler, SamplingPlan};
//! use guesthouse_sdk_step::{Choices, Rows, StepSampler};
//!
//! struct Best;
//!
//! impl Sampler for Best {
//!     fn create(_: &Request, _: ModelFacts) -> Result<Self, Error> {
//!         Ok(Self)
//!     }
//!
//!     fn plan(&self) -> Result<SamplingPlan, Error> {
//!         Ok(SamplingPlan::new(vec![], Draw::Step(Asked::choices(1))))
//!     }
//! }
//!
//! impl StepSampler for Best {
//!     fn step(&mut self, rows: &Rows) -> Choices {
//!         let mut choices = Choices::new();
//!         for row in rows.iter() {
//!             choices.go_on(&row, row.tokens()[0], 0.0);
//!         }
//!         choices
//!     }
//! }
//!
//! guesthouse_sdk_step::export_step_sampler!(Best);
//! ```

use guesthouse_sdk::sampling::Sampler;

mod choices;
mod convert;
pub mod random;
mod rows;
pub mod testing;

#[doc(hidden)]
pub use convert::{error, facts, plan};
#[doc(hidden)]
pub use guesthouse_sdk;

/// Generated from `wit/sampling`, world `step-sampler-guest`.
#[allow(missing_docs, clippy::all)]
pub mod bindings {
    wit_bindgen::generate!({
        path: ["wit/common", "wit/sampling"],
        world: "guesthouse:sampling/step-sampler-guest",
        generate_all,
        pub_export_macro: true,
        default_bindings_module: "guesthouse_sdk_step::bindings",
        export_macro_name: "export_step_sampler_world",
        additional_derives: [PartialEq],
    });
}

pub use bindings::exports::guesthouse::sampling::stepping::Finished;
pub use choices::{Choices, Verdict};
pub use random::Uniforms;
pub use rows::{Candidate, Row, Rows, Whole, WholeRows};

/// A sampler that picks tokens itself. Its plan's draw is `Draw::Step` or `Draw::Logits`. One object serves one request, so it may
/// keep what it needs from step to step.
pub trait StepSampler: Sampler {
    /// Chooses among the best candidates of each row. By default each row goes on with a draw by their probabilities.
    fn step(&mut self, rows: &Rows) -> Choices {
        let mut choices = Choices::new();
        for row in rows.iter() {
            choices.go_on(&row, row.tokens()[row.sample(row.uniform())], 0.0);
        }
        choices
    }

    /// Chooses from whole rows, or changes them. By default the host draws from them as they are.
    fn step_logits(&mut self, rows: WholeRows) -> Verdict {
        Verdict::Logits(rows.into_logits())
    }

    /// Finished branches, by index, in the order they are to be returned; by default the best scores, as many as are wanted.
    fn select(&mut self, finished: &Finished) -> Vec<u32> {
        best_scores(finished)
    }
}

/// The finished branches with the best scores, best first, as many as are wanted; among equals those that finished first.
#[must_use]
pub fn best_scores(finished: &Finished) -> Vec<u32> {
    let mut order: Vec<u32> = (0..finished.scores.len() as u32).collect();
    let score = |i: u32| finished.scores[i as usize];
    order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
    order.truncate(finished.wanted as usize);
    order
}

/// Says something about a choice: a debug line in the host's log, which `guesthouse sample --trace` shows with the step. Nowhere in
/// native builds.
pub fn log(text: &str) {
    #[cfg(target_arch = "wasm32")]
    {
        use bindings::guesthouse::common::log::{Level, log};
        log(Level::Debug, text);
    }
    #[cfg(not(target_arch = "wasm32"))]
    let _ = text;
}

/// Makes a [`StepSampler`] this component's export. Once per crate.
#[macro_export]
macro_rules! export_step_sampler {
    ($sampler:ty) => {
        #[doc(hidden)]
        #[allow(dead_code)]
        struct __GuesthouseGuest;
        #[doc(hidden)]
        #[allow(dead_code)]
        struct __GuesthouseSampler(::std::cell::RefCell<$sampler>);

        const _: () = {
            use $crate::bindings::exports::guesthouse::sampling::{plan as __plan, stepping as __step};
            use $crate::bindings::guesthouse::common::{log as __log, types as __types};
            use $crate::StepSampler as _;
            use $crate::guesthouse_sdk::sampling::{self as __sdk, Sampler as _};

            impl __plan::Guest for __GuesthouseGuest {
                type Sampler = __GuesthouseSampler;
            }

            impl __plan::GuestSampler for __GuesthouseSampler {
                fn create(
                    request: ::std::string::String,
                    facts: __plan::ModelFacts,
                ) -> ::std::result::Result<__plan::Sampler, __types::Error> {
                    let facts = $crate::facts(facts);
                    let sampler = __sdk::create::<$sampler>(&request, facts, |m| {
                        __log::log(__log::Level::Error, m)
                    });
                    let sampler = ::std::result::Result::map_err(sampler, $crate::error)?;
                    ::std::result::Result::Ok(__plan::Sampler::new(__GuesthouseSampler(::std::cell::RefCell::new(sampler))))
                }

                fn plan(&self) -> ::std::result::Result<__plan::SamplingPlan, __types::Error> {
                    let plan = self.0.borrow().plan();
                    ::std::result::Result::Ok($crate::plan(::std::result::Result::map_err(plan, $crate::error)?))
                }
            }

            impl __step::Guest for __GuesthouseGuest {
                fn step(
                    sampler: __plan::SamplerBorrow<'_>,
                    rows: __step::Rows,
                    candidates: __step::Candidates,
                ) -> __step::Choices {
                    let rows = $crate::Rows::new(rows, candidates);
                    sampler.get::<__GuesthouseSampler>().0.borrow_mut().step(&rows).into_wit()
                }

                fn step_logits(
                    sampler: __plan::SamplerBorrow<'_>,
                    rows: __step::Rows,
                    logits: ::std::vec::Vec<f32>,
                ) -> __step::Verdict {
                    let rows = $crate::Rows::whole(rows, logits);
                    sampler.get::<__GuesthouseSampler>().0.borrow_mut().step_logits(rows).into_wit()
                }

                fn select(
                    sampler: __plan::SamplerBorrow<'_>,
                    finished: __step::Finished,
                ) -> ::std::vec::Vec<u32> {
                    sampler.get::<__GuesthouseSampler>().0.borrow_mut().select(&finished)
                }
            }
        };

        // Native builds, which are for tests, cannot link names with a colon.
        #[cfg(target_arch = "wasm32")]
        $crate::bindings::export_step_sampler_world!(
            __GuesthouseGuest with_types_in $crate::bindings
        );
    };
}

/// The snippets of docs/samplers.md compile and do what it says.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/samplers.md")]
mod docs {}
