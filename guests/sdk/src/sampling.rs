//! Choosing tokens: what a sampler guest is written with.
//!
//! A sampler that plans implements [`Sampler`] and says [`export_sampler!`](crate::export_sampler). One that also chooses
//! tokens itself takes `guesthouse-sdk-step` besides, since the macros of two worlds do not fit into one crate.
//!
//! [`constraints`] and [`randomness`] read the request fields that all of Guesthouse's own samplers take.

use crate::Error;

mod constraints;
mod randomness;
mod request;

pub use constraints::{constraints, end_tokens};
pub use randomness::{Randomness, randomness, seed};
pub use request::Request;

/// Generated from `wit/sampling`, world `sampler-guest`.
#[allow(missing_docs, clippy::all)]
pub mod bindings {
    wit_bindgen::generate!({
        path: ["wit/common", "wit/sampling"],
        world: "guesthouse:sampling/sampler-guest",
        generate_all,
        pub_export_macro: true,
        default_bindings_module: "guesthouse_sdk::sampling::bindings",
        export_macro_name: "export_sampler_world",
        additional_derives: [PartialEq],
    });
}

pub use bindings::exports::guesthouse::sampling::plan::{
    Asked, Draw, Dry, DynamicTemperature, Grammar, MinTokens, Mirostat, ModelFacts, Penalties,
    SamplingPlan, Stage, TokenBias, Watermark, Xtc,
};
pub use bindings::guesthouse::common::types::{Attr, AttrValue};

crate::error::into_wit_error!(bindings::guesthouse::common::types::Error);

impl SamplingPlan {
    /// Without a seed: the host draws one.
    #[must_use]
    pub fn new(stages: Vec<Stage>, draw: Draw) -> Self {
        Self {
            stages,
            draw,
            seed: None,
            ext: vec![],
        }
    }

    /// With the request's seed, if it has one ([`seed`]).
    #[must_use]
    pub fn seeded(self, seed: Option<u64>) -> Self {
        Self { seed, ..self }
    }
}

impl Asked {
    /// Each of the request's choices is one branch and streams; `candidates` (1 to 1024) of each row are shown.
    #[must_use]
    pub fn choices(candidates: u32) -> Self {
        Self {
            candidates,
            search: false,
            hidden: false,
        }
    }

    /// One branch at first, which may fork, finish and end.
    #[must_use]
    pub fn search(candidates: u32) -> Self {
        Self {
            search: true,
            ..Self::choices(candidates)
        }
    }

    /// Also hidden states.
    #[must_use]
    pub fn with_hidden(self) -> Self {
        Self {
            hidden: true,
            ..self
        }
    }
}

/// One request's sampler.
pub trait Sampler: Sized + 'static {
    /// Reads the request's sampling fields; errors are the client's (HTTP 400) and begin with the field's name and a
    /// colon, which becomes the error's `param`.
    fn create(request: &Request, facts: ModelFacts) -> Result<Self, Error>;

    /// What the device does with each row of logits.
    fn plan(&self) -> Result<SamplingPlan, Error>;
}

/// Calls `create` with a parsed request.
#[doc(hidden)]
pub fn create<S: Sampler>(request: &str, facts: ModelFacts, log: fn(&str)) -> Result<S, Error> {
    crate::log_panics(log);
    S::create(&Request::parse(request)?, facts)
}

/// Makes a [`Sampler`] this component's export. Once per crate.
#[macro_export]
macro_rules! export_sampler {
    ($sampler:ty) => {
        #[doc(hidden)]
        #[allow(dead_code)]
        struct __GuesthouseGuest;
        #[doc(hidden)]
        #[allow(dead_code)]
        struct __GuesthouseSampler($sampler);

        const _: () = {
            use $crate::sampling::bindings::exports::guesthouse::sampling::plan as __plan;
            use $crate::sampling::bindings::guesthouse::common::{log as __log, types as __types};

            impl __plan::Guest for __GuesthouseGuest {
                type Sampler = __GuesthouseSampler;
            }

            impl __plan::GuestSampler for __GuesthouseSampler {
                fn create(
                    request: ::std::string::String,
                    facts: __plan::ModelFacts,
                ) -> ::std::result::Result<__plan::Sampler, __types::Error> {
                    let sampler = $crate::sampling::create::<$sampler>(&request, facts, |m| {
                        __log::log(__log::Level::Error, m)
                    })?;
                    ::std::result::Result::Ok(__plan::Sampler::new(__GuesthouseSampler(sampler)))
                }

                fn plan(&self) -> ::std::result::Result<__plan::SamplingPlan, __types::Error> {
                    ::std::result::Result::Ok($crate::sampling::Sampler::plan(&self.0)?)
                }
            }
        };

        // Native builds, which are for tests, cannot link names with a colon.
        #[cfg(target_arch = "wasm32")]
        $crate::sampling::bindings::export_sampler_world!(
            __GuesthouseGuest with_types_in $crate::sampling::bindings
        );
    };
}
