//! Tables of byte-level BPE ranks: `*.tiktoken`, and the files named `tokenizer.model` that hold the same.
//!
//! Each line is a token's bytes in Base64, a space, and its rank, which is its id. Such a file says neither how text is split into
//! words nor what the control tokens are. The first comes from `pat_str` in `tokenizer_config.json`, the second from what that
//! file says of added tokens; for tables in wide use, which are recognised by their size, both are known here.

use serde_json::json;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Vocab};

use crate::TokenizerError;
use crate::files::{Base, Flag};
use crate::gguf::part;
use crate::gguf::pre::{CONTRACTION, DIGIT, DIGITS_3, gpt4, gpt4o};
use crate::spm::{SpmMerger, WholeWords};
use crate::tokenizer::{MAX_VOCAB, Roles, check_limit};

/// Longer tokens are refused.
const MAX_TOKEN_BYTES: usize = 1 << 12;

/// What a table does not say.
struct Known {
    /// How many tokens the table has.
    ranks: usize,
    pattern: String,
    normalization: Normalization,
    /// The control tokens, from the id after the last rank on.
    controls: Vec<String>,
    bos: Option<&'static str>,
    eos: Option<&'static str>,
    /// What raw text begins with, when special tokens are asked for.
    prefix: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Normalization {
    None,
    Nfc,
}

fn numbered(name: &str, numbers: std::ops::Range<u32>) -> impl Iterator<Item = String> {
    numbers.map(move |i| format!("<|{name}_{i}|>"))
}

fn names<const N: usize>(names: [&str; N]) -> impl Iterator<Item = String> {
    names.map(str::to_owned).into_iter()
}

impl Known {
    fn new(ranks: usize, pattern: String) -> Self {
        Self {
            ranks,
            pattern,
            normalization: Normalization::None,
            controls: Vec::new(),
            bos: None,
            eos: None,
            prefix: &[],
        }
    }

    /// The table in wide use that has this many ranks.
    fn of(ranks: usize) -> Option<Self> {
        let o200k = || gpt4o(&format!("{CONTRACTION}?"), DIGITS_3);
        Some(match ranks {
            // cl100k_base
            100_256 => Self::new(ranks, gpt4(DIGITS_3)),
            // A table for English with 256 control tokens.
            128_000 => Self {
                controls: names(["<|begin_of_text|>", "<|end_of_text|>"])
                    .chain(numbered("reserved_special_token", 0..2))
                    .chain(names([
                        "<|finetune_right_pad_id|>",
                        "<|step_id|>",
                        "<|start_header_id|>",
                        "<|end_header_id|>",
                        "<|eom_id|>",
                        "<|eot_id|>",
                        "<|python_tag|>",
                        "<|image|>",
                    ]))
                    .chain(numbered("reserved_special_token", 2..246))
                    .collect(),
                bos: Some("<|begin_of_text|>"),
                eos: Some("<|end_of_text|>"),
                prefix: &["<|begin_of_text|>"],
                ..Self::new(ranks, gpt4(DIGITS_3))
            },
            // Extended from cl100k_base for Chinese; text begins with two control tokens.
            151_329 => Self {
                controls: names([
                    "<|endoftext|>",
                    "[MASK]",
                    "[gMASK]",
                    "[sMASK]",
                    "<sop>",
                    "<eop>",
                    "<|system|>",
                    "<|user|>",
                    "<|assistant|>",
                    "<|observation|>",
                ])
                .collect(),
                eos: Some("<|endoftext|>"),
                prefix: &["[gMASK]", "<sop>"],
                ..Self::new(ranks, gpt4(DIGITS_3))
            },
            // Extended from cl100k_base for many languages; digits stand alone.
            151_643 => Self {
                normalization: Normalization::Nfc,
                controls: names(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
                    .chain(numbered("extra", 0..205))
                    .collect(),
                eos: Some("<|endoftext|>"),
                ..Self::new(ranks, gpt4(DIGIT))
            },
            // o200k_base, with the control tokens of o200k_harmony.
            199_998 => Self {
                controls: names(["<|startoftext|>", "<|endoftext|>"])
                    .chain((200_000..201_088).map(|id| match id {
                        200_002 => "<|return|>".to_owned(),
                        200_003 => "<|constrain|>".to_owned(),
                        200_005 => "<|channel|>".to_owned(),
                        200_006 => "<|start|>".to_owned(),
                        200_007 => "<|end|>".to_owned(),
                        200_008 => "<|message|>".to_owned(),
                        200_012 => "<|call|>".to_owned(),
                        200_018 => "<|endofprompt|>".to_owned(),
                        id => format!("<|reserved_{id}|>"),
                    }))
                    .collect(),
                bos: Some("<|startoftext|>"),
                eos: Some("<|return|>"),
                ..Self::new(ranks, o200k())
            },
            // o200k_base with two more ranks.
            200_000 => Self::new(ranks, o200k()),
            _ => return None,
        })
    }
}

/// Whether a file is such a table, by its first line.
pub(crate) fn is_table(bytes: &[u8]) -> bool {
    let line = bytes.split(|b| *b == b'\n').next().unwrap_or_default();
    line.len() < 2 * MAX_TOKEN_BYTES && parse_line(line).is_some()
}

/// Reads a table. `pattern` is what the files beside it say about splitting.
pub(crate) fn read(bytes: &[u8], pattern: Option<&str>) -> Result<Base, TokenizerError> {
    let tokens = parse(bytes)?;
    let ranks = tokens.iter().flatten().count();
    let known = match (pattern, Known::of(ranks)) {
        (Some(pattern), known) => Known {
            pattern: pattern.to_owned(),
            ..known.unwrap_or_else(|| Known::new(ranks, String::new()))
        },
        (None, Some(known)) => known,
        (None, None) => return Err(TokenizerError::UnknownTable { ranks }),
    };
    base(tokens, &known)
}

fn base(mut tokens: Vec<Option<Box<str>>>, known: &Known) -> Result<Base, TokenizerError> {
    let vocab: Vocab = (0u32..)
        .zip(&tokens)
        .filter_map(|(id, token)| Some((token.as_deref()?.to_owned(), id)))
        .collect();
    if vocab.len() != known.ranks {
        return Err(error("a token is there twice".into()));
    }
    #[allow(clippy::cast_precision_loss)] // ids are below 2^22
    let pieces = vocab
        .iter()
        .map(|(token, id)| (token.as_str().into(), (*id, -(*id as f32))))
        .collect();
    let model = BPE::builder()
        .vocab_and_merges(vocab, Vec::new())
        .build()
        .map_err(|e| TokenizerError::Build {
            part: "model",
            detail: e.to_string(),
        })?;
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
    });
    let mut inner = tokenizers::Tokenizer::new(model);
    inner.with_pre_tokenizer(Some(part::<tokenizers::PreTokenizerWrapper>(
        "pre-tokenizer",
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": known.pattern}, "behavior": "Isolated", "invert": false},
            byte_level.clone(),
        ]}),
    )?));
    inner.with_decoder(Some(part::<tokenizers::DecoderWrapper>(
        "decoder", byte_level,
    )?));
    if known.normalization == Normalization::Nfc {
        inner.with_normalizer(Some(part::<tokenizers::NormalizerWrapper>(
            "normalizer",
            json!({"type": "NFC"}),
        )?));
    }
    let first = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    let added: std::collections::HashMap<_, _> = (first..)
        .zip(&known.controls)
        .map(|(id, literal)| {
            (
                id,
                AddedToken::from(literal.as_str(), true).normalized(false),
            )
        })
        .collect();
    let id = |literal: Option<&str>| {
        let literal = literal?;
        let found = added.iter().find(|(_, token)| token.content == literal);
        found.map(|(id, _)| *id)
    };
    let roles = Roles {
        bos: id(known.bos),
        eos: id(known.eos),
        pad: None,
        unk: None,
    };
    tokens.extend(known.controls.iter().map(|c| Some(c.as_str().into())));
    Ok(Base {
        inner,
        words: Some(Box::new(WholeWords(SpmMerger::new(pieces)))),
        tokens,
        added,
        roles,
        add_bos: Flag::Off,
        prefix: known.prefix.iter().map(|p| (*p).to_owned()).collect(),
    })
}

fn error(detail: String) -> TokenizerError {
    TokenizerError::Table { detail }
}

/// Tokens by rank, in byte-level spelling.
fn parse(bytes: &[u8]) -> Result<Vec<Option<Box<str>>>, TokenizerError> {
    let mut tokens: Vec<Option<Box<str>>> = Vec::new();
    let mut single = [false; 256];
    for (number, line) in (1usize..).zip(bytes.split(|b| *b == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let (token, rank) = parse_line(line).ok_or_else(|| {
            error(format!(
                "line {number}: expected Base64, a space and a rank"
            ))
        })?;
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return Err(error(format!(
                "line {number}: the token has {} bytes, expected 1 to {MAX_TOKEN_BYTES}",
                token.len()
            )));
        }
        check_limit("a token's rank", rank, MAX_VOCAB - 1)?;
        if rank >= tokens.len() {
            tokens.resize(rank + 1, None);
        }
        if tokens[rank].is_some() {
            return Err(error(format!("line {number}: rank {rank} is there twice")));
        }
        if let [byte] = token.as_slice() {
            single[usize::from(*byte)] = true;
        }
        tokens[rank] = Some(token.into_iter().map(spelling).collect::<String>().into());
    }
    if let Some(byte) = (0..=u8::MAX).find(|byte| !single[usize::from(*byte)]) {
        return Err(error(format!(
            "there is no token for the byte 0x{byte:02X}"
        )));
    }
    Ok(tokens)
}

fn parse_line(line: &[u8]) -> Option<(Vec<u8>, usize)> {
    let at = line.iter().position(|b| *b == b' ')?;
    let rank = std::str::from_utf8(&line[at + 1..]).ok()?;
    if !rank.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some((base64(&line[..at])?, rank.parse().ok()?))
}

/// Standard Base64 (RFC 4648), with or without padding.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let padding = text.iter().rev().take_while(|b| **b == b'=').count();
    if padding > 2 {
        return None;
    }
    let text = &text[..text.len() - padding];
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0);
    for c in text {
        let six = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    (count < 6).then_some(bytes)
}

/// GPT-2's table: printable Latin-1 stands for itself, the other 68 bytes are U+0100 and on, in order.
fn spelling(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
        0..=0x20 => 0x100 + u32::from(byte),
        0x7f..=0xa0 => 0x121 + u32::from(byte) - 0x7f,
        0xad => 0x143,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests;
