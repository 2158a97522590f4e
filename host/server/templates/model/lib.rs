//! `{{architecture}}`: a decoder of the Llama kind, to be changed into yours.
//!
//! `build` runs once, when a model is loaded, and appends ops to the host's graph. A value has a shape `[tokens, …]`
//! whose first dimension the host fills in: batches, chunks and cached tokens are its business. Names of weights are
//! those of the checkpoint; shapes are checked against it at once.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Model, ModelInfo, PositionScheme, Rope, RopeParams, Scope, Sharding,
    Value, activation, attention, builder, kv_cache, merge_heads, split_heads,
};
use guesthouse_sdk::{Config, Error};

struct Guest;

impl Model for Guest {
    /// As in `architectures` of config.json.
    const ARCHITECTURES: &'static [&'static str] = &["{{architecture}}"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        // hidden_size, num_attention_heads and the other usual fields.
        let dims = Dims::from_config(config)?;
        let layer = Layer {
            dims,
            act: activation(config, "hidden_act", "silu")?,
            rope: Rope::from_config(config)?.params(dims.head_dim),
        };

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let positions = builder::positions(&PositionScheme::Standard);
        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("layers.{i}")), x, positions);
        }
        // From here on only rows whose logits are wanted.
        let x = builder::gather_outputs(x);
        let x = model.rms_norm("norm", x, dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", false)?.then_some(table);
        builder::output_logits(dims.logits(x, tied, &root));
        Ok(dims.info(architecture))
    }
}

/// Pre-norm attention and a gated MLP.
struct Layer {
    dims: Dims,
    act: Activation,
    rope: RopeParams,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value, positions: Value) -> Value {
        let d = &self.dims;
        let h = at.rms_norm("input_layernorm", x, d.hidden, d.eps);
        let x = builder::add(x, self.attention(&at.enter("self_attn"), h, positions));
        let h = at.rms_norm("post_attention_layernorm", x, d.hidden, d.eps);
        let mlp = at.enter("mlp");
        builder::add(x, mlp.gated_mlp(h, d, self.act, Bias::IfPresent))
    }

    fn attention(&self, at: &Scope, x: Value, positions: Value) -> Value {
        let d = &self.dims;
        let heads = |name, heads| {
            let linear = at.linear(name, heads * d.head_dim, d.hidden, Sharding::Column);
            split_heads(linear.apply(x), heads, d.head_dim)
        };
        let q = builder::rope(heads("q_proj", d.heads), positions, &self.rope);
        let k = builder::rope(heads("k_proj", d.kv_heads), positions, &self.rope);
        let v = heads("v_proj", d.kv_heads);
        // Every layer that keeps keys and values declares a cache; the host pages it.
        let cache = kv_cache(d.kv_heads, d.head_dim, None);
        let o = builder::attention(q, k, v, cache, &attention(d.scale(), None));
        at.linear("o_proj", d.hidden, d.q(), Sharding::Row)
            .apply(merge_heads(o, d.q()))
    }
}

guesthouse_sdk::export_model!(Guest);
