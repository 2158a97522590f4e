#![allow(clippy::unwrap_used)]

use super::read;
use serde_json::{Value, json};
use std::path::PathBuf;

/// A folder with these files.
fn folder(name: &str, files: &[(&str, Value)]) -> PathBuf {
    let root = std::env::temp_dir().join(format!(
        "guesthouse-embedding-{}-{name}",
        std::process::id()
    ));
    let _ = std::fs::remove_dir_all(&root);
    std::fs::create_dir_all(root.join("1_Pooling")).unwrap();
    for (name, content) in files {
        std::fs::write(root.join(name), content.to_string()).unwrap();
    }
    root
}

fn module(kind: &str, path: &str) -> Value {
    json!({"type": format!("sentence_transformers.models.{kind}"), "path": path})
}

const POOLING: &str = "1_Pooling/config.json";

#[test]
fn the_golden_model_pools_its_last_token() {
    let golden = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/embeddings/qwen3-embedding"
    );
    assert_eq!(
        read(golden.as_ref()).unwrap(),
        Some(json!({"pooling": "last", "normalize": true}))
    );
}

#[test]
fn means_and_absence_are_read() {
    let modules = json!([module("Transformer", ""), module("Pooling", "1_Pooling")]);
    let mean = json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false});
    let path = folder("mean", &[("modules.json", modules), (POOLING, mean)]);
    assert_eq!(
        read(&path).unwrap(),
        Some(json!({"pooling": "mean", "normalize": false}))
    );
    assert_eq!(read(&folder("none", &[])).unwrap(), None);
}

#[test]
fn what_the_host_does_not_have_is_refused_by_name() {
    let modules = json!([module("Pooling", "1_Pooling")]);
    let cls = json!({"pooling_mode_cls_token": true});
    let error = |files: &[(&str, Value)], name| read(&folder(name, files)).unwrap_err().to_string();
    let text = error(&[("modules.json", modules.clone()), (POOLING, cls)], "cls");
    assert!(text.contains("pooling_mode_cls_token"), "{text}");
    let text = error(&[("modules.json", modules)], "missing");
    assert!(text.contains("is missing"), "{text}");
    let dense = json!([module("Dense", "2_Dense")]);
    let text = error(&[("modules.json", dense)], "dense");
    assert!(text.contains("Dense"), "{text}");
    let outside = json!([module("Pooling", "../1_Pooling")]);
    let text = error(&[("modules.json", outside)], "outside");
    assert!(text.contains("outside"), "{text}");
}
