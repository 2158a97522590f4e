//! `MixtralForCausalLM`: Mistral's attention, and in each layer the best few of several MLPs.

use guesthouse_sdk::graph::{
    Bias, Dims, ExpertDims, ExpertNames, Model, ModelInfo, Qkv, Rope, RopeDefaults, RouteParams,
    RouteScores, Scope, activation, attention, builder, mixture, route_params, stacked_experts,
};
use guesthouse_sdk::{Config, Error};

struct Mixtral;

impl Model for Mixtral {
    const ARCHITECTURES: &'static [&'static str] = &["MixtralForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let mut d = Dims::from_config(config)?;
        d.eps = config.f32_or("rms_norm_eps", 1e-5)?;
        d.kv_heads = config.opt_size("num_key_value_heads")?.unwrap_or(8);
        let usual = RopeDefaults {
            theta: 1e6,
            ..RopeDefaults::default()
        };
        let rotation = Rope::from_config_or(config, usual)?.rotation(d.head_dim);
        let window = config.opt_size("sliding_window")?;
        let act = activation(config, "hidden_act", "silu")?;
        let experts = ExpertDims {
            count: config.opt_size("num_local_experts")?.unwrap_or(8),
            hidden: d.hidden,
            ffn: d.ffn,
        };
        let route = RouteParams {
            renormalize: true,
            ..route_params(
                config.opt_size("num_experts_per_tok")?.unwrap_or(2),
                RouteScores::Softmax,
            )
        };

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[d.vocab, d.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..d.layers {
            let at = model.enter(format_args!("layers.{i}"));
            let h = at.rms_norm("input_layernorm", x, d.hidden, d.eps);
            let h = {
                let at = at.enter("self_attn");
                let o = Qkv::project(&at, h, &d, Bias::IfPresent)
                    .rotate(&rotation)
                    .attend(&d, &attention(d.scale(), window));
                at.out("o_proj", o, &d, Bias::IfPresent)
            };
            x = builder::add(x, h);
            let h = at.rms_norm("post_attention_layernorm", x, d.hidden, d.eps);
            // Published checkpoints have the first name, transformers 5 the second.
            let published = at.has("block_sparse_moe.gate.weight");
            let at = at.enter(if published { "block_sparse_moe" } else { "mlp" });
            let stored = stacked_experts(&at, &ExpertNames::MIXTRAL, experts, act);
            x = builder::add(x, mixture(&at, h, experts, &route, &stored));
        }
        let x = model.rms_norm("norm", builder::gather_outputs(x), d.hidden, d.eps);
        let tied = config.flag("tie_word_embeddings", false)?.then_some(table);
        builder::output_logits(d.logits(x, tied, &root));
        Ok(d.info(architecture))
    }
}

guesthouse_sdk::export_model!(Mixtral);
