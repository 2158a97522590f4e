//! Where a rule is applied, and the checks and messages that rules share.

use std::fmt;
use std::ops::Deref;

use guesthouse_weights::Scheme;

use super::weights::{is_float, weight_name};
use crate::{CacheId, CacheSpec, GraphError, Rows, ValueInfo, ValueType, Weight, WeightId};

/// The op at hand and the tables its ids point into.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    /// Its name.
    pub(crate) op: &'static str,
    /// Its scope; may be empty.
    pub(crate) scope: &'a str,
    pub(crate) weights: &'a [Weight],
    pub(crate) caches: &'a [CacheSpec],
}

/// An input with the name that messages use.
#[derive(Clone, Copy)]
pub(super) struct Arg<'a> {
    pub(super) name: &'static str,
    info: &'a ValueInfo,
}

impl Deref for Arg<'_> {
    type Target = ValueInfo;

    fn deref(&self) -> &ValueInfo {
        self.info
    }
}

impl fmt::Display for Arg<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.info)
    }
}

/// "x [tokens, 4], y [tokens, 5]"
pub(super) fn list(args: &[Arg<'_>]) -> String {
    let texts: Vec<String> = args.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// How a weight must be stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// Floating-point numbers, plain or in blocks.
    Any,
    /// Plain floating-point numbers.
    Plain,
}

impl<'a> Context<'a> {
    /// "linear in layers.0.mlp"
    pub(crate) fn at(&self) -> String {
        if self.scope.is_empty() {
            self.op.to_owned()
        } else {
            format!("{} in {}", self.op, self.scope)
        }
    }

    /// Names the inputs, whose number must be N.
    pub(super) fn args<'v, const N: usize>(
        &self,
        inputs: &[&'v ValueInfo],
        names: [&'static str; N],
    ) -> Result<[Arg<'v>; N], GraphError> {
        let args: Vec<Arg<'v>> = inputs
            .iter()
            .zip(names)
            .map(|(&info, name)| Arg { name, info })
            .collect();
        if inputs.len() == N
            && let Ok(args) = args.try_into()
        {
            return Ok(args);
        }
        Err(GraphError::Malformed {
            at: self.at(),
            found: format!("{} inputs", inputs.len()),
            expected: format!("{N}: {}", names.join(", ")),
        })
    }

    /// Any number of inputs of one name.
    pub(super) fn args_named<'v>(inputs: &[&'v ValueInfo], name: &'static str) -> Vec<Arg<'v>> {
        inputs.iter().map(|&info| Arg { name, info }).collect()
    }

    pub(crate) fn weight(&self, id: WeightId) -> Result<&'a Weight, GraphError> {
        self.weights
            .get(id.index())
            .ok_or_else(|| self.unknown("weight", id.0, self.weights.len()))
    }

    pub(super) fn cache(&self, id: CacheId) -> Result<&'a CacheSpec, GraphError> {
        self.caches
            .get(id.index())
            .ok_or_else(|| self.unknown("cache", id.0, self.caches.len()))
    }

    fn unknown(&self, kind: &'static str, id: u32, known: usize) -> GraphError {
        GraphError::UnknownId {
            at: self.at(),
            kind,
            id,
            known,
        }
    }

    /// "weight 'model.norm.weight' [4096]"
    pub(super) fn weight_text(&self, role: &str, id: WeightId) -> String {
        let shape = self
            .weights
            .get(id.index())
            .map_or_else(|| "[?]".to_owned(), |w| format!("{:?}", w.shape));
        format!("{role} {} {shape}", weight_name(self.weights, id))
    }

    pub(super) fn shape_error(
        &self,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> GraphError {
        GraphError::Shape {
            at: self.at(),
            found: found.into(),
            expected: expected.into(),
        }
    }

    pub(super) fn cache_error(
        &self,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> GraphError {
        GraphError::Cache {
            at: self.at(),
            found: found.into(),
            expected: expected.into(),
        }
    }

    pub(super) fn parameter(
        &self,
        name: &'static str,
        found: impl fmt::Display,
        expected: impl Into<String>,
    ) -> GraphError {
        GraphError::Parameter {
            at: self.at(),
            name,
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    pub(super) fn finite(&self, name: &'static str, x: f32) -> Result<(), GraphError> {
        if x.is_finite() {
            Ok(())
        } else {
            Err(self.parameter(name, x, "a finite number"))
        }
    }

    pub(super) fn positive(&self, name: &'static str, x: f32) -> Result<(), GraphError> {
        if x.is_finite() && x > 0.0 {
            Ok(())
        } else {
            Err(self.parameter(name, x, "a positive number"))
        }
    }

    pub(super) fn not_negative(&self, name: &'static str, x: f32) -> Result<(), GraphError> {
        if x.is_finite() && x >= 0.0 {
            Ok(())
        } else {
            Err(self.parameter(name, x, "zero or a positive number"))
        }
    }

    /// All inputs hold floating-point numbers of one type.
    pub(super) fn one_float_type(&self, args: &[Arg<'_>]) -> Result<ValueType, GraphError> {
        let first = args.first().map_or(ValueType::I32, |a| a.ty);
        if first != ValueType::I32 && args.iter().all(|a| a.ty == first) {
            return Ok(first);
        }
        self.types(args, "floating-point numbers of one type")
    }

    pub(super) fn has_type(&self, arg: Arg<'_>, ty: ValueType) -> Result<(), GraphError> {
        if arg.ty == ty {
            Ok(())
        } else {
            self.types(&[arg], &format!("{} {ty}", arg.name))
                .map(|_| ())
        }
    }

    fn types(&self, args: &[Arg<'_>], expected: &str) -> Result<ValueType, GraphError> {
        let found: Vec<String> = args.iter().map(|a| format!("{a} {}", a.ty)).collect();
        Err(GraphError::Type {
            at: self.at(),
            found: found.join(", "),
            expected: expected.to_owned(),
        })
    }

    /// All inputs count the same rows.
    pub(super) fn one_rows(&self, args: &[Arg<'_>]) -> Result<Rows, GraphError> {
        let first = args.first().map_or(Rows::Tokens, |a| a.rows);
        if args.iter().all(|a| a.rows == first) {
            return Ok(first);
        }
        Err(GraphError::Rows {
            at: self.at(),
            found: list(args),
            expected: "equal rows; what follows gather-outputs may use only gathered values"
                .to_owned(),
        })
    }

    /// All inputs have one row per token.
    pub(super) fn on_tokens(&self, args: &[Arg<'_>]) -> Result<(), GraphError> {
        if args.iter().all(|a| a.rows == Rows::Tokens) {
            return Ok(());
        }
        Err(GraphError::Rows {
            at: self.at(),
            found: list(args),
            expected: "one row per token".to_owned(),
        })
    }

    /// A weight of exactly these dimensions; `args` are the operands they follow from.
    pub(super) fn weight_is(
        &self,
        role: &str,
        id: WeightId,
        dims: &[u32],
        stored: Stored,
        args: &[Arg<'_>],
    ) -> Result<(), GraphError> {
        if self.weight(id)?.shape != dims {
            let found = format!("{} with {}", list(args), self.weight_text(role, id));
            return Err(self.shape_error(found, format!("{role} {dims:?}")));
        }
        self.stored(role, id, stored)
    }

    pub(super) fn stored(&self, role: &str, id: WeightId, as_: Stored) -> Result<(), GraphError> {
        let scheme = self.weight(id)?.scheme;
        let expected = match scheme {
            Scheme::Plain(dtype) if is_float(dtype) => return Ok(()),
            Scheme::Plain(_) => "floating-point numbers",
            _ if as_ == Stored::Any => return Ok(()),
            _ => "plain numbers; apply dequantize first",
        };
        Err(GraphError::Scheme {
            at: self.at(),
            weight: self.weight_text(role, id),
            scheme: scheme.to_string(),
            expected: expected.to_owned(),
        })
    }

    /// `a * b`, an error where dimensions overflow.
    pub(super) fn times(&self, a: u32, b: u32) -> Result<u32, GraphError> {
        a.checked_mul(b)
            .ok_or_else(|| self.shape_error(format!("a dimension of {a} * {b}"), "less than 2^32"))
    }

    /// Like [`Self::times`].
    pub(super) fn plus(&self, a: u32, b: u32) -> Result<u32, GraphError> {
        a.checked_add(b)
            .ok_or_else(|| self.shape_error(format!("a dimension of {a} + {b}"), "less than 2^32"))
    }
}
