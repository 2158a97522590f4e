#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn an_assumed_checkpoint_lacks_what_models_often_lack() {
    let catalog = AssumedCatalog::new(DType::F16).absent(["model.norm.weight".to_owned()]);
    let has = |name| catalog.lookup(name) == Lookup::Assumed(DType::F16);
    assert!(has("model.layers.0.self_attn.q_proj.weight"));
    assert!(!has("model.layers.0.self_attn.q_proj.bias"));
    assert!(!has("model.layers.0.self_attn.q_norm.weight"));
    assert!(!has("lm_head.weight"));
    assert!(!has("model.norm.weight"));
    let all = AssumedCatalog::new(DType::F16).absent_where(|_| false);
    assert_eq!(all.lookup("x.bias"), Lookup::Assumed(DType::F16));
}

#[test]
fn hints_are_the_closest_names() {
    let names: Vec<String> = (0..9)
        .map(|i| format!("transformer.h.{i}.ln_1.weight"))
        .chain(["lm_head.weight".to_owned()])
        .collect();
    // h.3 differs from the wanted name in the infix alone, like every other layer; the first three are named.
    assert_eq!(
        hint("transformer.h.9.ln_1.weight", &names),
        " (it has 'transformer.h.0.ln_1.weight', 'transformer.h.1.ln_1.weight', 'transformer.h.2.ln_1.weight')"
    );
    assert_eq!(hint("something.else.entirely", &names), "");
    assert_eq!(hint("", &names), "");
}
