//! `SandwichForCausalLM`, which exists nowhere else: no positions at all, a norm before and after each half of a layer,
//! queries, keys and values in one matrix, and an MLP with a squared ReLU.

use guesthouse_sdk::graph::{
    Activation, Dims, Model, ModelInfo, Scope, Sharding, Value, attention, builder, kv_cache,
    merge_heads, split_heads,
};
use guesthouse_sdk::{Config, Error};

struct Sandwich;

impl Model for Sandwich {
    const ARCHITECTURES: &'static [&'static str] = &["SandwichForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let dims = Dims::from_config(config)?;
        let root = Scope::root("sandwich");
        let table = root.param("embed.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            x = layer(&dims, &root.enter(format_args!("layers.{i}")), x);
        }
        let x = root.rms_norm("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        let head = root.linear("head", dims.vocab, dims.hidden, Sharding::Column);
        builder::output_logits(head.apply(x));
        Ok(dims.info(architecture))
    }
}

fn layer(d: &Dims, at: &Scope, x: Value) -> Value {
    let norm = |name, x| at.rms_norm(name, x, d.hidden, d.eps);
    let h = attend(d, &at.enter("attn"), norm("attn_in", x));
    let x = builder::add(x, norm("attn_out", h));
    let up = at.linear("up", d.ffn, d.hidden, Sharding::Column);
    let down = at.linear("down", d.hidden, d.ffn, Sharding::Row);
    let h = builder::activate(up.apply(norm("mlp_in", x)), Activation::Relu2);
    builder::add(x, norm("mlp_out", down.apply(h)))
}

fn attend(d: &Dims, at: &Scope, x: Value) -> Value {
    let qkv = at.linear("qkv", d.q() + 2 * d.kv(), d.hidden, Sharding::Column);
    let parts = builder::split(qkv.apply(x), 0, &[d.q(), d.kv(), d.kv()]);
    let heads = |part: usize, heads| split_heads(parts[part], heads, d.head_dim);
    let (q, k, v) = (heads(0, d.heads), heads(1, d.kv_heads), heads(2, d.kv_heads));
    let cache = kv_cache(d.kv_heads, d.head_dim, None);
    let o = builder::attention(q, k, v, cache, &attention(d.scale(), None));
    let out = at.linear("out", d.hidden, d.q(), Sharding::Row);
    out.apply(merge_heads(o, d.q()))
}

guesthouse_sdk::export_model!(Sandwich);
