#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use guesthouse_weights::{BlockType, DType, MemorySource, Scheme, TensorInfo, WeightSource};

use crate::testing::{assumed, causal, full_cache, info, neox, rms};
use crate::*;

/// Knows shapes, holds no bytes.
struct Shapes(Vec<(&'static str, TensorInfo)>);

impl WeightSource for Shapes {
    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.0
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, info)| info.clone())
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|(n, _)| (*n).to_owned()).collect()
    }

    fn read(
        &self,
        _: &str,
    ) -> Result<std::borrow::Cow<'_, [u8]>, guesthouse_weights::WeightsError> {
        Ok(std::borrow::Cow::Borrowed(&[]))
    }
}

fn over(tensors: Vec<(&'static str, TensorInfo)>) -> GraphBuilder {
    let catalog = SourceCatalog::new(Arc::new(Shapes(tensors)));
    GraphBuilder::new(Arc::new(catalog), BuilderLimits::default())
}

fn hidden(b: &mut GraphBuilder, d: u32) -> ValueId {
    let ids = b.token_ids().unwrap();
    let table = b.param("embed.weight", &[16, d]).unwrap();
    b.embedding(table, ids).unwrap()
}

fn shape_of(b: &GraphBuilder, v: ValueId) -> String {
    b.value_info(v).unwrap().to_string()
}

#[test]
fn a_wrong_weight_names_op_operands_and_scope() {
    let mut b = assumed();
    let x = hidden(&mut b, 4096);
    b.scope("layers.0.mlp").unwrap();
    let w = b
        .param("model.layers.0.mlp.up_proj.weight", &[11008, 4095])
        .unwrap();
    let error = b.linear(x, w, None, Sharding::Column).unwrap_err();
    assert_eq!(error.label(), "graph_shape");
    assert_eq!(
        error.to_string(),
        "linear in layers.0.mlp: x [tokens, 4096] with weight 'model.layers.0.mlp.up_proj.weight' [11008, 4095]; \
         expected x [tokens, in] and weight [out, in]"
    );
}

#[test]
fn a_missing_tensor_is_named_with_similar_ones() {
    let row = |n: usize| TensorInfo::new([n, 8], DType::F32);
    let mut b = over(vec![
        ("model.layers.0.mlp.w1.weight", row(4)),
        ("model.layers.0.mlp.w2.weight", row(4)),
        ("visual.patch", row(4)),
    ]);
    b.scope("layers.0").unwrap();
    assert_eq!(
        b.param("model.layers.0.mlp.up.weight", &[4, 8])
            .unwrap_err()
            .to_string(),
        "param in layers.0: the checkpoint has no tensor 'model.layers.0.mlp.up.weight' (it has \
         'model.layers.0.mlp.w1.weight', 'model.layers.0.mlp.w2.weight'); check that config.json belongs to these weights"
    );
    assert_eq!(
        b.param("model.layers.0.mlp.w1.weight", &[8, 8])
            .unwrap_err()
            .to_string(),
        "param in layers.0: the checkpoint's 'model.layers.0.mlp.w1.weight' is [4, 8]; expected [8, 8] as config.json implies"
    );
    assert_eq!(b.param_shape("visual.patch"), Some(vec![4, 8]));
    assert!(!b.has_param("visual.patches"));
}

#[test]
fn a_memory_source_serves_as_catalog() {
    let mut source = MemorySource::new();
    source.insert_f32("w", [2, 2], &[0.0; 4]).unwrap();
    let catalog = Arc::new(SourceCatalog::new(Arc::new(source)));
    let mut b = GraphBuilder::new(catalog, BuilderLimits::default());
    let w = b.param("w", &[2, 2]).unwrap();
    assert_eq!(b.weight_info(w).unwrap().scheme, Scheme::Plain(DType::F32));
}

#[test]
fn row_operations_keep_blocks_and_others_need_plain_numbers() {
    let q4 = TensorInfo::new([64, 64], BlockType::Q4_0);
    let q6 = TensorInfo::new([64, 256], BlockType::Q6K);
    let q8 = TensorInfo::new([64, 64], BlockType::Q8_0);
    let mut b = over(vec![("q4", q4), ("q6", q6), ("q8", q8)]);
    let w = b.param("q4", &[64, 64]).unwrap();
    let q8 = b.param("q8", &[64, 64]).unwrap();
    let q6 = b.param("q6", &[64, 256]).unwrap();

    let top = b.rows(w, 0, 16).unwrap();
    let odd = b.select_rows(w, vec![1, 3, 5]).unwrap();
    let both = b.concat_rows(&[top, odd, w]).unwrap();
    let stacked = b.reshape_weight(w, &[2, 32, 64]).unwrap();
    let info = |b: &GraphBuilder, w| {
        let w = b.weight_info(w).unwrap();
        (w.shape.clone(), w.scheme.to_string())
    };
    assert_eq!(info(&b, both), (vec![16 + 3 + 64, 64], "q4_0".to_owned()));
    assert_eq!(info(&b, stacked), (vec![2, 32, 64], "q4_0".to_owned()));

    for error in [
        b.transpose(w).unwrap_err(),
        b.scale_weight(w, 2.0).unwrap_err(),
        b.normalize_rows(w, 0.0).unwrap_err(),
        b.reshape_weight(w, &[32, 128]).unwrap_err(),
    ] {
        assert_eq!(error.label(), "graph_scheme");
        assert!(
            error.to_string().ends_with(
                "weight 'q4' [64, 64] is stored as q4_0; expected plain numbers; apply dequantize first"
            ),
            "{error}"
        );
    }
    let plain = b.dequantize(w).unwrap();
    let turned = b.transpose(plain).unwrap();
    assert_eq!(info(&b, turned), (vec![64, 64], "f32".to_owned()));

    let error = b.concat_rows(&[w, q8]).unwrap_err().to_string();
    assert_eq!(
        error,
        "concat-rows: weight 'q8' [64, 64] is stored as q8_0; expected q4_0 like weight 'q4' [64, 64]; apply \
         dequantize to both, or use two linears (they are merged with a scheme each)"
    );
    assert!(b.concat_rows(&[w, q6]).is_err());
}

#[test]
fn weight_expressions_check_their_ranges() {
    let mut b = assumed();
    let w = b.param("w", &[4, 8]).unwrap();
    assert!(b.rows(w, 3, 2).is_err());
    assert!(b.rows(w, u32::MAX, u32::MAX).is_err());
    assert!(b.rows(w, 0, 0).is_err());
    assert!(b.select_rows(w, vec![]).is_err());
    assert_eq!(
        b.select_rows(w, vec![0, 4]).unwrap_err().to_string(),
        "select-rows: index[1] = 4 into weight 'w' [4, 8]; expected rows below 4"
    );
    assert!(b.reshape_weight(w, &[u32::MAX, u32::MAX, 3]).is_err());
    assert!(b.constant(&[2], vec![1.0]).is_err());
    assert!(b.param("z", &[0, 8]).is_err());
    assert!(b.rows(WeightId(99), 0, 1).is_err());
    let constant = b.constant(&[], vec![1.0]).unwrap();
    assert!(b.rows(constant, 0, 1).is_err());
}

#[test]
fn shapes_of_pointwise_and_moving_ops() {
    let mut b = assumed();
    let x = hidden(&mut b, 24);
    let y = b.reshape(x, &[2, 3, 4]).unwrap();
    let parts = b.split(y, 1, &[1, 2]).unwrap();
    assert_eq!(shape_of(&b, parts[0]), "[tokens, 2, 1, 4]");
    assert_eq!(shape_of(&b, parts[1]), "[tokens, 2, 2, 4]");
    let joined = b.concat(&[parts[1], parts[0], parts[1]], 1).unwrap();
    assert_eq!(shape_of(&b, joined), "[tokens, 2, 5, 4]");
    let sum = b.mul(y, parts[0]).unwrap();
    assert_eq!(shape_of(&b, sum), "[tokens, 2, 3, 4]");
    assert!(b.mul(parts[0], y).is_err());
    let heads = b.reshape(x, &[6, 4]).unwrap();
    let more = b.repeat_heads(heads, 3).unwrap();
    assert_eq!(shape_of(&b, more), "[tokens, 18, 4]");
    let turned = b.swap_axes(more).unwrap();
    assert_eq!(shape_of(&b, turned), "[tokens, 4, 18]");
    let part = b.slice(turned, 1, 16, 2).unwrap();
    assert_eq!(shape_of(&b, part), "[tokens, 4, 2]");
    let w = b.param("scale", &[24]).unwrap();
    let w = b.weight_value(w).unwrap();
    assert_eq!(shape_of(&b, w), "[*, 24]");
    let scaled = b.mul(w, x).unwrap();
    assert_eq!(shape_of(&b, scaled), "[tokens, 24]");

    assert_eq!(
        b.split(x, 0, &[20, 5]).unwrap_err().to_string(),
        "split: x [tokens, 24] by [20, 5] along axis 0; expected sizes above zero that add up to 24"
    );
    assert!(b.split(x, 1, &[24]).is_err());
    assert!(b.slice(x, 0, 24, 1).is_err());
    assert!(b.slice(x, 0, u32::MAX, 2).is_err());
    assert!(b.reshape(x, &[65536, 65536, 65536]).is_err());
    assert!(b.repeat_heads(heads, u32::MAX).is_err());
    assert!(b.swap_axes(x).is_err());
    assert!(b.concat(&[], 0).is_err());
    assert!(b.concat(&[x, heads], 0).is_err());
    assert!(b.scale(x, f32::NAN).is_err());
    assert!(b.clamp(x, 1.0, 0.0).is_err());
    assert!(b.soft_cap(x, 0.0).is_err());
}

#[test]
fn types_are_explicit() {
    let mut b = assumed();
    let x = hidden(&mut b, 8);
    let wide = b.cast(x, ValueType::F32).unwrap();
    assert_eq!(
        b.add(x, wide).unwrap_err().to_string(),
        "add: a [tokens, 8] model, b [tokens, 8] float32; expected floating-point numbers of one type; insert a cast"
    );
    let w = b.param("w", &[4, 8]).unwrap();
    let y = b.linear(wide, w, None, Sharding::Replicated).unwrap();
    assert_eq!(b.value_info(y).unwrap().ty, ValueType::F32);
    let a_log = b.param("a_log", &[8]).unwrap();
    let value = b.weight_value(a_log).unwrap();
    assert_eq!(b.value_info(value).unwrap().ty, ValueType::Model);
    let exact = b.cast(value, ValueType::F32).unwrap();
    let product = b.mul(wide, exact).unwrap();
    assert_eq!(b.value_info(product).unwrap().ty, ValueType::F32);
    assert!(b.cast(x, ValueType::I32).is_err());
}

#[test]
fn attention_fits_its_cache() {
    let mut b = assumed();
    let x = hidden(&mut b, 24);
    let positions = b.positions(PositionScheme::Standard).unwrap();
    let q = b.reshape(x, &[6, 4]).unwrap();
    let kv = b.slice(x, 0, 0, 8).unwrap();
    let kv = b.reshape(kv, &[2, 4]).unwrap();
    let cache = b.declare_cache(full_cache(2, 4)).unwrap();
    let other = b.declare_cache(full_cache(4, 4)).unwrap();
    assert_eq!(
        b.attention_shared(q, causal(cache))
            .unwrap_err()
            .to_string(),
        "attention: nothing has written cache0 so far; expected an earlier attention that writes it"
    );
    assert_eq!(
        b.attention(q, kv, kv, causal(other))
            .unwrap_err()
            .to_string(),
        "attention: k [tokens, 2, 4], v [tokens, 2, 4] with cache1 (full, 4 heads, keys of 4, values of 4); expected k \
         [tokens, 4, 4] and v [tokens, 4, 4]"
    );
    let o = b.attention(q, kv, kv, causal(cache)).unwrap();
    assert_eq!(shape_of(&b, o), "[tokens, 6, 4]");
    b.attention_shared(q, causal(cache)).unwrap();
    assert_eq!(
        b.attention(q, kv, kv, causal(cache))
            .unwrap_err()
            .to_string(),
        "attention: cache0 has been written by an earlier op; expected a cache of its own; use attention-shared to read \
         another layer's"
    );
    let window = CacheSpec {
        kind: CacheKind::Window { window: 16 },
        ..full_cache(2, 4)
    };
    let window = b.declare_cache(window).unwrap();
    assert!(b.attention(q, kv, kv, causal(window)).is_err());
    let narrow = Attention {
        window: Some(16),
        ..causal(window)
    };
    b.attention(q, kv, kv, narrow).unwrap();
    assert!(b.rope(q, positions, neox(3)).is_err());
    assert!(b.rope(q, positions, neox(6)).is_err());
    let far = Rope {
        start: u32::MAX,
        ..neox(4)
    };
    assert!(b.rope(q, positions, far).is_err());
    let axis = Rope { axis: 1, ..neox(4) };
    assert!(b.rope(q, positions, axis).is_err());
}

#[test]
fn states_have_the_size_of_what_they_hold() {
    let mut b = assumed();
    let x = hidden(&mut b, 24);
    let state = |bytes| CacheSpec {
        kind: CacheKind::Recurrent { bytes },
        kv_heads: 0,
        k_dim: 0,
        v_dim: 0,
        ..full_cache(1, 1)
    };
    let wrong = b.declare_cache(state(24 * 4 * 4)).unwrap();
    let right = b.declare_cache(state(24 * 3 * 4)).unwrap();
    let conv = CausalConv {
        weight: b.param("conv", &[24, 4]).unwrap(),
        bias: None,
        cache: wrong,
        activation: Some(Activation::Silu),
    };
    assert_eq!(
        b.causal_conv(x, conv).unwrap_err().to_string(),
        "causal-conv: cache0 (recurrent, 384 bytes); expected recurrent, 288 bytes: float32 [3, 24]"
    );
    let conv = CausalConv {
        cache: right,
        ..conv
    };
    b.causal_conv(x, conv).unwrap();
    let q = b.reshape(x, &[4, 6]).unwrap();
    let g = b.slice(x, 0, 0, 4).unwrap();
    let g = b.cast(g, ValueType::F32).unwrap();
    let inputs = DeltaInputs {
        q,
        k: q,
        v: q,
        g,
        beta: g,
    };
    let memory = b.declare_cache(state(4 * 6 * 6 * 4)).unwrap();
    let o = b.delta_rule(inputs, memory, 1.0).unwrap();
    assert_eq!(shape_of(&b, o), "[tokens, 4, 6]");
}

#[test]
fn routing_checks_groups_and_experts() {
    let mut b = assumed();
    let x = hidden(&mut b, 8);
    let route = Route {
        top_k: 4,
        scores: RouteScores::Sigmoid,
        groups: Some(RouteGroups {
            count: 4,
            top: 2,
            sum_of: 2,
        }),
        correction: None,
        renormalize: true,
        scale: 2.5,
    };
    let (weights, ids) = b.route(x, route).unwrap();
    assert_eq!(b.value_info(weights).unwrap().ty, ValueType::F32);
    assert_eq!(b.value_info(ids).unwrap().ty, ValueType::I32);
    let too_many = Route { top_k: 5, ..route };
    assert_eq!(
        b.route(x, too_many).unwrap_err().to_string(),
        "route: top-k is 5; expected from 1 to 4 experts"
    );
    let gate_up = b.param("gate_up", &[8, 12, 8]).unwrap();
    let down = b.param("down", &[8, 8, 6]).unwrap();
    let experts = Experts {
        gate_up,
        gate_up_bias: None,
        down,
        down_bias: None,
        layout: GateLayout::Halves,
        gate: Gate::Plain(Activation::Silu),
    };
    let y = b.experts(x, weights, ids, experts).unwrap();
    assert_eq!(shape_of(&b, y), "[tokens, 8]");
    let swapped = Experts {
        gate_up: down,
        ..experts
    };
    assert!(b.experts(x, weights, ids, swapped).is_err());
}

#[test]
fn latent_attention_keeps_one_head() {
    let mut b = assumed();
    let x = hidden(&mut b, 24);
    let q = b.reshape(x, &[2, 12]).unwrap();
    let latent = b.slice(x, 0, 0, 16).unwrap();
    let k_rope = b.slice(x, 0, 16, 4).unwrap();
    let spec = CacheSpec {
        k_dim: 20,
        v_dim: 16,
        values: ValueLayout::PrefixOfKey,
        sharding: CacheSharding::Replicated,
        ..full_cache(1, 1)
    };
    let cache = b.declare_cache(spec).unwrap();
    let attention = LatentAttention {
        cache,
        kv_b: b.param("kv_b", &[2 * (8 + 6), 16]).unwrap(),
        nope: 8,
        v_dim: 6,
        scale: 0.3,
    };
    let o = b.latent_attention(q, latent, k_rope, attention).unwrap();
    assert_eq!(shape_of(&b, o), "[tokens, 2, 6]");
    let bad = LatentAttention {
        nope: u32::MAX,
        ..attention
    };
    assert!(b.latent_attention(q, latent, k_rope, bad).is_err());
}

#[test]
fn limits_hold() {
    let tight = BuilderLimits {
        max_nodes: 3,
        max_values: 6,
        max_weights: 2,
        max_caches: 1,
        max_constant_elements: 10,
        max_weight_elements: 1000,
        max_value_width: 100,
        max_rank: 3,
        max_name_bytes: 20,
    };
    let catalog = AssumedCatalog::new(DType::F32);
    let mut b = GraphBuilder::new(Arc::new(catalog), tight);
    assert!(b.param("a-name-that-is-far-too-long", &[1]).is_err());
    assert_eq!(
        b.constant(&[11], vec![0.0; 11]).unwrap_err().to_string(),
        "constant: 11 constant numbers exceeds the limit of 10"
    );
    let table = b.param("embed", &[10, 100]).unwrap();
    assert!(b.reshape_weight(table, &[1, 10, 10, 10]).is_err());
    let double = b.concat_rows(&[table, table]);
    assert_eq!(double.unwrap_err().label(), "graph_limit");
    b.declare_cache(full_cache(1, 1)).unwrap();
    assert!(b.declare_cache(full_cache(1, 1)).is_err());
    let ids = b.token_ids().unwrap();
    let x = b.embedding(table, ids).unwrap();
    assert!(b.split(x, 0, &[1; 100]).is_err());
    let y = b.reshape(x, &[100, 1]).unwrap();
    assert_eq!(
        b.scale(y, 1.0).unwrap_err().to_string(),
        "scale: the number of ops exceeds the limit of 3"
    );
    let mut b = GraphBuilder::new(Arc::new(AssumedCatalog::new(DType::F32)), tight);
    let ids = b.token_ids().unwrap();
    let table = b.param("embed", &[10, 100]).unwrap();
    let x = b.embedding(table, ids).unwrap();
    let wide = b.concat(&[x, x], 0).unwrap_err();
    assert_eq!(wide.label(), "graph_limit");
}

#[test]
fn outputs_are_gathered_once() {
    let mut b = assumed();
    let x = hidden(&mut b, 8);
    let last = b.gather_outputs(x).unwrap();
    assert_eq!(shape_of(&b, last), "[outputs, 8]");
    assert_eq!(
        b.add(last, x).unwrap_err().to_string(),
        "add: a [outputs, 8], b [tokens, 8]; expected equal rows; what follows gather-outputs may use only gathered values"
    );
    assert!(b.gather_outputs(last).is_err());
    let head = b.param("head", &[16, 8]).unwrap();
    let logits = b.linear(last, head, None, Sharding::Column).unwrap();
    b.output_logits(logits).unwrap();
    assert_eq!(b.output_logits(logits).unwrap_err().label(), "graph_output");
    b.finish(info(16)).unwrap();

    let mut b = assumed();
    hidden(&mut b, 8);
    assert_eq!(
        b.finish(info(16)).unwrap_err().to_string(),
        "finish: the graph has no output; expected exactly one call of output-logits or output-embedding"
    );
}

#[test]
fn a_graph_without_gather_gets_one_before_its_head() {
    let mut b = assumed();
    let x = hidden(&mut b, 8);
    let w = b.param("norm", &[8]).unwrap();
    let x = b.rms_norm(x, rms(w)).unwrap();
    let head = b.param("head", &[16, 8]).unwrap();
    let logits = b.linear(x, head, None, Sharding::Column).unwrap();
    b.output_logits(logits).unwrap();
    let graph = b.finish(info(16)).unwrap();
    let ops: Vec<_> = graph.nodes.iter().map(|n| n.op.name()).collect();
    assert_eq!(
        ops,
        [
            "token-ids",
            "embedding",
            "gather-outputs",
            "rms-norm",
            "linear"
        ]
    );
}

#[test]
fn an_embedding_model_pools_tokens() {
    let mut b = assumed();
    let x = hidden(&mut b, 8);
    b.output_embedding(x, Pooling::Mean, Normalize::L2).unwrap();
    let graph = b.finish(info(16)).unwrap();
    let ops: Vec<_> = graph.nodes.iter().map(|n| n.op.name()).collect();
    assert_eq!(ops, ["token-ids", "embedding", "pool", "l2-norm"]);
    assert_eq!(graph.value(graph.output.value()).rows, Rows::Outputs);
}

#[test]
fn forged_ids_and_unknown_ops_are_errors() {
    let mut b = assumed();
    assert_eq!(
        b.scale(ValueId(7), 1.0).unwrap_err().to_string(),
        "scale: there is no value 7; 0 exist so far, use only ids that this builder returned"
    );
    assert!(b.output_logits(ValueId(0)).is_err());
    assert_eq!(
        b.custom("mamba", &[]).unwrap_err().to_string(),
        "custom: this host knows no op 'mamba'; ask has-custom first, or use a newer host"
    );
    assert!(!b.has_custom("mamba"));
}

#[test]
fn unused_tensors_are_listed() {
    let mut b = assumed();
    let x = hidden(&mut b, 8);
    let head = b.param("head", &[16, 8]).unwrap();
    let logits = b.linear(x, head, None, Sharding::Column).unwrap();
    b.output_logits(logits).unwrap();
    let graph = b.finish(info(16)).unwrap();
    let names = ["head", "rotary.inv_freq", "embed.weight"].map(str::to_owned);
    assert_eq!(unused_params(&graph, &names), ["rotary.inv_freq"]);
}
