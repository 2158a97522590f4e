//! `BloomForCausalLM`: ALiBi, a norm after the embedding, queries, keys and values interleaved by head.

use guesthouse_sdk::graph::{
    Activation, AttentionParams, Bias, Dims, Mlp, Model, ModelInfo, Qkv, Scope, Sharding,
    SizeNames, Value, alibi, attention, builder,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

const NAMES: SizeNames = SizeNames {
    hidden: &["n_embed", "hidden_size"],
    ffn: &["n_inner"],
    layers: &["n_layer", "num_hidden_layers"],
    heads: &["n_head", "num_attention_heads"],
    max_position: &["seq_length", "max_position_embeddings"],
    eps: &["layer_norm_epsilon"],
};

struct Bloom;

impl Model for Bloom {
    const ARCHITECTURES: &'static [&'static str] = &["BloomForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        for key in ["apply_residual_connection_post_layernorm", "slow_but_exact"] {
            config.only(key, &[json!(false)])?;
        }
        let dims = Dims::named(config, &NAMES)?;
        let layer = Layer {
            dims,
            scores: AttentionParams {
                alibi: Some(alibi(dims.heads, 8.0)),
                ..attention(dims.scale(), None)
            },
            mlp: Mlp {
                up: "dense_h_to_4h",
                down: "dense_4h_to_h",
                act: Activation::GeluTanh,
                bias: Bias::Required,
            },
        };

        let model = Scope::root_with("word_embeddings.weight", &["transformer", ""]);
        let table = model.param("word_embeddings.weight", &[dims.vocab, dims.hidden]);
        let x = builder::embedding(table, builder::token_ids());
        let mut x = model.layer_norm("word_embeddings_layernorm", x, dims.hidden, dims.eps);
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("h.{i}")), x);
        }
        let x = model.layer_norm("ln_f", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", true)?.then_some(table);
        builder::output_logits(dims.logits(x, tied, &Scope::root("")));
        Ok(dims.info(architecture))
    }
}

struct Layer {
    dims: Dims,
    scores: AttentionParams,
    mlp: Mlp,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let h = at.layer_norm("input_layernorm", x, d.hidden, d.eps);
        let x = builder::add(self.attention(&at.enter("self_attention"), h), x);
        let h = at.layer_norm("post_attention_layernorm", x, d.hidden, d.eps);
        builder::add(self.mlp.apply(&at.enter("mlp"), h, d), x)
    }

    fn attention(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let fused = at.biased("query_key_value", 3 * d.hidden, d.hidden, Sharding::Column);
        at.biased("dense", d.hidden, d.hidden, Sharding::Row)
            .apply(Qkv::grouped(&fused, x, d).attend(d, &self.scores))
    }
}

guesthouse_sdk::export_model!(Bloom);
