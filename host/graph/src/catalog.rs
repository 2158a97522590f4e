//! What the builder may ask about a checkpoint.

use std::collections::BTreeSet;
use std::sync::Arc;

use guesthouse_weights::{DType, TensorInfo, WeightSource};

use crate::{Graph, WeightExpr};

/// Answer to "is there a tensor of this name?".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The checkpoint has it.
    Present(TensorInfo),
    /// There is no checkpoint: take whatever shape the guest states, stored plainly.
    Assumed(DType),
    /// There is no checkpoint either, and models have this tensor only where their config says so: asking whether it
    /// exists finds nothing, using it works as for [`Lookup::Assumed`].
    OnDemand(DType),
    /// The checkpoint lacks it.
    Absent,
}

/// The tensors a graph may name.
pub trait Catalog: Send + Sync {
    /// Looks a tensor up by its Hugging Face name.
    fn lookup(&self, name: &str) -> Lookup;

    /// All names, for hints in errors; empty where unknown.
    fn names(&self) -> Vec<String>;
}

/// A catalog over a real checkpoint.
pub struct SourceCatalog {
    source: Arc<dyn WeightSource>,
}

impl SourceCatalog {
    /// Answers from `source`.
    #[must_use]
    pub fn new(source: Arc<dyn WeightSource>) -> Self {
        Self { source }
    }
}

impl Catalog for SourceCatalog {
    fn lookup(&self, name: &str) -> Lookup {
        self.source
            .info(name)
            .map_or(Lookup::Absent, Lookup::Present)
    }

    fn names(&self) -> Vec<String> {
        self.source.names()
    }
}

/// A catalog without a checkpoint: accepts each parameter with the shape that the guest states. For dummy
/// weights.
#[derive(Clone, Debug)]
pub struct AssumedCatalog {
    dtype: DType,
    absent: fn(&str) -> bool,
    absent_names: BTreeSet<String>,
}

impl AssumedCatalog {
    /// Everything exists, stored as `dtype`, but what models have only now and then: biases, query and key norms, and
    /// an output head of its own.
    #[must_use]
    pub fn new(dtype: DType) -> Self {
        Self {
            dtype,
            absent: often_absent,
            absent_names: BTreeSet::new(),
        }
    }

    /// Replaces the predicate that says which names do not exist.
    #[must_use]
    pub fn absent_where(mut self, absent: fn(&str) -> bool) -> Self {
        self.absent = absent;
        self
    }

    /// Adds names that do not exist.
    #[must_use]
    pub fn absent(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.absent_names.extend(names);
        self
    }
}

impl Catalog for AssumedCatalog {
    fn lookup(&self, name: &str) -> Lookup {
        if (self.absent)(name) || self.absent_names.contains(name) {
            Lookup::Absent
        } else {
            Lookup::Assumed(self.dtype)
        }
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A catalog for dummy weights: what the guest uses exists, and what it only asks about is answered as the usual
/// checkpoint of the config would. Linear biases that no config demands and GGUF's rope factors are not there; biases of
/// layer norms, norms on queries and keys, and an output head are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DummyCatalog {
    /// Type of every tensor's elements.
    pub dtype: DType,
}

impl Catalog for DummyCatalog {
    fn lookup(&self, name: &str) -> Lookup {
        let mut parts = name.rsplit('.');
        let (last, of) = (
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
        );
        let norm = of.contains("norm") || of.starts_with("ln_");
        if (last == "bias" && !norm) || name == "rope_freqs.weight" {
            Lookup::OnDemand(self.dtype)
        } else {
            Lookup::Assumed(self.dtype)
        }
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The default predicate of [`AssumedCatalog`].
fn often_absent(name: &str) -> bool {
    ["bias", "q_norm", "k_norm", "lm_head"]
        .iter()
        .any(|part| name.contains(part))
}

/// ", which has 'a' and 'b'": up to three existing names that resemble a missing one, or nothing.
pub(crate) fn hint(name: &str, names: &[String]) -> String {
    let mut scored: Vec<(usize, &str)> = names
        .iter()
        .map(|n| (resemblance(name, n), n.as_str()))
        .filter(|&(score, n)| score * 2 >= name.len().max(n.len()))
        .collect();
    scored.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    let best: Vec<String> = scored
        .iter()
        .take(3)
        .map(|(_, n)| format!("'{n}'"))
        .collect();
    if best.is_empty() {
        String::new()
    } else {
        format!(" (it has {})", best.join(", "))
    }
}

/// Bytes in the common prefix and suffix.
fn resemblance(a: &str, b: &str) -> usize {
    let prefix = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    let room = a.len().min(b.len()) - prefix;
    let suffix = a
        .bytes()
        .rev()
        .zip(b.bytes().rev())
        .take(room)
        .take_while(|(x, y)| x == y)
        .count();
    prefix + suffix
}

/// The checkpoint's tensors that a graph does not name, in the order of `names`.
#[must_use]
pub fn unused_params(graph: &Graph, names: &[String]) -> Vec<String> {
    let used: BTreeSet<&str> = graph
        .weights
        .iter()
        .filter_map(|w| match &w.expr {
            WeightExpr::Param { name } => Some(name.as_str()),
            _ => None,
        })
        .collect();
    names
        .iter()
        .filter(|n| !used.contains(n.as_str()))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests;
