#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use guesthouse_graph::{BuilderLimits, GraphBuilder, ModelInfo, SourceCatalog};
use guesthouse_weights::{BlockType, MemorySource};

use super::*;

/// Evaluates the weight that `build` makes.
fn eval(
    source: &Arc<MemorySource>,
    build: impl Fn(&mut GraphBuilder) -> WeightId,
) -> Result<(TensorInfo, Vec<u8>)> {
    let mut b = GraphBuilder::new(
        Arc::new(SourceCatalog::new(Arc::clone(source) as _)),
        BuilderLimits::default(),
    );
    let table = build(&mut b);
    let ids = b.token_ids().unwrap();
    let y = b.embedding(table, ids).unwrap();
    let width = b.value_info(y).unwrap().shape[0];
    b.output_logits(y).unwrap();
    let info = ModelInfo {
        architecture: "Test".to_owned(),
        vocab_size: width,
        max_position: 1,
    };
    let graph = b.finish(info).unwrap();
    // Finishing numbers weights anew.
    let id = graph.nodes.iter().find_map(|n| match n.op {
        guesthouse_graph::Op::Embedding { table } => Some(table),
        _ => None,
    });
    let id = id.unwrap();
    let tensor = evaluate(&graph, id, source.as_ref())?;
    Ok((tensor.info, tensor.bytes.into_owned()))
}

fn f32s((info, bytes): (TensorInfo, Vec<u8>)) -> (Vec<usize>, Vec<f32>) {
    assert_eq!(info.scheme, Scheme::Plain(DType::F32));
    (
        info.shape,
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect(),
    )
}

fn numbers() -> Arc<MemorySource> {
    let mut source = MemorySource::new();
    source
        .insert_f32("a", [3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        .unwrap();
    Arc::new(source)
}

#[test]
fn rows_and_shapes() {
    let s = numbers();
    let a = |b: &mut GraphBuilder| b.param("a", &[3, 2]).unwrap();
    let got = f32s(
        eval(&s, |b| {
            let w = a(b);
            b.rows(w, 1, 2).unwrap()
        })
        .unwrap(),
    );
    assert_eq!(got, (vec![2, 2], vec![3.0, 4.0, 5.0, 6.0]));
    let got = f32s(
        eval(&s, |b| {
            let w = a(b);
            b.select_rows(w, vec![2, 0, 2]).unwrap()
        })
        .unwrap(),
    );
    assert_eq!(got, (vec![3, 2], vec![5.0, 6.0, 1.0, 2.0, 5.0, 6.0]));
    let got = f32s(
        eval(&s, |b| {
            let w = a(b);
            let first = b.rows(w, 0, 1).unwrap();
            b.concat_rows(&[w, first]).unwrap()
        })
        .unwrap(),
    );
    assert_eq!(
        got,
        (vec![4, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.0, 2.0])
    );
    let got = f32s(
        eval(&s, |b| {
            let w = a(b);
            b.transpose(w).unwrap()
        })
        .unwrap(),
    );
    assert_eq!(got, (vec![2, 3], vec![1.0, 3.0, 5.0, 2.0, 4.0, 6.0]));
    let got = f32s(
        eval(&s, |b| {
            let w = a(b);
            let w = b.reshape_weight(w, &[2, 3]).unwrap();
            b.scale_weight(w, 10.0).unwrap()
        })
        .unwrap(),
    );
    assert_eq!(got, (vec![2, 3], vec![10.0, 20.0, 30.0, 40.0, 50.0, 60.0]));
    let (shape, got) = f32s(
        eval(&s, |b| {
            let w = a(b);
            b.normalize_rows(w, 0.0).unwrap()
        })
        .unwrap(),
    );
    assert_eq!(shape, [3, 2]);
    // 3-4-5.
    assert!((got[2] - 0.6).abs() < 1e-6 && (got[3] - 0.8).abs() < 1e-6);
}

#[test]
fn rows_of_quantized_tensors_keep_their_bytes() {
    let info = TensorInfo::new([4, 64], BlockType::Q4_1);
    let s = Arc::new(MemorySource::dummy([("q".to_owned(), info)], 1).unwrap());
    let bytes = s.read("q").unwrap();
    let row = |i: usize| &bytes[i * 40..(i + 1) * 40];
    let (info, got) = eval(&s, |b| {
        let w = b.param("q", &[4, 64]).unwrap();
        b.select_rows(w, vec![3, 1]).unwrap()
    })
    .unwrap();
    assert_eq!(
        (info.shape, info.scheme),
        (vec![2, 64], Scheme::Block(BlockType::Q4_1))
    );
    assert_eq!(got, [row(3), row(1)].concat());
    let (_, values) = f32s(
        eval(&s, |b| {
            let w = b.param("q", &[4, 64]).unwrap();
            b.dequantize(w).unwrap()
        })
        .unwrap(),
    );
    let mut want = vec![0f32; 256];
    dequantize(Scheme::Block(BlockType::Q4_1), &bytes, &mut want).unwrap();
    assert_eq!(values, want);
}

#[test]
fn a_checkpoint_that_changed_is_an_error() {
    let s = numbers();
    let mut b = GraphBuilder::new(
        Arc::new(SourceCatalog::new(Arc::clone(&s) as _)),
        BuilderLimits::default(),
    );
    let id = b.param("a", &[3, 2]).unwrap();
    let ids = b.token_ids().unwrap();
    let x = b.embedding(id, ids).unwrap();
    b.output_logits(x).unwrap();
    let info = ModelInfo {
        architecture: "Test".to_owned(),
        vocab_size: 2,
        max_position: 1,
    };
    let graph = b.finish(info).unwrap();
    let mut other = MemorySource::new();
    assert!(
        evaluate(&graph, id, &other)
            .unwrap_err()
            .to_string()
            .contains("'a'")
    );
    other.insert_f32("a", [2, 2], &[0.0; 4]).unwrap();
    let error = evaluate(&graph, id, &other).unwrap_err();
    assert_eq!(error.label(), "device_weight");
    assert!(error.to_string().contains("[3, 2]"), "{error}");
}
