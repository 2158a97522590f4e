//! The operations.

use guesthouse_graph::{
    Activation, Attention, Gate, LatentAttention, Mask, Node, Op, PositionScheme,
};

use super::{Oracle, Rows};

impl Oracle<'_> {
    #[allow(clippy::too_many_lines)]
    pub(super) fn node(&mut self, node: &Node) -> Vec<Rows> {
        let ins: Vec<Rows> = node
            .inputs
            .iter()
            .map(|v| self.values[v.index()].clone())
            .collect();
        let shapes: Vec<Vec<usize>> = node.inputs.iter().map(|&v| self.shape(v)).collect();
        let n = self.tokens.len();
        let map = |f: &dyn Fn(f64) -> f64| -> Vec<Rows> {
            vec![
                ins[0]
                    .iter()
                    .map(|r| r.iter().map(|&x| f(x)).collect())
                    .collect(),
            ]
        };
        let last = |i: usize| shapes[i].last().copied().unwrap_or(1);
        match &node.op {
            Op::TokenIds => vec![self.tokens.iter().map(|&t| vec![f64::from(t)]).collect()],
            Op::Positions(scheme) => {
                let offset = match scheme {
                    PositionScheme::Standard => 0,
                    PositionScheme::Offset(o) => *o,
                    PositionScheme::Glm2d { mask, gmask, bos } => {
                        return vec![self.glm_positions(*mask, *gmask, *bos)];
                    }
                };
                vec![(0..n).map(|p| vec![p as f64 + f64::from(offset)]).collect()]
            }
            Op::Embedding { table } => {
                let d = self.shape(node.outputs[0])[0];
                let table = self.weight(*table);
                let row = |r: &Vec<f64>| table[r[0] as usize * d..(r[0] as usize + 1) * d].to_vec();
                vec![ins[0].iter().map(row).collect()]
            }
            Op::WeightValue { weight } => vec![vec![self.weight(*weight); n]],
            Op::Linear { segments, .. } => {
                let mut out = vec![Vec::new(); n];
                for s in segments {
                    let w = self.weight(s.weight);
                    let bias = s.bias.map(|b| self.weight(b));
                    let d = last(0);
                    for (x, y) in ins[0].iter().zip(&mut out) {
                        for (i, w) in w.chunks(d).enumerate() {
                            let dot: f64 = w.iter().zip(x).map(|(w, x)| w * x).sum();
                            y.push(dot + bias.as_ref().map_or(0.0, |b| b[i]));
                        }
                    }
                }
                vec![out]
            }
            Op::RmsNorm(p) => {
                let w = p.weight.map(|w| self.weight(w));
                let d = last(0);
                vec![vectors(&ins[0], d, |x, at| {
                    let ms = x.iter().map(|x| x * x).sum::<f64>() / d as f64;
                    let w = |i: usize| {
                        w.as_ref()
                            .map_or(1.0, |w| f64::from(p.offset) + w[(at + i) % w.len()])
                    };
                    x.iter()
                        .enumerate()
                        .map(|(i, x)| x / (ms + f64::from(p.eps)).sqrt() * w(i))
                        .collect()
                })]
            }
            Op::LayerNorm(p) => {
                let w = p.weight.map(|w| self.weight(w));
                let b = p.bias.map(|w| self.weight(w));
                let d = last(0);
                vec![vectors(&ins[0], d, |x, at| {
                    let mean = x.iter().sum::<f64>() / d as f64;
                    let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / d as f64;
                    let of = |all: &Option<Vec<f64>>, i: usize, or: f64| {
                        all.as_ref().map_or(or, |w| w[(at + i) % w.len()])
                    };
                    let each = |(i, x): (usize, &f64)| {
                        (x - mean) / (var + f64::from(p.eps)).sqrt() * of(&w, i, 1.0)
                            + of(&b, i, 0.0)
                    };
                    x.iter().enumerate().map(each).collect()
                })]
            }
            Op::L2Norm { eps } => vec![vectors(&ins[0], last(0), |x, _| {
                let norm = (x.iter().map(|x| x * x).sum::<f64>() + f64::from(*eps)).sqrt();
                x.iter().map(|x| x / norm).collect()
            })],
            Op::Rope(rope) => {
                let weight = match &rope.scaling {
                    guesthouse_graph::RopeScaling::Factors { weight } => Some(self.weight(*weight)),
                    _ => None,
                };
                let d = last(0);
                let mut out = Vec::new();
                for (p, (row, at)) in ins[0].iter().zip(&ins[1]).enumerate() {
                    let len = self.prompt_len.max(p + 1);
                    let (freqs, factor) = super::rope::frequencies(rope, weight.as_deref(), len);
                    out.push(super::rope::rotate(
                        rope,
                        row,
                        d,
                        at[rope.axis as usize],
                        &freqs,
                        factor,
                    ));
                }
                vec![out]
            }
            Op::Attention(a) => {
                if ins.len() == 3 {
                    self.caches[a.cache.index()] = (ins[1].clone(), ins[2].clone());
                }
                vec![self.attention(a, &ins[0])]
            }
            Op::LatentAttention(a) => vec![self.latent_attention(a, [&ins[0], &ins[1], &ins[2]])],
            Op::Activation(a) => map(&|x| activate(*a, x)),
            Op::Gated(gate) => vec![zip(&ins[0], &ins[1], |g, u| gated(*gate, g, u))],
            Op::Add | Op::Mul => {
                let (a, b) = (&shapes[0], &shapes[1]);
                let mul = matches!(node.op, Op::Mul);
                let each = |(x, y): (&Vec<f64>, &Vec<f64>)| {
                    let at = |i: usize| {
                        // Index by index, from the last dimension on.
                        let (mut rest, mut stride, mut from) = (i, 1, 0);
                        for (k, &size) in a.iter().rev().enumerate() {
                            let here = rest % size;
                            rest /= size;
                            let other = b.len().checked_sub(k + 1).map_or(1, |j| b[j]);
                            from += if other == 1 { 0 } else { here } * stride;
                            stride *= other;
                        }
                        y[from]
                    };
                    x.iter()
                        .enumerate()
                        .map(|(i, x)| if mul { x * at(i) } else { x + at(i) })
                        .collect()
                };
                vec![ins[0].iter().zip(&ins[1]).map(each).collect()]
            }
            Op::Scale { by } => map(&|x| x * f64::from(*by)),
            Op::Clamp { min, max } => map(&|x| x.clamp(f64::from(*min), f64::from(*max))),
            Op::SoftCap { cap } => map(&|x| f64::from(*cap) * (x / f64::from(*cap)).tanh()),
            Op::LogNScale { train_len } => {
                let each = |(x, p): (&Vec<f64>, &Vec<f64>)| {
                    let by = ((p[0] + 1.0).ln() / f64::from(*train_len).ln()).max(1.0);
                    x.iter().map(|x| x * by).collect()
                };
                vec![ins[0].iter().zip(&ins[1]).map(each).collect()]
            }
            Op::Cast { .. } | Op::Reshape { .. } | Op::GatherOutputs => vec![ins[0].clone()],
            Op::Split { axis, sizes } => {
                let mut start = 0;
                let part = |&size: &u32| {
                    let rows = take(&ins[0], &shapes[0], *axis as usize, start, size as usize);
                    start += size as usize;
                    rows
                };
                sizes.iter().map(part).collect()
            }
            Op::Slice { axis, start, len } => {
                vec![take(
                    &ins[0],
                    &shapes[0],
                    *axis as usize,
                    *start as usize,
                    *len as usize,
                )]
            }
            Op::Concat { axis } => {
                let axis = *axis as usize;
                let outer: usize = shapes[0][..axis].iter().product();
                let mut out = vec![Vec::new(); n];
                for (t, out) in out.iter_mut().enumerate() {
                    for o in 0..outer {
                        for (part, shape) in ins.iter().zip(&shapes) {
                            let run: usize = shape[axis..].iter().product();
                            out.extend_from_slice(&part[t][o * run..(o + 1) * run]);
                        }
                    }
                }
                vec![out]
            }
            Op::SwapAxes => {
                let (a, b) = (shapes[0][0], shapes[0][1]);
                let swap = |x: &Vec<f64>| (0..a * b).map(|i| x[i % a * b + i / a]).collect();
                vec![ins[0].iter().map(swap).collect()]
            }
            Op::RepeatHeads { times } => {
                let d = last(0);
                let repeat = |x: &Vec<f64>| {
                    x.chunks(d)
                        .flat_map(|h| h.repeat(*times as usize))
                        .collect()
                };
                vec![ins[0].iter().map(repeat).collect()]
            }
            Op::CausalConv {
                weight,
                bias,
                activation,
                ..
            } => {
                let (w, c) = (self.weight(*weight), last(0));
                let bias = bias.map(|b| self.weight(b));
                let width = w.len() / c;
                let channel = |t: usize, i: usize| {
                    let sum: f64 = (0..width.min(t + 1))
                        .map(|back| ins[0][t - back][i] * w[i * width + width - 1 - back])
                        .sum();
                    let y = sum + bias.as_ref().map_or(0.0, |b| b[i]);
                    activation.map_or(y, |a| activate(a, y))
                };
                let row = |t: usize| (0..c).map(|i| channel(t, i)).collect();
                vec![(0..n).map(row).collect()]
            }
            Op::DeltaRule { scale, .. } => {
                vec![delta_rule(&ins, (last(0), last(2)), f64::from(*scale))]
            }
            Op::Route(r) => self.route(r, &ins[0]),
            Op::Experts(e) => vec![self.experts(e, &ins[0], &ins[1], &ins[2])],
            other => panic!("the reference has no {other:?}"),
        }
    }

    /// Every head's keys and values, expanded.
    fn latent_attention(&self, a: &LatentAttention, [q, latent, k_rope]: [&Rows; 3]) -> Rows {
        let kv_b = self.weight(a.kv_b);
        let (nope, v_dim) = (a.nope as usize, a.v_dim as usize);
        let (rank, rope) = (latent[0].len(), k_rope[0].len());
        let heads = kv_b.len() / rank / (nope + v_dim);
        let expand = |x: &Vec<f64>| -> Vec<f64> {
            let dot = |w: &[f64]| w.iter().zip(x).map(|(w, x)| w * x).sum();
            kv_b.chunks(rank).map(dot).collect()
        };
        let kv: Rows = latent.iter().map(expand).collect();
        let mut out = Vec::new();
        for (p, q) in q.iter().enumerate() {
            let mut row = Vec::new();
            for h in 0..heads {
                let q = &q[h * (nope + rope)..][..nope + rope];
                let at = h * (nope + v_dim);
                let score = |j: usize| {
                    let key = kv[j][at..at + nope].iter().chain(&k_rope[j]);
                    key.zip(q).map(|(k, q)| k * q).sum::<f64>() * f64::from(a.scale)
                };
                let scores: Vec<f64> = (0..=p).map(score).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let total: f64 = weights.iter().sum();
                for d in 0..v_dim {
                    let sum: f64 = weights
                        .iter()
                        .zip(&kv)
                        .map(|(w, kv)| w * kv[at + nope + d])
                        .sum();
                    row.push(sum / total);
                }
            }
            out.push(row);
        }
        out
    }

    /// As ChatGLM-6B's `get_position_ids`; its prompts have both marks.
    fn glm_positions(&self, mask: u32, gmask: u32, bos: u32) -> Rows {
        let prompt = &self.tokens[..self.prompt_len];
        let find = |token| prompt.iter().position(|&t| t == token);
        let (at, context) = (find(gmask).or(find(mask)).unwrap(), find(bos).unwrap());
        (0..self.tokens.len())
            .map(|p| match p.checked_sub(context) {
                None => vec![p as f64, 0.0],
                Some(beyond) => vec![at as f64, beyond as f64 + 1.0],
            })
            .collect()
    }

    /// Positions below it see each other.
    fn prefix(&self, mask: Mask) -> usize {
        let prompt = &self.tokens[..self.prompt_len];
        match mask {
            Mask::Causal => 0,
            Mask::PrefixLm => self.prompt_len,
            Mask::PrefixBefore { marker } => prompt
                .iter()
                .position(|&t| t == marker)
                .unwrap_or(self.prompt_len),
        }
    }

    fn attention(&self, a: &Attention, q: &Rows) -> Rows {
        let spec = self.graph.cache(a.cache);
        let (k_dim, v_dim, kv_heads) = (
            spec.k_dim as usize,
            spec.v_dim as usize,
            spec.kv_heads as usize,
        );
        let (keys, values) = &self.caches[a.cache.index()];
        let slopes = a.alibi.map(|w| self.weight(w));
        let sinks = a.sinks.map(|w| self.weight(w));
        let heads = q[0].len() / k_dim;
        let mut out = Vec::new();
        for (p, q) in q.iter().enumerate() {
            let mut row = Vec::new();
            for h in 0..heads {
                let kv = h / (heads / kv_heads);
                let first = a.window.map_or(0, |w| (p + 1).saturating_sub(w as usize));
                let end = (p + 1).max(self.prefix(a.mask));
                let mut scores: Vec<f64> = (first..end)
                    .map(|j| {
                        let k = &keys[j][kv * k_dim..(kv + 1) * k_dim];
                        let dot: f64 = q[h * k_dim..(h + 1) * k_dim]
                            .iter()
                            .zip(k)
                            .map(|(a, b)| a * b)
                            .sum();
                        let mut s = dot * f64::from(a.scale);
                        if let Some(cap) = a.softcap {
                            s = f64::from(cap) * (s / f64::from(cap)).tanh();
                        }
                        s + slopes
                            .as_ref()
                            .map_or(0.0, |m| m[h] * (j as f64 - p as f64))
                    })
                    .collect();
                if let Some(s) = &sinks {
                    scores.push(s[h]);
                }
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let total: f64 = weights.iter().sum();
                for d in 0..v_dim {
                    let sum: f64 = (first..end)
                        .zip(&weights)
                        .map(|(j, w)| w * values[j][kv * v_dim + d])
                        .sum();
                    row.push(sum / total);
                }
            }
            out.push(row);
        }
        out
    }
}

/// Gated delta rule as its paper writes it (Yang et al. 2024, equation 10), one head and one token at a time, with
/// `S [v, k]`: `S ← S (e^g (I − beta k kᵀ)) + beta v kᵀ`.
fn delta_rule(ins: &[Rows], (dk, dv): (usize, usize), scale: f64) -> Rows {
    let heads = ins[3][0].len();
    let mut out = vec![Vec::new(); ins[0].len()];
    for h in 0..heads {
        let mut state = vec![vec![0f64; dk]; dv];
        for (t, out) in out.iter_mut().enumerate() {
            let (q, k) = (&ins[0][t][h * dk..][..dk], &ins[1][t][h * dk..][..dk]);
            let v = &ins[2][t][h * dv..][..dv];
            let (decay, beta) = (ins[3][t][h].exp(), ins[4][t][h]);
            for (row, v) in state.iter_mut().zip(v) {
                let along: f64 = row.iter().zip(k).map(|(s, k)| s * k).sum();
                for (s, k) in row.iter_mut().zip(k) {
                    *s = decay * (*s - beta * along * k) + beta * v * k;
                }
                out.push(scale * row.iter().zip(q).map(|(s, q)| s * q).sum::<f64>());
            }
        }
    }
    out
}

fn vectors(x: &Rows, d: usize, f: impl Fn(&[f64], usize) -> Vec<f64>) -> Rows {
    x.iter()
        .map(|row| {
            row.chunks(d)
                .enumerate()
                .flat_map(|(i, v)| f(v, i * d))
                .collect()
        })
        .collect()
}

fn zip(a: &Rows, b: &Rows, f: impl Fn(f64, f64) -> f64) -> Rows {
    a.iter()
        .zip(b)
        .map(|(a, b)| a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect())
        .collect()
}

fn take(x: &Rows, shape: &[usize], axis: usize, start: usize, len: usize) -> Rows {
    let inner: usize = shape[axis + 1..].iter().product();
    let run = shape[axis] * inner;
    x.iter()
        .map(|row| {
            row.chunks(run)
                .flat_map(|r| r[start * inner..(start + len) * inner].to_vec())
                .collect()
        })
        .collect()
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..300 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    if x.abs() > 5.0 {
        x.signum()
    } else {
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }
}

pub fn activate(a: Activation, x: f64) -> f64 {
    match a {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
        Activation::GeluTanh => {
            0.5 * x
                * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Activation::QuickGelu => x * sigmoid(1.702 * x),
        Activation::Relu => x.max(0.0),
        Activation::Relu2 => x.max(0.0).powi(2),
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => x.tanh(),
        Activation::Softplus => x.exp().ln_1p(),
        Activation::Exp => x.exp(),
    }
}

pub fn gated(gate: Gate, g: f64, u: f64) -> f64 {
    match gate {
        Gate::Plain(a) => activate(a, g) * u,
        Gate::Clamped { alpha, limit } => {
            let limit = f64::from(limit);
            let (g, u) = (g.min(limit), u.clamp(-limit, limit));
            g * sigmoid(f64::from(alpha) * g) * (u + 1.0)
        }
    }
}
