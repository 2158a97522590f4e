//! Expectations are transformers 5.17's `modeling_rope_utils` on the same configs.

use super::*;

fn config(json: serde_json::Value) -> Config {
    Config::parse(&json.to_string()).unwrap()
}

macro_rules! config {
    ($($json:tt)+) => { config(serde_json::json!($($json)+)) };
}

#[test]
fn both_forms_say_the_same() {
    let older = config!({"rope_theta": 500000.0, "max_position_embeddings": 131072, "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}});
    let newer = config!({"max_position_embeddings": 131072, "rope_parameters": {
        "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}});
    let rope = Rope::from_config(&older).unwrap();
    assert_eq!(rope, Rope::from_config(&newer).unwrap());
    assert_eq!(rope.theta, 500_000.0);
    assert_eq!(
        rope.scaling,
        RopeScaling::Llama3(Llama3 {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            original: 8192
        })
    );
}

#[test]
fn nothing_said_is_plain() {
    for json in [
        config!({}),
        config!({"rope_scaling": null}),
        config!({"rope_scaling": {"rope_type": "default"}}),
        config!({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    ] {
        assert_eq!(
            Rope::from_config(&json).unwrap(),
            Rope {
                theta: 10_000.0,
                partial: 1.0,
                scaling: RopeScaling::None
            }
        );
    }
}

#[test]
fn partial_rotation_stands_in_either_place() {
    let beside = Rope::from_config(&config!({"partial_rotary_factor": 0.25})).unwrap();
    let inside = Rope::from_config(
        &config!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}),
    );
    assert_eq!(beside, inside.unwrap());
    assert_eq!(beside.params(256).rotary, 64);
}

#[test]
fn linear_and_dynamic() {
    let c = config!({"rope_scaling": {"type": "linear", "factor": 2.5}});
    assert_eq!(
        Rope::from_config(&c).unwrap().scaling,
        RopeScaling::Linear(2.5)
    );
    // The context of training is max_position_embeddings, whatever else is said.
    let c = config!({"max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 2.0}});
    assert_eq!(
        Rope::from_config(&c).unwrap().scaling,
        RopeScaling::Dynamic((2.0, 4096))
    );
}

fn yarn(c: &Config) -> Yarn {
    match Rope::from_config(c).unwrap().scaling {
        RopeScaling::Yarn(yarn) => yarn,
        other => panic!("{other:?}"),
    }
}

#[test]
fn yarn_infers_its_attention_factor() {
    // Qwen 2.5: 0.1 ln 4 + 1
    let y = yarn(
        &config!({"max_position_embeddings": 32768, "rope_scaling": {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}),
    );
    assert!((y.attention_factor - 1.138_629_4).abs() < 1e-6);
    assert_eq!(
        (y.original, y.beta_fast, y.beta_slow, y.truncate),
        (32768, 32.0, 1.0, true)
    );
    // DeepSeek-V3: equal multipliers cancel.
    let y = yarn(
        &config!({"max_position_embeddings": 163840, "rope_scaling": {
        "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096}}),
    );
    assert_eq!(y.attention_factor, 1.0);
    // DeepSeek-V2-Lite-like: (0.1 · 0.707 ln 40 + 1) / (0.1 · 1 ln 40 + 1)
    let y = yarn(
        &config!({"max_position_embeddings": 163840, "rope_scaling": {
        "type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096}}),
    );
    assert!(
        (y.attention_factor - 0.921_042_6).abs() < 1e-6,
        "{}",
        y.attention_factor
    );
    // gpt-oss keeps fractional ramp bounds. A null factor is the ratio of the contexts.
    let y = yarn(
        &config!({"max_position_embeddings": 131072, "rope_parameters": {
        "rope_type": "yarn", "factor": null, "truncate": false, "original_max_position_embeddings": 4096}}),
    );
    assert_eq!((y.factor, y.truncate), (32.0, false));
}

#[test]
fn longrope_reads_the_original_context_beside_it() {
    let c = config!({"max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "su", "short_factor": [1.0, 1.5], "long_factor": [2, 3]}});
    match Rope::from_config(&c).unwrap().scaling {
        RopeScaling::Longrope(l) => {
            assert_eq!(
                (l.short, l.long, l.original),
                (vec![1.0, 1.5], vec![2.0, 3.0], 4096)
            );
            // sqrt(1 + ln 32 / ln 4096)
            assert!(
                (l.attention_factor - 1.190_238_1).abs() < 1e-6,
                "{}",
                l.attention_factor
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn layer_types_have_ropes_of_their_own() {
    let newer = config!({"max_position_embeddings": 131072, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default"}}});
    let older =
        config!({"rope_theta": 1000000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}});
    let scaling = older.object("rope_scaling").unwrap();
    for (c, scaling) in [(&newer, None), (&older, scaling)] {
        let full = Rope::for_layers(c, "full_attention", scaling, 1e6).unwrap();
        assert_eq!(
            full,
            Rope {
                theta: 1e6,
                partial: 1.0,
                scaling: RopeScaling::Linear(8.0)
            }
        );
        let local = Rope::for_layers(c, "sliding_attention", None, 1e4).unwrap();
        assert_eq!(
            local,
            Rope {
                theta: 1e4,
                partial: 1.0,
                scaling: RopeScaling::None
            }
        );
    }
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    for (c, said) in [
        (
            config!({"rope_scaling": {"type": "mrope", "mrope_section": [1]}}),
            "rope_scaling.type is \"mrope\"",
        ),
        (
            config!({"rope_parameters": {"rope_type": "proportional"}}),
            "rope_parameters.rope_type is \"proportional\"",
        ),
        (
            config!({"rope_scaling": {"type": "linear", "factor": 2.0, "alpha": 3}}),
            "rope_scaling.alpha is 3",
        ),
        (
            config!({"rope_scaling": {"type": "linear"}}),
            "rope_scaling.factor is missing",
        ),
        (
            config!({"rope_scaling": {"type": "linear", "factor": -1}}),
            "rope_scaling.factor is -1",
        ),
        (config!({"rope_theta": 0}), "rope_theta is 0"),
        (
            config!({"partial_rotary_factor": 1.5}),
            "partial_rotary_factor is 1.5",
        ),
        (
            config!({"rope_scaling": 3}),
            "rope_scaling is 3; expected an object",
        ),
    ] {
        match Rope::from_config(&c) {
            Err(Error::InvalidConfig(m)) => assert!(m.starts_with(said), "{m}"),
            other => panic!("{other:?}"),
        }
    }
}

/// vLLM 0.11's `_get_and_verify_max_len` on the same configs.
#[test]
fn stretched_positions_lengthen_the_context() {
    for (scaling, tokens) in [
        (serde_json::json!(null), 4096),
        (serde_json::json!({"type": "linear", "factor": 4.0}), 16_384),
        (serde_json::json!({"type": "dynamic", "factor": 2.0}), 8192),
        (
            serde_json::json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}),
            16_384,
        ),
        (
            serde_json::json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 1024}),
            4096,
        ),
    ] {
        let json = config!({"max_position_embeddings": 4096, "rope_scaling": scaling});
        assert_eq!(Rope::from_config(&json).unwrap().max_position(4096), tokens);
    }
}
