//! The builder interface: adapters onto [`GraphBuilder`], one per function. A finding of the builder traps.

use guesthouse_graph::{
    CausalConv, DeltaInputs, GraphBuilder, GraphError, LayerNorm, Normalize, Pooling, ValueId,
    WeightId,
};
use wasmtime::Result;

use super::convert::{self, cache, from_value, from_weight, optional, value, values, weight};
use super::outside_build;
use crate::bindings::graph::guesthouse::graph::builder::{
    Activation, AttentionParams, Cache, CacheSpec, ExpertsParams, Gate, Host, LatentParams,
    Pooling as WitPooling, PositionScheme, RmsNormParams, RopeParams, RouteParams, Sharding, Value,
    ValueType, Weight,
};
use crate::bindings::types::Attr;
use crate::store::{GraphFailure, State};

fn trap(error: GraphError) -> wasmtime::Error {
    wasmtime::Error::new(GraphFailure(error))
}

impl State {
    fn builder(&mut self) -> Result<&mut GraphBuilder> {
        self.builder.as_mut().ok_or_else(|| trap(outside_build()))
    }

    fn value(
        &mut self,
        op: impl FnOnce(&mut GraphBuilder) -> Result<ValueId, GraphError>,
    ) -> Result<Value> {
        op(self.builder()?).map(from_value).map_err(trap)
    }

    fn weight(
        &mut self,
        op: impl FnOnce(&mut GraphBuilder) -> Result<WeightId, GraphError>,
    ) -> Result<Weight> {
        op(self.builder()?).map(from_weight).map_err(trap)
    }
}

impl Host for State {
    fn has_param(&mut self, name: String) -> Result<bool> {
        Ok(self.builder()?.has_param(&name))
    }

    fn param_shape(&mut self, name: String) -> Result<Option<Vec<u32>>> {
        Ok(self.builder()?.param_shape(&name))
    }

    fn param(&mut self, name: String, shape: Vec<u32>) -> Result<Weight> {
        self.weight(|b| b.param(&name, &shape))
    }

    fn constant(&mut self, shape: Vec<u32>, data: Vec<f32>) -> Result<Weight> {
        self.weight(|b| b.constant(&shape, data))
    }

    fn rows(&mut self, of: Weight, start: u32, len: u32) -> Result<Weight> {
        self.weight(|b| b.rows(weight(of), start, len))
    }

    fn select_rows(&mut self, of: Weight, index: Vec<u32>) -> Result<Weight> {
        self.weight(|b| b.select_rows(weight(of), index))
    }

    fn concat_rows(&mut self, of: Vec<Weight>) -> Result<Weight> {
        let of: Vec<_> = of.into_iter().map(weight).collect();
        self.weight(|b| b.concat_rows(&of))
    }

    fn transpose(&mut self, of: Weight) -> Result<Weight> {
        self.weight(|b| b.transpose(weight(of)))
    }

    fn reshape_weight(&mut self, of: Weight, shape: Vec<u32>) -> Result<Weight> {
        self.weight(|b| b.reshape_weight(weight(of), &shape))
    }

    fn scale_weight(&mut self, of: Weight, by: f32) -> Result<Weight> {
        self.weight(|b| b.scale_weight(weight(of), by))
    }

    fn normalize_rows(&mut self, of: Weight, eps: f32) -> Result<Weight> {
        self.weight(|b| b.normalize_rows(weight(of), eps))
    }

    fn dequantize(&mut self, of: Weight) -> Result<Weight> {
        self.weight(|b| b.dequantize(weight(of)))
    }

    fn declare_cache(&mut self, spec: CacheSpec) -> Result<Cache> {
        let spec = convert::cache_spec(&spec).map_err(trap)?;
        self.builder()?
            .declare_cache(spec)
            .map(|c| Cache { id: c.0 })
            .map_err(trap)
    }

    fn token_ids(&mut self) -> Result<Value> {
        self.value(GraphBuilder::token_ids)
    }

    fn positions(&mut self, scheme: PositionScheme) -> Result<Value> {
        self.value(|b| b.positions(convert::positions(&scheme)?))
    }

    fn weight_value(&mut self, w: Weight) -> Result<Value> {
        self.value(|b| b.weight_value(weight(w)))
    }

    fn embedding(&mut self, table: Weight, ids: Value) -> Result<Value> {
        self.value(|b| b.embedding(weight(table), value(ids)))
    }

    fn linear(
        &mut self,
        x: Value,
        w: Weight,
        bias: Option<Weight>,
        sharding: Sharding,
    ) -> Result<Value> {
        self.value(|b| {
            b.linear(
                value(x),
                weight(w),
                optional(bias),
                convert::sharding(sharding),
            )
        })
    }

    fn rms_norm(&mut self, x: Value, w: Option<Weight>, params: RmsNormParams) -> Result<Value> {
        self.value(|b| b.rms_norm(value(x), convert::rms_norm(w, params)))
    }

    fn layer_norm(
        &mut self,
        x: Value,
        w: Option<Weight>,
        bias: Option<Weight>,
        eps: f32,
    ) -> Result<Value> {
        self.value(|b| {
            b.layer_norm(
                value(x),
                LayerNorm {
                    weight: optional(w),
                    bias: optional(bias),
                    eps,
                },
            )
        })
    }

    fn l2_norm(&mut self, x: Value, eps: f32) -> Result<Value> {
        self.value(|b| b.l2_norm(value(x), eps))
    }

    fn rope(&mut self, x: Value, positions: Value, params: RopeParams) -> Result<Value> {
        self.value(|b| b.rope(value(x), value(positions), convert::rope(params)?))
    }

    fn attention(
        &mut self,
        q: Value,
        k: Value,
        v: Value,
        cache: Cache,
        params: AttentionParams,
    ) -> Result<Value> {
        self.value(|b| {
            b.attention(
                value(q),
                value(k),
                value(v),
                convert::attention(cache, &params)?,
            )
        })
    }

    fn attention_shared(
        &mut self,
        q: Value,
        cache: Cache,
        params: AttentionParams,
    ) -> Result<Value> {
        self.value(|b| b.attention_shared(value(q), convert::attention(cache, &params)?))
    }

    fn latent_attention(
        &mut self,
        q: Value,
        latent: Value,
        k_rope: Value,
        kv_b: Weight,
        cache: Cache,
        params: LatentParams,
    ) -> Result<Value> {
        self.value(|b| {
            let params = convert::latent_attention(cache, kv_b, &params)?;
            b.latent_attention(value(q), value(latent), value(k_rope), params)
        })
    }

    fn activate(&mut self, x: Value, kind: Activation) -> Result<Value> {
        self.value(|b| b.activate(value(x), convert::activation(kind)))
    }

    fn gated(&mut self, gate: Value, up: Value, kind: Gate) -> Result<Value> {
        self.value(|b| b.gated(value(gate), value(up), convert::gate(kind)))
    }

    fn add(&mut self, a: Value, b: Value) -> Result<Value> {
        self.value(|builder| builder.add(value(a), value(b)))
    }

    fn mul(&mut self, a: Value, b: Value) -> Result<Value> {
        self.value(|builder| builder.mul(value(a), value(b)))
    }

    fn scale(&mut self, x: Value, by: f32) -> Result<Value> {
        self.value(|b| b.scale(value(x), by))
    }

    fn clamp(&mut self, x: Value, min: f32, max: f32) -> Result<Value> {
        self.value(|b| b.clamp(value(x), min, max))
    }

    fn soft_cap(&mut self, x: Value, cap: f32) -> Result<Value> {
        self.value(|b| b.soft_cap(value(x), cap))
    }

    fn log_n_scale(&mut self, x: Value, positions: Value, train_len: u32) -> Result<Value> {
        self.value(|b| b.log_n_scale(value(x), value(positions), train_len))
    }

    fn cast(&mut self, x: Value, to: ValueType) -> Result<Value> {
        self.value(|b| b.cast(value(x), convert::value_type(to)))
    }

    fn split(&mut self, x: Value, axis: u32, sizes: Vec<u32>) -> Result<Vec<Value>> {
        let parts = self
            .builder()?
            .split(value(x), axis, &sizes)
            .map_err(trap)?;
        Ok(parts.into_iter().map(from_value).collect())
    }

    fn slice(&mut self, x: Value, axis: u32, start: u32, len: u32) -> Result<Value> {
        self.value(|b| b.slice(value(x), axis, start, len))
    }

    fn concat(&mut self, xs: Vec<Value>, axis: u32) -> Result<Value> {
        self.value(|b| b.concat(&values(&xs), axis))
    }

    fn reshape(&mut self, x: Value, shape: Vec<u32>) -> Result<Value> {
        self.value(|b| b.reshape(value(x), &shape))
    }

    fn swap_axes(&mut self, x: Value) -> Result<Value> {
        self.value(|b| b.swap_axes(value(x)))
    }

    fn repeat_heads(&mut self, x: Value, times: u32) -> Result<Value> {
        self.value(|b| b.repeat_heads(value(x), times))
    }

    fn route(&mut self, logits: Value, params: RouteParams) -> Result<(Value, Value)> {
        let params = convert::route(&params).map_err(trap)?;
        let (weights, ids) = self.builder()?.route(value(logits), params).map_err(trap)?;
        Ok((from_value(weights), from_value(ids)))
    }

    fn experts(
        &mut self,
        x: Value,
        weights: Value,
        ids: Value,
        params: ExpertsParams,
    ) -> Result<Value> {
        self.value(|b| {
            b.experts(
                value(x),
                value(weights),
                value(ids),
                convert::experts(&params)?,
            )
        })
    }

    fn causal_conv(
        &mut self,
        x: Value,
        w: Weight,
        bias: Option<Weight>,
        state: Cache,
        kind: Option<Activation>,
    ) -> Result<Value> {
        let conv = CausalConv {
            weight: weight(w),
            bias: optional(bias),
            cache: cache(state),
            activation: kind.map(convert::activation),
        };
        self.value(|b| b.causal_conv(value(x), conv))
    }

    fn delta_rule(
        &mut self,
        q: Value,
        k: Value,
        v: Value,
        g: Value,
        beta: Value,
        state: Cache,
        scale: f32,
    ) -> Result<Value> {
        let inputs = DeltaInputs {
            q: value(q),
            k: value(k),
            v: value(v),
            g: value(g),
            beta: value(beta),
        };
        self.value(|b| b.delta_rule(inputs, cache(state), scale))
    }

    fn custom(
        &mut self,
        op: String,
        inputs: Vec<Value>,
        _: Vec<Weight>,
        _: Vec<Attr>,
    ) -> Result<Vec<Value>> {
        let outputs = self
            .builder()?
            .custom(&op, &values(&inputs))
            .map_err(trap)?;
        Ok(outputs.into_iter().map(from_value).collect())
    }

    fn has_custom(&mut self, op: String) -> Result<bool> {
        Ok(self.builder()?.has_custom(&op))
    }

    fn gather_outputs(&mut self, x: Value) -> Result<Value> {
        self.value(|b| b.gather_outputs(value(x)))
    }

    fn output_logits(&mut self, logits: Value) -> Result<()> {
        self.builder()?.output_logits(value(logits)).map_err(trap)
    }

    fn output_embedding(&mut self, x: Value, pooling: WitPooling, normalize: bool) -> Result<()> {
        let pooling = match pooling {
            WitPooling::Last => Pooling::Last,
            WitPooling::Mean => Pooling::Mean,
        };
        let normalize = if normalize {
            Normalize::L2
        } else {
            Normalize::No
        };
        self.builder()?
            .output_embedding(value(x), pooling, normalize)
            .map_err(trap)
    }

    fn scope(&mut self, name: String) -> Result<()> {
        self.builder()?.scope(&name).map_err(trap)
    }
}
