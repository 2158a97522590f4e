//! Building a model: what a graph guest is written with.
//!
//! [`builder`] holds the host's ops, one function each; this module adds what every model repeats: scopes that name
//! weights, linears with their bias, rope from `config.json`, parameters with their usual defaults.

use crate::{Config, Error};

mod alibi;
mod decoder;
mod experts;
mod output;
mod qkv;
mod rope;
mod scope;

/// Generated from `wit/graph`.
#[allow(missing_docs, clippy::all)]
pub mod bindings {
    wit_bindgen::generate!({
        path: ["wit/common", "wit/graph"],
        world: "guesthouse:graph/graph-guest",
        generate_all,
        pub_export_macro: true,
        default_bindings_module: "guesthouse_sdk::graph::bindings",
        export_macro_name: "export_graph_world",
        additional_derives: [PartialEq],
    });
}

pub use alibi::{alibi, alibi_slopes};
pub use bindings::exports::guesthouse::graph::model::ModelInfo;
pub use bindings::guesthouse::common::types::{Attr, AttrValue};
pub use bindings::guesthouse::graph::builder::{
    self, Activation, AttentionParams, Cache, CacheKind, CacheSpec, ExpertsParams, Gate,
    GateLayout, LatentParams, Llama3, Longrope, Mask, NormRounding, Pooling, PositionScheme,
    RmsNormParams, RopeParams, RopeScaling, RopeStyle, RouteGroups, RouteParams, RouteScores,
    Sharding, Value, ValueType, Weight, Yarn,
};
pub use decoder::{
    Dims, SizeNames, activation, attention, kv_cache, latent_cache, merge_heads, split_heads,
};
pub use experts::{ExpertDims, ExpertNames, mixture, route_params, stacked_experts};
pub use output::{Embedding, Head};
pub use qkv::{Qkv, Rotation};
pub use rope::{Rope, RopeDefaults, yarn_mscale};
pub use scope::{Bias, Linear, Mlp, Scope};

crate::error::into_wit_error!(bindings::guesthouse::common::types::Error);

/// A family of models that one guest builds.
pub trait Model {
    /// The names in `architectures` of `config.json` that it builds.
    const ARCHITECTURES: &'static [&'static str];

    /// Appends the whole graph to the host's IR. `architecture` is the one of [`Self::ARCHITECTURES`] that the config
    /// names first.
    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error>;
}

/// What the exports of [`export_model!`](crate::export_model) do.
#[doc(hidden)]
pub fn build<M: Model>(config: &str) -> Result<ModelInfo, Error> {
    use bindings::guesthouse::common::log;
    crate::log_panics(|message| log::log(log::Level::Error, message));
    let config = Config::parse(config)?;
    let named = config.opt_strs("architectures")?.unwrap_or_default();
    match named.iter().find(|n| M::ARCHITECTURES.contains(n)) {
        Some(architecture) => M::build(architecture, &config),
        None => Err(config.wrong(
            "architectures",
            &format!("a list with one of {}", M::ARCHITECTURES.join(", ")),
        )),
    }
}

/// Writes one line to the host's log.
pub fn info(message: &str) {
    use bindings::guesthouse::common::log;
    log::log(log::Level::Info, message);
}

/// Makes a [`graph::Model`](Model) this component's export. Once per crate.
#[macro_export]
macro_rules! export_model {
    ($model:ty) => {
        #[doc(hidden)]
        #[allow(dead_code)]
        struct __GuesthouseGuest;

        impl $crate::graph::bindings::exports::guesthouse::graph::model::Guest for __GuesthouseGuest {
            fn architectures() -> ::std::vec::Vec<::std::string::String> {
                <$model as $crate::graph::Model>::ARCHITECTURES.iter().map(|name| (*name).into()).collect()
            }

            fn build(
                config: ::std::string::String,
            ) -> ::std::result::Result<
                $crate::graph::ModelInfo,
                $crate::graph::bindings::guesthouse::common::types::Error,
            > {
                ::std::result::Result::map_err($crate::graph::build::<$model>(&config), ::std::convert::Into::into)
            }
        }

        // Native builds, which are for tests, cannot link names with a colon.
        #[cfg(target_arch = "wasm32")]
        $crate::graph::bindings::export_graph_world!(
            __GuesthouseGuest with_types_in $crate::graph::bindings
        );
    };
}
