//! One node as one line.

use std::fmt::Write;

use super::{ids, weight_text};
use crate::{
    Attention, Gate, GateLayout, Graph, LayerNorm, Mask, Node, NormRounding, Op, PositionScheme,
    RmsNorm, Rope, RopeScaling, RopeStyle, Route, ValueType, WeightId,
};

/// "%12 = rope(%11, %1) rotary 64, theta 10000, neox -> [tokens, 9, 64]"
pub(super) fn node(graph: &Graph, node: &Node) -> String {
    let mut out = String::new();
    if !node.outputs.is_empty() {
        let _ = write!(out, "{} = ", ids(&node.outputs));
    }
    let _ = write!(out, "{}({})", node.op.name(), ids(&node.inputs));
    let details = details(graph, &node.op);
    if !details.is_empty() {
        let _ = write!(out, " {}", details.join(", "));
    }
    const SHOWN: usize = 16;
    for (i, v) in node.outputs.iter().take(SHOWN).enumerate() {
        let info = graph.value(*v);
        let _ = write!(out, "{}{info}", if i == 0 { " -> " } else { ", " });
        if info.ty != ValueType::Model {
            let _ = write!(out, " {}", info.ty);
        }
    }
    if node.outputs.len() > SHOWN {
        out.push_str(", …");
    }
    out
}

/// Static parameters, in words.
pub(super) fn details(graph: &Graph, op: &Op) -> Vec<String> {
    let w = |id: WeightId| weight_text(graph, id);
    let named = |name: &str, id: Option<WeightId>| id.map(|id| format!("{name} {}", w(id)));
    match op {
        Op::Positions(scheme) => match scheme {
            PositionScheme::Standard => vec![],
            PositionScheme::Offset(by) => vec![format!("offset {by}")],
            PositionScheme::Glm2d { mask, gmask, bos } => {
                vec![format!("glm2d with mask {mask}, gmask {gmask}, bos {bos}")]
            }
        },
        Op::Embedding { table } => vec![w(*table)],
        Op::WeightValue { weight } | Op::HeadLinear { weight } => vec![w(*weight)],
        Op::Linear { segments, sharding } => {
            let segments: Vec<String> = segments
                .iter()
                .map(|s| match s.bias {
                    Some(bias) => format!("{} with bias {}", w(s.weight), w(bias)),
                    None => w(s.weight),
                })
                .collect();
            vec![segments.join(" + "), format!("{sharding:?}").to_lowercase()]
        }
        Op::RmsNorm(norm) | Op::AddRmsNorm(norm) => rms(graph, norm),
        Op::LayerNorm(norm) | Op::AddLayerNorm(norm) => layer(graph, norm),
        Op::L2Norm { eps } => vec![format!("eps {eps}")],
        Op::Rope(r) => rope(graph, r),
        Op::RopeWrite { rope: r, cache } => {
            let mut details = vec![cache.to_string()];
            details.extend(rope(graph, r));
            details
        }
        Op::WriteKv { cache } => vec![cache.to_string()],
        Op::Attention(a) | Op::PagedAttention(a) => attention(graph, a),
        Op::LatentAttention(a) => vec![
            a.cache.to_string(),
            w(a.kv_b),
            format!("nope {}", a.nope),
            format!("scale {}", a.scale),
        ],
        Op::Activation(kind) => vec![format!("{kind:?}").to_lowercase()],
        Op::Gated(gate) => vec![gate_text(gate)],
        Op::GatedMerged { gate, layout } => vec![gate_text(gate), layout_text(*layout)],
        Op::Scale { by } => vec![format!("by {by}")],
        Op::Clamp { min, max } => vec![format!("{min} to {max}")],
        Op::SoftCap { cap } => vec![format!("cap {cap}")],
        Op::LogNScale { train_len } => vec![format!("train-len {train_len}")],
        Op::Split { axis, sizes } => {
            let more = if sizes.len() > 16 { ", …" } else { "" };
            let sizes: Vec<String> = sizes.iter().take(16).map(u32::to_string).collect();
            vec![format!("axis {axis} by [{}{more}]", sizes.join(", "))]
        }
        Op::Slice { axis, start, len } => {
            let end = u64::from(*start) + u64::from(*len);
            vec![format!("axis {axis}, {start}..{end}")]
        }
        Op::Concat { axis } => vec![format!("axis {axis}")],
        Op::RepeatHeads { times } => vec![format!("{times} times")],
        Op::Route(r) => route(graph, r),
        Op::Experts(e) => [
            Some(format!("gate-up {}", w(e.gate_up))),
            named("bias", e.gate_up_bias),
            Some(format!("down {}", w(e.down))),
            named("bias", e.down_bias),
            Some(gate_text(&e.gate)),
            Some(layout_text(e.layout)),
        ]
        .into_iter()
        .flatten()
        .collect(),
        Op::CausalConv {
            weight,
            bias,
            cache,
            activation,
        } => [
            Some(cache.to_string()),
            Some(w(*weight)),
            named("bias", *bias),
            activation.map(|a| format!("{a:?}").to_lowercase()),
        ]
        .into_iter()
        .flatten()
        .collect(),
        Op::DeltaRule { cache, scale } => vec![cache.to_string(), format!("scale {scale}")],
        Op::Pool { pooling } => vec![format!("{pooling:?}").to_lowercase()],
        Op::TokenIds
        | Op::Add
        | Op::Mul
        | Op::Cast { .. }
        | Op::Reshape { .. }
        | Op::SwapAxes
        | Op::GatherOutputs => vec![],
    }
}

fn rms(graph: &Graph, norm: &RmsNorm) -> Vec<String> {
    let mut out: Vec<String> = norm
        .weight
        .map(|w| weight_text(graph, w))
        .into_iter()
        .collect();
    out.push(format!("eps {}", norm.eps));
    if norm.offset != 0.0 {
        out.push(format!("weight + {}", norm.offset));
    }
    if norm.rounding == NormRounding::WeightThenCast {
        out.push("weight-then-cast".to_owned());
    }
    out
}

fn layer(graph: &Graph, norm: &LayerNorm) -> Vec<String> {
    let mut out: Vec<String> = norm
        .weight
        .map(|w| weight_text(graph, w))
        .into_iter()
        .collect();
    out.extend(norm.bias.map(|b| format!("bias {}", weight_text(graph, b))));
    out.push(format!("eps {}", norm.eps));
    out
}

fn rope(graph: &Graph, rope: &Rope) -> Vec<String> {
    let mut out = vec![format!("rotary {}", rope.rotary)];
    if rope.start > 0 {
        out.push(format!("from {}", rope.start));
    }
    if rope.axis > 0 {
        out.push(format!("axis {}", rope.axis));
    }
    out.push(format!("theta {}", rope.theta));
    out.push(match rope.style {
        RopeStyle::Neox => "neox".to_owned(),
        RopeStyle::Interleaved => "interleaved".to_owned(),
    });
    out.extend(match &rope.scaling {
        RopeScaling::None => None,
        RopeScaling::Linear { factor } => Some(format!("linear × {factor}")),
        RopeScaling::Dynamic { factor, original } => {
            Some(format!("dynamic × {factor} of {original}"))
        }
        RopeScaling::DynamicQwen { original } => Some(format!("dynamic-qwen of {original}")),
        RopeScaling::Yarn {
            factor, original, ..
        } => Some(format!("yarn × {factor} of {original}")),
        RopeScaling::Llama3 {
            factor, original, ..
        } => Some(format!("llama3 × {factor} of {original}")),
        RopeScaling::LongRope { original, .. } => Some(format!("longrope of {original}")),
        RopeScaling::Factors { weight } => Some(format!("factors {}", weight_text(graph, *weight))),
    });
    out
}

fn attention(graph: &Graph, a: &Attention) -> Vec<String> {
    let mut out = vec![a.cache.to_string(), format!("scale {}", a.scale)];
    out.push(match a.mask {
        Mask::Causal => "causal".to_owned(),
        Mask::PrefixLm => "prefix-lm".to_owned(),
        Mask::PrefixBefore { marker } => format!("prefix before token {marker}"),
    });
    out.extend(a.window.map(|w| format!("window {w}")));
    out.extend(a.softcap.map(|c| format!("softcap {c}")));
    out.extend(a.alibi.map(|w| format!("alibi {}", weight_text(graph, w))));
    out.extend(a.sinks.map(|w| format!("sinks {}", weight_text(graph, w))));
    out
}

fn route(graph: &Graph, r: &Route) -> Vec<String> {
    let scores = match r.scores {
        crate::RouteScores::Softmax => "softmax",
        crate::RouteScores::SoftmaxOfChosen => "softmax-of-chosen",
        crate::RouteScores::Sigmoid => "sigmoid",
    };
    let mut out = vec![format!("top {}", r.top_k), scores.to_owned()];
    out.extend(r.groups.map(|g| format!("{} of {} groups", g.top, g.count)));
    out.extend(
        r.correction
            .map(|w| format!("correction {}", weight_text(graph, w))),
    );
    if r.renormalize {
        out.push("renormalized".to_owned());
    }
    if r.scale != 1.0 {
        out.push(format!("× {}", r.scale));
    }
    out
}

fn gate_text(gate: &Gate) -> String {
    match gate {
        Gate::Plain(kind) => format!("{kind:?}").to_lowercase(),
        Gate::Clamped { alpha, limit } => format!("clamped alpha {alpha}, limit {limit}"),
    }
}

fn layout_text(layout: GateLayout) -> String {
    match layout {
        GateLayout::Halves => "halves".to_owned(),
        GateLayout::Interleaved => "interleaved".to_owned(),
    }
}
