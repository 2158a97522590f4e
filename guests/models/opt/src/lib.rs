//! `OPTForCausalLM`: learned positions that begin at 2, norms before or after, and for 350m an embedding of another width.

use guesthouse_sdk::graph::{
    Bias, Dims, Mlp, Model, ModelInfo, PositionScheme, Qkv, Scope, Sharding, SizeNames, Value,
    activation, attention, builder,
};
use guesthouse_sdk::{Config, Error};

const NAMES: SizeNames = SizeNames {
    hidden: &["hidden_size"],
    ffn: &["ffn_dim"],
    layers: &["num_hidden_layers"],
    heads: &["num_attention_heads"],
    max_position: &["max_position_embeddings"],
    eps: &[],
};
/// Rows of the position table before that of position 0.
const OFFSET: u32 = 2;

struct Opt;

impl Model for Opt {
    const ARCHITECTURES: &'static [&'static str] = &["OPTForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let dims = Dims::named(config, &NAMES)?;
        let embed = config
            .opt_size("word_embed_proj_dim")?
            .unwrap_or(dims.hidden);
        let bias = Bias::from_config_or(config, "enable_bias", Bias::Required)?;
        let layer = Layer {
            dims,
            bias,
            mlp: Mlp {
                up: "fc1",
                down: "fc2",
                act: activation(config, "activation_function", "relu")?,
                bias,
            },
            norms: if config.flag("layer_norm_elementwise_affine", true)? {
                Norms::Affine
            } else {
                Norms::Plain
            },
            place: if config.flag("do_layer_norm_before", true)? {
                Place::Before
            } else {
                Place::After
            },
        };

        let prefixes = ["model.decoder", "decoder"];
        let model = Scope::root_with("embed_tokens.weight", &prefixes);
        let table = model.param("embed_tokens.weight", &[dims.vocab, embed]);
        let rows = dims.max_position.saturating_add(OFFSET);
        let learned = model.param("embed_positions.weight", &[rows, dims.hidden]);
        let at = builder::positions(&PositionScheme::Offset(OFFSET as i32));
        let mut x = builder::embedding(table, builder::token_ids());
        if embed != dims.hidden {
            let project = model.linear("project_in", dims.hidden, embed, Sharding::Replicated);
            x = project.apply(x);
        }
        x = builder::add(x, builder::embedding(learned, at));
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("layers.{i}")), x);
        }
        x = builder::gather_outputs(x);
        // Left out by models that were trained before transformers 4.20.1.
        let last = !config.flag("_remove_final_layer_norm", false)?;
        if last && matches!(layer.place, Place::Before) {
            x = layer.norm(&model, "final_layer_norm", x);
        }
        if embed != dims.hidden {
            let project = model.linear("project_out", embed, dims.hidden, Sharding::Replicated);
            x = project.apply(x);
        }
        let tied = config.flag("tie_word_embeddings", true)?.then_some(table);
        let head = Dims {
            hidden: embed,
            ..dims
        };
        builder::output_logits(head.logits(x, tied, &Scope::root("")));
        Ok(dims.info(architecture))
    }
}

/// Whether norms have a weight and a bias.
enum Norms {
    Affine,
    Plain,
}

/// Where norms stand: before attention and MLP, or after each residual.
enum Place {
    Before,
    After,
}

struct Layer {
    dims: Dims,
    bias: Bias,
    mlp: Mlp,
    norms: Norms,
    place: Place,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value) -> Value {
        let norm = |name, x| self.norm(at, name, x);
        let attend = |x| self.attention(&at.enter("self_attn"), x);
        let mlp = |x| self.mlp.apply(at, x, &self.dims);
        let (first, second) = ("self_attn_layer_norm", "final_layer_norm");
        match self.place {
            Place::Before => {
                let x = builder::add(x, attend(norm(first, x)));
                builder::add(x, mlp(norm(second, x)))
            }
            Place::After => {
                let x = norm(first, builder::add(x, attend(x)));
                norm(second, builder::add(x, mlp(x)))
            }
        }
    }

    fn norm(&self, at: &Scope, name: &str, x: Value) -> Value {
        let d = &self.dims;
        match self.norms {
            Norms::Affine => at.layer_norm(name, x, d.hidden, d.eps),
            Norms::Plain => builder::layer_norm(x, None, None, d.eps),
        }
    }

    fn attention(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let o = Qkv::project(at, x, d, self.bias).attend(d, &attention(d.scale(), None));
        at.out("out_proj", o, d, self.bias)
    }
}

guesthouse_sdk::export_model!(Opt);
