//! DeepSeek-V3.

use crate::{Sizes, plain, stacked_experts, swiglu};
use guesthouse_sdk::graph::{
    CacheKind, CacheSpec, LatentParams, PositionScheme, Rope, RopeParams, RopeStyle, RouteGroups,
    RouteParams, RouteScores, Scope, Sharding, Value, ValueType, builder, merge_heads, split_heads,
    yarn_mscale,
};
use guesthouse_sdk::{Config, Error};

struct Dims {
    hidden: u32,
    heads: u32,
    q_rank: Option<u32>,
    rank: u32,
    nope: u32,
    rope: u32,
    v: u32,
    eps: f32,
    scale: f32,
    turn: RopeParams,
}

struct Moe {
    hidden: u32,
    experts: u32,
    ffn: u32,
    shared: u32,
    route: RouteParams,
}

pub(crate) fn build(config: &Config) -> Result<Sizes, Error> {
    let (vocab, hidden) = (config.size("vocab_size")?, config.size("hidden_size")?);
    let (nope, rope) = (
        config.size("qk_nope_head_dim")?,
        config.size("qk_rope_head_dim")?,
    );
    let turn = Rope::from_config(config)?;
    let interleaved = config.flag("rope_interleave", true)?;
    let style = if interleaved {
        RopeStyle::Interleaved
    } else {
        RopeStyle::Neox
    };
    // Yarn's temperature stands in the scale here, squared, since rope does not reach the whole head.
    let scaled = config
        .object("rope_scaling")?
        .or(config.object("rope_parameters")?);
    let mscale = match scaled
        .map(|s| Ok::<_, Error>((s.opt_f64("factor")?, s.opt_f64("mscale_all_dim")?)))
        .transpose()?
    {
        Some((Some(factor), Some(all_dim))) if all_dim != 0.0 => yarn_mscale(factor, all_dim),
        _ => 1.0,
    };
    let dims = Dims {
        hidden,
        heads: config.size("num_attention_heads")?,
        q_rank: config.opt_size("q_lora_rank")?,
        rank: config.size("kv_lora_rank")?,
        nope,
        rope,
        v: config.size("v_head_dim")?,
        eps: config.f32_or("rms_norm_eps", 1e-6)?,
        scale: (f64::from(nope + rope).sqrt().recip() * mscale * mscale) as f32,
        turn: RopeParams {
            start: nope,
            rotary: rope,
            style,
            ..turn.params(rope)
        },
    };
    let moe = Moe {
        hidden,
        experts: config.size("n_routed_experts")?,
        ffn: config.size("moe_intermediate_size")?,
        shared: config.u32_or("n_shared_experts", 1)?,
        route: RouteParams {
            top_k: config.size("num_experts_per_tok")?,
            scores: RouteScores::Sigmoid,
            groups: Some(RouteGroups {
                count: config.size("n_group")?,
                top: config.size("topk_group")?,
                sum_of: 2,
            }),
            correction: None,
            renormalize: config.flag("norm_topk_prob", true)?,
            scale: config.f32_or("routed_scaling_factor", 1.0)?,
            ext: vec![],
        },
    };
    let dense = config.u32_or("first_k_dense_replace", 0)?;

    let root = Scope::root("");
    let model = root.enter("model");
    let positions = builder::positions(&PositionScheme::Standard);
    let mut x = builder::embedding(
        model.param("embed_tokens.weight", &[vocab, hidden]),
        builder::token_ids(),
    );
    for i in 0..config.size("num_hidden_layers")? {
        let at = model.enter(format_args!("layers.{i}"));
        let h = at.rms_norm("input_layernorm", x, hidden, dims.eps);
        x = builder::add(x, attention(&at.enter("self_attn"), h, positions, &dims));
        let h = at.rms_norm("post_attention_layernorm", x, hidden, dims.eps);
        let at = at.enter("mlp");
        let h = if i < dense {
            swiglu(&at, h, hidden, config.size("intermediate_size")?)
        } else {
            mixture(&at, h, &moe)
        };
        x = builder::add(x, h);
    }
    let x = model.rms_norm("norm", builder::gather_outputs(x), hidden, dims.eps);
    builder::output_logits(plain(&root, "lm_head", vocab, hidden, Sharding::Column).apply(x));
    Ok((vocab, config.size("max_position_embeddings")?))
}

fn attention(at: &Scope, x: Value, positions: Value, d: &Dims) -> Value {
    let width = d.heads * (d.nope + d.rope);
    let q = match d.q_rank {
        Some(rank) => {
            let low = plain(at, "q_a_proj", rank, d.hidden, Sharding::Replicated).apply(x);
            let low = at.rms_norm("q_a_layernorm", low, rank, 1e-6);
            plain(at, "q_b_proj", width, rank, Sharding::Column).apply(low)
        }
        None => plain(at, "q_proj", width, d.hidden, Sharding::Column).apply(x),
    };
    let q = builder::rope(split_heads(q, d.heads, d.nope + d.rope), positions, &d.turn);
    let low = plain(
        at,
        "kv_a_proj_with_mqa",
        d.rank + d.rope,
        d.hidden,
        Sharding::Replicated,
    )
    .apply(x);
    let parts = builder::split(low, 0, &[d.rank, d.rope]);
    let latent = at.rms_norm("kv_a_layernorm", parts[0], d.rank, 1e-6);
    // One key head, rotated whole.
    let key = RopeParams {
        start: 0,
        ..d.turn.clone()
    };
    let key = merge_heads(
        builder::rope(split_heads(parts[1], 1, d.rope), positions, &key),
        d.rope,
    );
    let cache = builder::declare_cache(&CacheSpec {
        kind: CacheKind::Full,
        kv_heads: 1,
        k_dim: d.rank + d.rope,
        v_dim: d.rank,
        v_in_k: true,
        replicated: true,
        ext: vec![],
    });
    let kv_b = at.param("kv_b_proj.weight", &[d.heads * (d.nope + d.v), d.rank]);
    let params = LatentParams {
        nope: d.nope,
        v_dim: d.v,
        scale: d.scale,
        ext: vec![],
    };
    let o = builder::latent_attention(q, latent, key, kv_b, cache, &params);
    plain(at, "o_proj", d.hidden, d.heads * d.v, Sharding::Row).apply(merge_heads(o, d.heads * d.v))
}

fn mixture(at: &Scope, x: Value, m: &Moe) -> Value {
    let gate = plain(at, "gate", m.experts, m.hidden, Sharding::Replicated);
    let logits = gate.apply(builder::cast(x, ValueType::Float32));
    let correction = Some(at.param("gate.e_score_correction_bias", &[m.experts]));
    let (weights, ids) = builder::route(
        logits,
        &RouteParams {
            correction,
            ..m.route.clone()
        },
    );
    let y = builder::experts(
        x,
        weights,
        ids,
        &stacked_experts(at, m.experts, m.hidden, m.ffn),
    );
    builder::add(
        y,
        swiglu(&at.enter("shared_experts"), x, m.hidden, m.ffn * m.shared),
    )
}
