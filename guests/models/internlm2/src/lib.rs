//! `InternLM2ForCausalLM` (InternLM 2 and 2.5): a Llama whose Q, K and V are one linear with rows by key head.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Gate, Model, ModelInfo, Qkv, Rope, Rotation, Scope, Sharding, Value,
    activation, attention, builder,
};
use guesthouse_sdk::{Config, Error};

struct InternLm2;

impl Model for InternLm2 {
    const ARCHITECTURES: &'static [&'static str] = &["InternLM2ForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let mut dims = Dims::from_config(config)?;
        let rope = Rope::from_config(config)?;
        dims.max_position = rope.max_position(dims.max_position);
        let rotation = rope.rotation(dims.head_dim);
        let layer = Layer {
            dims,
            act: activation(config, "hidden_act", "silu")?,
            bias: if config.flag("bias", true)? {
                Bias::Required
            } else {
                Bias::IfPresent
            },
        };

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("tok_embeddings.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("layers.{i}")), x, &rotation);
        }
        let x = model.rms_norm("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        let head = if config.flag("tie_word_embeddings", false)? {
            table
        } else {
            root.param("output.weight", &[dims.vocab, dims.hidden])
        };
        builder::output_logits(builder::linear(x, head, None, Sharding::Column));
        Ok(dims.info(architecture))
    }
}

/// Pre-norm attention and SwiGLU.
struct Layer {
    dims: Dims,
    act: Activation,
    bias: Bias,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let d = &self.dims;
        let h = at.rms_norm("attention_norm", x, d.hidden, d.eps);
        let x = builder::add(x, self.attention(&at.enter("attention"), h, rotation));
        let h = at.rms_norm("ffn_norm", x, d.hidden, d.eps);
        let at = at.enter("feed_forward");
        let up = |name| at.linear(name, d.ffn, d.hidden, Sharding::Column).apply(h);
        let h = builder::gated(up("w1"), up("w3"), Gate::Plain(self.act));
        let down = at.linear("w2", d.hidden, d.ffn, Sharding::Row);
        builder::add(x, down.apply(h))
    }

    fn attention(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let d = &self.dims;
        // GGUF files have them apart.
        let apart = |name, out| {
            at.linear_with(self.bias, name, out, d.hidden, Sharding::Column)
                .apply(x)
        };
        let qkv = if at.has("wq.weight") {
            let (q, k, v) = (apart("wq", d.q()), apart("wk", d.kv()), apart("wv", d.kv()));
            Qkv::split(q, k, v, d)
        } else {
            let rows = d.q() + 2 * d.kv();
            let wqkv = at.linear_with(self.bias, "wqkv", rows, d.hidden, Sharding::Column);
            Qkv::grouped(&wqkv, x, d)
        };
        let o = qkv.rotate(rotation).attend(d, &attention(d.scale(), None));
        at.out("wo", o, d, self.bias)
    }
}

guesthouse_sdk::export_model!(InternLm2);
