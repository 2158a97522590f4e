//! Graph guests: a fresh store per build.

use std::sync::Arc;

use guesthouse_graph::{BuilderLimits, Catalog, Graph, GraphBuilder, GraphError, ModelInfo};
use wasmtime::Store;

use crate::answer::guest_error;
use crate::bindings::graph::{GraphGuest, GraphGuestPre};
use crate::block_on::block_on;
use crate::meter::{Meter, metered};
use crate::slots::Slot;
use crate::store::{self, AtTick, State, StoreSpec};
use crate::ticker::Ticking;
use crate::{CallContext, ComponentError, Module};

mod convert;
mod host;

/// A module as a graph guest.
#[derive(Clone)]
pub struct GraphModule {
    module: Arc<Module>,
    pre: GraphGuestPre<State>,
}

/// Numbers that a guest may put into a graph: they stay in the host's memory, 4 bytes each. Slopes, rope factors and row
/// indices are far smaller; weights come from checkpoints.
const CONSTANT_ELEMENTS: usize = 8 << 20;

/// One instance, for one call.
struct Instance {
    store: Store<State>,
    guest: GraphGuest,
    meter: Arc<Meter>,
    _ticking: Ticking,
    // After the store: the place is free when the store is gone.
    _slot: Slot,
}

impl GraphModule {
    pub(crate) fn new(module: Arc<Module>, pre: GraphGuestPre<State>) -> Self {
        Self { module, pre }
    }

    /// The `architectures` names of config.json that this guest builds. Blocks the thread.
    ///
    /// # Errors
    /// A trap, limit or time-out of the guest.
    pub fn architectures(&self) -> Result<Vec<String>, ComponentError> {
        let mut instance = self.instantiate(None)?;
        let store = &mut instance.store;
        let call = instance
            .guest
            .guesthouse_graph_model()
            .call_architectures(&mut *store);
        let answer = block_on(metered(&instance.meter, call));
        answer.map_err(|error| store.data_mut().failure("model.architectures", error))
    }

    /// Builds the graph for a config.json over the tensors of a checkpoint. Blocks the thread, for milliseconds.
    ///
    /// # Errors
    /// [`ComponentError::Graph`] for the builder's findings (shapes, missing tensors), [`ComponentError::Guest`] for
    /// the guest's own, or a trap, limit or time-out of the guest.
    pub fn build(
        &self,
        config_json: &str,
        catalog: Arc<dyn Catalog>,
    ) -> Result<Graph, ComponentError> {
        let limits = BuilderLimits {
            max_constant_elements: CONSTANT_ELEMENTS,
            ..BuilderLimits::default()
        };
        let mut instance = self.instantiate(Some(GraphBuilder::new(catalog, limits)))?;
        let store = &mut instance.store;
        let call = instance
            .guest
            .guesthouse_graph_model()
            .call_build(&mut *store, config_json);
        let info = match block_on(metered(&instance.meter, call)) {
            Ok(answer) => {
                answer.map_err(|error| guest_error(&self.module.name, "model.build", error))?
            }
            Err(error) => return Err(store.data_mut().failure("model.build", error)),
        };
        if let Some(attr) = info.ext.first() {
            let what = format!(
                "model setting {:?}",
                &attr.key[..attr.key.floor_char_boundary(64)]
            );
            let module = self.module.name.to_string();
            return Err(ComponentError::Unsupported {
                module,
                function: "model.build",
                what,
            });
        }
        let info = ModelInfo {
            architecture: info.architecture,
            vocab_size: info.vocab_size,
            max_position: info.max_position,
        };
        let finished = store
            .data_mut()
            .builder
            .take()
            .map(|builder| builder.finish(info));
        finished
            .unwrap_or_else(|| Err(outside_build()))
            .map_err(|source| ComponentError::Graph {
                module: self.module.name.to_string(),
                source: Box::new(source),
            })
    }

    fn instantiate(&self, builder: Option<GraphBuilder>) -> Result<Instance, ComponentError> {
        let runtime = &self.module.runtime;
        let slot = runtime.graph.acquire_within(
            runtime.config.graph.wall,
            &"".into(),
            &self.module.name,
        )?;
        let spec = StoreSpec {
            module: &self.module.name,
            limits: &runtime.config.graph,
            budget: &runtime.budget,
            context: CallContext::new("load", 0),
            at_tick: AtTick::Yield,
            clock: runtime.config.clock,
        };
        let mut store = store::store(&runtime.engine, spec);
        let ticking = runtime.ticker.enter();
        let meter = Arc::clone(&store.data().meter);
        store::begin(&mut store);
        let guest = match block_on(metered(&meter, self.pre.instantiate_async(&mut store))) {
            Ok(guest) => guest,
            Err(error) => return Err(store.data_mut().failure("instantiate", error)),
        };
        // Only now: a start function has no business with the graph.
        store.data_mut().builder = builder;
        store::begin(&mut store);
        Ok(Instance {
            store,
            guest,
            meter,
            _ticking: ticking,
            _slot: slot,
        })
    }
}

/// The builder was called by `architectures`, or by a start function.
fn outside_build() -> GraphError {
    GraphError::Malformed {
        at: "builder".into(),
        found: "a call outside of model.build".into(),
        expected: "builder calls during model.build alone".into(),
    }
}
