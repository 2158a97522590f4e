//! Choice of experts, row by row.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use guesthouse_graph::{RouteGroups, RouteScores};

use super::{Ctx, Instr, Place, Units, WorkerScratch};

#[cfg(test)]
mod tests;

/// How scores are made and chosen; see `graph::Route`.
pub(crate) struct Choice {
    pub scores: RouteScores,
    pub groups: Option<RouteGroups>,
    /// One per expert, for choosing only.
    pub correction: Option<Arc<[f32]>>,
    pub renormalize: bool,
    pub scale: f32,
}

/// `logits [experts]` → `weights [top_k]`, `ids [top_k]`, best first; of equal scores the lower id.
pub(crate) struct Route {
    pub choice: Choice,
    pub logits: Place,
    pub weights: Place,
    pub ids: Place,
}

impl Instr for Route {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        let cost = self.logits.width * (4 + self.ids.width);
        Units::new(ctx.rows(self.ids.arena), cost, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        let (logits, weights, ids) = (
            ctx.tensor(&self.logits),
            ctx.tensor(&self.weights),
            ctx.tensor(&self.ids),
        );
        let mut work = Work::default();
        for row in units {
            // SAFETY: a unit is a row of both results.
            unsafe {
                self.choice.row(
                    logits.row(row),
                    weights.row_mut(row),
                    ids.ints_mut(row),
                    &mut work,
                );
            }
        }
    }
}

/// Memory of one row.
#[derive(Default)]
struct Work {
    scores: Vec<f32>,
    /// What is chosen by.
    merit: Vec<f32>,
    open: Vec<bool>,
}

impl Choice {
    fn row(&self, logits: &[f32], weights: &mut [f32], ids: &mut [i32], work: &mut Work) {
        let Work {
            scores,
            merit,
            open,
        } = work;
        scores.clear();
        scores.extend_from_slice(logits);
        match self.scores {
            RouteScores::Softmax => softmax(scores),
            RouteScores::SoftmaxOfChosen => {}
            RouteScores::Sigmoid => {
                for s in &mut *scores {
                    *s = 1.0 / (1.0 + (-*s).exp());
                }
            }
        }
        merit.clear();
        merit.extend_from_slice(scores);
        if let Some(correction) = &self.correction {
            for (m, c) in merit.iter_mut().zip(&correction[..]) {
                *m += c;
            }
        }
        open.clear();
        open.resize(scores.len(), self.groups.is_none());
        if let Some(groups) = self.groups {
            open_groups(groups, merit, open);
        }
        for (weight, id) in weights.iter_mut().zip(&mut *ids) {
            let best = best(merit, open);
            open[best] = false;
            *weight = scores[best];
            *id = best as i32;
        }
        if self.scores == RouteScores::SoftmaxOfChosen {
            softmax(weights);
        }
        if self.renormalize {
            // As the reference implementations of DeepSeek: no division by zero.
            let sum = weights.iter().sum::<f32>() + 1e-20;
            for w in &mut *weights {
                *w /= sum;
            }
        }
        for w in weights {
            *w *= self.scale;
        }
    }
}

/// The open element of greatest merit. NaN loses to numbers; the verifier makes sure that one is open.
fn best(merit: &[f32], open: &[bool]) -> usize {
    let mut found: Option<usize> = None;
    for (i, (&m, _)) in merit.iter().zip(open).enumerate().filter(|(_, (_, o))| **o) {
        if found.is_none_or(|f| m > merit[f] || merit[f].is_nan() && !m.is_nan()) {
            found = Some(i);
        }
    }
    found.unwrap_or(0)
}

/// Opens the groups whose best experts sum to most.
fn open_groups(groups: RouteGroups, merit: &[f32], open: &mut [bool]) {
    let size = merit.len() / groups.count as usize;
    let mut totals: Vec<f32> = merit
        .chunks_exact(size)
        .map(|group| {
            let mut left = vec![true; size];
            let mut sum = 0.0;
            for _ in 0..groups.sum_of {
                let i = best(group, &left);
                left[i] = false;
                sum += group[i];
            }
            sum
        })
        .collect();
    let mut left = vec![true; totals.len()];
    for _ in 0..groups.top {
        let g = best(&totals, &left);
        left[g] = false;
        totals[g] = f32::NEG_INFINITY;
        open[g * size..(g + 1) * size].fill(true);
    }
}

fn softmax(x: &mut [f32]) {
    let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for x in &mut *x {
        *x = (*x - top).exp();
        sum += *x;
    }
    for x in x {
        *x /= sum;
    }
}
