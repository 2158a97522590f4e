//! Checks a finished graph as a whole.

use crate::rules::{self, AccessKind, Context};
use crate::{Graph, GraphError, Node, Op, Output, Rows, ValueInfo, ValueType, Weight, WeightExpr};

/// Elements in one row, so that sizes in bytes cannot overflow.
const MAX_WIDTH: usize = 1 << 40;

/// What is known about each value while nodes are visited in order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Defined {
    NotYet,
    Yes,
}

/// Checks every invariant of a graph: each value is defined once, before its use, with the shape and type that its op
/// gives; weights read earlier weights only; each cache is written once, before it is read, by ops that it fits; the
/// output is what its kind says. Safe on graphs from anywhere: bad indices are errors.
///
/// # Errors
/// The first violation.
pub fn verify(graph: &Graph) -> Result<(), GraphError> {
    check_info(graph)?;
    check_weights(graph)?;
    for (i, spec) in graph.caches.iter().enumerate() {
        rules::check_cache(spec, &format!("cache{i}"))?;
    }
    check_nodes(graph)?;
    check_output(graph)
}

fn malformed(
    at: impl Into<String>,
    found: impl Into<String>,
    expected: impl Into<String>,
) -> GraphError {
    GraphError::Malformed {
        at: at.into(),
        found: found.into(),
        expected: expected.into(),
    }
}

fn check_info(graph: &Graph) -> Result<(), GraphError> {
    let info = &graph.info;
    for (name, n) in [
        ("vocab-size", info.vocab_size),
        ("max-position", info.max_position),
    ] {
        if n == 0 || n > i32::MAX as u32 {
            return Err(GraphError::Parameter {
                at: "model-info".to_owned(),
                name,
                found: n.to_string(),
                expected: "from 1 to 2^31 - 1".to_owned(),
            });
        }
    }
    if graph.scopes.first().is_none_or(|s| !s.is_empty()) {
        return Err(malformed(
            "scopes",
            "no empty scope",
            "the empty scope first",
        ));
    }
    Ok(())
}

fn check_weights(graph: &Graph) -> Result<(), GraphError> {
    for (i, weight) in graph.weights.iter().enumerate() {
        let at = || format!("w{i}");
        let sources = rules::sources(&weight.expr);
        if let Some(later) = sources.iter().find(|s| s.index() >= i) {
            return Err(malformed(
                at(),
                format!("it reads {later}"),
                "earlier weights only",
            ));
        }
        let cx = Context {
            op: "weight",
            scope: "",
            weights: graph.weights.get(..i).unwrap_or_default(),
            caches: &[],
        };
        rules::check_weight(&cx, weight)?;
        check_expression(&cx, weight, at)?;
    }
    Ok(())
}

fn check_expression(
    cx: &Context<'_>,
    weight: &Weight,
    at: impl Fn() -> String,
) -> Result<(), GraphError> {
    let (shape, scheme) = match &weight.expr {
        WeightExpr::Param { .. } => return Ok(()),
        WeightExpr::Constant { .. } => {
            let f32s = guesthouse_weights::Scheme::Plain(guesthouse_weights::DType::F32);
            (weight.shape.clone(), f32s)
        }
        expr => rules::infer_weight(cx, expr, Some(&weight.shape))?,
    };
    if shape != weight.shape || scheme != weight.scheme {
        return Err(malformed(
            at(),
            format!("{:?} {}", weight.shape, weight.scheme),
            format!("{shape:?} {scheme} of its expression"),
        ));
    }
    Ok(())
}

fn check_nodes(graph: &Graph) -> Result<(), GraphError> {
    let mut defined = vec![Defined::NotYet; graph.values.len()];
    let mut written = vec![false; graph.caches.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        let Some(scope) = graph.scopes.get(node.scope.index()) else {
            return Err(malformed(
                format!("node {i}"),
                node.scope.to_string(),
                "a known scope",
            ));
        };
        let cx = Context {
            op: node.op.name(),
            scope,
            weights: &graph.weights,
            caches: &graph.caches,
        };
        let inputs = inputs(graph, node, &defined, &cx)?;
        let outputs = rules::infer(&cx, &node.op, &inputs)?;
        define(graph, node, &outputs, &mut defined, &cx)?;
        if let Some(access) = rules::cache_access(&node.op, inputs.len())
            && let Some(written) = written.get_mut(access.cache.index())
        {
            rules::check_access(access, *written, || cx.at())?;
            *written |= access.kind == AccessKind::Write;
        }
    }
    if let Some(i) = defined.iter().position(|d| *d == Defined::NotYet) {
        return Err(malformed(
            format!("%{i}"),
            "no node defines it",
            "exactly one",
        ));
    }
    Ok(())
}

fn inputs<'g>(
    graph: &'g Graph,
    node: &Node,
    defined: &[Defined],
    cx: &Context<'_>,
) -> Result<Vec<&'g ValueInfo>, GraphError> {
    let input = |id: &crate::ValueId| match (graph.values.get(id.index()), defined.get(id.index()))
    {
        (Some(info), Some(Defined::Yes)) => Ok(info),
        _ => Err(malformed(
            cx.at(),
            format!("it reads {id}"),
            "a value that an earlier node defines",
        )),
    };
    node.inputs.iter().map(input).collect()
}

fn define(
    graph: &Graph,
    node: &Node,
    outputs: &[ValueInfo],
    defined: &mut [Defined],
    cx: &Context<'_>,
) -> Result<(), GraphError> {
    if outputs.len() != node.outputs.len() {
        let found = format!("{} outputs", node.outputs.len());
        return Err(malformed(cx.at(), found, outputs.len().to_string()));
    }
    for (id, expected) in node.outputs.iter().zip(outputs) {
        let (Some(info), Some(state)) = (graph.values.get(id.index()), defined.get_mut(id.index()))
        else {
            return Err(malformed(
                cx.at(),
                format!("it defines {id}"),
                "a value of the table",
            ));
        };
        if *state == Defined::Yes {
            return Err(malformed(cx.at(), format!("{id} is defined twice"), "once"));
        }
        *state = Defined::Yes;
        if rules::elements(&info.shape).is_none_or(|n| n > MAX_WIDTH) {
            return Err(malformed(cx.at(), format!("{id} {info}"), "fewer elements"));
        }
        if !agrees(&node.op, info, expected) {
            return Err(malformed(
                cx.at(),
                format!("{id} {info} {}", info.ty),
                format!("{expected} {}", expected.ty),
            ));
        }
    }
    Ok(())
}

/// A weight's value may also be read as f32, and the sums of a linear may stay f32.
fn agrees(op: &Op, info: &ValueInfo, expected: &ValueInfo) -> bool {
    let exact =
        matches!(op, Op::WeightValue { .. } | Op::Linear { .. }) && info.ty == ValueType::F32;
    info.rows == expected.rows && info.shape == expected.shape && (info.ty == expected.ty || exact)
}

fn check_output(graph: &Graph) -> Result<(), GraphError> {
    let id = graph.output.value();
    let Some(info) = graph.values.get(id.index()) else {
        return Err(malformed("output", id.to_string(), "a value of the table"));
    };
    let (at, fits, expected) = match graph.output {
        Output::Logits(_) => (
            "output-logits",
            info.shape == [graph.info.vocab_size],
            format!(
                "logits [outputs, {}], the vocab-size",
                graph.info.vocab_size
            ),
        ),
        Output::Embedding(_) => (
            "output-embedding",
            info.shape.len() == 1,
            "x [outputs, d]".to_owned(),
        ),
    };
    if !fits || info.rows != Rows::Outputs || info.ty == ValueType::I32 {
        return Err(GraphError::Shape {
            at: at.to_owned(),
            found: format!("{info} {}", info.ty),
            expected,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
