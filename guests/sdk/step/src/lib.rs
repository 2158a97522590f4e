//! What a sampler that chooses tokens itself is written with: tiers 2 and 3 of `guesthouse:sampling`.
//!
//! A [`StepSampler`] is a [`Sampler`] whose plan ends in `Draw::Step` or `Draw::Logits`; it says
//! [`export_step_sampler!`]. It stands apart from `guesthouse-sdk` because the macros of two worlds do not fit into one
//! crate. It knows nothing of the host beyond the WIT packages.
//!
//! - `convert`: the two worlds define the same types twice;
//! - [`bindings`][]: generated.
//!
//! The most likely token of each row, for ever:
//!
//! ```
//! use guesthouse_sdk::Error;
//! use guesthouse_sdk::sampling::{Asked, Draw, ModelFacts, Request, Sampler, SamplingPlan};
//! use guesthouse_sdk_step::{Candidates, Choices, Rows, StepSampler};
//!
//! struct Best;
//!
//! impl Sampler for Best {
//!     fn create(_: &Request, _: ModelFacts) -> Result<Self, Error> {
//!         Ok(Self)
//!     }
//!
//!     fn plan(&self) -> Result<SamplingPlan, Error> {
//!         let asked = Asked { candidates: 1, search: false, hidden: false };
//!         Ok(SamplingPlan { stages: vec![], draw: Draw::Step(asked), seed: None, ext: vec![] })
//!     }
//! }
//!
//! impl StepSampler for Best {
//!     fn step(&self, rows: Rows, best: Candidates) -> Choices {
//!         let n = rows.branches.len();
//!         Choices { parent: (0..n as u32).collect(), token: best.tokens, flags: vec![0; n], score: vec![0.0; n] }
//!     }
//! }
//!
//! guesthouse_sdk_step::export_step_sampler!(Best);
//! ```

use guesthouse_sdk::sampling::Sampler;

mod convert;

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

pub use bindings::exports::guesthouse::sampling::stepping::{
    Candidates, Choices, Finished, Rows, Verdict,
};

/// A sampler that picks tokens itself. Its plan's draw is [`Draw::Step`] or [`Draw::Logits`].
pub trait StepSampler: Sampler {
    /// Chooses among the best candidates of each row of one request.
    fn step(&self, rows: Rows, candidates: Candidates) -> Choices;

    /// Chooses from whole rows, or changes them: `logits` has `vocab_size` numbers per row. By default the host draws from
    /// them as they are.
    fn step_logits(&self, rows: Rows, logits: Vec<f32>) -> Verdict {
        let _ = rows;
        Verdict::Logits(logits)
    }

    /// Finished branches, by index, in the order they are to be returned; by default the best scores, as many as are wanted.
    fn select(&self, finished: Finished) -> Vec<u32> {
        let mut order: Vec<u32> = (0..finished.scores.len() as u32).collect();
        let score = |i: u32| finished.scores[i as usize];
        order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
        order.truncate(finished.wanted as usize);
        order
    }
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
        struct __GuesthouseSampler($sampler);

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
                    ::std::result::Result::Ok(__plan::Sampler::new(__GuesthouseSampler(sampler)))
                }

                fn plan(&self) -> ::std::result::Result<__plan::SamplingPlan, __types::Error> {
                    ::std::result::Result::Ok($crate::plan(::std::result::Result::map_err(self.0.plan(), $crate::error)?))
                }
            }

            impl __step::Guest for __GuesthouseGuest {
                fn step(
                    sampler: __plan::SamplerBorrow<'_>,
                    rows: __step::Rows,
                    candidates: __step::Candidates,
                ) -> __step::Choices {
                    sampler.get::<__GuesthouseSampler>().0.step(rows, candidates)
                }

                fn step_logits(
                    sampler: __plan::SamplerBorrow<'_>,
                    rows: __step::Rows,
                    logits: ::std::vec::Vec<f32>,
                ) -> __step::Verdict {
                    sampler.get::<__GuesthouseSampler>().0.step_logits(rows, logits)
                }

                fn select(
                    sampler: __plan::SamplerBorrow<'_>,
                    finished: __step::Finished,
                ) -> ::std::vec::Vec<u32> {
                    sampler.get::<__GuesthouseSampler>().0.select(finished)
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
