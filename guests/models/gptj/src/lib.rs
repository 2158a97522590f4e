//! `GPTJForCausalLM`: attention and MLP side by side under one norm, rope over pairs of neighbours.

use guesthouse_sdk::graph::{
    Bias, Dims, Mlp, Model, ModelInfo, Qkv, Rope, RopeScaling, Rotation, Scope, Sharding,
    SizeNames, Value, activation, attention, builder,
};
use guesthouse_sdk::{Config, Error};

const NAMES: SizeNames = SizeNames {
    hidden: &["n_embd", "hidden_size"],
    ffn: &["n_inner"],
    layers: &["n_layer", "num_hidden_layers"],
    heads: &["n_head", "num_attention_heads"],
    max_position: &["n_positions", "max_position_embeddings"],
    eps: &["layer_norm_epsilon"],
};

struct GptJ;

impl Model for GptJ {
    const ARCHITECTURES: &'static [&'static str] = &["GPTJForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let dims = Dims::named(config, &NAMES)?;
        let rotary = config.opt_size("rotary_dim")?.unwrap_or(64);
        if rotary > dims.head_dim || !rotary.is_multiple_of(2) {
            let want = format!("an even number up to a head's {} elements", dims.head_dim);
            return Err(config.wrong("rotary_dim", &want));
        }
        let rope = Rope {
            theta: 10_000.0,
            partial: 1.0,
            scaling: RopeScaling::None,
        };
        let layer = Layer {
            dims,
            rotation: rope.interleaved(rotary),
            mlp: Mlp {
                up: "fc_in",
                down: "fc_out",
                act: activation(config, "activation_function", "gelu_new")?,
                bias: Bias::Required,
            },
        };

        let model = Scope::root_with("wte.weight", &["transformer", ""]);
        let table = model.param("wte.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("h.{i}")), x);
        }
        let x = model.layer_norm("ln_f", builder::gather_outputs(x), dims.hidden, dims.eps);
        let root = Scope::root("");
        let mut head = root.biased("lm_head", dims.vocab, dims.hidden, Sharding::Column);
        if config.flag("tie_word_embeddings", false)? {
            head.weight = table;
        }
        builder::output_logits(head.apply(x));
        Ok(dims.info(architecture))
    }
}

struct Layer {
    dims: Dims,
    rotation: Rotation,
    mlp: Mlp,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let h = at.layer_norm("ln_1", x, d.hidden, d.eps);
        let attended = self.attention(&at.enter("attn"), h);
        let h = self.mlp.apply(&at.enter("mlp"), h, d);
        builder::add(builder::add(attended, h), x)
    }

    fn attention(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let o = Qkv::project(at, x, d, Bias::IfPresent)
            .rotate(&self.rotation)
            .attend(d, &attention(d.scale(), None));
        at.out("out_proj", o, d, Bias::IfPresent)
    }
}

guesthouse_sdk::export_model!(GptJ);
