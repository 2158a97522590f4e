//! Every operation against the f64 reference, through the executor, with passes and without.

#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

#[path = "ops/experts.rs"]
mod experts;
mod oracle;
mod support;

use std::sync::Arc;

use guesthouse_device::{CpuDevice, CpuOptions, KvBudget};
use guesthouse_engine::{Input, SamplingPlan};
use guesthouse_graph::{
    Activation, Attention, BuilderLimits, CacheKind, CacheSharding, CacheSpec, CausalConv,
    DeltaInputs, Gate, GraphBuilder, LatentAttention, LayerNorm, Mask, ModelInfo, NormRounding,
    PassOptions, Plan, PlanOptions, PositionScheme, RmsNorm, Rope, RopeScaling, RopeStyle,
    Sharding, SourceCatalog, ValueId, ValueLayout, ValueType, WeightId, optimize,
};
use guesthouse_weights::{BlockType, DType, MemorySource, Scheme, TensorInfo, WeightSource};
use support::drive::{Driver, task, token};

const VOCAB: u32 = 64;

/// A graph under construction over named random weights.
struct Model {
    b: GraphBuilder,
}

/// Deterministic numbers around 0 of about this size.
fn noise(n: usize, seed: u64, size: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678;
    (0..n)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * size
        })
        .collect()
}

impl Model {
    /// Random numbers as a weight.
    fn constant(&mut self, shape: &[u32], seed: u64, size: f32) -> WeightId {
        let n = shape.iter().product::<u32>() as usize;
        self.b.constant(shape, noise(n, seed, size)).unwrap()
    }

    fn linear(&mut self, x: ValueId, out: u32, input: u32, seed: u64) -> ValueId {
        let w = self.constant(&[out, input], seed, 0.4);
        let bias = self.constant(&[out], seed + 1, 0.5);
        self.b
            .linear(x, w, Some(bias), Sharding::Replicated)
            .unwrap()
    }

    /// A value of this shape that differs from token to token and depends on the position.
    fn input(&mut self, shape: &[u32], seed: u64) -> ValueId {
        let n = shape.iter().product();
        let table = self.constant(&[VOCAB, n], seed, 1.5);
        let places = self.constant(&[512, n], seed + 77, 0.5);
        let ids = self.b.token_ids().unwrap();
        let positions = self.b.positions(PositionScheme::Standard).unwrap();
        let x = self.b.embedding(table, ids).unwrap();
        let p = self.b.embedding(places, positions).unwrap();
        let x = self.b.add(x, p).unwrap();
        self.b.reshape(x, shape).unwrap()
    }

    fn cache(
        &mut self,
        kv_heads: u32,
        k_dim: u32,
        v_dim: u32,
        window: Option<u32>,
    ) -> guesthouse_graph::CacheId {
        let spec = CacheSpec {
            kind: window.map_or(CacheKind::Full, |window| CacheKind::Window { window }),
            kv_heads,
            k_dim,
            v_dim,
            values: ValueLayout::Separate,
            sharding: CacheSharding::Heads,
        };
        self.b.declare_cache(spec).unwrap()
    }

    /// A state of so many floats.
    fn state(&mut self, floats: u32) -> guesthouse_graph::CacheId {
        let spec = CacheSpec {
            kind: CacheKind::Recurrent { bytes: 4 * floats },
            kv_heads: 0,
            k_dim: 0,
            v_dim: 0,
            values: ValueLayout::Separate,
            sharding: CacheSharding::Heads,
        };
        self.b.declare_cache(spec).unwrap()
    }
}

/// Compares a graph's log-probabilities over a sequence with the reference's.
fn check(name: &str, width: u32, build: impl Fn(&mut Model) -> ValueId) {
    check_with(name, width, &Arc::new(MemorySource::new()), 90, build);
}

fn check_with(
    name: &str,
    width: u32,
    source: &Arc<MemorySource>,
    len: usize,
    build: impl Fn(&mut Model) -> ValueId,
) {
    let make = || {
        let catalog = Arc::new(SourceCatalog::new(Arc::clone(source) as _));
        let mut model = Model {
            b: GraphBuilder::new(catalog, BuilderLimits::default()),
        };
        let y = build(&mut model);
        // Back to a vocabulary, so that every element matters.
        let y = model.b.reshape(y, &[width]).unwrap();
        let logits = model.linear(y, VOCAB, width, 999);
        model.b.output_logits(logits).unwrap();
        let info = ModelInfo {
            architecture: "Test".to_owned(),
            vocab_size: VOCAB,
            max_position: 512,
        };
        model.b.finish(info).unwrap()
    };
    let tokens: Vec<u32> = (0..len as u32)
        .map(|i| (i * i * 7 + i * 3 + 11) % VOCAB)
        .collect();
    let reference: Arc<dyn WeightSource> = Arc::clone(source) as _;
    let want = oracle::run(&make(), &reference, &tokens, len);
    for passes in [PassOptions::default(), PassOptions::minimal()] {
        let plan = Plan::compile(optimize(make(), &passes).unwrap(), &PlanOptions::new(4)).unwrap();
        let options = CpuOptions {
            threads: 2,
            kv: KvBudget::Blocks(64),
            max_step_tokens: 256,
            max_slots: 4,
            max_len: 512,
            ..CpuOptions::default()
        };
        let executor =
            CpuDevice::load(&Arc::new(plan), source.as_ref(), &options, &mut |_| {}).unwrap();
        let mut driver = Driver::new(executor);
        driver.admit(0, &tokens, &SamplingPlan::greedy(), 0);
        // In two chunks, with every position's log-probabilities.
        for (start, end) in [(0, 37), (37, len as u32)] {
            let mut row = driver.row(0, start, end - start, Input::History);
            row.prompt_logprobs = Some(VOCAB);
            let output = driver.step(vec![row], vec![task(0, 0)]);
            for (i, entry) in output.prompt_logprobs[0].entries.iter().enumerate() {
                compare(name, &want[start as usize + i], &entry.top);
            }
            if end as usize == len {
                assert_eq!(token(&output, 0).top[0].0, argmax(&want[len - 1]), "{name}");
            }
        }
    }
}

fn argmax(x: &[f64]) -> u32 {
    (0..x.len()).max_by(|&a, &b| x[a].total_cmp(&x[b])).unwrap() as u32
}

/// The design's tolerance: 1e-4 · max(1, max |reference|).
fn compare(name: &str, logits: &[f64], got: &[(u32, f32)]) {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let norm = max + logits.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
    let size = logits.iter().fold(1f64, |m, x| m.max(x.abs()));
    assert_eq!(got.len(), logits.len(), "{name}");
    for &(t, l) in got {
        let want = logits[t as usize] - norm;
        let error = (f64::from(l) - want).abs();
        assert!(
            error <= 1e-4 * size,
            "{name}: token {t}: {l} instead of {want} (largest logit {size})"
        );
    }
}

#[test]
fn pointwise() {
    use Activation as A;
    for a in [
        A::Silu,
        A::Gelu,
        A::GeluTanh,
        A::QuickGelu,
        A::Relu,
        A::Relu2,
        A::Sigmoid,
        A::Tanh,
        A::Softplus,
        A::Exp,
    ] {
        check(&format!("{a:?}"), 19, |m| {
            let x = m.input(&[19], 1);
            m.b.activate(x, a).unwrap()
        });
        check(&format!("gated {a:?}"), 33, |m| {
            let x = m.input(&[24], 1);
            let gate = m.linear(x, 33, 24, 5);
            let up = m.linear(x, 33, 24, 7);
            m.b.gated(gate, up, Gate::Plain(a)).unwrap()
        });
    }
    check("clamped gate", 16, |m| {
        let x = m.input(&[24], 1);
        let (gate, up) = (m.linear(x, 16, 24, 5), m.linear(x, 16, 24, 7));
        m.b.gated(
            gate,
            up,
            Gate::Clamped {
                alpha: 1.702,
                limit: 0.9,
            },
        )
        .unwrap()
    });
    check("scale, clamp, soft cap", 19, |m| {
        let x = m.input(&[19], 1);
        let x = m.b.scale(x, 1.7).unwrap();
        let x = m.b.soft_cap(x, 1.3).unwrap();
        m.b.clamp(x, -1.0, 0.8).unwrap()
    });
    check("add and mul that broadcast", 15, |m| {
        let x = m.input(&[3, 5], 1);
        let row = m.constant(&[1, 5], 2, 1.0);
        let row = m.b.weight_value(row).unwrap();
        let x = m.b.add(x, row).unwrap();
        let column = m.input(&[3, 1], 4);
        let x = m.b.mul(x, column).unwrap();
        let one = m.input(&[1, 1], 6);
        let x = m.b.add(x, one).unwrap();
        let y = m.input(&[3, 5], 8);
        m.b.mul(x, y).unwrap()
    });
    check("log-n", 8, |m| {
        let x = m.input(&[8], 1);
        let p = m.b.positions(PositionScheme::Standard).unwrap();
        m.b.log_n_scale(x, p, 20).unwrap()
    });
    check("cast", 8, |m| {
        let x = m.input(&[8], 1);
        let x = m.b.cast(x, ValueType::F32).unwrap();
        m.b.cast(x, ValueType::Model).unwrap()
    });
    check("offset positions", 12, |m| {
        let p = m.b.positions(PositionScheme::Offset(2)).unwrap();
        let table = m.constant(&[128, 12], 3, 1.0);
        m.b.embedding(table, p).unwrap()
    });
}

#[test]
fn shapes() {
    check("split, slice, concat on either axis", 14, |m| {
        let x = m.input(&[4, 6], 1);
        let parts = m.b.split(x, 1, &[1, 2, 3]).unwrap();
        let y = m.b.concat(&[parts[2], parts[0]], 1).unwrap();
        let z = m.b.slice(y, 1, 1, 2).unwrap();
        let rows = m.b.split(x, 0, &[1, 3]).unwrap();
        let r = m.b.slice(rows[1], 1, 2, 2).unwrap();
        m.b.concat(&[z, r], 0).unwrap()
    });
    check("swap axes", 15, |m| {
        let x = m.input(&[3, 5], 1);
        m.b.swap_axes(x).unwrap()
    });
    check("repeat heads", 60, |m| {
        let x = m.input(&[3, 5], 1);
        m.b.repeat_heads(x, 4).unwrap()
    });
}

#[test]
fn norms() {
    for rounding in [NormRounding::CastThenWeight, NormRounding::WeightThenCast] {
        for (offset, shape, weight) in [
            (0.0, vec![40], vec![40]),
            (1.0, vec![3, 21], vec![21]),
            (0.0, vec![3, 8], vec![3, 8]),
        ] {
            check(
                &format!("rms norm {shape:?} {weight:?}"),
                shape.iter().product(),
                |m| {
                    let x = m.input(&shape, 1);
                    let w = m.constant(&weight, 2, 1.0);
                    m.b.rms_norm(
                        x,
                        RmsNorm {
                            weight: Some(w),
                            eps: 1e-5,
                            offset,
                            rounding,
                        },
                    )
                    .unwrap()
                },
            );
        }
    }
    check("rms norm without weight, l2 norm", 18, |m| {
        let x = m.input(&[2, 9], 1);
        let x =
            m.b.rms_norm(
                x,
                RmsNorm {
                    weight: None,
                    eps: 1e-6,
                    offset: 0.0,
                    rounding: NormRounding::CastThenWeight,
                },
            )
            .unwrap();
        m.b.l2_norm(x, 1e-6).unwrap()
    });
    for parts in 0..4 {
        check(&format!("layer norm {parts}"), 37, |m| {
            let x = m.input(&[37], 1);
            let weight = (parts & 1 == 1).then(|| m.constant(&[37], 2, 1.0));
            let bias = (parts & 2 == 2).then(|| m.constant(&[37], 3, 1.0));
            m.b.layer_norm(
                x,
                LayerNorm {
                    weight,
                    bias,
                    eps: 1e-5,
                },
            )
            .unwrap()
        });
    }
    check("residual and norm", 40, |m| {
        let x = m.input(&[40], 1);
        let y = m.linear(x, 40, 40, 3);
        let x = m.b.add(x, y).unwrap();
        let (w, b) = (m.constant(&[40], 2, 1.0), m.constant(&[40], 9, 1.0));
        let n =
            m.b.layer_norm(
                x,
                LayerNorm {
                    weight: Some(w),
                    bias: Some(b),
                    eps: 1e-5,
                },
            )
            .unwrap();
        let y = m.linear(n, 40, 40, 5);
        let x = m.b.add(x, y).unwrap();
        m.b.rms_norm(
            x,
            RmsNorm {
                weight: Some(w),
                eps: 1e-5,
                offset: 0.0,
                rounding: NormRounding::CastThenWeight,
            },
        )
        .unwrap()
    });
}

#[test]
fn linears_of_every_scheme() {
    let plain = [DType::F32, DType::F16, DType::Bf16].map(Scheme::Plain);
    for scheme in plain.into_iter().chain(BlockType::ALL.map(Scheme::Block)) {
        let tensors = [("a", 20), ("b", 48), ("table", VOCAB as usize)]
            .map(|(name, rows)| (name.to_owned(), TensorInfo::new([rows, 256], scheme)));
        let source = Arc::new(MemorySource::dummy(tensors, 5).unwrap());
        check_with(
            &format!("linears and tables in {scheme}"),
            68,
            &source,
            90,
            |m| {
                let table = m.b.param("table", &[VOCAB, 256]).unwrap();
                let ids = m.b.token_ids().unwrap();
                let x = m.b.embedding(table, ids).unwrap();
                let x = m.b.scale(x, 30.0).unwrap();
                let (a, b) = (
                    m.b.param("a", &[20, 256]).unwrap(),
                    m.b.param("b", &[48, 256]).unwrap(),
                );
                let bias = m.constant(&[48], 4, 1.0);
                let a = m.b.linear(x, a, None, Sharding::Column).unwrap();
                let b = m.b.linear(x, b, Some(bias), Sharding::Column).unwrap();
                m.b.concat(&[a, b], 0).unwrap()
            },
        );
    }
}

fn rope(rotary: u32, style: RopeStyle, scaling: RopeScaling) -> Rope {
    Rope {
        rotary,
        theta: 1000.0,
        style,
        scaling,
        axis: 0,
        start: 0,
    }
}

#[test]
fn ropes() {
    let all = [
        RopeScaling::None,
        RopeScaling::Linear { factor: 2.5 },
        RopeScaling::Dynamic {
            factor: 2.0,
            original: 32,
        },
        RopeScaling::Dynamic {
            factor: 2.0,
            original: 256,
        },
        RopeScaling::DynamicQwen { original: 20 },
        RopeScaling::Yarn {
            factor: 4.0,
            original: 32,
            beta_fast: 4.0,
            beta_slow: 1.0,
            attention_factor: 1.13,
            truncate: true,
        },
        RopeScaling::Yarn {
            factor: 4.0,
            original: 40,
            beta_fast: 3.0,
            beta_slow: 0.5,
            attention_factor: 0.9,
            truncate: false,
        },
        RopeScaling::Llama3 {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            original: 64,
        },
        RopeScaling::LongRope {
            short: noise(8, 3, 0.2).iter().map(|x| 1.0 + x.abs()).collect(),
            long: noise(8, 4, 0.9).iter().map(|x| 2.0 + x.abs()).collect(),
            original: 50,
            attention_factor: 1.2,
        },
        RopeScaling::LongRope {
            short: noise(8, 3, 0.2).iter().map(|x| 1.0 + x.abs()).collect(),
            long: noise(8, 4, 0.9).iter().map(|x| 2.0 + x.abs()).collect(),
            original: 200,
            attention_factor: 1.2,
        },
    ];
    for style in [RopeStyle::Neox, RopeStyle::Interleaved] {
        for scaling in all.clone() {
            check(&format!("{style:?} {scaling:?}"), 40, |m| {
                let x = m.input(&[2, 20], 1);
                let p = m.b.positions(PositionScheme::Standard).unwrap();
                m.b.rope(x, p, rope(16, style, scaling.clone())).unwrap()
            });
        }
        check("factors, start", 40, |m| {
            let x = m.input(&[2, 20], 1);
            let p = m.b.positions(PositionScheme::Standard).unwrap();
            let weight = m.b.constant(&[4], vec![1.0, 1.5, 4.0, 8.0]).unwrap();
            let scaling = RopeScaling::Factors { weight };
            m.b.rope(
                x,
                p,
                Rope {
                    start: 6,
                    ..rope(8, style, scaling)
                },
            )
            .unwrap()
        });
    }
}

#[test]
fn causal_convolutions() {
    for (i, (c, width, bias, activation)) in [
        (24, 4, false, Some(Activation::Silu)),
        (64, 2, true, None),
        (100, 3, true, Some(Activation::Silu)),
        // Wider than the first chunk is long.
        (7, 50, false, None),
    ]
    .into_iter()
    .enumerate()
    {
        check(&format!("convolution {i}"), c, |m| {
            let x = m.input(&[c], 1);
            let conv = CausalConv {
                weight: m.constant(&[c, width], 3, 0.7),
                bias: bias.then(|| m.constant(&[c], 5, 0.5)),
                cache: m.state((width - 1) * c),
                activation,
            };
            m.b.causal_conv(x, conv).unwrap()
        });
    }
}

#[test]
fn delta_rules() {
    for (i, (heads, k, v)) in [(1, 8, 8), (4, 16, 12), (3, 24, 40)]
        .into_iter()
        .enumerate()
    {
        check(&format!("delta rule {i}"), heads * v, |m| {
            let x = m.input(&[32], 1);
            let mut part = |shape: &[u32], seed| {
                let y = m.linear(x, shape.iter().product(), 32, seed);
                m.b.reshape(y, shape).unwrap()
            };
            let (q, key) = (part(&[heads, k], 3), part(&[heads, k], 5));
            let (value, g, beta) = (part(&[heads, v], 7), part(&[heads], 9), part(&[heads], 11));
            let f32 = |m: &mut Model, x| m.b.cast(x, ValueType::F32).unwrap();
            // Keys of length 1, a decay below 1 and a step size between 0 and 1, as models have them.
            let key = m.b.l2_norm(key, 1e-6).unwrap();
            let g = m.b.activate(g, Activation::Softplus).unwrap();
            let g = m.b.scale(g, -0.3).unwrap();
            let beta = m.b.activate(beta, Activation::Sigmoid).unwrap();
            let inputs = DeltaInputs {
                q,
                k: key,
                v: value,
                g: f32(m, g),
                beta: f32(m, beta),
            };
            let cache = m.state(heads * k * v);
            m.b.delta_rule(inputs, cache, 0.4).unwrap()
        });
    }
}

#[test]
fn attentions() {
    struct Case {
        heads: u32,
        kv_heads: u32,
        k_dim: u32,
        v_dim: u32,
        window: Option<u32>,
        softcap: Option<f32>,
        alibi: bool,
        sinks: bool,
        rope: bool,
    }
    let plain = || Case {
        heads: 4,
        kv_heads: 2,
        k_dim: 16,
        v_dim: 16,
        window: None,
        softcap: None,
        alibi: false,
        sinks: false,
        rope: false,
    };
    let cases = [
        plain(),
        Case {
            rope: true,
            ..plain()
        },
        Case {
            heads: 7,
            kv_heads: 1,
            ..plain()
        },
        Case {
            heads: 3,
            kv_heads: 3,
            k_dim: 24,
            v_dim: 40,
            ..plain()
        },
        Case {
            k_dim: 8,
            v_dim: 5,
            ..plain()
        },
        Case {
            window: Some(1),
            ..plain()
        },
        Case {
            window: Some(17),
            rope: true,
            ..plain()
        },
        Case {
            window: Some(64),
            ..plain()
        },
        Case {
            softcap: Some(1.5),
            ..plain()
        },
        Case {
            alibi: true,
            ..plain()
        },
        Case {
            sinks: true,
            ..plain()
        },
        Case {
            sinks: true,
            window: Some(9),
            softcap: Some(2.0),
            alibi: true,
            rope: true,
            v_dim: 64,
            ..plain()
        },
    ];
    for (i, c) in cases.iter().enumerate() {
        check_with(
            &format!("attention {i}"),
            c.heads * c.v_dim,
            &Arc::new(MemorySource::new()),
            200,
            |m| {
                let x = m.input(&[32], 1);
                let mut part = |n: u32, d: u32, seed| {
                    let y = m.linear(x, n * d, 32, seed);
                    m.b.reshape(y, &[n, d]).unwrap()
                };
                let (mut q, mut k) = (part(c.heads, c.k_dim, 3), part(c.kv_heads, c.k_dim, 5));
                let v = part(c.kv_heads, c.v_dim, 7);
                if c.rope {
                    let p = m.b.positions(PositionScheme::Standard).unwrap();
                    let r = rope(c.k_dim, RopeStyle::Neox, RopeScaling::None);
                    q = m.b.rope(q, p, r.clone()).unwrap();
                    k = m.b.rope(k, p, r).unwrap();
                }
                let cache = m.cache(c.kv_heads, c.k_dim, c.v_dim, c.window);
                let alibi = c.alibi.then(|| m.constant(&[c.heads], 21, 0.3));
                let sinks = c.sinks.then(|| m.constant(&[c.heads], 22, 2.0));
                let attention = Attention {
                    cache,
                    scale: 0.3,
                    mask: Mask::Causal,
                    window: c.window,
                    softcap: c.softcap,
                    alibi,
                    sinks,
                };
                m.b.attention(q, k, v, attention).unwrap()
            },
        );
    }
    check("two layers over one cache", 32, |m| {
        let x = m.input(&[2, 16], 1);
        let cache = m.cache(2, 16, 16, None);
        let a = Attention {
            cache,
            scale: 0.2,
            mask: Mask::Causal,
            window: None,
            softcap: None,
            alibi: None,
            sinks: None,
        };
        let y = m.b.attention(x, x, x, a).unwrap();
        m.b.attention_shared(
            y,
            Attention {
                window: Some(5),
                ..a
            },
        )
        .unwrap()
    });
}

/// DeepSeek's: rank + rope elements per position, heads that divide by nothing, and a head count of one.
#[test]
fn latent_attention() {
    for (heads, rank, rope, nope, v_dim) in
        [(4, 32, 8, 16, 24), (20, 24, 6, 10, 7), (1, 64, 16, 32, 32)]
    {
        check("latent attention", heads * v_dim, |m| {
            let q = m.input(&[heads, nope + rope], 1);
            let latent = m.input(&[rank], 2);
            let k_rope = m.input(&[rope], 3);
            let kv_b = m.constant(&[heads * (nope + v_dim), rank], 4, 0.4);
            let spec = CacheSpec {
                kind: CacheKind::Full,
                kv_heads: 1,
                k_dim: rank + rope,
                v_dim: rank,
                values: ValueLayout::PrefixOfKey,
                sharding: CacheSharding::Replicated,
            };
            let attention = LatentAttention {
                cache: m.b.declare_cache(spec).unwrap(),
                kv_b,
                nope,
                v_dim,
                scale: 0.2,
            };
            m.b.latent_attention(q, latent, k_rope, attention).unwrap()
        });
    }
}
