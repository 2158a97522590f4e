//! `QWenLMHeadModel` (Qwen, the first): a base of rope that grows with the prompt, queries that grow with the logarithm of
//! their position.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Gate, Model, ModelInfo, PositionScheme, Qkv, RopeParams, RopeScaling,
    RopeStyle, Rotation, Scope, Sharding, Value, attention, builder,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

struct Qwen1;

impl Model for Qwen1 {
    const ARCHITECTURES: &'static [&'static str] = &["QWenLMHeadModel"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        config.only("tie_word_embeddings", &[json!(false)])?;
        config.only("scale_attn_weights", &[json!(true)])?;
        config.only("use_cache_quantization", &[json!(false)])?;
        let mut dims = Dims::from_config(config)?;
        dims.eps = config.f32_or("layer_norm_epsilon", 1e-6)?;
        dims.head_dim = config.opt_size("kv_channels")?.unwrap_or(dims.head_dim);
        // The config counts gate and up together.
        if !dims.ffn.is_multiple_of(2) || dims.head_dim > 1 << 16 {
            return Err(config.wrong("intermediate_size", "even, with kv_channels up to 65536"));
        }
        dims.ffn /= 2;
        let trained = config.opt_size("seq_length")?.unwrap_or(8192);
        let bias = match config.flag("no_bias", true)? {
            true => Bias::IfPresent,
            false => Bias::Required,
        };
        let log_n = config.flag("use_logn_attn", true)?.then_some(trained);
        let rotation = rotation(config, &dims, trained)?;

        let root = Scope::root("");
        let model = root.enter("transformer");
        let table = model.param("wte.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            let at = model.enter(format_args!("h.{i}"));
            let h = at.rms_norm("ln_1", x, dims.hidden, dims.eps);
            let inner = at.enter("attn");
            let fused = inner.biased("c_attn", 3 * dims.q(), dims.hidden, Sharding::Column);
            let mut qkv = Qkv::fused(&fused, h, &dims).rotate(&rotation);
            if let Some(trained) = log_n {
                qkv.q = builder::log_n_scale(qkv.q, rotation.positions, trained);
            }
            let o = qkv.attend(&dims, &attention(dims.scale(), None));
            x = builder::add(x, inner.out("c_proj", o, &dims, bias));
            drop(inner);
            let h = at.rms_norm("ln_2", x, dims.hidden, dims.eps);
            x = builder::add(x, mlp(&at.enter("mlp"), h, &dims, bias));
        }
        let x = model.rms_norm("ln_f", builder::gather_outputs(x), dims.hidden, dims.eps);
        builder::output_logits(dims.logits(x, None, &root));
        Ok(dims.info(architecture))
    }
}

fn rotation(config: &Config, dims: &Dims, trained: u32) -> Result<Rotation, Error> {
    let share = config.opt_f64("rotary_pct")?.unwrap_or(1.0);
    let rotary = (f64::from(dims.head_dim) * share) as u32;
    if !(0.0..=1.0).contains(&share) || rotary < 4 || !rotary.is_multiple_of(2) {
        return Err(config.wrong(
            "rotary_pct",
            "a share of an even number of elements, at least 4",
        ));
    }
    let scaling = match config.flag("use_dynamic_ntk", true)? {
        true => RopeScaling::DynamicQwen(trained),
        false => RopeScaling::None,
    };
    Ok(Rotation {
        positions: builder::positions(&PositionScheme::Standard),
        params: RopeParams {
            start: 0,
            rotary,
            theta: config.f32_or("rotary_emb_base", 10_000.0)?,
            style: RopeStyle::Neox,
            scaling,
            axis: 0,
        },
    })
}

/// `c_proj(w1(x) · silu(w2(x)))`
fn mlp(at: &Scope, x: Value, dims: &Dims, bias: Bias) -> Value {
    let up = |name| {
        at.linear_with(bias, name, dims.ffn, dims.hidden, Sharding::Column)
            .apply(x)
    };
    let h = builder::gated(up("w2"), up("w1"), Gate::Plain(Activation::Silu));
    at.linear_with(bias, "c_proj", dims.hidden, dims.ffn, Sharding::Row)
        .apply(h)
}

guesthouse_sdk::export_model!(Qwen1);
