//! `GptOssForCausalLM`: attention with sinks over alternating windows, biased experts with a clamped gate, plain or MXFP4.

use guesthouse_sdk::graph::{
    AttentionParams, Bias, Dims, ExpertDims, ExpertsParams, Gate, GateLayout, Model, ModelInfo,
    Qkv, Rope, Rotation, RouteParams, RouteScores, Scope, Sharding, Value, Weight, attention,
    builder, route_params,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
/// Factor in the gate's sigmoid.
const ALPHA: f32 = 1.702;

struct GptOss;

impl Model for GptOss {
    const ARCHITECTURES: &'static [&'static str] = &["GptOssForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let mut d = Dims::from_config(config)?;
        d.eps = config.f32_or("rms_norm_eps", 1e-5)?;
        config.only("attention_bias", &[json!(true)])?;
        let window = config.opt_size("sliding_window")?;
        let types = config.layer_types(d.layers, &[FULL, SLIDING], |i| {
            if i % 2 == 0 { SLIDING } else { FULL }.into()
        })?;
        let layer = Layer {
            dims: d,
            rotation: Rope::from_config(config)?.rotation(d.head_dim),
            experts: ExpertDims {
                count: config.size("num_local_experts")?,
                hidden: d.hidden,
                ffn: d.ffn,
            },
            route: route_params(
                config.size("num_experts_per_tok")?,
                RouteScores::SoftmaxOfChosen,
            ),
            limit: config.f32_or("swiglu_limit", 7.0)?,
            stored: Stored::from_config(config)?,
        };

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[d.vocab, d.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for (i, kind) in types.iter().enumerate() {
            let at = model.enter(format_args!("layers.{i}"));
            let window = window.filter(|_| kind == SLIDING);
            let h = at.rms_norm_f32("input_layernorm", x, d.hidden, d.eps);
            x = builder::add(x, layer.attention(&at.enter("self_attn"), h, window));
            let h = at.rms_norm_f32("post_attention_layernorm", x, d.hidden, d.eps);
            x = builder::add(x, layer.mixture(&at.enter("mlp"), h));
        }
        let x = model.rms_norm_f32("norm", builder::gather_outputs(x), d.hidden, d.eps);
        let tied = config.flag("tie_word_embeddings", false)?.then_some(table);
        builder::output_logits(d.logits(x, tied, &root));
        Ok(d.info(architecture))
    }
}

/// How experts' matrices are stored.
#[derive(Clone, Copy)]
enum Stored {
    /// `[experts, in, out]`
    Transposed,
    /// `[experts, out, in]`, in blocks along the last dimension.
    Blocks,
}

impl Stored {
    fn from_config(config: &Config) -> Result<Self, Error> {
        match config.object("quantization_config")? {
            None => Ok(Self::Transposed),
            Some(q) => {
                q.only("quant_method", &[json!("mxfp4")])?;
                Ok(Self::Blocks)
            }
        }
    }
}

struct Layer {
    dims: Dims,
    rotation: Rotation,
    experts: ExpertDims,
    route: RouteParams,
    /// Bound of gate and up.
    limit: f32,
    stored: Stored,
}

impl Layer {
    fn attention(&self, at: &Scope, x: Value, window: Option<u32>) -> Value {
        let d = &self.dims;
        let params = AttentionParams {
            sinks: Some(at.param("sinks", &[d.heads])),
            ..attention(d.scale(), window)
        };
        let o = Qkv::project(at, x, d, Bias::Required)
            .rotate(&self.rotation)
            .attend(d, &params);
        at.out("o_proj", o, d, Bias::Required)
    }

    fn mixture(&self, at: &Scope, x: Value) -> Value {
        let ExpertDims { count, hidden, ffn } = self.experts;
        let router = at.biased("router", count, hidden, Sharding::Replicated);
        let (weights, ids) = builder::route(router.apply(x), &self.route);
        let at = at.enter("experts");
        let matrix = |name: &str, out: u32, inp: u32| -> Weight {
            match self.stored {
                Stored::Blocks => at.param(name, &[count, out, inp]),
                Stored::Transposed => builder::transpose(at.param(name, &[count, inp, out])),
            }
        };
        let experts = ExpertsParams {
            gate_up: matrix("gate_up_proj", 2 * ffn, hidden),
            gate_up_bias: Some(at.param("gate_up_proj_bias", &[count, 2 * ffn])),
            down: matrix("down_proj", hidden, ffn),
            down_bias: Some(at.param("down_proj_bias", &[count, hidden])),
            layout: GateLayout::Interleaved,
            gate: Gate::Clamped((ALPHA, self.limit)),
            ext: vec![],
        };
        builder::experts(x, weights, ids, &experts)
    }
}

guesthouse_sdk::export_model!(GptOss);
