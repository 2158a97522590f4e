//! What leaves the graph.

use super::{Gather, GraphBuilder, Normalize};
use crate::{Graph, GraphError, ModelInfo, Op, Output, Pooling, Rows, ValueId, passes, verify};

/// Under the root of [`Op::L2Norm`]: torch's `normalize` bounds the length by 1e-12 from below.
const NORMALIZE_EPS: f32 = 1e-24;

impl GraphBuilder {
    /// Keeps the rows whose output is wanted: what follows runs on those alone.
    ///
    /// # Errors
    /// When x has other rows than one per token.
    pub fn gather_outputs(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
        self.push_one(Op::GatherOutputs, &[x])
    }

    /// Next-token scores `[vocab]`, once per graph. Without an earlier [`Self::gather_outputs`], one is put before the
    /// output head.
    ///
    /// # Errors
    /// When the graph has an output already, or logits are not one vector of floats per row.
    pub fn output_logits(&mut self, logits: ValueId) -> Result<(), GraphError> {
        self.set_output("output-logits", logits)?;
        let gathered = match self.values.get(logits.index()).map(|v| v.rows) {
            Some(Rows::Tokens) => {
                self.gather = Gather::Added;
                self.push_one(Op::GatherOutputs, &[logits])?
            }
            _ => logits,
        };
        self.output = Some(Output::Logits(gathered));
        Ok(())
    }

    /// `x [d]` → one vector per sequence, once per graph.
    ///
    /// # Errors
    /// When the graph has an output already, or x is not one vector of floats per token.
    pub fn output_embedding(
        &mut self,
        x: ValueId,
        pooling: Pooling,
        normalize: Normalize,
    ) -> Result<(), GraphError> {
        self.set_output("output-embedding", x)?;
        let pooled = self.push_one(Op::Pool { pooling }, &[x])?;
        let vector = match normalize {
            Normalize::No => pooled,
            Normalize::L2 => self.l2_norm(pooled, NORMALIZE_EPS)?,
        };
        self.output = Some(Output::Embedding(vector));
        Ok(())
    }

    fn set_output(&self, op: &str, value: ValueId) -> Result<(), GraphError> {
        if self.output.is_some() {
            return Err(GraphError::Output {
                at: self.at(op),
                found: "the graph has an output already".to_owned(),
            });
        }
        self.known_value(op, value)
    }

    /// The finished graph, verified as a whole.
    ///
    /// # Errors
    /// When there is no output, when logits are not `[vocab_size]`, or when a fact in `info` makes no sense.
    pub fn finish(self, info: ModelInfo) -> Result<Graph, GraphError> {
        let Some(output) = self.output else {
            return Err(GraphError::Output {
                at: "finish".to_owned(),
                found: "the graph has no output".to_owned(),
            });
        };
        self.name_fits("model-info", &info.architecture)?;
        let graph = Graph {
            info,
            nodes: self.nodes,
            values: self.values,
            weights: self.weights,
            caches: self.caches,
            scopes: self.scopes,
            output,
        };
        verify(&graph)?;
        match self.gather {
            Gather::AsWritten => Ok(graph),
            Gather::Added => {
                let graph = passes::gather(&graph);
                verify(&graph)?;
                Ok(graph)
            }
        }
    }
}
