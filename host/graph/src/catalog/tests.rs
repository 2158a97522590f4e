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
fn a_dummy_checkpoint_has_what_is_used_and_the_usual_rest() {
    let catalog = DummyCatalog { dtype: DType::Bf16 };
    let has = |name| catalog.lookup(name) == Lookup::Assumed(DType::Bf16);
    assert!(has("lm_head.weight"));
    assert!(has("model.layers.0.self_attn.q_norm.weight"));
    assert!(has("transformer.h.0.ln_1.bias"));
    for name in [
        "model.layers.0.self_attn.q_proj.bias",
        "rope_freqs.weight",
        "lm_head.bias",
    ] {
        assert_eq!(catalog.lookup(name), Lookup::OnDemand(DType::Bf16));
    }
    let mut b = crate::GraphBuilder::new(
        std::sync::Arc::new(catalog),
        crate::BuilderLimits::default(),
    );
    let bias = "model.layers.0.self_attn.q_proj.bias";
    assert!(!b.has_param(bias));
    b.param(bias, &[8]).unwrap();
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
