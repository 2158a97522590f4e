//! ChatGLM2, ChatGLM3 and GLM-4-9B: causal, few key heads, rope on the first half of each head in adjacent pairs.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Gate, PositionScheme, Qkv, RopeParams, RopeScaling, RopeStyle,
    Rotation, Scope, Sharding, Value, attention, builder,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

/// What a residual connection adds to.
enum Residual {
    Stream,
    Normed,
}

enum Norm {
    Rms,
    Layer,
}

struct Layer {
    dims: Dims,
    norm: Norm,
    residual: Residual,
    multi_query: bool,
    qkv_bias: Bias,
    bias: Bias,
    rotation: Rotation,
}

pub(crate) fn build(config: &Config) -> Result<Dims, Error> {
    config.only("original_rope", &[json!(true)])?;
    let mut dims = super::sizes(config)?;
    dims.vocab = config.size("padded_vocab_size")?;
    dims.ffn = config.size("ffn_hidden_size")?;
    dims.max_position = config.opt_size("seq_length")?.unwrap_or(8192);
    dims.head_dim = config.opt_size("kv_channels")?.unwrap_or(dims.head_dim);
    let multi_query = config.flag("multi_query_attention", false)?;
    if multi_query {
        dims.kv_heads = config.size("multi_query_group_num")?;
    }
    if !dims.heads.is_multiple_of(dims.kv_heads)
        || dims.head_dim > 1 << 12
        || !dims.head_dim.is_multiple_of(4)
    {
        let want = "a divisor of num_attention_heads, with kv_channels a multiple of 4 up to 4096";
        return Err(config.wrong("multi_query_group_num", want));
    }
    let bias = Bias::from_config(config, "add_bias_linear")?;
    let theta = 10_000.0 * config.opt_f64("rope_ratio")?.unwrap_or(1.0);
    let layer = Layer {
        dims,
        norm: match config.flag("rmsnorm", true)? {
            true => Norm::Rms,
            false => Norm::Layer,
        },
        residual: match config.flag("apply_residual_connection_post_layernorm", false)? {
            true => Residual::Normed,
            false => Residual::Stream,
        },
        multi_query,
        qkv_bias: match Bias::from_config(config, "add_qkv_bias")? {
            Bias::IfPresent => bias,
            required => required,
        },
        bias,
        rotation: Rotation {
            positions: builder::positions(&PositionScheme::Standard),
            params: RopeParams {
                start: 0,
                rotary: dims.head_dim / 2,
                theta: theta as f32,
                style: RopeStyle::Interleaved,
                scaling: RopeScaling::None,
                axis: 0,
            },
        },
    };

    let model = Scope::root("transformer");
    let table = model.param(
        "embedding.word_embeddings.weight",
        &[dims.vocab, dims.hidden],
    );
    let mut x = builder::embedding(table, builder::token_ids());
    for i in 0..dims.layers {
        x = layer.build(&model.enter(format_args!("encoder.layers.{i}")), x);
    }
    x = builder::gather_outputs(x);
    if config.flag("post_layer_norm", true)? {
        x = layer.norm(&model, "encoder.final_layernorm", x);
    }
    let head = model.linear_with(
        layer.bias,
        "output_layer",
        dims.vocab,
        dims.hidden,
        Sharding::Column,
    );
    builder::output_logits(head.apply(x));
    Ok(dims)
}

impl Layer {
    fn norm(&self, at: &Scope, name: &str, x: Value) -> Value {
        let Dims { hidden, eps, .. } = self.dims;
        match self.norm {
            Norm::Rms => at.rms_norm_f32(name, x, hidden, eps),
            Norm::Layer => at.layer_norm(name, x, hidden, eps),
        }
    }

    fn build(&self, at: &Scope, x: Value) -> Value {
        let add = |x, normed, y| match self.residual {
            Residual::Stream => builder::add(x, y),
            Residual::Normed => builder::add(normed, y),
        };
        let h = self.norm(at, "input_layernorm", x);
        let x = add(x, h, self.attention(&at.enter("self_attention"), h));
        let h = self.norm(at, "post_attention_layernorm", x);
        add(x, h, self.mlp(&at.enter("mlp"), h))
    }

    fn attention(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let rows = d.q() + 2 * d.kv();
        let fused = at.linear_with(
            self.qkv_bias,
            "query_key_value",
            rows,
            d.hidden,
            Sharding::Column,
        );
        let qkv = match self.multi_query {
            true => Qkv::fused(&fused, x, d),
            false => Qkv::grouped(&fused, x, d),
        };
        let o = qkv
            .rotate(&self.rotation)
            .attend(d, &attention(d.scale(), None));
        at.out("dense", o, d, self.bias)
    }

    /// Gate and up stand in one matrix, gate first.
    fn mlp(&self, at: &Scope, x: Value) -> Value {
        let Dims { hidden, ffn, .. } = self.dims;
        let both = at.linear_with(
            self.bias,
            "dense_h_to_4h",
            2 * ffn,
            hidden,
            Sharding::Column,
        );
        let (gate, up) = (both.rows(0, ffn).apply(x), both.rows(ffn, ffn).apply(x));
        let h = builder::gated(gate, up, Gate::Plain(Activation::Silu));
        at.linear_with(self.bias, "dense_4h_to_h", hidden, ffn, Sharding::Row)
            .apply(h)
    }
}
