//! Static dimensions.

use guesthouse_graph::{Graph, ValueId};

use crate::cpu::ops::pointwise::Spread;
use crate::cpu::ops::shape::Strided;

pub(super) fn dims(graph: &Graph, value: ValueId) -> Vec<usize> {
    graph
        .value(value)
        .shape
        .iter()
        .map(|&d| d as usize)
        .collect()
}

/// How `b` meets `a` element by element: aligned at the last dimension, missing or unit dimensions repeat.
pub(super) fn spread(a: &[usize], b: &[usize]) -> Option<Spread> {
    let (width_a, width_b): (usize, usize) = (a.iter().product(), b.iter().product());
    if width_b == 1 {
        return Some(Spread::One);
    }
    if b.len() > a.len() {
        return None;
    }
    let mut padded = vec![1; a.len() - b.len()];
    padded.extend_from_slice(b);
    if a.iter().zip(&padded).any(|(&a, &b)| b != a && b != 1) {
        return None;
    }
    if width_a == width_b {
        return Some(Spread::Same);
    }
    let mut index = Vec::with_capacity(width_a);
    let mut at = vec![0usize; a.len()];
    for _ in 0..width_a {
        let i = at
            .iter()
            .zip(&padded)
            .fold(0, |i, (&at, &b)| i * b + if b == 1 { 0 } else { at });
        index.push(u32::try_from(i).ok()?);
        for (at, &a) in at.iter_mut().zip(a).rev() {
            *at += 1;
            if *at < a {
                break;
            }
            *at = 0;
        }
    }
    Some(Spread::Index(index))
}

/// `start..start + len` of an axis of x, packed.
pub(super) fn take(x: &[usize], axis: usize, start: usize, len: usize) -> Option<Strided> {
    let size = *x.get(axis)?;
    if start.checked_add(len)? > size {
        return None;
    }
    let outer = x[..axis].iter().product();
    let inner: usize = x[axis + 1..].iter().product();
    Some(Strided {
        outer,
        len: len * inner,
        from: (start * inner, size * inner),
        to: (0, len * inner),
    })
}
