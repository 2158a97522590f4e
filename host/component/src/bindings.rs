//! Generated bindings, one module per world. Types that worlds share come from the first.
//!
//! Imports are synchronous even in asynchronous calls: they append to the graph or write a log line, and never wait.

#![allow(missing_docs, unreachable_pub)]

/// `guesthouse:graph/graph-guest`.
pub(crate) mod graph {
    wasmtime::component::bindgen!({
        path: ["../../wit/common", "../../wit/graph"],
        world: "guesthouse:graph/graph-guest",
        imports: { default: trappable },
        exports: { default: async },
    });
}

/// `guesthouse:chat/chat-guest`.
pub(crate) mod chat {
    wasmtime::component::bindgen!({
        path: ["../../wit/common", "../../wit/chat"],
        world: "guesthouse:chat/chat-guest",
        imports: { default: trappable },
        exports: { default: async },
        with: {
            "guesthouse:common/types": super::graph::guesthouse::common::types,
            "guesthouse:common/log": super::graph::guesthouse::common::log,
        },
    });
}

/// `guesthouse:sampling/sampler-guest`.
pub(crate) mod sampler {
    wasmtime::component::bindgen!({
        path: ["../../wit/common", "../../wit/sampling"],
        world: "guesthouse:sampling/sampler-guest",
        imports: { default: trappable },
        with: {
            "guesthouse:common/types": super::graph::guesthouse::common::types,
            "guesthouse:common/log": super::graph::guesthouse::common::log,
        },
    });
}

/// `guesthouse:sampling/step-sampler-guest`.
pub(crate) mod step_sampler {
    wasmtime::component::bindgen!({
        path: ["../../wit/common", "../../wit/sampling"],
        world: "guesthouse:sampling/step-sampler-guest",
        imports: { default: trappable },
        with: {
            "guesthouse:common/types": super::graph::guesthouse::common::types,
            "guesthouse:common/log": super::graph::guesthouse::common::log,
        },
    });
}

pub(crate) use graph::guesthouse::common::{log, types};
