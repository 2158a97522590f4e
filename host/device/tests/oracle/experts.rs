//! Choice of experts and their sum.

use guesthouse_graph::{Experts, GateLayout, Route, RouteScores};

use super::ops::{gated, sigmoid};
use super::{Oracle, Rows};

impl Oracle<'_> {
    pub(super) fn route(&self, r: &Route, logits: &Rows) -> Vec<Rows> {
        let correction = r.correction.map(|w| self.weight(w));
        let (mut weights, mut ids) = (Rows::new(), Rows::new());
        for x in logits {
            let scores: Vec<f64> = match r.scores {
                RouteScores::Softmax => softmax(x),
                RouteScores::SoftmaxOfChosen => x.clone(),
                RouteScores::Sigmoid => x.iter().map(|&x| sigmoid(x)).collect(),
            };
            let merit = |e: &usize| scores[*e] + correction.as_ref().map_or(0.0, |c| c[*e]);
            let best = |of: Vec<usize>| {
                let mut of = of;
                of.sort_by(|a, b| merit(b).total_cmp(&merit(a)));
                of
            };
            let mut open: Vec<usize> = (0..x.len()).collect();
            if let Some(g) = r.groups {
                let size = x.len() / g.count as usize;
                let total = |g0: usize| -> f64 {
                    let members = best((g0 * size..(g0 + 1) * size).collect());
                    members.iter().take(g.sum_of as usize).map(&merit).sum()
                };
                let mut order: Vec<usize> = (0..g.count as usize).collect();
                order.sort_by(|&a, &b| total(b).total_cmp(&total(a)));
                order.truncate(g.top as usize);
                open.retain(|e| order.contains(&(e / size)));
            }
            let chosen: Vec<usize> = best(open).into_iter().take(r.top_k as usize).collect();
            let mut w: Vec<f64> = chosen.iter().map(|&e| scores[e]).collect();
            if r.scores == RouteScores::SoftmaxOfChosen {
                w = softmax(&w);
            }
            let sum: f64 = if r.renormalize { w.iter().sum() } else { 1.0 };
            weights.push(w.iter().map(|w| w / sum * f64::from(r.scale)).collect());
            ids.push(chosen.iter().map(|&e| e as f64).collect());
        }
        vec![weights, ids]
    }

    pub(super) fn experts(&self, e: &Experts, x: &Rows, weights: &Rows, ids: &Rows) -> Rows {
        let (up, down) = (self.weight(e.gate_up), self.weight(e.down));
        let up_bias = e.gate_up_bias.map(|w| self.weight(w));
        let down_bias = e.down_bias.map(|w| self.weight(w));
        let hidden = x[0].len();
        let ffn = self.graph.weight(e.down).shape[2] as usize;
        let product = |w: &[f64], bias: Option<&[f64]>, x: &[f64], expert: usize, out: usize| {
            (0..out)
                .map(|r| {
                    let row = &w[(expert * out + r) * x.len()..][..x.len()];
                    let dot: f64 = row.iter().zip(x).map(|(w, x)| w * x).sum();
                    dot + bias.map_or(0.0, |b| b[expert * out + r])
                })
                .collect::<Vec<f64>>()
        };
        let mut out = Vec::new();
        for ((x, weights), ids) in x.iter().zip(weights).zip(ids) {
            let mut y = vec![0.0; hidden];
            for (weight, &id) in weights.iter().zip(ids) {
                let id = id as usize;
                let h = product(&up, up_bias.as_deref(), x, id, 2 * ffn);
                let act: Vec<f64> = (0..ffn)
                    .map(|i| match e.layout {
                        GateLayout::Halves => gated(e.gate, h[i], h[ffn + i]),
                        GateLayout::Interleaved => gated(e.gate, h[2 * i], h[2 * i + 1]),
                    })
                    .collect();
                let result = product(&down, down_bias.as_deref(), &act, id, hidden);
                for (y, r) in y.iter_mut().zip(result) {
                    *y += weight * r;
                }
            }
            out.push(y);
        }
        out
    }
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|e| e / sum).collect()
}
