//! Ropes and writes to caches.

use std::sync::Arc;

use guesthouse_graph::{
    CacheId, Node, Op, Rope, RopeScaling, RopeStyle, Rows, ValueId, ValueLayout,
};

use super::head_norm::HeadNormed;
use super::{Aliases, Compiler};
use crate::cuda::driver::Buffer;
use crate::cuda::ops::Place;
use crate::cuda::ops::rope::{Places, RopeTable, Rotate, RotateSpec, Rotation, Writing};
use crate::error::{DeviceError, Result};

/// What the step's tokens share: values read in place, rope tables and places in caches that have an instruction already.
#[derive(Default)]
pub(crate) struct Ropes {
    pub(super) aliases: Aliases,
    /// Parameters that shape a table, the value of its positions, the table.
    tables: Vec<(Rope, ValueId, Arc<Buffer>)>,
    /// By cache group that is written.
    places: Vec<(usize, Arc<Buffer>)>,
    /// Norms of heads that rotations do, once looked for.
    pub(super) head_norms: Option<Vec<HeadNormed>>,
}

impl Compiler<'_, '_> {
    /// The rope's table, made by an instruction before its first use.
    fn rotation(&mut self, index: usize, rope: &Rope, positions: ValueId) -> Result<Rotation> {
        // What follows does not change the table.
        let key = Rope {
            style: RopeStyle::Neox,
            start: 0,
            ..rope.clone()
        };
        let known = self
            .ropes
            .tables
            .iter()
            .find(|(r, p, _)| (r, *p) == (&key, positions));
        let table = match known {
            Some((_, _, table)) => Arc::clone(table),
            None => {
                let table = self.rope_table(index, rope, positions)?;
                self.ropes.tables.push((key, positions, Arc::clone(&table)));
                table
            }
        };
        Ok(Rotation {
            table,
            rotary: rope.rotary as usize,
            start: rope.start as usize,
            style: rope.style,
        })
    }

    fn rope_table(&mut self, index: usize, rope: &Rope, positions: ValueId) -> Result<Arc<Buffer>> {
        let half = rope.rotary as usize / 2;
        let factors = match &rope.scaling {
            RopeScaling::Factors { weight } => Some(self.loader.host_vector(*weight)?),
            _ => None,
        };
        let lists = match &rope.scaling {
            RopeScaling::LongRope { short, long, .. } => vec![short.len(), long.len()],
            _ => factors.iter().map(Vec::len).collect(),
        };
        let ints = self.ints(positions)?;
        let axis = rope.axis as usize;
        if lists.iter().any(|&n| n != half)
            || axis >= ints.width()
            || !rope.rotary.is_multiple_of(2)
        {
            return Err(DeviceError::plan(format!(
                "rope of {} elements: {lists:?} factors where {half} are needed, axis {axis} of {} positions",
                rope.rotary,
                ints.width()
            )));
        }
        let tokens = self.limits.tokens;
        let instr = RopeTable::new(&self.loader.gpu, rope, factors.as_deref(), ints, tokens)?;
        let table = instr.table();
        self.push(index, Rows::Tokens, instr);
        Ok(table)
    }

    /// Rotates q into its result, and keys on their way to a cache.
    pub(super) fn rotate(
        &mut self,
        index: usize,
        node: &Node,
        rope: &Rope,
        (x, y, d): (Place, Place, usize),
        positions: ValueId,
        write: Option<(CacheId, Place, Place)>,
    ) -> Result<()> {
        let end = (rope.start + rope.rotary) as usize;
        if end > d {
            self.fit(node, "rotated elements", d, end)?;
        }
        // Heads whose norm was left to this instruction come as they were before it.
        let (x, write, norm) = match self.head_norm(index)? {
            Some((q, k, norm)) => (q, write.map(|(cache, _, v)| (cache, k, v)), Some(norm)),
            None => (x, write, None),
        };
        let rotation = self.rotation(index, rope, positions)?;
        let writing = match write {
            Some((cache, k, v)) => Some(self.writing(index, node, cache, (k, v))?),
            None => None,
        };
        let (gpu, dtype) = (&self.loader.gpu, self.loader.dtype);
        let spec = RotateSpec {
            rotation: Some(rotation),
            q: Some((x, y, d)),
            write: writing,
            norm,
        };
        let instr = Rotate::new(gpu, dtype, spec)?;
        self.push(index, y.arena, instr);
        Ok(())
    }

    /// Writes keys and values as they are.
    pub(super) fn write_kv(
        &mut self,
        index: usize,
        node: &Node,
        cache: CacheId,
        kv: (Place, Place),
    ) -> Result<()> {
        let writing = self.writing(index, node, cache, kv)?;
        let (gpu, dtype) = (&self.loader.gpu, self.loader.dtype);
        let spec = RotateSpec {
            write: Some(writing),
            ..RotateSpec::default()
        };
        let instr = Rotate::new(gpu, dtype, spec)?;
        self.push(index, Rows::Tokens, instr);
        Ok(())
    }

    fn writing(
        &mut self,
        index: usize,
        node: &Node,
        cache: CacheId,
        (k, v): (Place, Place),
    ) -> Result<Writing> {
        let shape = self.cache(cache)?;
        let (heads, v_dim) = (shape.heads as usize, shape.v_dim as usize);
        let k_dim = match shape.values {
            ValueLayout::Separate => shape.k_dim as usize,
            ValueLayout::PrefixOfKey => shape.k_dim as usize - v_dim,
        };
        self.fit(node, "keys", heads * k_dim, k.width)?;
        self.fit(node, "values", heads * v_dim, v.width)?;
        Ok(Writing {
            cache: cache.index(),
            places: self.places(index, shape.group)?,
            kv_heads: heads,
            k_dim,
            v_dim,
            values: shape.values,
            block_size: self.limits.block_size,
            k,
            v,
        })
    }

    /// Where a group's keys and values go: made for all groups that are written, before the first write.
    fn places(&mut self, index: usize, group: usize) -> Result<Arc<Buffer>> {
        if self.ropes.places.is_empty() {
            let mut groups: Vec<(usize, usize)> = Vec::new();
            for node in &self.plan.graph.nodes {
                let cache = match &node.op {
                    Op::RopeWrite { cache, .. } | Op::WriteKv { cache } => *cache,
                    Op::Attention(a) if node.inputs.len() == 3 => a.cache,
                    _ => continue,
                };
                let group = self.cache(cache)?.group;
                if groups.iter().all(|(g, _)| *g != group) {
                    groups.push((group, cache.index()));
                }
            }
            let caches: Vec<usize> = groups.iter().map(|(_, cache)| *cache).collect();
            let instr = Places::new(&self.loader.gpu, &caches, self.limits.tokens)?;
            let places = instr.places();
            self.push(index, Rows::Tokens, instr);
            self.ropes.places = groups.into_iter().map(|(g, _)| g).zip(places).collect();
        }
        let found = self.ropes.places.iter().find(|(g, _)| *g == group);
        let found = found.map(|(_, places)| Arc::clone(places));
        found.ok_or_else(|| DeviceError::plan(format!("cache group {group} is written by nothing")))
    }
}
