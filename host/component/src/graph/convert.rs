//! Interface types to those of the IR.

use guesthouse_graph as ir;
use guesthouse_graph::{CacheId, GraphError, ValueId, WeightId};

use crate::bindings::graph::guesthouse::graph::builder as wit;
use crate::bindings::types::Attr;

pub(super) fn value(v: wit::Value) -> ValueId {
    ValueId(v.id)
}

pub(super) fn weight(w: wit::Weight) -> WeightId {
    WeightId(w.id)
}

pub(super) fn optional(w: Option<wit::Weight>) -> Option<WeightId> {
    w.map(weight)
}

pub(super) fn cache(c: wit::Cache) -> CacheId {
    CacheId(c.id)
}

pub(super) fn from_value(v: ValueId) -> wit::Value {
    wit::Value { id: v.0 }
}

pub(super) fn from_weight(w: WeightId) -> wit::Weight {
    wit::Weight { id: w.0 }
}

pub(super) fn values(vs: &[wit::Value]) -> Vec<ValueId> {
    vs.iter().map(|v| ValueId(v.id)).collect()
}

/// Refuses settings newer than this host.
pub(super) fn no_ext(record: &str, ext: &[Attr]) -> Result<(), GraphError> {
    match ext.first() {
        None => Ok(()),
        Some(attr) => Err(unknown(record, &attr.key)),
    }
}

fn unknown(record: &str, key: &str) -> GraphError {
    GraphError::Malformed {
        at: record.into(),
        found: format!("the setting {:?}", &key[..key.floor_char_boundary(64)]),
        expected: "settings that this host knows: none".into(),
    }
}

pub(super) fn value_type(ty: wit::ValueType) -> ir::ValueType {
    match ty {
        wit::ValueType::Model => ir::ValueType::Model,
        wit::ValueType::Float32 => ir::ValueType::F32,
        wit::ValueType::Int32 => ir::ValueType::I32,
    }
}

pub(super) fn sharding(sharding: wit::Sharding) -> ir::Sharding {
    match sharding {
        wit::Sharding::Replicated => ir::Sharding::Replicated,
        wit::Sharding::Column => ir::Sharding::Column,
        wit::Sharding::Row => ir::Sharding::Row,
    }
}

pub(super) fn activation(kind: wit::Activation) -> ir::Activation {
    match kind {
        wit::Activation::Silu => ir::Activation::Silu,
        wit::Activation::Gelu => ir::Activation::Gelu,
        wit::Activation::GeluTanh => ir::Activation::GeluTanh,
        wit::Activation::QuickGelu => ir::Activation::QuickGelu,
        wit::Activation::Relu => ir::Activation::Relu,
        wit::Activation::Relu2 => ir::Activation::Relu2,
        wit::Activation::Sigmoid => ir::Activation::Sigmoid,
        wit::Activation::Tanh => ir::Activation::Tanh,
        wit::Activation::Softplus => ir::Activation::Softplus,
        wit::Activation::Exp => ir::Activation::Exp,
    }
}

pub(super) fn gate(gate: wit::Gate) -> ir::Gate {
    match gate {
        wit::Gate::Plain(kind) => ir::Gate::Plain(activation(kind)),
        wit::Gate::Clamped((alpha, limit)) => ir::Gate::Clamped { alpha, limit },
    }
}

pub(super) fn cache_spec(spec: &wit::CacheSpec) -> Result<ir::CacheSpec, GraphError> {
    no_ext("cache-spec", &spec.ext)?;
    Ok(ir::CacheSpec {
        kind: match spec.kind {
            wit::CacheKind::Full => ir::CacheKind::Full,
            wit::CacheKind::Window(window) => ir::CacheKind::Window { window },
            wit::CacheKind::Recurrent(bytes) => ir::CacheKind::Recurrent { bytes },
        },
        kv_heads: spec.kv_heads,
        k_dim: spec.k_dim,
        v_dim: spec.v_dim,
        values: if spec.v_in_k {
            ir::ValueLayout::PrefixOfKey
        } else {
            ir::ValueLayout::Separate
        },
        sharding: if spec.replicated {
            ir::CacheSharding::Replicated
        } else {
            ir::CacheSharding::Heads
        },
    })
}

pub(super) fn positions(scheme: &wit::PositionScheme) -> Result<ir::PositionScheme, GraphError> {
    Ok(match scheme {
        wit::PositionScheme::Standard => ir::PositionScheme::Standard,
        wit::PositionScheme::Offset(offset) => ir::PositionScheme::Offset(*offset),
        wit::PositionScheme::Glm2d((mask, gmask, bos)) => ir::PositionScheme::Glm2d {
            mask: *mask,
            gmask: *gmask,
            bos: *bos,
        },
        wit::PositionScheme::Custom(_) => return Err(unknown("positions", "custom")),
    })
}

pub(super) fn rms_norm(w: Option<wit::Weight>, params: wit::RmsNormParams) -> ir::RmsNorm {
    ir::RmsNorm {
        weight: optional(w),
        eps: params.eps,
        offset: params.offset,
        rounding: match params.rounding {
            wit::NormRounding::CastThenWeight => ir::NormRounding::CastThenWeight,
            wit::NormRounding::WeightThenCast => ir::NormRounding::WeightThenCast,
        },
    }
}

pub(super) fn rope(params: wit::RopeParams) -> Result<ir::Rope, GraphError> {
    Ok(ir::Rope {
        rotary: params.rotary,
        theta: params.theta,
        style: match params.style {
            wit::RopeStyle::Neox => ir::RopeStyle::Neox,
            wit::RopeStyle::Interleaved => ir::RopeStyle::Interleaved,
        },
        scaling: rope_scaling(params.scaling)?,
        axis: params.axis,
        start: params.start,
    })
}

fn rope_scaling(scaling: wit::RopeScaling) -> Result<ir::RopeScaling, GraphError> {
    Ok(match scaling {
        wit::RopeScaling::None => ir::RopeScaling::None,
        wit::RopeScaling::Linear(factor) => ir::RopeScaling::Linear { factor },
        wit::RopeScaling::Dynamic((factor, original)) => {
            ir::RopeScaling::Dynamic { factor, original }
        }
        wit::RopeScaling::DynamicQwen(original) => ir::RopeScaling::DynamicQwen { original },
        wit::RopeScaling::Yarn(y) => ir::RopeScaling::Yarn {
            factor: y.factor,
            original: y.original,
            beta_fast: y.beta_fast,
            beta_slow: y.beta_slow,
            attention_factor: y.attention_factor,
            truncate: y.truncate,
        },
        wit::RopeScaling::Llama3(l) => ir::RopeScaling::Llama3 {
            factor: l.factor,
            low: l.low,
            high: l.high,
            original: l.original,
        },
        wit::RopeScaling::Longrope(l) => ir::RopeScaling::LongRope {
            short: l.short,
            long: l.long,
            original: l.original,
            attention_factor: l.attention_factor,
        },
        wit::RopeScaling::Factors(w) => ir::RopeScaling::Factors { weight: weight(w) },
        wit::RopeScaling::Custom(_) => return Err(unknown("rope scaling", "custom")),
    })
}

pub(super) fn attention(
    c: wit::Cache,
    params: &wit::AttentionParams,
) -> Result<ir::Attention, GraphError> {
    no_ext("attention", &params.ext)?;
    Ok(ir::Attention {
        cache: cache(c),
        scale: params.scale,
        mask: match params.mask {
            wit::Mask::Causal => ir::Mask::Causal,
            wit::Mask::PrefixLm => ir::Mask::PrefixLm,
            wit::Mask::PrefixBefore(marker) => ir::Mask::PrefixBefore { marker },
        },
        window: params.window,
        softcap: params.softcap,
        alibi: optional(params.alibi),
        sinks: optional(params.sinks),
    })
}

pub(super) fn latent_attention(
    c: wit::Cache,
    kv_b: wit::Weight,
    params: &wit::LatentParams,
) -> Result<ir::LatentAttention, GraphError> {
    no_ext("latent-attention", &params.ext)?;
    Ok(ir::LatentAttention {
        cache: cache(c),
        kv_b: weight(kv_b),
        nope: params.nope,
        v_dim: params.v_dim,
        scale: params.scale,
    })
}

pub(super) fn route(params: &wit::RouteParams) -> Result<ir::Route, GraphError> {
    no_ext("route", &params.ext)?;
    Ok(ir::Route {
        top_k: params.top_k,
        scores: match params.scores {
            wit::RouteScores::Softmax => ir::RouteScores::Softmax,
            wit::RouteScores::SoftmaxOfChosen => ir::RouteScores::SoftmaxOfChosen,
            wit::RouteScores::Sigmoid => ir::RouteScores::Sigmoid,
        },
        groups: params.groups.map(|g| ir::RouteGroups {
            count: g.count,
            top: g.top,
            sum_of: g.sum_of,
        }),
        correction: optional(params.correction),
        renormalize: params.renormalize,
        scale: params.scale,
    })
}

pub(super) fn experts(params: &wit::ExpertsParams) -> Result<ir::Experts, GraphError> {
    no_ext("experts", &params.ext)?;
    Ok(ir::Experts {
        gate_up: weight(params.gate_up),
        gate_up_bias: optional(params.gate_up_bias),
        down: weight(params.down),
        down_bias: optional(params.down_bias),
        layout: match params.layout {
            wit::GateLayout::Halves => ir::GateLayout::Halves,
            wit::GateLayout::Interleaved => ir::GateLayout::Interleaved,
        },
        gate: gate(params.gate),
    })
}
