//! Tiny GGUF files, made the way llama.cpp's converter makes them, must look like the Hugging Face checkpoints that they
//! were made from (`golden/make.py` checks the same with transformers).

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};

use guesthouse_weights::gguf::hf::{chat_template, generation_config, hf_config};
use guesthouse_weights::{
    BlockType, DType, Gguf, GgufSource, GgufTokenizer, Scheme, TensorInfo, WeightSource, dequantize,
};
use serde_json::{Value, json};

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(file)
}

fn open(stem: &str) -> Gguf {
    Gguf::open(golden(&format!("{stem}.gguf"))).unwrap()
}

/// The formula of `make.py`.
fn expected(name: &str, shape: &[usize]) -> Vec<f32> {
    let h = name
        .bytes()
        .fold(0u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
    let value = |i: usize| ((u64::from(h) + 37 * i as u64) % 2048) as f32 - 1024.0;
    (0..shape.iter().product())
        .map(|i| value(i) / 1024.0)
        .collect()
}

fn values(source: &GgufSource, name: &str) -> (TensorInfo, Vec<f32>) {
    let info = source.info(name).unwrap_or_else(|| panic!("no '{name}'"));
    let bytes = source.read(name).unwrap();
    assert_eq!(info.byte_len(), Some(bytes.len()), "{name}");
    let mut out = vec![0.0; info.elements().unwrap()];
    dequantize(info.scheme, &bytes, &mut out).unwrap();
    (info, out)
}

/// Every tensor that the source names has the formula's values, up to `tolerance`.
fn check(stem: &str, tolerance: f32) -> GgufSource {
    let source = GgufSource::new(open(stem)).unwrap();
    for name in source.names() {
        let (info, got) = values(&source, &name);
        let want = expected(&name, &info.shape);
        let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs());
        let worst = worst.fold(0.0, f32::max);
        assert!(worst <= tolerance, "{stem} {name}: {worst}");
    }
    source
}

fn shape(source: &GgufSource, name: &str) -> Vec<usize> {
    source
        .info(name)
        .unwrap_or_else(|| panic!("no '{name}'"))
        .shape
}

#[test]
fn llama_rows_are_put_back_and_rope_factors_become_config() {
    let source = check("llama", 0.0);
    assert_eq!(
        shape(&source, "model.layers.1.self_attn.q_proj.weight"),
        [32, 16]
    );
    assert_eq!(
        shape(&source, "model.layers.1.self_attn.k_proj.weight"),
        [16, 16]
    );
    assert_eq!(shape(&source, "model.embed_tokens.weight"), [24, 16]);
    assert!(source.info("lm_head.weight").is_none());
    assert!(source.info("rope_freqs.weight").is_none());
    assert_eq!(source.names().len(), 2 + 2 * 9);
    let scaling = hf_config(source.gguf()).unwrap()["rope_scaling"].clone();
    let llama3 = json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    assert_eq!(scaling, llama3);
}

#[test]
fn quantized_llama_rows_and_biases_are_put_back_without_loss() {
    // Half a step of the coarsest possible Q8_0 scale, 1/127.
    let source = check("llama-q8_0", 0.5 / 127.0 + 1e-4);
    let name = "model.layers.0.self_attn.q_proj.weight";
    let scheme = source.info(name).unwrap().scheme;
    assert_eq!(scheme, Scheme::Block(BlockType::Q8_0));
    assert!(
        source
            .info("model.layers.1.self_attn.k_proj.bias")
            .is_some()
    );
    assert!(source.info("lm_head.weight").is_some());
    // Row 1 of the file is the first row of the second half: rows are whole, their bytes are untouched.
    let stored = source.gguf().tensor("blk.0.attn_q.weight").unwrap();
    let bytes = source.gguf().bytes(stored).unwrap();
    assert_eq!(
        source.read(name).unwrap()[4 * 34..5 * 34],
        bytes[34..2 * 34]
    );
}

#[test]
fn qwen_tensors_are_only_renamed() {
    let qwen2 = check("qwen2", 0.0);
    assert!(qwen2.info("model.layers.0.self_attn.v_proj.bias").is_some());
    let qwen3 = check("qwen3", 0.0);
    assert_eq!(shape(&qwen3, "model.layers.1.self_attn.q_norm.weight"), [8]);
    assert_eq!(shape(&qwen3, "lm_head.weight"), [24, 16]);
}

#[test]
fn gemma_norms_lose_the_added_one() {
    let source = check("gemma3", 0.0);
    for norm in [
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
        "self_attn.q_norm",
        "self_attn.k_norm",
    ] {
        assert!(
            source
                .info(&format!("model.layers.6.{norm}.weight"))
                .is_some()
        );
    }
    assert!(source.info("model.norm.weight").is_some());
}

#[test]
fn gpt2_conv1d_weights_have_their_own_layout_unless_quantized() {
    let plain = check("gpt2", 0.0);
    assert_eq!(
        shape(&plain, "transformer.h.1.attn.c_attn.weight"),
        [16, 48]
    );
    assert_eq!(shape(&plain, "transformer.h.1.mlp.c_proj.weight"), [64, 16]);
    assert_eq!(shape(&plain, "transformer.wpe.weight"), [64, 16]);
    assert_eq!(shape(&plain, "wpe.weight"), [64, 16]);
    assert_eq!(
        plain.resolve("wpe.weight").as_deref(),
        Some("transformer.wpe.weight")
    );
    assert!(hf_config(plain.gguf()).unwrap().get("guesthouse").is_none());

    let source = GgufSource::new(open("gpt2-q8_0")).unwrap();
    let config = hf_config(source.gguf()).unwrap();
    assert_eq!(config["guesthouse"], json!({"conv1d_transposed": true}));
    let name = "transformer.h.0.attn.c_attn.weight";
    let (info, got) = values(&source, name);
    assert_eq!(info, TensorInfo::new([96, 32], BlockType::Q8_0));
    let want = expected(name, &[32, 96]);
    for (out, row) in got.chunks(32).enumerate() {
        for (input, value) in row.iter().enumerate() {
            assert!((value - want[input * 96 + out]).abs() < 0.5 / 127.0 + 1e-4);
        }
    }
}

#[test]
fn fused_projections_go_by_head_again() {
    for (stem, name, rows) in [
        ("gptneox", "gpt_neox.layers.1.attention.query_key_value", 48),
        (
            "bloom",
            "transformer.h.1.self_attention.query_key_value",
            48,
        ),
        (
            "falcon-7b",
            "transformer.h.1.self_attention.query_key_value",
            24,
        ),
        (
            "falcon-40b",
            "transformer.h.1.self_attention.query_key_value",
            32,
        ),
    ] {
        let source = check(stem, 0.0);
        assert_eq!(shape(&source, &format!("{name}.weight")), [rows, 16]);
        let bias = source.info(&format!("{name}.bias"));
        assert_eq!(bias.is_some(), rows == 48, "{stem}");
    }
}

#[test]
fn fused_projections_move_by_whole_heads() {
    // Two key heads, four query heads, four rows a head: file order q0 q1 q2 q3 k0 k1 v0 v1.
    let source = check("falcon-40b", 0.0);
    let name = "transformer.h.0.self_attention.query_key_value.weight";
    let stored = source.gguf().tensor("blk.0.attn_qkv.weight").unwrap();
    let stored = source.gguf().bytes(stored).unwrap();
    let bytes = source.read(name).unwrap();
    let head = stored.len() / 8;
    let order = |i: usize| &stored[i * head..(i + 1) * head];
    for (at, from) in [0, 1, 4, 6, 2, 3, 5, 7].into_iter().enumerate() {
        assert_eq!(&bytes[at * head..(at + 1) * head], order(from), "head {at}");
    }
}

/// Both forms: V2-Lite from before llama.cpp attended over latents, V3 from after. Experts come one by one, and keys and values
/// of a latent's expansion together.
#[test]
fn deepseek_experts_and_latents_are_put_back() {
    let lite = check("deepseek-v2-lite", 0.0);
    let layer = "model.layers.1";
    let expert = |part: &str| format!("{layer}.mlp.experts.2.{part}_proj.weight");
    assert_eq!(shape(&lite, &expert("gate")), [8, 16]);
    assert_eq!(shape(&lite, &expert("down")), [16, 8]);
    assert_eq!(
        shape(&lite, &format!("{layer}.mlp.shared_experts.up_proj.weight")),
        [16, 16]
    );
    let kv_b = format!("{layer}.self_attn.kv_b_proj.weight");
    let f16 = Scheme::Plain(DType::F16);
    assert_eq!(
        lite.info(&kv_b),
        Some(TensorInfo::new([4 * (6 + 5), 12], f16))
    );
    // Per layer 2 norms, q, kv_a, its norm, kv_b, o; 3 of the dense MLP, or router, 9 of experts and 3 of the shared one.
    assert_eq!(lite.names().len(), 3 + 2 * 7 + 3 + 13);

    let v3 = check("deepseek-v3", 0.0);
    let f32s = Scheme::Plain(DType::F32);
    assert_eq!(
        v3.info(&kv_b),
        Some(TensorInfo::new([4 * (6 + 5), 12], f32s))
    );
    assert_eq!(
        shape(&v3, &format!("{layer}.mlp.gate.e_score_correction_bias")),
        [4]
    );
    assert_eq!(
        shape(&v3, &format!("{layer}.self_attn.q_a_layernorm.weight")),
        [10]
    );
    assert_eq!(v3.names().len(), 3 + 2 * 9 + 3 + 2 + 12 + 3);
}

#[test]
fn deepseek_configs_say_what_the_files_do() {
    let lite = hf_config(&open("deepseek-v2-lite")).unwrap();
    assert_eq!(lite["architectures"], json!(["DeepseekV2ForCausalLM"]));
    assert_eq!(
        (&lite["topk_method"], &lite["q_lora_rank"]),
        (&json!("greedy"), &Value::Null)
    );
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
        "mscale": 0.75, "mscale_all_dim": 0.75});
    assert_eq!(lite["rope_scaling"], yarn);
    let v3 = hf_config(&open("deepseek-v3")).unwrap();
    assert_eq!(v3["architectures"], json!(["DeepseekV3ForCausalLM"]));
    assert_eq!((&v3["n_group"], &v3["topk_group"]), (&json!(2), &json!(1)));
    assert_eq!(v3["rope_scaling"], Value::Null);
}

#[test]
fn older_families_have_their_names() {
    let starcoder = check("starcoder", 0.0);
    assert_eq!(
        shape(&starcoder, "transformer.h.1.attn.c_attn.weight"),
        [24, 16]
    );
    assert_eq!(shape(&starcoder, "transformer.wpe.weight"), [64, 16]);
    let neox = check("gptneox", 0.0);
    assert_eq!(shape(&neox, "embed_out.weight"), [24, 16]);
    let bloom = check("bloom", 0.0);
    let norm = "transformer.word_embeddings_layernorm.bias";
    assert_eq!(shape(&bloom, norm), [16]);
    let one_norm = check("falcon-7b", 0.0);
    let has = |source: &GgufSource, norm: &str| {
        let name = format!("transformer.h.1.{norm}.weight");
        source.info(&name).is_some()
    };
    assert!(has(&one_norm, "input_layernorm") && !has(&one_norm, "ln_mlp"));
    let two_norms = check("falcon-40b", 0.0);
    assert!(has(&two_norms, "ln_attn") && has(&two_norms, "ln_mlp"));
    let mpt = check("mpt", 0.0);
    assert_eq!(
        shape(&mpt, "transformer.blocks.1.attn.Wqkv.weight"),
        [48, 16]
    );
}

#[test]
fn older_configs_say_what_their_guests_read() {
    let config = |stem: &str| hf_config(&open(stem)).unwrap();
    let neox = config("gptneox");
    assert_eq!(neox["rotary_pct"], json!(0.5));
    assert_eq!(neox["rotary_emb_base"], json!(10_000.0));
    assert_eq!(config("bloom")["seq_length"], json!(64));
    let mpt = config("mpt");
    assert_eq!(mpt["architectures"], json!(["MPTForCausalLM"]));
    assert_eq!(mpt["expansion_ratio"], json!(4.0));
    let attention = json!({"attn_type": "multihead_attention", "alibi": true, "alibi_bias_max": 16.0,
        "clip_qkv": 6.0, "qk_ln": false, "prefix_lm": false, "softmax_scale": null});
    assert_eq!(mpt["attn_config"], attention);
}

#[test]
fn current_families_are_put_back() {
    for (stem, tensor, rows) in [
        ("gemma", "model.layers.1.self_attn.q_proj.weight", 32),
        (
            "gemma2",
            "model.layers.1.pre_feedforward_layernorm.weight",
            16,
        ),
        ("phi2", "model.layers.1.self_attn.dense.bias", 16),
        ("phi3", "model.layers.1.self_attn.qkv_proj.weight", 32),
        ("stablelm", "model.layers.1.self_attn.k_layernorm.weight", 2),
        ("internlm2", "model.layers.1.attention.wq.weight", 16),
        ("command-r", "model.layers.1.self_attn.q_norm.weight", 4),
        ("cohere2", "model.norm.weight", 16),
        (
            "olmo2",
            "model.layers.1.post_feedforward_layernorm.weight",
            16,
        ),
        ("granite", "model.layers.1.self_attn.k_proj.weight", 8),
        ("smollm3", "model.layers.1.self_attn.k_proj.weight", 8),
        ("glm4", "model.layers.1.post_mlp_layernorm.weight", 16),
        ("minicpm", "model.layers.0.self_attn.q_proj.weight", 16),
    ] {
        let source = check(stem, 0.0);
        assert_eq!(shape(&source, tensor)[0], rows, "{stem}");
        let unnamed = |name: &String| name.starts_with("blk.") || name.starts_with("rope_");
        assert!(!source.names().iter().any(unnamed), "{stem}");
    }
}

#[test]
fn current_configs_are_those_of_transformers() {
    let text = std::fs::read_to_string(golden("current.json")).unwrap();
    let all: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(all.len(), 13);
    for (stem, fields) in all {
        let config = hf_config(&open(&stem)).unwrap();
        for (field, want) in fields.as_object().unwrap() {
            let got = config.get(field).unwrap_or(&Value::Null);
            let equal = got == want || got.as_f64().is_some() && got.as_f64() == want.as_f64();
            assert!(equal, "{stem} {field}: {got}, expected {want}");
        }
    }
    let config = |stem: &str| hf_config(&open(stem)).unwrap();
    for stem in ["phi2", "stablelm", "glm4"] {
        assert_eq!(config(stem)["partial_rotary_factor"], json!(0.5), "{stem}");
    }
    assert_eq!(config("smollm3")["rope_theta"], json!(5_000_000.0));
    let longrope = &config("phi3")["rope_scaling"];
    assert_eq!(longrope["rope_type"], json!("longrope"));
    assert_eq!(longrope["short_factor"], json!([1.0, 1.25]));
    assert_eq!(longrope["long_factor"], json!([1.5, 4.0]));
    assert_eq!(longrope["original_max_position_embeddings"], json!(16));
    // sqrt(1 + ln 4 / ln 16)
    let factor = longrope["attention_factor"].as_f64().unwrap();
    assert!((factor - 1.5f64.sqrt()).abs() < 1e-6, "{factor}");
}

#[test]
fn configs_equal_those_of_transformers() {
    let text = std::fs::read_to_string(golden("configs.json")).unwrap();
    let all: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(all.len(), 15);
    for (stem, fields) in all {
        let config = hf_config(&open(&stem)).unwrap();
        for (field, want) in fields.as_object().unwrap() {
            // Qwen's list says "full_attention" throughout; its published configs have none.
            if field == "layer_types" && stem.starts_with("qwen") {
                continue;
            }
            let got = config.get(field).unwrap_or(&Value::Null);
            assert_eq!(got, want, "{stem} {field}");
        }
    }
    let theta = |stem: &str| hf_config(&open(stem)).unwrap()["rope_theta"].clone();
    assert_eq!(theta("llama"), json!(500_000.0));
    assert_eq!(theta("gemma3"), json!(1_000_000.0));
    let gemma3 = hf_config(&open("gemma3")).unwrap();
    assert_eq!(gemma3["rope_local_base_freq"], json!(10_000.0));
    assert_eq!(gemma3["architectures"], json!(["Gemma3ForCausalLM"]));
    assert_eq!(
        hf_config(&open("gpt2")).unwrap()["architectures"],
        json!(["GPT2LMHeadModel"])
    );
}

#[test]
fn the_tokenizer_is_readable() {
    let gguf = open("qwen2");
    let tokenizer = GgufTokenizer::from_gguf(&gguf).unwrap();
    assert_eq!(tokenizer.model, "gpt2");
    assert_eq!(tokenizer.pre.as_deref(), Some("default"));
    assert_eq!(tokenizer.tokens[..4], ["<s>", "</s>", "<|im_end|>", "a"]);
    assert_eq!(tokenizer.token_types.as_ref().unwrap()[..4], [3, 3, 3, 1]);
    assert_eq!(tokenizer.merges.as_deref().unwrap(), ["a b", "c d"]);
    assert_eq!(
        (tokenizer.bos, tokenizer.eos, tokenizer.pad),
        (Some(0), Some(1), None)
    );
    assert_eq!((tokenizer.add_bos, tokenizer.add_eos), (Some(true), None));
    assert_eq!(tokenizer.end_ids(), [1, 2]);
    let config = generation_config(&gguf).unwrap();
    assert_eq!(config, json!({"bos_token_id": 0, "eos_token_id": [1, 2]}));
    let template = chat_template(&gguf).unwrap();
    assert_eq!(template.as_deref(), Some("{{ messages[0].content }}"));
}

#[test]
fn plain_tensors_keep_their_type() {
    let source = GgufSource::new(open("qwen2")).unwrap();
    let of = |name: &str| source.info(name).unwrap().scheme;
    assert_eq!(of("model.embed_tokens.weight"), Scheme::Plain(DType::F16));
    assert_eq!(of("model.norm.weight"), Scheme::Plain(DType::F32));
    assert_eq!(
        hf_config(source.gguf()).unwrap()["torch_dtype"],
        json!("float16")
    );
}
