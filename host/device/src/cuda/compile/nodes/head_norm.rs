//! Norms of query and key heads that the rotation behind them does on its way (Qwen 3, Gemma 3): two launches and two trips
//! to memory less per layer, with the same roundings.

use std::collections::HashMap;

use guesthouse_graph::{Op, Plan, RmsNorm, Rows, ValueId, ValueType, WeightId};

use super::Compiler;
use crate::cuda::ops::Place;
use crate::cuda::ops::rope::{HeadNorm, can_normalise};
use crate::error::Result;

/// A rotation that normalises.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HeadNormed {
    /// Node of the rotation.
    rotation: usize,
    /// Nodes of the norms, which compute nothing.
    norms: [usize; 2],
    /// What they read: queries and keys.
    inputs: [ValueId; 2],
    /// `[d]` for queries and for keys.
    weights: [WeightId; 2],
    /// Parameters that both share.
    norm: RmsNorm,
}

impl Compiler<'_, '_> {
    /// Whether a later rotation computes this norm.
    pub(super) fn is_done_by_rotation(&mut self, node: usize) -> Result<bool> {
        Ok(self.head_norms()?.iter().any(|h| h.norms.contains(&node)))
    }

    /// Queries and keys before their norms, and the norm, where a rotation computes it.
    pub(super) fn head_norm(
        &mut self,
        rotation: usize,
    ) -> Result<Option<(Place, Place, HeadNorm)>> {
        let found = self.head_norms()?.iter().find(|h| h.rotation == rotation);
        let Some(found) = found.cloned() else {
            return Ok(None);
        };
        let weight_type = self.vector_type(&found.weights.map(Some));
        let norm = HeadNorm {
            q_weight: self.loader.vector(found.weights[0], weight_type)?,
            k_weight: self.loader.vector(found.weights[1], weight_type)?,
            weight_type,
            eps: found.norm.eps,
            offset: found.norm.offset,
            rounding: found.norm.rounding,
        };
        let [q, k] = found.inputs;
        Ok(Some((self.place(q)?, self.place(k)?, norm)))
    }

    fn head_norms(&mut self) -> Result<&[HeadNormed]> {
        if self.ropes.head_norms.is_none() {
            let mut found = Vec::new();
            for candidate in candidates(self.plan) {
                if self.is_possible(&candidate)? {
                    found.push(candidate);
                }
            }
            self.ropes.head_norms = Some(found);
        }
        Ok(self.ropes.head_norms.as_deref().unwrap_or_default())
    }

    /// Whether the kernel takes such heads, and what it would read is still there.
    fn is_possible(&self, h: &HeadNormed) -> Result<bool> {
        let node = &self.plan.graph.nodes[h.rotation];
        let Op::RopeWrite { rope, cache } = &node.op else {
            return Ok(false);
        };
        let cache = self.cache(*cache)?;
        let (d, v_dim) = (cache.k_dim as usize, cache.v_dim as usize);
        let values = [h.inputs[0], h.inputs[1], node.inputs[2], node.outputs[0]];
        let places: Vec<Place> = values
            .iter()
            .map(|&v| self.place(v))
            .collect::<Result<_>>()?;
        let of_heads = h.inputs.iter().all(|&v| self.last(v) == d)
            && h.weights.iter().all(|&w| self.loader.len(w) == d);
        let is_model = places.iter().all(|p| p.ty == ValueType::Model);
        let mut read = h.norms.into_iter().zip(h.inputs);
        let alive = read.all(|(norm, v)| is_kept(self.plan, v, norm, h.rotation));
        let places: Vec<&Place> = places.iter().collect();
        Ok(of_heads && is_model && alive && can_normalise(rope, d, v_dim, &places))
    }
}

/// Whether nothing after node `from`, up to node `to`, writes over a value of token rows. The norms that are left out write
/// nothing, but they are looked at as the others are.
fn is_kept(plan: &Plan, value: ValueId, from: usize, to: usize) -> bool {
    let place = plan.placement(value);
    let written = (from + 1..=to).filter(|&i| !plan.is_view(i));
    let mut outputs = written.flat_map(|i| &plan.graph.nodes[i].outputs);
    place.arena == Rows::Tokens
        && outputs.all(|&v| {
            let p = plan.placement(v);
            p.arena != Rows::Tokens
                || p.base + p.row_stride <= place.base
                || place.base + place.row_stride <= p.base
        })
}

/// Rotations whose queries and keys both come from norms of equal parameters that nothing else reads.
fn candidates(plan: &Plan) -> Vec<HeadNormed> {
    let nodes = &plan.graph.nodes;
    let mut made_by: HashMap<ValueId, usize> = HashMap::new();
    let mut readers: HashMap<ValueId, usize> = HashMap::new();
    for (i, node) in nodes.iter().enumerate() {
        made_by.extend(node.outputs.iter().map(|&v| (v, i)));
        for &v in &node.inputs {
            *readers.entry(v).or_default() += 1;
        }
    }
    let norm_of = |v: ValueId| {
        let &at = made_by.get(&v)?;
        let node = &nodes[at];
        match (&node.op, &node.inputs[..]) {
            (Op::RmsNorm(n), &[x])
                if readers.get(&v) == Some(&1) && v != plan.graph.output.value() =>
            {
                Some((at, x, *n, n.weight?))
            }
            _ => None,
        }
    };
    let mut found = Vec::new();
    for (rotation, node) in nodes.iter().enumerate() {
        if !matches!(node.op, Op::RopeWrite { .. }) {
            continue;
        }
        let (Some(&q), Some(&k)) = (node.inputs.first(), node.inputs.get(1)) else {
            continue;
        };
        let (Some((q_at, q, q_norm, q_weight)), Some((k_at, k, k_norm, k_weight))) =
            (norm_of(q), norm_of(k))
        else {
            continue;
        };
        let same = RmsNorm {
            weight: None,
            ..q_norm
        } == RmsNorm {
            weight: None,
            ..k_norm
        };
        if same && q_at != k_at {
            found.push(HeadNormed {
                rotation,
                norms: [q_at, k_at],
                inputs: [q, k],
                weights: [q_weight, k_weight],
                norm: q_norm,
            });
        }
    }
    found
}

#[cfg(test)]
mod tests;
