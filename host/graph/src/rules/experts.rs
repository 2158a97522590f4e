//! Mixture of experts.

use super::context::{Arg, Context, Stored, list};
use super::pointwise::check_gate;
use crate::{Experts, GraphError, Op, Route, ValueInfo, ValueType};

pub(super) fn infer(
    cx: &Context<'_>,
    op: &Op,
    inputs: &[&ValueInfo],
) -> Result<Vec<ValueInfo>, GraphError> {
    match op {
        Op::Route(route) => {
            let [logits] = cx.args(inputs, ["logits"])?;
            check_route(cx, logits, route)?;
            let chosen = |ty| ValueInfo {
                rows: logits.rows,
                shape: vec![route.top_k],
                ty,
            };
            Ok(vec![chosen(ValueType::F32), chosen(ValueType::I32)])
        }
        Op::Experts(experts) => {
            let args = cx.args(inputs, ["x", "weights", "ids"])?;
            check_experts(cx, args, experts)?;
            Ok(vec![(*args[0]).clone()])
        }
        _ => Ok(vec![]),
    }
}

fn check_route(cx: &Context<'_>, logits: Arg<'_>, route: &Route) -> Result<(), GraphError> {
    cx.one_float_type(&[logits])?;
    let [experts] = logits.shape[..] else {
        return Err(cx.shape_error(logits.to_string(), "logits [tokens, experts]"));
    };
    let mut choice = experts;
    if let Some(groups) = route.groups {
        if groups.count == 0 || !experts.is_multiple_of(groups.count) {
            let expected = format!("a divisor of {experts} experts");
            return Err(cx.parameter("groups.count", groups.count, expected));
        }
        if groups.top == 0 || groups.top > groups.count {
            let expected = format!("from 1 to {} groups", groups.count);
            return Err(cx.parameter("groups.top", groups.top, expected));
        }
        let size = experts / groups.count;
        if groups.sum_of == 0 || groups.sum_of > size {
            let expected = format!("from 1 to {size} experts of a group");
            return Err(cx.parameter("groups.sum-of", groups.sum_of, expected));
        }
        choice = size * groups.top;
    }
    if route.top_k == 0 || route.top_k > choice {
        return Err(cx.parameter("top-k", route.top_k, format!("from 1 to {choice} experts")));
    }
    cx.finite("scale", route.scale)?;
    if let Some(correction) = route.correction {
        cx.weight_is(
            "correction",
            correction,
            &[experts],
            Stored::Plain,
            &[logits],
        )?;
    }
    Ok(())
}

fn check_experts(
    cx: &Context<'_>,
    args: [Arg<'_>; 3],
    experts: &Experts,
) -> Result<(), GraphError> {
    let [x, weights, ids] = args;
    cx.one_rows(&args)?;
    cx.one_float_type(&[x])?;
    cx.has_type(weights, ValueType::F32)?;
    cx.has_type(ids, ValueType::I32)?;
    check_gate(cx, &experts.gate)?;
    let ([hidden], [k], [k2]) = (&x.shape[..], &weights.shape[..], &ids.shape[..]) else {
        let expected = "x [tokens, hidden], weights [tokens, top-k], ids [tokens, top-k]";
        return Err(cx.shape_error(list(&args), expected));
    };
    if k != k2 {
        return Err(cx.shape_error(list(&args), "as many weights as ids"));
    }
    let gate_up = &cx.weight(experts.gate_up)?.shape;
    let (n, rows) = match gate_up[..] {
        [n, rows, h] if h == *hidden && rows.is_multiple_of(2) => (n, rows),
        _ => {
            let found = format!(
                "{} with {}",
                list(&args),
                cx.weight_text("gate-up", experts.gate_up)
            );
            return Err(cx.shape_error(found, format!("gate-up [experts, 2 * ffn, {hidden}]")));
        }
    };
    if *k > n {
        let found = format!("{} with {n} experts", list(&args));
        return Err(cx.shape_error(found, "no more ids than experts"));
    }
    cx.stored("gate-up", experts.gate_up, Stored::Any)?;
    cx.weight_is(
        "down",
        experts.down,
        &[n, *hidden, rows / 2],
        Stored::Any,
        &args,
    )?;
    if let Some(bias) = experts.gate_up_bias {
        cx.weight_is("gate-up-bias", bias, &[n, rows], Stored::Plain, &args)?;
    }
    if let Some(bias) = experts.down_bias {
        cx.weight_is("down-bias", bias, &[n, *hidden], Stored::Plain, &args)?;
    }
    Ok(())
}
