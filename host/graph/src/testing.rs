//! Graphs that tests of several modules build.

use std::sync::Arc;

use guesthouse_weights::DType;

use crate::*;

pub(crate) fn assumed() -> GraphBuilder {
    let catalog = AssumedCatalog::new(DType::Bf16).absent_where(|_| false);
    GraphBuilder::new(Arc::new(catalog), BuilderLimits::default())
}

pub(crate) fn info(vocab_size: u32) -> ModelInfo {
    ModelInfo {
        architecture: "TestForCausalLM".to_owned(),
        vocab_size,
        max_position: 2048,
    }
}

pub(crate) fn rms(weight: WeightId) -> RmsNorm {
    RmsNorm {
        weight: Some(weight),
        eps: 1e-5,
        offset: 0.0,
        rounding: NormRounding::CastThenWeight,
    }
}

pub(crate) fn neox(rotary: u32) -> Rope {
    Rope {
        rotary,
        theta: 10_000.0,
        style: RopeStyle::Neox,
        scaling: RopeScaling::None,
        axis: 0,
        start: 0,
    }
}

pub(crate) fn full_cache(kv_heads: u32, dim: u32) -> CacheSpec {
    CacheSpec {
        kind: CacheKind::Full,
        kv_heads,
        k_dim: dim,
        v_dim: dim,
        values: ValueLayout::Separate,
        sharding: CacheSharding::Heads,
    }
}

pub(crate) fn causal(cache: CacheId) -> Attention {
    Attention {
        cache,
        scale: 0.5,
        mask: Mask::Causal,
        window: None,
        softcap: None,
        alibi: None,
        sinks: None,
    }
}

/// A Llama of two layers: hidden 8, 4 heads of 4 over 2 key heads, ffn 12, vocabulary 32.
pub(crate) fn llama() -> Graph {
    deep_llama(2)
}

/// The same with any number of layers.
pub(crate) fn deep_llama(layers: u32) -> Graph {
    let mut b = assumed();
    let ids = b.token_ids().unwrap();
    let positions = b.positions(PositionScheme::Standard).unwrap();
    let table = b.param("model.embed_tokens.weight", &[32, 8]).unwrap();
    let mut x = b.embedding(table, ids).unwrap();
    for layer in 0..layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        b.scope(&format!("layers.{layer}.attn")).unwrap();
        let w = b.param(&name("input_layernorm"), &[8]).unwrap();
        let h = b.rms_norm(x, rms(w)).unwrap();
        let heads = |b: &mut GraphBuilder, part: &str, n: u32| {
            let w = b.param(&name(part), &[n * 4, 8]).unwrap();
            let y = b.linear(h, w, None, Sharding::Column).unwrap();
            b.reshape(y, &[n, 4]).unwrap()
        };
        let q = heads(&mut b, "self_attn.q_proj", 4);
        let k = heads(&mut b, "self_attn.k_proj", 2);
        let v = heads(&mut b, "self_attn.v_proj", 2);
        let q = b.rope(q, positions, neox(4)).unwrap();
        let k = b.rope(k, positions, neox(4)).unwrap();
        let cache = b.declare_cache(full_cache(2, 4)).unwrap();
        let o = b.attention(q, k, v, causal(cache)).unwrap();
        let o = b.reshape(o, &[16]).unwrap();
        let w = b.param(&name("self_attn.o_proj"), &[8, 16]).unwrap();
        let o = b.linear(o, w, None, Sharding::Row).unwrap();
        x = b.add(x, o).unwrap();
        b.scope(&format!("layers.{layer}.mlp")).unwrap();
        let w = b.param(&name("post_attention_layernorm"), &[8]).unwrap();
        let h = b.rms_norm(x, rms(w)).unwrap();
        let w = b.param(&name("mlp.gate_proj"), &[12, 8]).unwrap();
        let gate = b.linear(h, w, None, Sharding::Column).unwrap();
        let w = b.param(&name("mlp.up_proj"), &[12, 8]).unwrap();
        let up = b.linear(h, w, None, Sharding::Column).unwrap();
        let y = b.gated(gate, up, Gate::Plain(Activation::Silu)).unwrap();
        let w = b.param(&name("mlp.down_proj"), &[8, 12]).unwrap();
        let y = b.linear(y, w, None, Sharding::Row).unwrap();
        x = b.add(x, y).unwrap();
    }
    b.scope("head").unwrap();
    let w = b.param("model.norm.weight", &[8]).unwrap();
    let x = b.rms_norm(x, rms(w)).unwrap();
    let logits = b.linear(x, table, None, Sharding::Column).unwrap();
    b.output_logits(logits).unwrap();
    b.finish(info(32)).unwrap()
}
