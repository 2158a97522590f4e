//! `GPT2LMHeadModel`: learned positions, layer norms, and linears stored the other way round.

use guesthouse_sdk::graph::{
    Activation, Linear, Model, ModelInfo, PositionScheme, Scope, Sharding, Value, activation,
    attention, builder, kv_cache, merge_heads, split_heads,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

struct Gpt2;

impl Model for Gpt2 {
    const ARCHITECTURES: &'static [&'static str] = &["GPT2LMHeadModel"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        config.only("add_cross_attention", &[json!(false)])?;
        let either = |new, old| {
            if config.get(new).is_some() {
                config.size(new)
            } else {
                config.size(old)
            }
        };
        let (vocab, hidden) = (config.size("vocab_size")?, either("n_embd", "hidden_size")?);
        let (layers, heads) = (
            either("n_layer", "num_hidden_layers")?,
            either("n_head", "num_attention_heads")?,
        );
        let positions = either("n_positions", "max_position_embeddings")?;
        if hidden % heads != 0 || hidden > 1 << 24 {
            return Err(config.wrong(
                "n_embd",
                &format!("a multiple of n_head, {heads}, up to 2^24"),
            ));
        }
        let head_dim = hidden / heads;
        let block = Block {
            hidden,
            heads,
            head_dim,
            ffn: config.opt_size("n_inner")?.unwrap_or(4 * hidden),
            eps: config.f32_or("layer_norm_epsilon", 1e-5)?,
            scale: if config.flag("scale_attn_weights", true)? {
                f64::from(head_dim).sqrt().recip()
            } else {
                1.0
            },
            scale_by_layer: config.flag("scale_attn_by_inverse_layer_idx", false)?,
            act: activation(config, "activation_function", "gelu_new")?,
            storage: match config.object("guesthouse")? {
                Some(host) if host.flag("conv1d_transposed", false)? => Storage::OutIn,
                _ => Storage::InOut,
            },
        };

        let model = Scope::root_with("wte.weight", &["transformer", ""]);
        let table = model.param("wte.weight", &[vocab, hidden]);
        let at = builder::positions(&PositionScheme::Standard);
        let learned = builder::embedding(model.param("wpe.weight", &[positions, hidden]), at);
        let mut x = builder::add(builder::embedding(table, builder::token_ids()), learned);
        for i in 0..layers {
            x = block.build(&model.enter(format_args!("h.{i}")), x, i);
        }
        let x = model.layer_norm("ln_f", builder::gather_outputs(x), hidden, block.eps);
        let logits = if config.flag("tie_word_embeddings", true)? {
            builder::linear(x, table, None, Sharding::Column)
        } else {
            Scope::root("")
                .linear("lm_head", vocab, hidden, Sharding::Column)
                .apply(x)
        };
        builder::output_logits(logits);
        Ok(ModelInfo {
            architecture: architecture.into(),
            vocab_size: vocab,
            max_position: positions,
            ext: vec![],
        })
    }
}

/// How the checkpoint stores a linear's weight.
#[derive(Clone, Copy)]
enum Storage {
    /// Hugging Face's `Conv1D`.
    InOut,
    /// GGUF files are transposed already.
    OutIn,
}

struct Block {
    hidden: u32,
    heads: u32,
    head_dim: u32,
    ffn: u32,
    eps: f32,
    scale: f64,
    scale_by_layer: bool,
    act: Activation,
    storage: Storage,
}

impl Block {
    fn build(&self, at: &Scope, x: Value, index: u32) -> Value {
        let h = at.layer_norm("ln_1", x, self.hidden, self.eps);
        let x = builder::add(self.attention(&at.enter("attn"), h, index), x);
        let h = at.layer_norm("ln_2", x, self.hidden, self.eps);
        let at = at.enter("mlp");
        let h = self
            .linear(&at, "c_fc", self.ffn, self.hidden, Sharding::Column)
            .apply(h);
        let h = builder::activate(h, self.act);
        builder::add(
            x,
            self.linear(&at, "c_proj", self.hidden, self.ffn, Sharding::Row)
                .apply(h),
        )
    }

    fn attention(&self, at: &Scope, x: Value, index: u32) -> Value {
        let Self {
            hidden,
            heads,
            head_dim,
            ..
        } = *self;
        let fused = self.linear(at, "c_attn", 3 * hidden, hidden, Sharding::Column);
        let part = |i| {
            let bias = fused.bias.map(|b| builder::rows(b, i * hidden, hidden));
            let part = Linear {
                weight: builder::rows(fused.weight, i * hidden, hidden),
                bias,
                ..fused
            };
            split_heads(part.apply(x), heads, head_dim)
        };
        let (q, k, v) = (part(0), part(1), part(2));
        let scale = self.scale
            / if self.scale_by_layer {
                f64::from(index + 1)
            } else {
                1.0
            };
        let cache = kv_cache(heads, head_dim, None);
        let o = builder::attention(q, k, v, cache, &attention(scale as f32, None));
        self.linear(at, "c_proj", hidden, hidden, Sharding::Row)
            .apply(merge_heads(o, hidden))
    }

    fn linear(&self, at: &Scope, name: &str, out: u32, inp: u32, sharding: Sharding) -> Linear {
        match self.storage {
            Storage::OutIn => at.biased(name, out, inp, sharding),
            Storage::InOut => Linear {
                weight: builder::transpose(at.param(&format!("{name}.weight"), &[inp, out])),
                bias: Some(at.param(&format!("{name}.bias"), &[out])),
                sharding,
            },
        }
    }
}

guesthouse_sdk::export_model!(Gpt2);
