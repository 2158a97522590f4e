use super::*;
use serde_json::json;

fn config(v: Value) -> Config {
    Config::parse(&v.to_string()).unwrap()
}

#[test]
fn null_is_absent_and_defaults_apply() {
    let c = config(json!({"a": null, "b": 3, "eps": 1e-6}));
    assert_eq!(c.opt_u32("a").unwrap(), None);
    assert_eq!(c.u32_or("a", 7).unwrap(), 7);
    assert_eq!(c.u32("b").unwrap(), 3);
    assert_eq!(c.f32("eps").unwrap(), 1e-6f32);
    assert!(c.mentions("a") && !c.mentions("z"));
    assert!(!c.flag("z", false).unwrap());
}

#[test]
fn errors_name_path_wanted_and_found() {
    let c = config(json!({"text_config": {"hidden_size": "big", "n": -1, "layers": 0}}));
    let t = c.text().unwrap();
    let said = |e: Error| e.to_string();
    assert_eq!(
        said(t.u32("hidden_size").unwrap_err()),
        "invalid config: text_config.hidden_size is \"big\"; expected a whole number of at least 0"
    );
    assert_eq!(
        said(t.u32("n").unwrap_err()),
        "invalid config: text_config.n is -1; expected a whole number of at least 0"
    );
    assert_eq!(
        said(t.size("layers").unwrap_err()),
        "invalid config: text_config.layers is 0; expected a whole number of at least 1"
    );
    assert!(said(Config::parse("[1]").unwrap_err()).contains("found a list"));
    assert!(said(Config::parse("{").unwrap_err()).contains("not JSON"));
}

#[test]
fn whole_numbers_may_be_written_as_floats_but_must_fit() {
    let c = config(json!({"a": 2.0, "b": 2.5, "c": 4294967296u64, "d": 1e300}));
    assert_eq!(c.u32("a").unwrap(), 2);
    for key in ["b", "c", "d"] {
        assert!(c.u32(key).is_err(), "{key}");
    }
}

#[test]
fn text_is_the_nested_part_or_all() {
    let c = config(json!({"hidden_size": 1}));
    assert_eq!(c.text().unwrap().u32("hidden_size").unwrap(), 1);
    let c = config(json!({"hidden_size": 1, "text_config": {"hidden_size": 2}}));
    assert_eq!(c.text().unwrap().u32("hidden_size").unwrap(), 2);
}

#[test]
fn only_refuses_what_is_not_implemented() {
    let c = config(json!({"hidden_act": "relu", "x": "silu"}));
    let e = c
        .only("hidden_act", &[json!("silu"), json!("swish")])
        .unwrap_err()
        .to_string();
    assert!(
        e.starts_with("invalid config: hidden_act is \"relu\"; expected \"silu\" or \"swish\""),
        "{e}"
    );
    c.only("x", &[json!("silu")]).unwrap();
    c.only("absent", &[json!("silu")]).unwrap();
}

#[test]
fn layer_types_are_counted_and_known() {
    let known = ["full_attention", "sliding_attention"];
    let c = config(json!({"layer_types": ["full_attention", "sliding_attention"]}));
    assert_eq!(
        c.layer_types(2, &known, |_| unreachable!()).unwrap()[1],
        "sliding_attention"
    );
    assert!(c.layer_types(3, &known, |_| String::new()).is_err());
    assert!(
        c.layer_types(2, &["full_attention"], |_| String::new())
            .is_err()
    );
    let c = config(json!({}));
    assert_eq!(
        c.layer_types(2, &known, |i| i.to_string()).unwrap(),
        ["0", "1"]
    );
}

#[test]
fn long_values_are_cut_in_messages() {
    let c = config(json!({"n": "é".repeat(10_000)}));
    assert!(c.u32("n").unwrap_err().to_string().len() < 300);
}
