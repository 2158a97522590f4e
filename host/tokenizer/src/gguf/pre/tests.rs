#![allow(clippy::unwrap_used, clippy::panic)]

use super::Pre;

const NAMES: [&str; 71] = [
    "default",
    "gpt-2",
    "phi-2",
    "jina-es",
    "jina-de",
    "jina-v1-en",
    "jina-v2-es",
    "jina-v2-de",
    "jina-v2-code",
    "roberta-bpe",
    "gigachat",
    "a.x-4.0",
    "mellum",
    "modern-bert",
    "jais",
    "trillion",
    "granite-docling",
    "exaone4",
    "mpt",
    "olmo",
    "starcoder",
    "refact",
    "smollm",
    "codeshell",
    "exaone",
    "minerva-7b",
    "mellum2",
    "command-r",
    "falcon",
    "llama-bpe",
    "llama3",
    "llama-v3",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "dbrx",
    "smaug-bpe",
    "chatglm-bpe",
    "glm4",
    "glm5",
    "minicpm5",
    "qwen2",
    "deepseek-r1-qwen",
    "megrez",
    "stablelm2",
    "hunyuan",
    "solar-open",
    "grok-2",
    "kormo",
    "f2llmv2",
    "qwen35",
    "seed-coder",
    "bailingmoe",
    "bailingmoe2",
    "llada-moe",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "hunyuan-dense",
    "joyai-llm",
    "hy_v4",
    "bloom",
    "poro-chat",
    "gpt3-finnish",
    "viking",
    "tekken",
    "gpt-4o",
    "chameleon",
];

#[test]
fn every_known_pattern_compiles() {
    for name in NAMES {
        let pre = Pre::named(name).unwrap_or_else(|| panic!("{name} is not known"));
        for split in pre.splits {
            fancy_regex::Regex::new(&split).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
    assert_eq!(Pre::named("kimi-k9"), None);
}

/// The families whose tokenizer.json says `ignore_merges`, and those whose post-processor begins with BOS.
#[test]
fn the_families_of_llama_3_and_tekken_keep_whole_words_and_begin_with_bos() {
    for name in NAMES {
        let pre = Pre::named(name).unwrap();
        let expected = [
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
            "tekken",
        ];
        assert_eq!(
            pre.ignore_merges && pre.add_bos,
            expected.contains(&name),
            "{name}"
        );
    }
}
