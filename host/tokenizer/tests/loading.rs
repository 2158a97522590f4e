//! Damaged and hostile files are refused with an error that says why.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    dead_code
)]

mod common;

use std::sync::Arc;

use common::{bpe_gguf, read, spm_gguf};
use guesthouse_tokenizer::{
    AddSpecial, Detokenizer, GgufVocab, Segment, SkipSpecial, Tokenizer, TokenizerError,
};
use serde_json::{Value, json};

fn refused(vocab: GgufVocab, label: &str, text: &str) {
    let error = Tokenizer::from_gguf(vocab).unwrap_err();
    assert_eq!(error.label(), label);
    assert!(error.to_string().contains(text), "{error}");
}

#[test]
fn gguf_names_that_are_not_known_are_named() {
    refused(
        bpe_gguf("no-such-pre"),
        "unknown_pre_tokenizer",
        "\"no-such-pre\"",
    );
    let vocab = GgufVocab {
        model: "bert".into(),
        ..spm_gguf()
    };
    refused(vocab, "unknown_model", "\"bert\"");
}

#[test]
fn gguf_arrays_must_agree() {
    let size = bpe_gguf("gpt-2").tokens.len();
    let vocab = GgufVocab {
        merges: None,
        ..bpe_gguf("gpt-2")
    };
    refused(vocab, "gguf", "tokenizer.ggml.merges");
    let vocab = GgufVocab {
        token_types: Some(vec![1]),
        ..bpe_gguf("gpt-2")
    };
    refused(vocab, "gguf", &format!("expected {size} values"));
    let vocab = GgufVocab {
        scores: Some(vec![0.0; 3]),
        ..spm_gguf()
    };
    refused(vocab, "gguf", "tokenizer.ggml.scores");
    let vocab = GgufVocab {
        scores: None,
        ..spm_gguf()
    };
    refused(vocab, "gguf", "tokenizer.ggml.scores");
    let vocab = GgufVocab {
        eos: Some(u32::MAX),
        ..spm_gguf()
    };
    refused(vocab, "gguf", "tokenizer.ggml.eos_token_id");
    let vocab = GgufVocab {
        add_bos: Some(true),
        bos: None,
        ..spm_gguf()
    };
    refused(vocab, "gguf", "tokenizer.ggml.bos_token_id");
    let vocab = GgufVocab {
        merges: Some(vec!["nospace".into()]),
        ..bpe_gguf("gpt-2")
    };
    refused(vocab, "gguf", "\"nospace\"");
    let vocab = GgufVocab {
        merges: Some(vec!["not there".into()]),
        ..bpe_gguf("gpt-2")
    };
    refused(vocab, "build", "vocabulary");
}

#[test]
fn scores_that_are_no_numbers_do_no_harm() {
    let mut vocab = spm_gguf();
    for (i, score) in vocab.scores.as_mut().unwrap().iter_mut().enumerate() {
        *score = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0][i % 4];
    }
    let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
    assert!(
        !tokenizer
            .encode_text("the quick brown fox")
            .unwrap()
            .is_empty()
    );
}

#[test]
fn an_empty_vocabulary_encodes_to_nothing() {
    let vocab = GgufVocab {
        model: "llama".into(),
        scores: Some(Vec::new()),
        ..GgufVocab::default()
    };
    let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
    assert_eq!(
        tokenizer.encode_raw("text", AddSpecial::Yes).unwrap(),
        Vec::<u32>::new()
    );
}

#[test]
fn huge_ids_and_counts_are_refused() {
    let mut json: Value = serde_json::from_str(&read("bpe.tokenizer.json")).unwrap();
    json["model"]["vocab"]["zzz"] = json!(u32::MAX);
    let error = Tokenizer::from_json_bytes(json.to_string().as_bytes()).unwrap_err();
    assert_eq!(error.label(), "too_large");

    let mut json: Value = serde_json::from_str(&read("bpe.tokenizer.json")).unwrap();
    let token = json["added_tokens"][0].clone();
    json["added_tokens"] = Value::Array(vec![token; 200_000]);
    let error = Tokenizer::from_json_bytes(json.to_string().as_bytes()).unwrap_err();
    assert_eq!(error.label(), "too_large");
}

/// Every file that is cut or has a byte changed is read or refused, never a panic.
#[test]
fn damaged_json_never_panics() {
    for name in ["bpe.tokenizer.json", "spm.tokenizer.json"] {
        let whole = read(name).into_bytes();
        for cut in (0..whole.len()).step_by(97) {
            let error = Tokenizer::from_json_bytes(&whole[..cut]).unwrap_err();
            assert_eq!(error.label(), "json", "{name} cut at {cut}");
        }
        for at in (0..whole.len()).step_by(61) {
            let mut changed = whole.clone();
            changed[at] = changed[at].wrapping_add(1);
            if let Ok(tokenizer) = Tokenizer::from_json_bytes(&changed) {
                // What it says does not matter.
                drop(tokenizer.encode_raw("the <s> 😀", AddSpecial::Yes));
            }
        }
    }
}

#[test]
fn a_decoder_that_is_not_json_is_named() {
    for decoder in [&b"{\"type\": \"\xff\"}"[..], b"{\"type\": \"\\ud800\"}"] {
        let mut json = b"{\"version\": \"1.0\", \"decoder\": ".to_vec();
        json.extend_from_slice(decoder);
        json.extend_from_slice(b", \"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}");
        let error = Tokenizer::from_json_bytes(&json).unwrap_err();
        assert_eq!(error.label(), "json");
        assert!(error.to_string().contains("line 1"), "{error}");
    }
}

#[test]
fn a_folder_gives_roles_and_added_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let error = Tokenizer::from_hf_dir(folder.path()).unwrap_err();
    assert!(matches!(error, TokenizerError::Read { .. }), "{error}");

    write("tokenizer.json", &read("bpe.tokenizer.json"));
    let plain = Tokenizer::from_hf_dir(folder.path()).unwrap();
    assert_eq!((plain.bos_id(), plain.eos_id()), (None, None));
    let size = u32::try_from(plain.vocab_size()).unwrap();

    write(
        "tokenizer_config.json",
        &json!({
            "eos_token": "<|im_end|>",
            "bos_token": {"content": "<|im_start|>", "lstrip": false},
            "pad_token": "<pad>",
            "unk_token": null,
            "additional_special_tokens": ["<extra>"],
            "added_tokens_decoder": {
                (size.to_string()): {"content": "<tool>", "special": false, "normalized": false},
                ((size + 4).to_string()): {"content": "<late>", "special": true},
            },
        })
        .to_string(),
    );
    let tokenizer = Tokenizer::from_hf_dir(folder.path()).unwrap();
    assert_eq!(tokenizer.eos_id(), plain.token_to_id("<|im_end|>"));
    assert_eq!(tokenizer.bos_id(), plain.token_to_id("<|im_start|>"));
    assert_eq!(tokenizer.token_to_id("<tool>"), Some(size));
    assert_eq!(tokenizer.token_to_id("<late>"), Some(size + 4));
    let pad = tokenizer.pad_id().unwrap();
    assert_eq!(tokenizer.id_to_token(pad), Some("<pad>"));
    assert!(tokenizer.is_control(pad));
    assert!(tokenizer.is_control(tokenizer.token_to_id("<extra>").unwrap()));
    assert!(!tokenizer.is_control(size));
    assert!(tokenizer.encode_text("a <tool>").unwrap().contains(&size));
    assert!(
        !tokenizer
            .encode_text("a <late>")
            .unwrap()
            .contains(&(size + 4))
    );

    write(
        "tokenizer_config.json",
        &json!({"added_tokens_decoder": {"-1": {"content": "x"}}}).to_string(),
    );
    assert_eq!(
        Tokenizer::from_hf_dir(folder.path()).unwrap_err().label(),
        "json"
    );
    write("tokenizer_config.json", "[]");
    assert_eq!(
        Tokenizer::from_hf_dir(folder.path()).unwrap_err().label(),
        "json"
    );
}

/// Where the model itself would make a control token of plain text, the text is encoded by its characters.
#[test]
fn a_word_that_is_a_control_token_is_spelled_out() {
    let tokens = ["a", "b", "ab", "c", "<x>", "q"];
    let vocab = GgufVocab {
        model: "gpt2".into(),
        pre: Some("llama-bpe".into()),
        tokens: tokens.iter().map(ToString::to_string).collect(),
        token_types: Some(vec![1, 1, 3, 1, 3, 3]),
        merges: Some(vec!["a b".into()]),
        ..GgufVocab::default()
    };
    let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
    assert_eq!(tokenizer.encode_raw("ab", AddSpecial::No).unwrap(), [2]);
    assert_eq!(tokenizer.encode_text("ab").unwrap(), [0, 1]);
    assert_eq!(tokenizer.encode_text("cabab").unwrap(), [3, 0, 1, 0, 1]);
    let error = tokenizer.encode_text("q").unwrap_err();
    assert_eq!(error.label(), "control_from_text");
    let unknown = tokenizer
        .encode_segments(&[Segment::Control(6)])
        .unwrap_err();
    assert!(
        unknown
            .to_string()
            .contains("6 is not in the vocabulary of 6"),
        "{unknown}"
    );
    let segments = [
        Segment::Control(0),
        Segment::Text("ab".into()),
        Segment::Control(2),
    ];
    assert_eq!(tokenizer.encode_segments(&segments).unwrap(), [0, 0, 1, 2]);
}

/// Strips more characters than a token has.
#[test]
fn a_decoder_that_contradicts_its_text_is_an_error() {
    let mut json: Value = serde_json::from_str(&read("bpe.tokenizer.json")).unwrap();
    json["decoder"] = json!({"type": "Strip", "content": "a", "start": 0, "stop": 9});
    let tokenizer = Arc::new(Tokenizer::from_json_bytes(json.to_string().as_bytes()).unwrap());
    let ids = tokenizer.encode_text("a").unwrap();
    assert_eq!(
        tokenizer.decode(&ids, SkipSpecial::No).unwrap_err().label(),
        "decode"
    );
    let mut stream = Detokenizer::new(&tokenizer, SkipSpecial::No);
    assert_eq!(stream.push(ids[0]) + &stream.finish(), "");
}

/// A decoder that is known only as a whole is streamed through a window.
#[test]
fn word_pieces_stream_with_their_spaces() {
    let mut json: Value = serde_json::from_str(&read("bpe.tokenizer.json")).unwrap();
    json["model"] = json!({
        "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
        "vocab": {"[UNK]": 0, "un": 1, "##want": 2, "##ed": 3, "runn": 4, "##ing": 5},
    });
    json["added_tokens"] = json!([]);
    json["post_processor"] = Value::Null;
    json["pre_tokenizer"] = json!({"type": "BertPreTokenizer"});
    json["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": false});
    let tokenizer = Arc::new(Tokenizer::from_json_bytes(json.to_string().as_bytes()).unwrap());
    // The vocabulary and the text of Hugging Face's own WordPiece test.
    let ids = tokenizer.encode_text("unwanted running xyz").unwrap();
    assert_eq!(ids, [1, 2, 3, 4, 5, 0]);
    assert_eq!(tokenizer.unk_id(), Some(0));
    let mut stream = Detokenizer::new(&tokenizer, SkipSpecial::No);
    let pieces: Vec<String> = ids.iter().map(|id| stream.push(*id)).collect();
    assert_eq!(pieces, ["un", "want", "ed", " runn", "ing", " [UNK]"]);
    let mut stream = Detokenizer::new(&tokenizer, SkipSpecial::No).with_prompt(&ids[..3]);
    assert_eq!(stream.push(4), " runn");
}
