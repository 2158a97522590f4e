//! Ropes, caches and attention.

use std::sync::Arc;

use guesthouse_graph::{
    Attention, CacheId, CacheKind, Node, Rope, RopeScaling, RopeStyle, Rows, ValueId, WeightId,
};

use super::Compiler;
use crate::cpu::attention::PagedAttention;
use crate::cpu::kv::{CacheShape, KvShape};
use crate::cpu::ops::Place;
use crate::cpu::ops::linear::HeadLinear;
use crate::cpu::ops::recurrent::State;
use crate::cpu::ops::rope::{RopeTable, Rotation, WriteKv, frequencies};
use crate::error::{DeviceError, Result};

impl Compiler<'_, '_> {
    pub(super) fn cache(&self, cache: CacheId) -> Result<KvShape> {
        match self.program.caches.get(cache.index()) {
            Some(CacheShape::Heads(shape)) => Ok(*shape),
            Some(CacheShape::State { .. }) => Err(DeviceError::plan(format!(
                "{cache} holds a state where keys and values are needed"
            ))),
            None => Err(DeviceError::plan(format!("{cache} does not exist"))),
        }
    }

    /// Where the state of `floats` floats that a recurrent op updates is kept.
    pub(super) fn state(&self, node: &Node, cache: CacheId, floats: usize) -> Result<State> {
        match self.program.caches.get(cache.index()) {
            Some(&CacheShape::State {
                group,
                floats: found,
            }) => {
                self.fit(node, "state", floats, found)?;
                Ok(State {
                    cache: cache.index(),
                    group,
                    floats,
                })
            }
            _ => Err(DeviceError::plan(format!("{cache} holds no state"))),
        }
    }

    /// The rope's table, made by an instruction before its first use.
    pub(super) fn rotation(
        &mut self,
        index: usize,
        rope: &Rope,
        positions: ValueId,
    ) -> Result<Rotation> {
        let half = rope.rotary as usize / 2;
        // What follows does not change the table.
        let key = (
            Rope {
                style: RopeStyle::Neox,
                start: 0,
                ..rope.clone()
            },
            positions,
        );
        let table = match self.ropes.iter().position(|k| *k == key) {
            Some(table) => table,
            None => {
                let factors = match &rope.scaling {
                    RopeScaling::Factors { weight } => Some(self.loader.vector(*weight)?),
                    _ => None,
                };
                let lists = match &rope.scaling {
                    RopeScaling::LongRope { short, long, .. } => vec![short.len(), long.len()],
                    _ => factors.iter().map(|f| f.len()).collect(),
                };
                let place = self.place(positions)?;
                if lists.iter().any(|&n| n != half)
                    || rope.axis as usize >= place.width
                    || !rope.rotary.is_multiple_of(2)
                {
                    return Err(DeviceError::plan(format!(
                        "rope of {} elements: {lists:?} factors where {half} are needed, axis {} of {} positions",
                        rope.rotary, rope.axis, place.width
                    )));
                }
                let (frequencies, factor) = frequencies(rope, factors.as_deref());
                let table = self.ropes.len();
                let axis = rope.axis as usize;
                let instr = RopeTable {
                    table,
                    frequencies,
                    factor,
                    half,
                    positions: place,
                    axis,
                };
                self.push(index, Rows::Tokens, instr);
                self.ropes.push(key);
                self.program.rope_halves.push(half);
                table
            }
        };
        Ok(Rotation {
            table,
            half,
            start: rope.start as usize,
            style: rope.style,
        })
    }

    pub(super) fn fit_rotation(&self, node: &Node, rope: &Rope, d: usize) -> Result<()> {
        if (rope.start + rope.rotary) as usize > d {
            self.fit(
                node,
                "rotated elements",
                d,
                (rope.start + rope.rotary) as usize,
            )?;
        }
        Ok(())
    }

    pub(super) fn write_kv(
        &mut self,
        index: usize,
        node: &Node,
        cache: CacheId,
        rotation: Option<Rotation>,
        (k, v): (Place, Place),
    ) -> Result<()> {
        let shape = self.cache(cache)?;
        let rest = shape.k_dim - shape.k_start();
        self.fit(node, "keys", shape.heads * rest, k.width)?;
        self.fit(node, "values", shape.heads * shape.v_dim, v.width)?;
        self.push(
            index,
            Rows::Tokens,
            WriteKv {
                rotation,
                cache: cache.index(),
                shape,
                k,
                v,
            },
        );
        Ok(())
    }

    pub(super) fn head_linear(
        &mut self,
        index: usize,
        node: &Node,
        weight: WeightId,
        (x, y): (Place, Place),
    ) -> Result<()> {
        let matrices = self.loader.head_matrices(weight)?;
        let (heads, Some(first)) = (matrices.len(), matrices.first()) else {
            return Err(DeviceError::plan("a linear of no heads"));
        };
        let (rows, cols) = (first.rows(), first.cols());
        let d = x.width / heads;
        self.fit(node, "heads", heads * d.max(cols), x.width)?;
        let out = rows + d - cols;
        self.fit(node, "result", heads * out, y.width)?;
        let instr = HeadLinear {
            matrices,
            d: (d, out),
            x,
            y,
        };
        self.push(index, y.arena, instr);
        Ok(())
    }

    pub(super) fn attention(
        &mut self,
        index: usize,
        node: &Node,
        a: &Attention,
        q: Place,
        y: Place,
    ) -> Result<()> {
        let shape = self.cache(a.cache)?;
        let heads = q.width / shape.k_dim;
        self.fit(node, "queries", heads * shape.k_dim, q.width)?;
        self.fit(node, "result", heads * shape.v_dim, y.width)?;
        if heads == 0 || !heads.is_multiple_of(shape.heads) {
            return Err(DeviceError::plan(format!(
                "{heads} query heads do not divide among {} key heads",
                shape.heads
            )));
        }
        let spec = self.plan.graph.cache(a.cache);
        if let CacheKind::Window { window } = spec.kind
            && a.window.is_none_or(|w| w > window)
        {
            return Err(DeviceError::plan(format!(
                "attention sees {:?} positions of a cache that keeps {window}",
                a.window
            )));
        }
        let per_head = |weight: Option<WeightId>, this: &mut Self| -> Result<Option<Arc<[f32]>>> {
            let Some(weight) = weight else {
                return Ok(None);
            };
            let vector = this.loader.vector(weight)?;
            this.fit(node, "one number per head", heads, vector.len())?;
            Ok(Some(vector))
        };
        let alibi = per_head(a.alibi, self)?;
        let sinks = per_head(a.sinks, self)?;
        let instr = PagedAttention {
            cache: a.cache.index(),
            shape,
            heads,
            scale: a.scale,
            window: a.window,
            softcap: a.softcap,
            alibi,
            sinks,
            q,
            y,
        };
        self.push(index, y.arena, instr);
        Ok(())
    }
}
