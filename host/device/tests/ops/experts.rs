//! Routing and experts.

use guesthouse_graph::{Experts, GateLayout, Route, RouteGroups, RouteScores};

use super::*;

/// A layer of experts over `x [hidden]`.
#[derive(Clone, Copy)]
struct Case {
    experts: u32,
    hidden: u32,
    ffn: u32,
    route: Route,
    bias: bool,
    layout: GateLayout,
    gate: Gate,
}

const ROUTE: Route = Route {
    top_k: 2,
    scores: RouteScores::Softmax,
    groups: None,
    correction: None,
    renormalize: false,
    scale: 1.0,
};

const CASE: Case = Case {
    experts: 5,
    hidden: 24,
    ffn: 20,
    route: ROUTE,
    bias: false,
    layout: GateLayout::Halves,
    gate: Gate::Plain(Activation::Silu),
};

fn layer(m: &mut Model, c: &Case, stored: Option<(&str, &str)>) -> ValueId {
    let x = m.input(&[c.hidden], 1);
    let logits = m.linear(x, c.experts, c.hidden, 3);
    let (weights, ids) = m.b.route(logits, c.route).unwrap();
    let (up, down) = (
        [c.experts, 2 * c.ffn, c.hidden],
        [c.experts, c.hidden, c.ffn],
    );
    let (gate_up, down) = match stored {
        Some((a, b)) => (m.b.param(a, &up).unwrap(), m.b.param(b, &down).unwrap()),
        None => (m.constant(&up, 11, 0.4), m.constant(&down, 12, 0.4)),
    };
    let bias = |m: &mut Model, n: u32, seed| c.bias.then(|| m.constant(&[c.experts, n], seed, 0.5));
    let experts = Experts {
        gate_up,
        gate_up_bias: bias(m, 2 * c.ffn, 13),
        down,
        down_bias: bias(m, c.hidden, 14),
        layout: c.layout,
        gate: c.gate,
    };
    m.b.experts(x, weights, ids, experts).unwrap()
}

#[test]
fn experts_in_every_form() {
    let grouped = |scores, sum_of| Route {
        top_k: 3,
        scores,
        groups: Some(RouteGroups {
            count: 4,
            top: 2,
            sum_of,
        }),
        renormalize: true,
        scale: 2.5,
        ..ROUTE
    };
    let cases = [
        ("plain", CASE),
        (
            "renormalised, whole panels, one expert of each",
            Case {
                hidden: 32,
                ffn: 48,
                route: Route {
                    top_k: 1,
                    renormalize: true,
                    ..ROUTE
                },
                ..CASE
            },
        ),
        (
            "all experts, softmax of the chosen, biased, interleaved, clamped",
            Case {
                route: Route {
                    top_k: 5,
                    scores: RouteScores::SoftmaxOfChosen,
                    ..ROUTE
                },
                bias: true,
                layout: GateLayout::Interleaved,
                gate: Gate::Clamped {
                    alpha: 1.702,
                    limit: 0.9,
                },
                ..CASE
            },
        ),
        (
            "sigmoid in groups by two",
            Case {
                experts: 16,
                route: grouped(RouteScores::Sigmoid, 2),
                bias: true,
                ..CASE
            },
        ),
        (
            "softmax in groups by the best, gelu",
            Case {
                experts: 16,
                route: grouped(RouteScores::Softmax, 1),
                gate: Gate::Plain(Activation::GeluTanh),
                layout: GateLayout::Interleaved,
                ..CASE
            },
        ),
    ];
    for (name, c) in cases {
        check_with(name, c.hidden, &Arc::new(MemorySource::new()), 120, |m| {
            layer(m, &c, None)
        });
    }
    check("corrected choice", 24, |m| {
        let correction = Some(m.constant(&[16], 31, 0.4));
        let route = Route {
            correction,
            ..grouped(RouteScores::Sigmoid, 2)
        };
        let c = Case {
            experts: 16,
            route,
            ..CASE
        };
        layer(m, &c, None)
    });
}

#[test]
fn experts_of_every_scheme() {
    let schemes = [DType::F16, DType::Bf16]
        .map(Scheme::Plain)
        .into_iter()
        .chain(BlockType::ALL.map(Scheme::Block))
        .chain([Scheme::Mxfp4]);
    for scheme in schemes {
        let cols = 2 * scheme.unit().0.max(16) as u32;
        let c = Case {
            hidden: cols,
            ffn: cols,
            layout: GateLayout::Interleaved,
            ..CASE
        };
        let (h, f) = (c.hidden as usize, c.ffn as usize);
        let tensors = [("up", [5, 2 * f, h]), ("down", [5, h, f])];
        let tensors =
            tensors.map(|(name, shape)| (name.to_owned(), TensorInfo::new(shape, scheme)));
        let source = Arc::new(MemorySource::dummy(tensors, 5).unwrap());
        check_with(&scheme.to_string(), c.hidden, &source, 60, |m| {
            layer(m, &c, Some(("up", "down")))
        });
    }
}

/// The log-probabilities' bits of a sequence that runs in chunks of `chunk`, beside a second one.
fn bits(chunk: u32) -> Vec<u32> {
    let source = Arc::new(MemorySource::new());
    let catalog = Arc::new(SourceCatalog::new(Arc::clone(&source) as _));
    let mut m = Model {
        b: GraphBuilder::new(catalog, BuilderLimits::default()),
    };
    let y = layer(&mut m, &CASE, None);
    let logits = m.linear(y, VOCAB, CASE.hidden, 999);
    m.b.output_logits(logits).unwrap();
    let info = ModelInfo {
        architecture: "Test".to_owned(),
        vocab_size: VOCAB,
        max_position: 512,
    };
    let graph = optimize(m.b.finish(info).unwrap(), &PassOptions::default()).unwrap();
    let plan = Plan::compile(graph, &PlanOptions::new(4)).unwrap();
    let options = CpuOptions {
        threads: 2,
        kv: KvBudget::Blocks(64),
        max_step_tokens: 512,
        max_slots: 4,
        max_len: 512,
        ..CpuOptions::default()
    };
    let executor =
        CpuDevice::load(&Arc::new(plan), source.as_ref(), &options, &mut |_| {}).unwrap();
    let mut driver = Driver::new(executor);
    let tokens: Vec<u32> = (0..230).map(|i| i * i % VOCAB).collect();
    driver.admit(0, &tokens, &SamplingPlan::greedy(), 0);
    let mut out = Vec::new();
    for start in (0..230).step_by(chunk as usize) {
        let mut row = driver.row(0, start, chunk.min(230 - start), Input::History);
        row.prompt_logprobs = Some(VOCAB);
        let output = driver.step(vec![row], vec![task(0, 0)]);
        for entry in &output.prompt_logprobs[0].entries {
            let mut top = entry.top.clone();
            top.sort_by_key(|(t, _)| *t);
            out.extend(top.iter().map(|(_, l)| l.to_bits()));
        }
    }
    out
}

#[test]
fn experts_are_bitwise_the_same_in_any_chunk() {
    let whole = bits(230);
    assert_eq!(whole.len() % VOCAB as usize, 0);
    assert!(whole.len() >= 229 * VOCAB as usize);
    for chunk in [1, 7, 97] {
        assert!(bits(chunk) == whole, "chunks of {chunk} differ");
    }
}
