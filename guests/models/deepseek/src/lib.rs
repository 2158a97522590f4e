//! `DeepseekV2ForCausalLM` (V2, V2-Lite, Coder-V2) and `DeepseekV3ForCausalLM` (V3, R1): latent attention, routed and shared
//! experts.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, ExpertDims, ExpertNames, LatentParams, Model, ModelInfo,
    PositionScheme, Rope, RopeParams, RopeStyle, RouteGroups, RouteParams, RouteScores, Scope,
    Sharding, Value, ValueType, activation, builder, latent_cache, merge_heads, route_params,
    split_heads, stacked_experts, yarn_mscale,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

const V3: &str = "DeepseekV3ForCausalLM";

/// The norms of latents have transformers' default, whatever the config says.
const LATENT_EPS: f32 = 1e-6;

struct Deepseek;

impl Model for Deepseek {
    const ARCHITECTURES: &'static [&'static str] = &["DeepseekV2ForCausalLM", V3];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let v3 = architecture == V3;
        let dims = Dims::from_config(config)?;
        if dims.kv_heads != dims.heads {
            let all = format!("num_attention_heads, {}", dims.heads);
            return Err(config.wrong("num_key_value_heads", &all));
        }
        config.only("moe_layer_freq", &[json!(1)])?;
        let layer = Layer {
            dims,
            latents: Latents::from_config(config, v3)?,
            mixture: Mixture::from_config(config, v3, dims.hidden)?,
            act: activation(config, "hidden_act", "silu")?,
            attention_bias: Bias::from_config(config, "attention_bias")?,
            mlp_bias: Bias::from_config(config, "mlp_bias")?,
        };
        let dense = config.u32_or("first_k_dense_replace", if v3 { 3 } else { 0 })?;

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let positions = builder::positions(&PositionScheme::Standard);
        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            let at = model.enter(format_args!("layers.{i}"));
            let h = at.rms_norm("input_layernorm", x, dims.hidden, dims.eps);
            x = builder::add(x, layer.attention(&at.enter("self_attn"), h, positions));
            let h = at.rms_norm("post_attention_layernorm", x, dims.hidden, dims.eps);
            let at = at.enter("mlp");
            let h = if i < dense {
                at.gated_mlp(h, &dims, layer.act, layer.mlp_bias)
            } else {
                layer.experts(&at, h)
            };
            x = builder::add(x, h);
        }
        let x = model.rms_norm("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", false)?.then_some(table);
        builder::output_logits(dims.logits(x, tied, &root));
        Ok(dims.info(architecture))
    }
}

/// Sizes of latent attention.
struct Latents {
    /// Of queries, which some models do not compress.
    q_rank: Option<u32>,
    /// Of keys and values.
    rank: u32,
    /// Elements of a query head without and with rope, and of a value head.
    nope: u32,
    rope: u32,
    value: u32,
    scale: f32,
    /// Rotation of a query head; that of keys begins at 0.
    turn: RopeParams,
}

impl Latents {
    fn from_config(config: &Config, v3: bool) -> Result<Self, Error> {
        let (nope, rope) = (
            config.size("qk_nope_head_dim")?,
            config.size("qk_rope_head_dim")?,
        );
        let width = nope.checked_add(rope).filter(|d| *d <= 1 << 16);
        let width = width.ok_or_else(|| config.wrong("qk_nope_head_dim", "at most 2^16"))?;
        let style = if !v3 || config.flag("rope_interleave", true)? {
            RopeStyle::Interleaved
        } else {
            RopeStyle::Neox
        };
        // Yarn's temperature, squared, stands in the scale too, since rope does not reach the whole head.
        let scaled = match config.object("rope_parameters")? {
            Some(p) => Some(p),
            None => config.object("rope_scaling")?,
        };
        let factors = scaled
            .map(|s| Ok::<_, Error>((s.opt_f64("factor")?, s.opt_f64("mscale_all_dim")?)))
            .transpose()?;
        let mscale = match factors {
            Some((Some(factor), Some(all_dim))) if all_dim != 0.0 => yarn_mscale(factor, all_dim),
            _ => 1.0,
        };
        Ok(Self {
            q_rank: config.opt_size("q_lora_rank")?,
            rank: config.size("kv_lora_rank")?,
            nope,
            rope,
            value: config.size("v_head_dim")?,
            scale: (f64::from(width).sqrt().recip() * mscale * mscale) as f32,
            turn: RopeParams {
                start: nope,
                style,
                ..Rope::from_config(config)?.params(rope)
            },
        })
    }
}

/// Routed and shared experts.
struct Mixture {
    dims: ExpertDims,
    /// Width of all shared experts together.
    shared: u32,
    route: RouteParams,
    /// Whether scores are corrected for choosing.
    corrected: bool,
}

impl Mixture {
    fn from_config(config: &Config, v3: bool, hidden: u32) -> Result<Self, Error> {
        let ffn = config.size("moe_intermediate_size")?;
        let shared = config.u32_or("n_shared_experts", 0)?.checked_mul(ffn);
        let scores = if v3 {
            config.only("scoring_func", &[json!("sigmoid")])?;
            config.only("topk_method", &[json!("noaux_tc")])?;
            RouteScores::Sigmoid
        } else {
            config.only("scoring_func", &[json!("softmax")])?;
            RouteScores::Softmax
        };
        let grouped = match config.opt_str("topk_method")? {
            _ if v3 => true,
            Some("group_limited_greedy") => true,
            Some("greedy") | None => false,
            Some(_) => {
                return Err(config.wrong("topk_method", "greedy or group_limited_greedy"));
            }
        };
        let groups = if grouped {
            Some(RouteGroups {
                count: config.size("n_group")?,
                top: config.size("topk_group")?,
                sum_of: if v3 { 2 } else { 1 },
            })
        } else {
            None
        };
        let renormalize = config.flag("norm_topk_prob", v3)?;
        let scale = config.f32_or("routed_scaling_factor", 1.0)?;
        Ok(Self {
            dims: ExpertDims {
                count: config.size("n_routed_experts")?,
                hidden,
                ffn,
            },
            shared: shared.ok_or_else(|| config.wrong("n_shared_experts", "fewer"))?,
            route: RouteParams {
                groups,
                renormalize,
                // V2's own code scales only what it does not renormalise.
                scale: if renormalize && !v3 { 1.0 } else { scale },
                ..route_params(config.size("num_experts_per_tok")?, scores)
            },
            corrected: v3,
        })
    }
}

struct Layer {
    dims: Dims,
    latents: Latents,
    mixture: Mixture,
    act: Activation,
    attention_bias: Bias,
    mlp_bias: Bias,
}

impl Layer {
    fn attention(&self, at: &Scope, x: Value, positions: Value) -> Value {
        let (hidden, heads, d) = (self.dims.hidden, self.dims.heads, &self.latents);
        let down = |name, out| {
            at.linear_with(self.attention_bias, name, out, hidden, Sharding::Replicated)
                .apply(x)
        };
        let width = heads * (d.nope + d.rope);
        let q = match d.q_rank {
            Some(rank) => {
                let low = at.rms_norm("q_a_layernorm", down("q_a_proj", rank), rank, LATENT_EPS);
                at.linear("q_b_proj", width, rank, Sharding::Column)
                    .apply(low)
            }
            None => at
                .linear("q_proj", width, hidden, Sharding::Column)
                .apply(x),
        };
        let q = builder::rope(split_heads(q, heads, d.nope + d.rope), positions, &d.turn);
        let low = builder::split(
            down("kv_a_proj_with_mqa", d.rank + d.rope),
            0,
            &[d.rank, d.rope],
        );
        let latent = at.rms_norm("kv_a_layernorm", low[0], d.rank, LATENT_EPS);
        let turn = RopeParams {
            start: 0,
            ..d.turn.clone()
        };
        let key = builder::rope(split_heads(low[1], 1, d.rope), positions, &turn);
        let params = LatentParams {
            nope: d.nope,
            v_dim: d.value,
            scale: d.scale,
            ext: vec![],
        };
        let o = builder::latent_attention(
            q,
            latent,
            merge_heads(key, d.rope),
            at.param("kv_b_proj.weight", &[heads * (d.nope + d.value), d.rank]),
            latent_cache(d.rank, d.rope),
            &params,
        );
        let width = heads * d.value;
        at.linear_with(self.attention_bias, "o_proj", hidden, width, Sharding::Row)
            .apply(merge_heads(o, width))
    }

    fn experts(&self, at: &Scope, x: Value) -> Value {
        let m = &self.mixture;
        // Scores are never rounded.
        let wide = builder::cast(x, ValueType::Float32);
        let router = at.linear("gate", m.dims.count, m.dims.hidden, Sharding::Replicated);
        let correction = m
            .corrected
            .then(|| at.param("gate.e_score_correction_bias", &[m.dims.count]));
        let route = RouteParams {
            correction,
            ..m.route.clone()
        };
        let (weights, ids) = builder::route(router.apply(wide), &route);
        let experts = stacked_experts(at, &ExpertNames::LLAMA, m.dims, self.act);
        let y = builder::experts(x, weights, ids, &experts);
        if m.shared == 0 {
            return y;
        }
        let dims = Dims {
            ffn: m.shared,
            ..self.dims
        };
        let shared = at.enter("shared_experts");
        builder::add(y, shared.gated_mlp(x, &dims, self.act, self.mlp_bias))
    }
}

guesthouse_sdk::export_model!(Deepseek);
