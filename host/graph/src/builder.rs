//! The builder behind the guest interface: one method per function of `wit/graph/builder.wit`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::{
    Activation, CacheId, CacheSpec, Catalog, GraphError, Node, Op, Output, ScopeId, ValueId,
    ValueInfo, Weight, WeightId, rules,
};

mod caches;
mod dense;
mod mixing;
mod output;
mod pointwise;
mod shapes;
mod weights;

use caches::CacheUse;

/// Bounds on what a guest may build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuilderLimits {
    /// Ops.
    pub max_nodes: usize,
    /// Values (a split defines several).
    pub max_values: usize,
    /// Weight expressions.
    pub max_weights: usize,
    /// Caches.
    pub max_caches: usize,
    /// Numbers in constants, row indices and rope factors, all together.
    pub max_constant_elements: usize,
    /// Elements of one weight.
    pub max_weight_elements: usize,
    /// Elements in one row of a value.
    pub max_value_width: usize,
    /// Dimensions of a value or weight.
    pub max_rank: usize,
    /// Bytes of one scope or tensor name.
    pub max_name_bytes: usize,
}

impl Default for BuilderLimits {
    fn default() -> Self {
        Self {
            max_nodes: 100_000,
            max_values: 400_000,
            max_weights: 400_000,
            max_caches: 4_096,
            max_constant_elements: 64 << 20,
            max_weight_elements: 1 << 38,
            max_value_width: 1 << 28,
            max_rank: 6,
            max_name_bytes: 512,
        }
    }
}

/// Inputs of [`GraphBuilder::delta_rule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaInputs {
    /// `[heads, k]`
    pub q: ValueId,
    /// `[heads, k]`
    pub k: ValueId,
    /// `[heads, v]`
    pub v: ValueId,
    /// `[heads]`, f32: logarithm of the decay.
    pub g: ValueId,
    /// `[heads]`, f32: step size.
    pub beta: ValueId,
}

/// Parameters of [`GraphBuilder::causal_conv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CausalConv {
    /// `[c, width]`
    pub weight: WeightId,
    /// `[c]`
    pub bias: Option<WeightId>,
    /// Recurrent: the last `width - 1` inputs.
    pub cache: CacheId,
    /// Applied to the result.
    pub activation: Option<Activation>,
}

/// Whether an embedding model divides its result by its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalize {
    /// As it is.
    No,
    /// Divided by its L2 norm.
    L2,
}

/// Records a graph, checking every op as it is added.
///
/// After an error the builder is as it was before the call; a guest's load fails all the same.
pub struct GraphBuilder {
    catalog: Arc<dyn Catalog>,
    limits: BuilderLimits,
    nodes: Vec<Node>,
    values: Vec<ValueInfo>,
    weights: Vec<Weight>,
    caches: Vec<CacheSpec>,
    cache_use: Vec<CacheUse>,
    scopes: Vec<String>,
    scope_ids: HashMap<String, ScopeId>,
    scope: ScopeId,
    /// Weights that are values, so that a cast can read them exactly.
    weight_values: HashMap<ValueId, WeightId>,
    constant_elements: usize,
    output: Option<Output>,
    gather: Gather,
}

/// Whether the builder added the gather itself, in which case it does not yet stand before the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gather {
    AsWritten,
    Added,
}

impl GraphBuilder {
    /// An empty graph over the tensors of `catalog`.
    #[must_use]
    pub fn new(catalog: Arc<dyn Catalog>, limits: BuilderLimits) -> Self {
        Self {
            catalog,
            limits,
            nodes: Vec::new(),
            values: Vec::new(),
            weights: Vec::new(),
            caches: Vec::new(),
            cache_use: Vec::new(),
            scopes: vec![String::new()],
            scope_ids: HashMap::from([(String::new(), ScopeId(0))]),
            weight_values: HashMap::new(),
            scope: ScopeId(0),
            constant_elements: 0,
            output: None,
            gather: Gather::AsWritten,
        }
    }

    /// Names what follows, "layers.3.mlp", in errors, dumps and profiles.
    ///
    /// # Errors
    /// [`GraphError::Limit`] for a name that is too long or one scope too many.
    pub fn scope(&mut self, name: &str) -> Result<(), GraphError> {
        self.name_fits("scope", name)?;
        if let Some(&known) = self.scope_ids.get(name) {
            self.scope = known;
            return Ok(());
        }
        let max = self.limits.max_nodes;
        if self.scopes.len() > max {
            return Err(self.limit("scope", "the number of scopes".to_owned(), max));
        }
        self.scope = ScopeId(self.scopes.len() as u32);
        self.scopes.push(name.to_owned());
        self.scope_ids.insert(name.to_owned(), self.scope);
        Ok(())
    }

    /// Shape and type of a value, for guests' own checks and for tests.
    #[must_use]
    pub fn value_info(&self, value: ValueId) -> Option<&ValueInfo> {
        self.values.get(value.index())
    }

    /// Shape and scheme of a weight.
    #[must_use]
    pub fn weight_info(&self, weight: WeightId) -> Option<&Weight> {
        self.weights.get(weight.index())
    }

    fn at(&self, op: &str) -> String {
        let scope = self
            .scopes
            .get(self.scope.index())
            .map_or("", String::as_str);
        if scope.is_empty() {
            op.to_owned()
        } else {
            format!("{op} in {scope}")
        }
    }

    fn limit(&self, op: &str, what: String, max: usize) -> GraphError {
        GraphError::Limit {
            at: self.at(op),
            what,
            max: max as u64,
        }
    }

    fn name_fits(&self, op: &str, name: &str) -> Result<(), GraphError> {
        let max = self.limits.max_name_bytes;
        if name.len() > max {
            return Err(self.limit(op, format!("a name of {} bytes", name.len()), max));
        }
        Ok(())
    }

    /// Appends a node once the rules accept it.
    fn push(&mut self, op: Op, inputs: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
        let limits = self.limits;
        if self.nodes.len() >= limits.max_nodes {
            return Err(self.limit(op.name(), "the number of ops".to_owned(), limits.max_nodes));
        }
        let infos = inputs
            .iter()
            .map(|id| {
                self.values
                    .get(id.index())
                    .ok_or_else(|| GraphError::UnknownId {
                        at: self.at(op.name()),
                        kind: "value",
                        id: id.0,
                        known: self.values.len(),
                    })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let outputs = rules::infer(&self.context(op.name()), &op, &infos)?;
        self.values_fit(&op, &outputs)?;
        self.use_cache(&op, inputs.len())?;
        let first = self.values.len() as u32;
        let ids: Vec<ValueId> = (first..first + outputs.len() as u32).map(ValueId).collect();
        self.values.extend(outputs);
        self.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            outputs: ids.clone(),
            scope: self.scope,
        });
        Ok(ids)
    }

    /// Appends a node with one output.
    fn push_one(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let name = op.name();
        let ids = self.push(op, inputs)?;
        ids.first().copied().ok_or_else(|| GraphError::Malformed {
            at: self.at(name),
            found: "no output".to_owned(),
            expected: "one output".to_owned(),
        })
    }

    fn values_fit(&self, op: &Op, outputs: &[ValueInfo]) -> Result<(), GraphError> {
        let limits = &self.limits;
        if self.values.len() + outputs.len() > limits.max_values {
            return Err(self.limit(
                op.name(),
                "the number of values".to_owned(),
                limits.max_values,
            ));
        }
        for info in outputs {
            if info.shape.len() > limits.max_rank {
                let what = format!("a result of {} dimensions", info.shape.len());
                return Err(self.limit(op.name(), what, limits.max_rank));
            }
            match rules::elements(&info.shape) {
                Some(n) if n <= limits.max_value_width => {}
                _ => {
                    let what = format!("a result of {:?} elements per row", info.shape);
                    return Err(self.limit(op.name(), what, limits.max_value_width));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
