//! The corners of metadata → config.json that the golden files do not reach.

#![allow(clippy::unwrap_used, clippy::panic)]

mod builder;

use builder::{Builder, string};
use guesthouse_weights::gguf::hf::hf_config;
use guesthouse_weights::{GgufSource, GgufTokenizer, WeightSource};
use serde_json::{Value, json};

/// A file of this architecture with 2 heads of 4 dimensions.
fn model(arch: &str, layers: u32) -> Builder {
    let number = |file: Builder, key: &str, n: u32| {
        file.entry(&format!("{arch}.{key}"), 4, &n.to_le_bytes())
    };
    let mut file = Builder::new().entry("general.architecture", 8, &string(arch));
    for (key, n) in [
        ("embedding_length", 8),
        ("block_count", layers),
        ("context_length", 100),
        ("feed_forward_length", 16),
    ] {
        file = number(file, key, n);
    }
    file.entry(
        &format!("{arch}.attention.layer_norm_rms_epsilon"),
        6,
        &1e-6f32.to_le_bytes(),
    )
    .tensor("token_embd.weight", &[8, 2], 0, 0)
    .data(64)
}

fn llama() -> Builder {
    model("llama", 1).entry("llama.attention.head_count", 4, &2u32.to_le_bytes())
}

fn config(file: &Builder) -> Value {
    hf_config(&file.open().unwrap()).unwrap()
}

fn refusal(file: &Builder) -> String {
    hf_config(&file.open().unwrap()).unwrap_err().to_string()
}

fn float(x: f32) -> [u8; 4] {
    x.to_le_bytes()
}

#[test]
fn floats_are_what_a_person_wrote() {
    let file = llama().entry("llama.rope.freq_base", 6, &float(1e6));
    let text = config(&file).to_string();
    assert!(
        text.contains(r#""rms_norm_eps":1e-6"#) || text.contains(r#""rms_norm_eps":0.000001"#),
        "{text}"
    );
    assert_eq!(config(&file)["rope_theta"], json!(1e6));
    assert_eq!(config(&llama())["rope_theta"], json!(10_000.0));
    let nan = llama().entry("llama.rope.freq_base", 6, &float(f32::NAN));
    assert!(refusal(&nan).contains("NaN"));
}

#[test]
fn rotary_scalings() {
    let scaled = |kind: &str, factor: f32| {
        llama()
            .entry("llama.rope.scaling.type", 8, &string(kind))
            .entry("llama.rope.scaling.factor", 6, &float(factor))
    };
    let linear = json!({"rope_type": "linear", "factor": 4.0});
    assert_eq!(config(&scaled("linear", 4.0))["rope_scaling"], linear);
    let old = llama().entry("llama.rope.scale_linear", 6, &float(4.0));
    assert_eq!(config(&old)["rope_scaling"], linear);
    assert_eq!(config(&scaled("none", 4.0))["rope_scaling"], Value::Null);
    assert_eq!(config(&llama())["rope_scaling"], Value::Null);
    let yarn = scaled("yarn", 4.0).entry(
        "llama.rope.scaling.original_context_length",
        4,
        &32768u32.to_le_bytes(),
    );
    assert_eq!(
        config(&yarn)["rope_scaling"],
        json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})
    );
    let odd = yarn.entry("llama.rope.scaling.attn_factor", 6, &float(2.0));
    assert!(refusal(&odd).contains("attention factor 2"));
    assert!(refusal(&scaled("longrope", 4.0)).contains("\"longrope\""));
}

/// A file with four rotary factors.
fn with_factors(factors: [f32; 4]) -> GgufSource {
    let mut bytes = llama()
        .tensor("rope_freqs.weight", &[4], 0, 64)
        .data(80)
        .bytes();
    let at = bytes.len() - 16;
    for (i, factor) in factors.into_iter().enumerate() {
        bytes[at + 4 * i..at + 4 * (i + 1)].copy_from_slice(&factor.to_le_bytes());
    }
    GgufSource::new(builder::open(&bytes).unwrap()).unwrap()
}

#[test]
fn rotary_factors_that_no_rule_gives_stay_a_tensor() {
    let source = with_factors([1.0, 2.0, 3.0, 4.0]);
    let config = hf_config(source.gguf()).unwrap();
    assert_eq!(
        config["guesthouse"],
        json!({"rope_factors": "rope_freqs.weight"})
    );
    assert_eq!(config["rope_scaling"], Value::Null);
    assert_eq!(source.read("rope_freqs.weight").unwrap().len(), 16);

    let source = with_factors([1.0; 4]);
    let config = hf_config(source.gguf()).unwrap();
    assert!(config.get("guesthouse").is_none());
    assert!(source.info("rope_freqs.weight").is_none());
}

#[test]
fn head_counts_may_be_lists_of_equal_numbers() {
    let list = |values: [u32; 2]| {
        let mut value = 4u32.to_le_bytes().to_vec();
        value.extend(2u64.to_le_bytes());
        value.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        model("llama", 1).entry("llama.attention.head_count", 9, &value)
    };
    let same = config(&list([2, 2]));
    assert_eq!(same["num_attention_heads"], json!(2));
    assert_eq!(same["num_key_value_heads"], json!(2));
    assert_eq!(same["head_dim"], json!(4));
    assert!(refusal(&list([2, 1])).contains("differs between layers"));
}

#[test]
fn variants_of_llama() {
    let number = |key: &str, n: u32| llama().entry(&format!("llama.{key}"), 4, &n.to_le_bytes());
    let mistral = config(&number("attention.sliding_window", 4096));
    assert_eq!(mistral["architectures"], json!(["MistralForCausalLM"]));
    assert_eq!(mistral["sliding_window"], json!(4096));
    let partial = config(&number("rope.dimension_count", 2));
    assert_eq!(partial["partial_rotary_factor"], json!(0.5));
    assert!(refusal(&number("rope.dimension_count", 6)).contains("rotates 6 of 4"));
    assert!(refusal(&number("expert_count", 8)).contains("mixture of experts"));
    assert!(refusal(&number("attention.value_length", 8)).contains("must be equal"));
    let deep =
        model("llama", 1_000_000).entry("llama.attention.head_count", 4, &2u32.to_le_bytes());
    assert!(refusal(&deep).contains("1000000 layers"));
}

#[test]
fn gemma3_layers_and_scales() {
    let gemma = |layers| {
        model("gemma3", layers)
            .entry("gemma3.attention.head_count", 4, &2u32.to_le_bytes())
            .entry("gemma3.attention.key_length", 4, &32u32.to_le_bytes())
            .entry("gemma3.attention.sliding_window", 4, &512u32.to_le_bytes())
    };
    let kinds = |file: &Builder| -> String {
        let config = config(file);
        let kinds = config["layer_types"].as_array().unwrap().clone();
        kinds
            .iter()
            .map(|k| k.as_str().unwrap().chars().next().unwrap())
            .collect()
    };
    assert_eq!(kinds(&gemma(7)), "sssssfs");
    let every_second = gemma(4).entry(
        "gemma3.attention.sliding_window_pattern",
        4,
        &2u32.to_le_bytes(),
    );
    assert_eq!(kinds(&every_second), "sfsf");
    let mut flags = 7u32.to_le_bytes().to_vec();
    flags.extend(3u64.to_le_bytes());
    flags.extend([1, 0, 0]);
    let told = gemma(3).entry("gemma3.attention.sliding_window_pattern", 9, &flags);
    assert_eq!(kinds(&told), "sff");
    let wrong = gemma(4).entry("gemma3.attention.sliding_window_pattern", 9, &flags);
    assert!(refusal(&wrong).contains("4 booleans"));
    // Gemma 3 27B scales by hidden / heads, all others by the head's own size.
    assert_eq!(config(&gemma(62))["query_pre_attn_scalar"], json!(4));
    assert_eq!(config(&gemma(61))["query_pre_attn_scalar"], json!(32));
}

#[test]
fn tokenizer_ids_may_say_none_but_not_lie() {
    let mut tokens = 8u32.to_le_bytes().to_vec();
    tokens.extend(2u64.to_le_bytes());
    tokens.extend(string("a"));
    tokens.extend(string("b"));
    let file = Builder::new()
        .entry("tokenizer.ggml.model", 8, &string("llama"))
        .entry("tokenizer.ggml.tokens", 9, &tokens);
    let none = file
        .clone()
        .entry("tokenizer.ggml.bos_token_id", 5, &(-1i32).to_le_bytes());
    let tokenizer = GgufTokenizer::from_gguf(&none.open().unwrap()).unwrap();
    assert_eq!(tokenizer.bos, None);
    let eot = file
        .clone()
        .entry("tokenizer.ggml.eot_token_id", 4, &1u32.to_le_bytes());
    assert_eq!(
        GgufTokenizer::from_gguf(&eot.open().unwrap())
            .unwrap()
            .end_ids(),
        [1]
    );
    let lie = file
        .clone()
        .entry("tokenizer.ggml.eos_token_id", 4, &2u32.to_le_bytes());
    let error = GgufTokenizer::from_gguf(&lie.open().unwrap())
        .unwrap_err()
        .to_string();
    assert!(error.contains("id 2, but there are 2 tokens"), "{error}");
    let mut scores = 6u32.to_le_bytes().to_vec();
    scores.extend(1u64.to_le_bytes());
    scores.extend(float(1.0));
    let short = file.entry("tokenizer.ggml.scores", 9, &scores);
    let error = GgufTokenizer::from_gguf(&short.open().unwrap())
        .unwrap_err()
        .to_string();
    assert!(error.contains("1 entries for 2 tokens"), "{error}");
}

/// A file of one of the older architectures: 2 heads of 4 dimensions, layer norms, and a fused projection of `rows` rows.
fn older(arch: &str, rows: u64) -> Builder {
    let key = |key: &str| format!("{arch}.{key}");
    model(arch, 1)
        .entry(&key("attention.head_count"), 4, &2u32.to_le_bytes())
        .entry(&key("attention.layer_norm_epsilon"), 6, &float(1e-5))
        .tensor("blk.0.attn_qkv.weight", &[8, rows], 0, 64)
        .tensor("blk.0.ffn_up.weight", &[8, 1], 0, 1024)
        .data(2048)
}

#[test]
fn starcoder_heads_are_read_off_the_projection() {
    // 8 + 2 · 4 rows: one key head; 3 · 8: as many as query heads.
    assert_eq!(config(&older("starcoder", 16))["multi_query"], json!(true));
    assert_eq!(config(&older("starcoder", 24))["multi_query"], json!(false));
    assert!(refusal(&older("starcoder", 20)).contains("20 rows, which fit neither"));
}

#[test]
fn falcon_with_biases_is_refused() {
    let kv =
        |file: Builder, n: u32| file.entry("falcon.attention.head_count_kv", 4, &n.to_le_bytes());
    let one = config(&kv(older("falcon", 16), 1));
    assert_eq!(one["new_decoder_architecture"], json!(false));
    let two = config(&kv(older("falcon", 24), 2));
    assert_eq!(two["new_decoder_architecture"], json!(true));
    assert_eq!(two["num_ln_in_parallel_attn"], json!(1));
    let bias = older("falcon", 24).tensor("blk.0.attn_qkv.bias", &[24], 0, 1088);
    assert!(refusal(&bias).contains("Falcon RW"));
}

#[test]
fn fused_projections_must_fit_their_heads() {
    let source = |rows| GgufSource::new(older("bloom", rows).open().unwrap());
    assert!(source(24).is_ok());
    let error = source(25).unwrap_err().to_string();
    assert!(error.contains("25 rows, which 2 query heads and 2 key heads cannot share"));
}

#[test]
fn neox_rotates_a_share_of_each_head() {
    let rotary =
        |n: u32| older("gptneox", 24).entry("gptneox.rope.dimension_count", 4, &n.to_le_bytes());
    assert_eq!(config(&rotary(2))["rotary_pct"], json!(0.5));
    assert_eq!(config(&rotary(2))["use_parallel_residual"], json!(true));
    assert!(refusal(&rotary(6)).contains("rotates 6 of 4"));
}

#[test]
fn mpt_attention() {
    let plain = config(&older("mpt", 24));
    assert_eq!(plain["attn_config"]["alibi"], json!(false));
    assert_eq!(plain["attn_config"]["clip_qkv"], Value::Null);
    assert_eq!(plain["learned_pos_emb"], json!(false));
    let grouped = older("mpt", 16)
        .entry("mpt.attention.head_count_kv", 4, &1u32.to_le_bytes())
        .entry("mpt.attention.max_alibi_bias", 6, &float(8.0));
    let attention = config(&grouped)["attn_config"].clone();
    assert_eq!(attention["attn_type"], json!("grouped_query_attention"));
    assert_eq!(attention["kv_n_heads"], json!(1));
    assert_eq!(attention["alibi_bias_max"], json!(8.0));
}
