//! Qwen3-Next: three layers of gated delta rule for one of gated attention.

use crate::{Sizes, plain, stacked_experts, state, swiglu};
use guesthouse_sdk::graph::{
    Activation, Dims, Gate, NormRounding, PositionScheme, RmsNormParams, Rope, RopeParams,
    RouteParams, RouteScores, Scope, Sharding, Value, ValueType, attention, builder, kv_cache,
    merge_heads, split_heads,
};
use guesthouse_sdk::{Config, Error};

const FULL: &str = "full_attention";
const LINEAR: &str = "linear_attention";

/// Sizes of the delta rule.
struct Delta {
    k_heads: u32,
    v_heads: u32,
    k: u32,
    v: u32,
    width: u32,
}

struct Moe {
    experts: u32,
    ffn: u32,
    shared: u32,
    route: RouteParams,
}

pub(crate) fn build(config: &Config) -> Result<Sizes, Error> {
    let d = Dims::from_config(config)?;
    let mut rope = Rope::from_config(config)?;
    if !config.mentions("partial_rotary_factor") && config.get("rope_parameters").is_none() {
        rope.partial = 0.25;
    }
    let rope = rope.params(d.head_dim);
    let interval = config.opt_size("full_attention_interval")?.unwrap_or(4);
    let by_interval = |i: u32| {
        if (i + 1).is_multiple_of(interval) {
            FULL
        } else {
            LINEAR
        }
        .into()
    };
    let types = config.layer_types(d.layers, &[FULL, LINEAR], by_interval)?;
    let delta = Delta {
        k_heads: config.size("linear_num_key_heads")?,
        v_heads: config.size("linear_num_value_heads")?,
        k: config.size("linear_key_head_dim")?,
        v: config.size("linear_value_head_dim")?,
        width: config.size("linear_conv_kernel_dim")?,
    };
    let moe = Moe {
        experts: config.size("num_experts")?,
        ffn: config.size("moe_intermediate_size")?,
        shared: config.size("shared_expert_intermediate_size")?,
        route: RouteParams {
            top_k: config.size("num_experts_per_tok")?,
            scores: RouteScores::Softmax,
            groups: None,
            correction: None,
            renormalize: config.flag("norm_topk_prob", true)?,
            scale: 1.0,
            ext: vec![],
        },
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
        let h = at.rms_norm_unit_offset("input_layernorm", x, d.hidden, d.eps);
        let h = if kind == FULL {
            attend(&at.enter("self_attn"), h, positions, &d, &rope)
        } else {
            recur(&at.enter("linear_attn"), h, &d, &delta)
        };
        x = builder::add(x, h);
        let h = at.rms_norm_unit_offset("post_attention_layernorm", x, d.hidden, d.eps);
        x = builder::add(x, mixture(&at.enter("mlp"), h, d.hidden, &moe));
    }
    let x = model.rms_norm_unit_offset("norm", builder::gather_outputs(x), d.hidden, d.eps);
    builder::output_logits(plain(&root, "lm_head", d.vocab, d.hidden, Sharding::Column).apply(x));
    Ok((d.vocab, d.max_position))
}

fn attend(at: &Scope, x: Value, positions: Value, d: &Dims, rope: &RopeParams) -> Value {
    let project = |name, heads, width| {
        split_heads(
            plain(at, name, heads * width, d.hidden, Sharding::Column).apply(x),
            heads,
            width,
        )
    };
    // Each query head is followed by its gate.
    let parts = builder::split(
        project("q_proj", d.heads, 2 * d.head_dim),
        1,
        &[d.head_dim; 2],
    );
    let (q, k, v) = (
        parts[0],
        project("k_proj", d.kv_heads, d.head_dim),
        project("v_proj", d.kv_heads, d.head_dim),
    );
    let turn = |name, x| {
        builder::rope(
            at.rms_norm_unit_offset(name, x, d.head_dim, d.eps),
            positions,
            rope,
        )
    };
    let (q, k) = (turn("q_norm", q), turn("k_norm", k));
    let o = builder::attention(
        q,
        k,
        v,
        kv_cache(d.kv_heads, d.head_dim, None),
        &attention(d.scale(), None),
    );
    let o = builder::mul(o, builder::activate(parts[1], Activation::Sigmoid));
    plain(at, "o_proj", d.hidden, d.q(), Sharding::Row).apply(merge_heads(o, d.q()))
}

fn recur(at: &Scope, x: Value, d: &Dims, s: &Delta) -> Value {
    let Delta {
        k_heads,
        v_heads,
        k,
        v,
        width,
    } = *s;
    let times = v_heads / k_heads;
    // Rows are grouped by key head: its q, its k, then v and z of the value heads that share it.
    let group = 2 * k + 2 * times * v;
    let mixed = plain(
        at,
        "in_proj_qkvz",
        k_heads * group,
        d.hidden,
        Sharding::Column,
    )
    .apply(x);
    let mixed = builder::split(
        split_heads(mixed, k_heads, group),
        1,
        &[k, k, times * v, times * v],
    );
    let gates = plain(at, "in_proj_ba", 2 * v_heads, d.hidden, Sharding::Column).apply(x);
    let gates = builder::split(split_heads(gates, k_heads, 2 * times), 1, &[times, times]);

    // Depthwise, so q, k and v may keep their inputs apart, which lets ranks split heads.
    let all = at.param("conv1d.weight", &[2 * k_heads * k + v_heads * v, 1, width]);
    let all = builder::reshape_weight(all, &[2 * k_heads * k + v_heads * v, width]);
    let conv = |x, start, channels, heads, dim| {
        let w = builder::rows(all, start, channels);
        let y = merge_heads(x, channels);
        let y = builder::causal_conv(
            y,
            w,
            None,
            state((width - 1) * channels),
            Some(Activation::Silu),
        );
        builder::cast(builder::reshape(y, &[heads, dim]), ValueType::Float32)
    };
    let q = conv(mixed[0], 0, k_heads * k, k_heads, k);
    let key = conv(mixed[1], k_heads * k, k_heads * k, k_heads, k);
    let value = conv(mixed[2], 2 * k_heads * k, v_heads * v, v_heads, v);
    let unit = |x| builder::repeat_heads(builder::l2_norm(x, 1e-6), times);

    let beta = builder::activate(builder::reshape(gates[0], &[v_heads]), Activation::Sigmoid);
    let f32_weight = |name| {
        builder::cast(
            builder::weight_value(at.param(name, &[v_heads])),
            ValueType::Float32,
        )
    };
    let step = builder::cast(builder::reshape(gates[1], &[v_heads]), ValueType::Float32);
    let step = builder::activate(
        builder::add(step, f32_weight("dt_bias")),
        Activation::Softplus,
    );
    let rate = builder::scale(
        builder::activate(f32_weight("A_log"), Activation::Exp),
        -1.0,
    );
    let decay = builder::mul(step, rate);

    let scale = f64::from(k).sqrt().recip() as f32;
    let beta = builder::cast(beta, ValueType::Float32);
    let cache = state(v_heads * k * v);
    let o = builder::delta_rule(unit(q), unit(key), value, decay, beta, cache, scale);
    let o = builder::cast(o, ValueType::Model);
    let norm = RmsNormParams {
        eps: d.eps,
        offset: 0.0,
        rounding: NormRounding::CastThenWeight,
    };
    let o = builder::rms_norm(o, Some(at.param("norm.weight", &[v])), norm);
    let o = builder::gated(
        builder::reshape(mixed[3], &[v_heads, v]),
        o,
        Gate::Plain(Activation::Silu),
    );
    plain(at, "out_proj", d.hidden, v_heads * v, Sharding::Row).apply(merge_heads(o, v_heads * v))
}

fn mixture(at: &Scope, x: Value, hidden: u32, m: &Moe) -> Value {
    let logits = plain(at, "gate", m.experts, hidden, Sharding::Replicated).apply(x);
    let (weights, ids) = builder::route(logits, &m.route);
    let y = builder::experts(
        x,
        weights,
        ids,
        &stacked_experts(at, m.experts, hidden, m.ffn),
    );
    let shared = swiglu(&at.enter("shared_expert"), x, hidden, m.shared);
    let gate = plain(at, "shared_expert_gate", 1, hidden, Sharding::Replicated).apply(x);
    builder::add(
        y,
        builder::mul(shared, builder::activate(gate, Activation::Sigmoid)),
    )
}
