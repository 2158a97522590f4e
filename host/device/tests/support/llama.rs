//! A Llama graph over any checkpoint with Hugging Face names, or a random tiny one.

use std::sync::Arc;

use guesthouse_graph::{
    Activation, Attention, BuilderLimits, CacheKind, CacheSharding, CacheSpec, Gate, GraphBuilder,
    GraphError, Mask, ModelInfo, NormRounding, PassOptions, Plan, PlanOptions, PositionScheme,
    RmsNorm, Rope, RopeScaling, RopeStyle, Sharding, SourceCatalog, ValueLayout, optimize,
};
use guesthouse_weights::{DType, DummySource, MemorySource, Scheme, TensorInfo, WeightSource};

/// Sizes of a Llama.
#[derive(Clone, Debug)]
pub struct Llama {
    pub vocab: u32,
    pub hidden: u32,
    pub layers: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub ffn: u32,
    pub theta: f32,
    pub eps: f32,
    pub tied: bool,
    pub window: Option<u32>,
}

impl Llama {
    /// Small enough for tests, large enough to use several panels, chunks and blocks.
    pub fn tiny() -> Self {
        Self {
            vocab: 300,
            hidden: 64,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            ffn: 96,
            theta: 10_000.0,
            eps: 1e-5,
            tied: false,
            window: None,
        }
    }

    /// Random weights; matrices are stored as `scheme`.
    pub fn weights(&self, scheme: Scheme, seed: u64) -> Arc<MemorySource> {
        let kv = (self.kv_heads * self.head_dim) as usize;
        let q = (self.heads * self.head_dim) as usize;
        let (h, f, v) = (self.hidden as usize, self.ffn as usize, self.vocab as usize);
        let mut tensors = vec![(
            "model.embed_tokens.weight".to_owned(),
            TensorInfo::new([v, h], scheme),
        )];
        if !self.tied {
            tensors.push(("lm_head.weight".to_owned(), TensorInfo::new([v, h], scheme)));
        }
        for i in 0..self.layers {
            let mut add = |name: &str, rows: usize, cols: usize| {
                tensors.push((
                    format!("model.layers.{i}.{name}.weight"),
                    TensorInfo::new([rows, cols], scheme),
                ));
            };
            add("self_attn.q_proj", q, h);
            add("self_attn.k_proj", kv, h);
            add("self_attn.v_proj", kv, h);
            add("self_attn.o_proj", h, q);
            add("mlp.gate_proj", f, h);
            add("mlp.up_proj", f, h);
            add("mlp.down_proj", h, f);
        }
        let mut source = MemorySource::dummy(tensors, seed).unwrap();
        let mut norm = |name: String| {
            // Dummy values are tiny; norms several times as large as usual make up for it.
            let values: Vec<f32> = (0..h)
                .map(|i| 3.0 + ((i * 7 + name.len()) % 11) as f32 * 0.2)
                .collect();
            source.insert_f32(name, [h], &values).unwrap();
        };
        for i in 0..self.layers {
            norm(format!("model.layers.{i}.input_layernorm.weight"));
            norm(format!("model.layers.{i}.post_attention_layernorm.weight"));
        }
        norm("model.norm.weight".to_owned());
        Arc::new(source)
    }

    /// The plan for f32.
    pub fn plan(&self, source: Arc<dyn WeightSource>, passes: &PassOptions) -> Arc<Plan> {
        self.plan_of(source, passes, 4)
    }

    /// The plan for a model type of so many bytes.
    pub fn plan_of(
        &self,
        source: Arc<dyn WeightSource>,
        passes: &PassOptions,
        model_bytes: usize,
    ) -> Arc<Plan> {
        let graph = self.graph(source).unwrap();
        let graph = optimize(graph, passes).unwrap();
        Arc::new(Plan::compile(graph, &PlanOptions::new(model_bytes)).unwrap())
    }

    /// Made-up bf16 weights that a GPU fills in itself.
    pub fn dummy(&self) -> Arc<DummySource> {
        let kv = (self.kv_heads * self.head_dim) as usize;
        let q = (self.heads * self.head_dim) as usize;
        let (h, f, v) = (self.hidden as usize, self.ffn as usize, self.vocab as usize);
        let mut tensors = Vec::new();
        let mut add = |name: String, shape: &[usize]| {
            tensors.push((name, TensorInfo::new(shape, Scheme::Plain(DType::Bf16))));
        };
        add("model.embed_tokens.weight".to_owned(), &[v, h]);
        add("model.norm.weight".to_owned(), &[h]);
        if !self.tied {
            add("lm_head.weight".to_owned(), &[v, h]);
        }
        for i in 0..self.layers {
            let at = |name: &str| format!("model.layers.{i}.{name}.weight");
            add(at("input_layernorm"), &[h]);
            add(at("post_attention_layernorm"), &[h]);
            add(at("self_attn.q_proj"), &[q, h]);
            add(at("self_attn.k_proj"), &[kv, h]);
            add(at("self_attn.v_proj"), &[kv, h]);
            add(at("self_attn.o_proj"), &[h, q]);
            add(at("mlp.gate_proj"), &[f, h]);
            add(at("mlp.up_proj"), &[f, h]);
            add(at("mlp.down_proj"), &[h, f]);
        }
        Arc::new(DummySource::new(tensors).unwrap())
    }

    fn graph(&self, source: Arc<dyn WeightSource>) -> Result<guesthouse_graph::Graph, GraphError> {
        let mut b = GraphBuilder::new(
            Arc::new(SourceCatalog::new(source)),
            BuilderLimits::default(),
        );
        let (h, f) = (self.hidden, self.ffn);
        let (q_dim, kv_dim) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let ids = b.token_ids()?;
        let positions = b.positions(PositionScheme::Standard)?;
        let table = b.param("model.embed_tokens.weight", &[self.vocab, h])?;
        let mut x = b.embedding(table, ids)?;
        for i in 0..self.layers {
            b.scope(&format!("layers.{i}"))?;
            let weight = |b: &mut GraphBuilder, name: &str, shape: &[u32]| {
                b.param(&format!("model.layers.{i}.{name}.weight"), shape)
            };
            let norm = weight(&mut b, "input_layernorm", &[h])?;
            let n = b.rms_norm(x, self.norm(norm))?;
            let wq = weight(&mut b, "self_attn.q_proj", &[q_dim, h])?;
            let wk = weight(&mut b, "self_attn.k_proj", &[kv_dim, h])?;
            let wv = weight(&mut b, "self_attn.v_proj", &[kv_dim, h])?;
            let wo = weight(&mut b, "self_attn.o_proj", &[h, q_dim])?;
            let q = b.linear(n, wq, None, Sharding::Column)?;
            let k = b.linear(n, wk, None, Sharding::Column)?;
            let v = b.linear(n, wv, None, Sharding::Column)?;
            let q = b.reshape(q, &[self.heads, self.head_dim])?;
            let k = b.reshape(k, &[self.kv_heads, self.head_dim])?;
            let v = b.reshape(v, &[self.kv_heads, self.head_dim])?;
            let rope = Rope {
                rotary: self.head_dim,
                theta: self.theta,
                style: RopeStyle::Neox,
                scaling: RopeScaling::None,
                axis: 0,
                start: 0,
            };
            let q = b.rope(q, positions, rope.clone())?;
            let k = b.rope(k, positions, rope)?;
            // Every other layer has the window, so that there are two groups.
            let window = self.window.filter(|_| i % 2 == 0);
            let cache = b.declare_cache(CacheSpec {
                kind: window.map_or(CacheKind::Full, |window| CacheKind::Window { window }),
                kv_heads: self.kv_heads,
                k_dim: self.head_dim,
                v_dim: self.head_dim,
                values: ValueLayout::Separate,
                sharding: CacheSharding::Heads,
            })?;
            let attention = Attention {
                cache,
                scale: 1.0 / (self.head_dim as f32).sqrt(),
                mask: Mask::Causal,
                window,
                softcap: None,
                alibi: None,
                sinks: None,
            };
            let o = b.attention(q, k, v, attention)?;
            let o = b.reshape(o, &[q_dim])?;
            let o = b.linear(o, wo, None, Sharding::Row)?;
            x = b.add(x, o)?;
            let norm = weight(&mut b, "post_attention_layernorm", &[h])?;
            let n = b.rms_norm(x, self.norm(norm))?;
            let wg = weight(&mut b, "mlp.gate_proj", &[f, h])?;
            let wu = weight(&mut b, "mlp.up_proj", &[f, h])?;
            let wd = weight(&mut b, "mlp.down_proj", &[h, f])?;
            let gate = b.linear(n, wg, None, Sharding::Column)?;
            let up = b.linear(n, wu, None, Sharding::Column)?;
            let y = b.gated(gate, up, Gate::Plain(Activation::Silu))?;
            let y = b.linear(y, wd, None, Sharding::Row)?;
            x = b.add(x, y)?;
        }
        b.scope("head")?;
        let norm = b.param("model.norm.weight", &[h])?;
        let x = b.rms_norm(x, self.norm(norm))?;
        let head = if self.tied {
            table
        } else {
            b.param("lm_head.weight", &[self.vocab, h])?
        };
        let logits = b.linear(x, head, None, Sharding::Column)?;
        b.output_logits(logits)?;
        b.finish(ModelInfo {
            architecture: "LlamaForCausalLM".to_owned(),
            vocab_size: self.vocab,
            max_position: 131_072,
        })
    }

    fn norm(&self, weight: guesthouse_graph::WeightId) -> RmsNorm {
        RmsNorm {
            weight: Some(weight),
            eps: self.eps,
            offset: 0.0,
            rounding: NormRounding::CastThenWeight,
        }
    }
}
