//! `Qwen3NextForCausalLM`: three layers of gated delta rule for one of gated attention, and experts in each.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, ExpertDims, ExpertNames, Model, ModelInfo, Qkv, Rope, RopeDefaults,
    RouteParams, RouteScores, Scope, Sharding, Value, activation, attention, builder, mixture,
    route_params, stacked_experts,
};
use guesthouse_sdk::{Config, Error};

mod delta;

use delta::Delta;

const FULL: &str = "full_attention";
const LINEAR: &str = "linear_attention";

struct Qwen3Next;

impl Model for Qwen3Next {
    const ARCHITECTURES: &'static [&'static str] = &["Qwen3NextForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let dims = Dims::from_config(config)?;
        let defaults = RopeDefaults {
            partial: 0.25,
            ..RopeDefaults::default()
        };
        let rotation = Rope::from_config_or(config, defaults)?.rotation(dims.head_dim);
        let interval = config.opt_size("full_attention_interval")?.unwrap_or(4);
        let types = config.layer_types(dims.layers, &[FULL, LINEAR], |i| {
            let full = (i + 1).is_multiple_of(interval);
            if full { FULL } else { LINEAR }.into()
        })?;
        let act = activation(config, "hidden_act", "silu")?;
        let bias = Bias::from_config(config, "attention_bias")?;
        let delta = Delta::from_config(config, act)?;
        let experts = Mixture::from_config(config)?;

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for (i, kind) in (0..).zip(&types) {
            let at = model.enter(format_args!("layers.{i}"));
            let h = at.rms_norm_unit_offset("input_layernorm", x, dims.hidden, dims.eps);
            let h = if kind == FULL {
                let at = at.enter("self_attn");
                let (qkv, gate) = gated_qkv(&at, h, &dims, bias);
                let o = qkv
                    .norm(|name, x| at.rms_norm_unit_offset(name, x, dims.head_dim, dims.eps))
                    .rotate(&rotation)
                    .attend(&dims, &attention(dims.scale(), None));
                let o = builder::mul(o, builder::activate(gate, Activation::Sigmoid));
                at.out("o_proj", o, &dims, bias)
            } else {
                delta.build(&at.enter("linear_attn"), h, &dims)
            };
            x = builder::add(x, h);
            let h = at.rms_norm_unit_offset("post_attention_layernorm", x, dims.hidden, dims.eps);
            let at = at.enter("mlp");
            let h = if experts.in_layer(i) {
                experts.build(&at, h, &dims, act)
            } else {
                at.gated_mlp(h, &dims, act, Bias::IfPresent)
            };
            x = builder::add(x, h);
        }
        let x = builder::gather_outputs(x);
        let x = model.rms_norm_unit_offset("norm", x, dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", false)?.then_some(table);
        builder::output_logits(dims.logits(x, tied, &root));
        Ok(dims.info(architecture))
    }
}

/// Queries, keys and values, and a gate per element of the result: each query head is followed by its gate.
fn gated_qkv(at: &Scope, x: Value, d: &Dims, bias: Bias) -> (Qkv, Value) {
    let both = at.linear_with(bias, "q_proj", 2 * d.q(), d.hidden, Sharding::Column);
    let [q, gate] = [0, 1].map(|half| {
        let rows = |head| (2 * head + half) * d.head_dim..(2 * head + half + 1) * d.head_dim;
        let index: Vec<u32> = (0..d.heads).flat_map(rows).collect();
        both.select_rows(&index).apply(x)
    });
    let project = |name| {
        at.linear_with(bias, name, d.kv(), d.hidden, Sharding::Column)
            .apply(x)
    };
    (Qkv::split(q, project("k_proj"), project("v_proj"), d), gate)
}

/// Routed experts, and one that all tokens share, weighted by a gate of its own.
struct Mixture {
    experts: u32,
    ffn: u32,
    shared: u32,
    route: RouteParams,
    /// Every so many layers have experts.
    step: u32,
    /// Layers that have none.
    dense: Vec<u32>,
}

impl Mixture {
    fn from_config(config: &Config) -> Result<Self, Error> {
        let top_k = config.size("num_experts_per_tok")?;
        let renormalize = config.flag("norm_topk_prob", true)?;
        Ok(Self {
            experts: config.u32("num_experts")?,
            ffn: config.size("moe_intermediate_size")?,
            shared: config.size("shared_expert_intermediate_size")?,
            route: RouteParams {
                renormalize,
                ..route_params(top_k, RouteScores::Softmax)
            },
            step: config.opt_size("decoder_sparse_step")?.unwrap_or(1),
            dense: config.opt_u32s("mlp_only_layers")?.unwrap_or_default(),
        })
    }

    fn in_layer(&self, i: u32) -> bool {
        self.experts > 0 && (i + 1).is_multiple_of(self.step) && !self.dense.contains(&i)
    }

    fn build(&self, at: &Scope, x: Value, d: &Dims, act: Activation) -> Value {
        let sizes = ExpertDims {
            count: self.experts,
            hidden: d.hidden,
            ffn: self.ffn,
        };
        let experts = stacked_experts(at, &ExpertNames::LLAMA, sizes, act);
        let routed = mixture(at, x, sizes, &self.route, &experts);
        let shared = Dims {
            ffn: self.shared,
            ..*d
        };
        let own = at.enter("shared_expert");
        let y = own.gated_mlp(x, &shared, act, Bias::IfPresent);
        drop(own);
        let gate = at.linear("shared_expert_gate", 1, d.hidden, Sharding::Replicated);
        let gate = builder::activate(gate.apply(x), Activation::Sigmoid);
        builder::add(routed, builder::mul(y, gate))
    }
}

guesthouse_sdk::export_model!(Qwen3Next);
