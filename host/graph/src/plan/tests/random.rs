//! Plans of random graphs: what is alive at the same time never overlaps.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::testing::*;
use crate::*;

/// One step of a random program; numbers pick operands and parameters modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Unary(usize),
    Binary(usize, usize),
    Linear(usize, u32),
    Split(usize, u32),
    Slice(usize, u32),
    Concat(usize, usize),
    Heads(usize, u32),
    Turn(usize, u32),
    Widen(usize),
    Constant(usize),
    Attend(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let i = || 0usize..1000;
    let n = || 1u32..40;
    prop_oneof![
        i().prop_map(Step::Unary),
        (i(), i()).prop_map(|(a, b)| Step::Binary(a, b)),
        (i(), n()).prop_map(|(a, b)| Step::Linear(a, b)),
        (i(), n()).prop_map(|(a, b)| Step::Split(a, b)),
        (i(), n()).prop_map(|(a, b)| Step::Slice(a, b)),
        (i(), i()).prop_map(|(a, b)| Step::Concat(a, b)),
        (i(), n()).prop_map(|(a, b)| Step::Heads(a, b)),
        (i(), n()).prop_map(|(a, b)| Step::Turn(a, b)),
        i().prop_map(Step::Widen),
        i().prop_map(Step::Constant),
        i().prop_map(Step::Attend),
        i().prop_map(Step::Attend),
    ]
}

/// All values are kept flat `[d]`, so that any step can use any of them.
fn build(steps: &[Step]) -> Graph {
    let mut b = assumed();
    let ids = b.token_ids().unwrap();
    let table = b.param("embed", &[32, 24]).unwrap();
    let mut all = vec![b.embedding(table, ids).unwrap()];
    for (at, step) in steps.iter().enumerate() {
        let pick = |i: usize| all[i % all.len()];
        let width = |b: &GraphBuilder, v: ValueId| b.value_info(v).unwrap().shape[0];
        let ty = |b: &GraphBuilder, v: ValueId| b.value_info(v).unwrap().ty;
        let made = match *step {
            Step::Unary(a) => vec![b.scale(pick(a), 2.0).unwrap()],
            Step::Binary(a, c) => {
                let (x, y) = (pick(a), pick(c));
                if width(&b, x) == width(&b, y) && ty(&b, x) == ty(&b, y) {
                    vec![b.add(x, y).unwrap()]
                } else {
                    vec![]
                }
            }
            Step::Linear(a, out) => {
                let x = pick(a);
                let w = b.param(&format!("w{at}"), &[out, width(&b, x)]).unwrap();
                vec![b.linear(x, w, None, Sharding::Replicated).unwrap()]
            }
            Step::Split(a, n) => {
                let x = pick(a);
                let d = width(&b, x);
                if d < 2 {
                    continue;
                }
                let first = 1 + n % (d - 1);
                b.split(x, 0, &[first, d - first]).unwrap()
            }
            Step::Slice(a, n) => {
                let x = pick(a);
                let d = width(&b, x);
                let start = n % d;
                vec![b.slice(x, 0, start, d - start).unwrap()]
            }
            Step::Concat(a, c) => {
                let (x, y) = (pick(a), pick(c));
                if ty(&b, x) != ty(&b, y) || width(&b, x) + width(&b, y) > 500 {
                    continue;
                }
                vec![b.concat(&[x, y], 0).unwrap()]
            }
            Step::Heads(a, n) => {
                let x = b.reshape(pick(a), &[1, width(&b, pick(a))]).unwrap();
                let x = b.repeat_heads(x, 1 + n % 3).unwrap();
                let shape = b.value_info(x).unwrap().shape.clone();
                if shape[0] * shape[1] > 500 {
                    continue;
                }
                vec![b.reshape(x, &[shape[0] * shape[1]]).unwrap()]
            }
            Step::Turn(a, n) => {
                let x = pick(a);
                let d = width(&b, x);
                let rows = (1..=n.min(d)).rev().find(|r| d.is_multiple_of(*r)).unwrap();
                let x = b.reshape(x, &[rows, d / rows]).unwrap();
                let x = b.swap_axes(x).unwrap();
                vec![b.reshape(x, &[d]).unwrap()]
            }
            Step::Widen(a) => {
                let x = pick(a);
                let to = match ty(&b, x) {
                    ValueType::Model => ValueType::F32,
                    _ => ValueType::Model,
                };
                vec![b.cast(x, to).unwrap()]
            }
            Step::Attend(a) => {
                let x = pick(a);
                let d = width(&b, x);
                if ty(&b, x) != ValueType::Model {
                    continue;
                }
                let head = b.reshape(x, &[1, d]).unwrap();
                let cache = b.declare_cache(full_cache(1, d)).unwrap();
                let o = b.attention(head, head, head, causal(cache)).unwrap();
                vec![b.reshape(o, &[d]).unwrap()]
            }
            Step::Constant(a) => {
                let x = pick(a);
                let w = b.param(&format!("c{at}"), &[width(&b, x)]).unwrap();
                let w = b.weight_value(w).unwrap();
                let w = b.cast(w, ty(&b, x)).unwrap();
                vec![b.mul(x, w).unwrap()]
            }
        };
        all.extend(made);
    }
    let last = *all.last().unwrap();
    let vocab = b.value_info(last).unwrap().shape[0];
    b.output_logits(last).unwrap();
    b.finish(info(vocab)).unwrap()
}

/// The orders that a device may choose.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    AsListed,
    TokensFirst,
}

/// Runs the plan on bytes that say who wrote them: every read must find what the value's maker left there.
///
/// Ownership is followed through views by comparing addresses, not by asking the planner.
fn execute(plan: &Plan, rows: usize, order: Order) {
    let mut memory: [BTreeMap<usize, (ValueId, usize)>; 3] = Default::default();
    let arena = |rows: Rows| match rows {
        Rows::Tokens => 0,
        Rows::Outputs => 1,
        Rows::Broadcast => 2,
    };
    let sizes = [
        plan.token_bytes * rows,
        plan.output_bytes * rows,
        plan.broadcast_bytes,
    ];
    // What each element of each value is: its maker and number, as written. Views inherit.
    let mut contents: Vec<Vec<(ValueId, usize)>> = vec![vec![]; plan.graph.values.len()];
    let places = |v: ValueId| {
        let info = plan.graph.value(v);
        let bytes = match info.ty {
            ValueType::Model => plan.model_bytes,
            _ => 4,
        };
        let rows = if info.rows == Rows::Broadcast {
            1
        } else {
            rows
        };
        let p = *plan.placement(v);
        assert_eq!(p.arena, info.rows);
        assert_eq!(p.base % 64, 0);
        let mut out = Vec::new();
        for row in 0..rows {
            for e in 0..info.width() {
                out.push((p.address(rows, row) + e * bytes, bytes));
            }
        }
        (arena(info.rows), out)
    };
    let mut order_of: Vec<usize> = (0..plan.graph.nodes.len()).collect();
    if order == Order::TokensFirst {
        let outputs = |v: &ValueId| plan.graph.value(*v).rows == Rows::Outputs;
        order_of.sort_by_key(|&i| plan.graph.nodes[i].outputs.iter().any(outputs));
    }
    for i in order_of {
        let node = &plan.graph.nodes[i];
        for &v in &node.inputs {
            check(plan, &memory, &contents, v, places(v));
        }
        if plan.is_view(i) {
            let (a, parent) = places(node.inputs[0]);
            let at: BTreeMap<usize, (ValueId, usize)> = parent
                .iter()
                .map(|p| p.0)
                .zip(contents[node.inputs[0].index()].iter().copied())
                .collect();
            for &v in &node.outputs {
                let (b, own) = places(v);
                assert_eq!(a, b);
                contents[v.index()] = own.iter().map(|p| at[&p.0]).collect();
            }
            continue;
        }
        for &v in &node.outputs {
            let (a, own) = places(v);
            for (k, (address, bytes)) in own.iter().enumerate() {
                assert!(address + bytes <= sizes[a], "{v} leaves its arena");
                for byte in *address..address + bytes {
                    memory[a].insert(byte, (v, k));
                }
                contents[v.index()].push((v, k));
            }
        }
        // Neither inputs nor other outputs may have been overwritten.
        for &v in node.inputs.iter().chain(&node.outputs) {
            check(plan, &memory, &contents, v, places(v));
        }
    }
    let output = plan.graph.output.value();
    check(plan, &memory, &contents, output, places(output));
}

fn check(
    plan: &Plan,
    memory: &[BTreeMap<usize, (ValueId, usize)>; 3],
    contents: &[Vec<(ValueId, usize)>],
    v: ValueId,
    (arena, places): (usize, Vec<(usize, usize)>),
) {
    let written = &contents[v.index()];
    assert_eq!(written.len(), places.len());
    for ((address, bytes), content) in places.iter().zip(written) {
        for byte in *address..address + bytes {
            assert_eq!(
                memory[arena].get(&byte),
                Some(content),
                "{v} was overwritten\n{}",
                dump_plan(plan)
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn live_values_never_overlap(
        steps in prop::collection::vec(step(), 1..40),
        model_bytes in prop::sample::select(vec![2usize, 4]),
        optimized in any::<bool>(),
    ) {
        let mut graph = build(&steps);
        if optimized {
            graph = optimize(graph, &PassOptions::default()).unwrap();
        }
        let plan = Plan::compile(graph, &PlanOptions::new(model_bytes)).unwrap();
        execute(&plan, 3, Order::AsListed);
        execute(&plan, 3, Order::TokensFirst);
    }
}

#[test]
fn a_llama_never_overwrites_what_it_needs() {
    let graph = optimize(deep_llama(3), &PassOptions::default()).unwrap();
    for model_bytes in [2, 4] {
        let plan = Plan::compile(graph.clone(), &PlanOptions::new(model_bytes)).unwrap();
        execute(&plan, 5, Order::AsListed);
        execute(&plan, 5, Order::TokensFirst);
    }
}
