//! gpt-oss.

use crate::{Sizes, plain};
use guesthouse_sdk::graph::{
    AttentionParams, Dims, ExpertsParams, Gate, GateLayout, PositionScheme, Rope, RopeParams,
    RouteParams, RouteScores, Scope, Sharding, Value, Weight, attention, builder, kv_cache,
    merge_heads, split_heads,
};
use guesthouse_sdk::{Config, Error};

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
const ALPHA: f32 = 1.702;

struct Moe {
    experts: u32,
    top_k: u32,
    limit: f32,
}

pub(crate) fn build(config: &Config) -> Result<Sizes, Error> {
    let d = Dims::from_config(config)?;
    let rope = Rope::from_config(config)?.params(d.head_dim);
    let window = config.opt_size("sliding_window")?.unwrap_or(128);
    let types = config.layer_types(d.layers, &[FULL, SLIDING], |i| {
        if i % 2 == 0 { SLIDING } else { FULL }.into()
    })?;
    let moe = Moe {
        experts: config.size("num_local_experts")?,
        top_k: config.size("num_experts_per_tok")?,
        limit: config.f32_or("swiglu_limit", 7.0)?,
    };

    let root = Scope::root("");
    let model = root.enter("model");
    let positions = builder::positions(&PositionScheme::Standard);
    let mut x = builder::embedding(
        model.param("embed_tokens.weight", &[d.vocab, d.hidden]),
        builder::token_ids(),
    );
    for (i, kind) in types.iter().enumerate() {
        let at = model.enter(format_args!("layers.{i}"));
        let window = (kind == SLIDING).then_some(window);
        let h = at.rms_norm("input_layernorm", x, d.hidden, d.eps);
        x = builder::add(
            x,
            attend(&at.enter("self_attn"), h, positions, &d, &rope, window),
        );
        let h = at.rms_norm("post_attention_layernorm", x, d.hidden, d.eps);
        x = builder::add(x, mixture(&at.enter("mlp"), h, &d, &moe));
    }
    let x = model.rms_norm("norm", builder::gather_outputs(x), d.hidden, d.eps);
    builder::output_logits(plain(&root, "lm_head", d.vocab, d.hidden, Sharding::Column).apply(x));
    Ok((d.vocab, d.max_position))
}

fn attend(
    at: &Scope,
    x: Value,
    positions: Value,
    d: &Dims,
    rope: &RopeParams,
    window: Option<u32>,
) -> Value {
    let project = |name, heads| {
        let linear = at.biased(name, heads * d.head_dim, d.hidden, Sharding::Column);
        split_heads(linear.apply(x), heads, d.head_dim)
    };
    let (q, k, v) = (
        project("q_proj", d.heads),
        project("k_proj", d.kv_heads),
        project("v_proj", d.kv_heads),
    );
    let (q, k) = (
        builder::rope(q, positions, rope),
        builder::rope(k, positions, rope),
    );
    let sinks = Some(at.param("sinks", &[d.heads]));
    let params = AttentionParams {
        sinks,
        ..attention(d.scale(), window)
    };
    let o = builder::attention(q, k, v, kv_cache(d.kv_heads, d.head_dim, window), &params);
    at.biased("o_proj", d.hidden, d.q(), Sharding::Row)
        .apply(merge_heads(o, d.q()))
}

fn mixture(at: &Scope, x: Value, d: &Dims, m: &Moe) -> Value {
    let logits = at
        .biased("router", m.experts, d.hidden, Sharding::Replicated)
        .apply(x);
    let params = RouteParams {
        top_k: m.top_k,
        scores: RouteScores::SoftmaxOfChosen,
        groups: None,
        correction: None,
        renormalize: false,
        scale: 1.0,
        ext: vec![],
    };
    let (weights, ids) = builder::route(logits, &params);
    let at = at.enter("experts");
    // MXFP4 files hold [out, in] blocks under the same name; plain ones hold [in, out].
    let weight = |name: &str, out, inp| -> Weight {
        if at.has(&format!("{name}_blocks")) {
            at.param(name, &[m.experts, out, inp])
        } else {
            builder::transpose(at.param(name, &[m.experts, inp, out]))
        }
    };
    let experts = ExpertsParams {
        gate_up: weight("gate_up_proj", 2 * d.ffn, d.hidden),
        gate_up_bias: Some(at.param("gate_up_proj_bias", &[m.experts, 2 * d.ffn])),
        down: weight("down_proj", d.hidden, d.ffn),
        down_bias: Some(at.param("down_proj_bias", &[m.experts, d.hidden])),
        layout: GateLayout::Interleaved,
        gate: Gate::Clamped((ALPHA, m.limit)),
        ext: vec![],
    };
    builder::experts(x, weights, ids, &experts)
}
