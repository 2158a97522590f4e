//! What devices share when they turn a plan into instructions: messages, and what the engine is told about caches.

use guesthouse_engine::{GroupInfo, GroupKind, LengthRules, Task};
use guesthouse_graph::{CacheKind, Graph, Node, Op, Output, Plan, Pooling, RopeScaling};

use crate::error::{DeviceError, Result};

/// Why a device does not run latent attention as guests write it.
pub(crate) const LATENT: &str =
    "latent attention runs once its up-projections are absorbed; optimize the graph first";

/// An operation's name without its parameters.
pub(crate) fn op_name(op: &Op) -> String {
    let text = format!("{op:?}");
    text.split([' ', '(', '{'])
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// A node that a device does not run, with where its guest put it.
pub(crate) fn unsupported(graph: &Graph, node: &Node, why: &str) -> DeviceError {
    let scope = graph.scope(node.scope);
    DeviceError::Unsupported {
        op: op_name(&node.op),
        scope: if scope.is_empty() {
            "the graph".to_owned()
        } else {
            scope.to_owned()
        },
        why: why.to_owned(),
    }
}

/// Whether an operand of a node has as many elements as it should.
///
/// # Errors
/// [`DeviceError::Plan`] where it has not.
pub(crate) fn fit(
    graph: &Graph,
    node: &Node,
    what: &str,
    (expected, found): (usize, usize),
) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let scope = graph.scope(node.scope);
    Err(DeviceError::plan(format!(
        "{} in {scope}: {what}: expected {expected} elements, found {found}",
        op_name(&node.op)
    )))
}

/// The engine's view of a plan's ropes.
pub(crate) fn length_rules(plan: &Plan) -> LengthRules {
    let mut rules = LengthRules::default();
    let mut dynamic = |above: u32| {
        rules.by_prompt_above = Some(
            rules
                .by_prompt_above
                .map_or(above, |least| least.min(above)),
        );
    };
    for node in &plan.graph.nodes {
        let (Op::Rope(rope) | Op::RopeWrite { rope, .. }) = &node.op else {
            continue;
        };
        match &rope.scaling {
            RopeScaling::Dynamic { original, .. } | RopeScaling::DynamicQwen { original } => {
                dynamic(*original);
            }
            RopeScaling::LongRope { original, .. } => rules.anew_above.push(*original),
            _ => {}
        }
    }
    rules.anew_above.sort_unstable();
    rules.anew_above.dedup();
    rules
}

/// What a plan makes of a prompt.
pub(crate) fn task(plan: &Plan) -> Task {
    match plan.graph.output {
        Output::Logits(_) => Task::Generate,
        Output::Embedding(_) => Task::Embed,
    }
}

/// Whether a prompt must run as one chunk: a mean over it is taken where all of its rows are at hand.
pub(crate) fn whole_prompt(plan: &Plan) -> bool {
    let mean = |op: &Op| {
        matches!(
            op,
            Op::Pool {
                pooling: Pooling::Mean
            }
        )
    };
    plan.graph.nodes.iter().any(|n| mean(&n.op))
}

/// The engine's view of a plan's cache groups, which have so many blocks.
pub(crate) fn group_infos(plan: &Plan, blocks: &[usize]) -> Vec<GroupInfo> {
    let info = |(group, &blocks): (&guesthouse_graph::CacheGroup, &usize)| GroupInfo {
        kind: match group.spec.kind {
            CacheKind::Full => GroupKind::Full,
            CacheKind::Window { window } => GroupKind::Window { window },
            CacheKind::Recurrent { .. } => GroupKind::Recurrent,
        },
        blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
    };
    plan.groups.iter().zip(blocks).map(info).collect()
}
