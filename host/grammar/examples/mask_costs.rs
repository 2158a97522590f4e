//! What grammars cost at a vocabulary of 128,256 tokens: the compiler, compiling, masks, copies, and the memory of many schemas.
//!
//! `cargo run --release -p guesthouse-grammar --example mask_costs [TOKENIZER_FOLDER]`

use guesthouse_grammar::{GrammarCompiler, Limits};
use guesthouse_tokenizer::{GgufVocab, Tokenizer};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const VOCABULARY: usize = 128_256;

/// A vocabulary of that size: bytes, digits to three, and words of letters with and without a space before them, with the
/// lengths of real ones (a mean of six characters).
fn synthetic() -> Result<Tokenizer, Box<dyn std::error::Error>> {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut tokens = vec!["<|end|>".to_owned()];
    let mut beyond = 0x100;
    for byte in 0..=255_u8 {
        let c = match printable(byte) {
            true => char::from(byte),
            false => {
                beyond += 1;
                char::from_u32(beyond - 1).unwrap_or('?')
            }
        };
        tokens.push(c.to_string());
    }
    for n in 0..1_000 {
        tokens.extend([format!("{n:03}"), format!("{n}")]);
    }
    for joint in [
        "\":", "\",", "{\"", "\"}", "},", "[{", "}]", "\":\"", "\",\"", "ĠĠ", "ĠĠĠĠ", "Ġ\"", "Ċ",
        "ĊĠĠ", "\":Ġ\"", "\",Ġ\"",
    ] {
        tokens.push(joint.to_owned());
    }
    let syllables: Vec<String> = "bcdfghklmnprstvwz"
        .chars()
        .flat_map(|c| "aeiou".chars().map(move |v| format!("{c}{v}")))
        .collect();
    let mut seed = 1_u64;
    let mut seen: std::collections::HashSet<String> = tokens.iter().cloned().collect();
    tokens.retain(|t| seen.remove(t));
    seen.extend(tokens.iter().cloned());
    while tokens.len() < VOCABULARY {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let mut word = String::new();
        if seed & 1 == 0 {
            word.push('Ġ');
        }
        for part in 0..1 + (seed >> 8) % 4 {
            let pick = (seed >> (16 + 8 * part)) as usize % syllables.len();
            word.push_str(&syllables[pick]);
        }
        match (seed >> 4) % 16 {
            0 => word.push('é'),
            1 => word.push('('),
            2 => word = word.to_uppercase(),
            3 => word.push('s'),
            _ => {}
        }
        if (seed >> 1).is_multiple_of(9) {
            word = format!("æĹ¥{}", (0x4e + (seed >> 20) % 50) as u8 as char);
        }
        if seen.insert(word.clone()) {
            tokens.push(word);
        } else {
            word.push((b'a' + ((seed >> 40) % 26) as u8) as char);
            if seen.insert(word.clone()) {
                tokens.push(word);
            }
        }
    }
    let mut token_types = vec![1; tokens.len()];
    token_types[0] = 3;
    Ok(Tokenizer::from_gguf(GgufVocab {
        model: "gpt2".into(),
        pre: Some("llama-bpe".into()),
        tokens,
        token_types: Some(token_types),
        merges: Some(Vec::new()),
        eos: Some(0),
        ..GgufVocab::default()
    })?)
}

fn schemas() -> Vec<(&'static str, &'static str, String)> {
    vec![
        ("any object", "json_object", String::new()),
        (
            "person",
            "json_schema",
            r#"{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
            "email":{"type":"string","maxLength":60},"tags":{"type":"array","items":{"type":"string"},"maxItems":5},
            "kind":{"enum":["admin","user","guest"]}},"required":["name","age","kind"],"additionalProperties":false}"#
                .into(),
        ),
        (
            "tree",
            "json_schema",
            r##"{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"value":{"type":"number"},
            "label":{"type":"string"},"children":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["value"],
            "additionalProperties":false}}}"##
                .into(),
        ),
        ("date and id", "regex", r"[A-Z]{2}\d{4}-\d{4}-\d{2}-\d{2}T[a-z ]{5,40}".into()),
        (
            "arithmetic",
            "gbnf",
            "root ::= expr\nexpr ::= term (\" \"? [-+] \" \"? term)*\nterm ::= factor (\" \"? [*/] \" \"? factor)*\n\
             factor ::= [0-9]{1,6} | [a-z]{1,12} | \"(\" expr \")\""
                .into(),
        ),
        (
            "tags",
            "structural_tag",
            r#"{"type":"structural_tag","structures":[{"begin":"<function=search>","schema":{"type":"object","properties":{"query":
            {"type":"string"}},"required":["query"]},"end":"</function>"}],"triggers":["<function="]}"#
                .into(),
        ),
    ]
}

/// Megabytes that are resident.
fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = statm
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(0.0);
    pages * 4096.0 / 1e6
}

fn percentile(sorted: &[f64], p: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * p) as usize]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tokenizer = match std::env::args().nth(1) {
        Some(folder) => Tokenizer::from_hf_dir(Path::new(&folder))?,
        None => synthetic()?,
    };
    let tokenizer = Arc::new(tokenizer);
    let size = tokenizer.vocab_size();
    let before = resident();
    let began = Instant::now();
    let compiler = GrammarCompiler::new(Arc::clone(&tokenizer), size, Limits::default());
    // The first one reads the vocabulary.
    compiler.compile("regex", "a", &[])?;
    println!(
        "compiler for {size} tokens: {:.0} ms, {:.0} MB",
        began.elapsed().as_secs_f64() * 1e3,
        resident() - before
    );
    let end = tokenizer.eos_id().unwrap_or_default();
    println!(
        "grammar        compile ms  start µs  mask µs: mean    p50    p90    p99    max   accept µs p50  masks"
    );
    let mut all = Vec::new();
    for (name, syntax, source) in schemas() {
        let began = Instant::now();
        compiler.compile(syntax, &source, &[end])?;
        let compile = began.elapsed().as_secs_f64() * 1e3;
        let (mut masks, mut accepts, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        for walk in 0..12_u64 {
            let began = Instant::now();
            let mut follower = compiler.compile(syntax, &source, &[end])?;
            starts.push(began.elapsed().as_secs_f64() * 1e6);
            let mut seed = walk.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut words = vec![0_u32; size.div_ceil(32)];
            for _ in 0..120 {
                let began = Instant::now();
                follower.mask(&mut words)?;
                masks.push(began.elapsed().as_secs_f64() * 1e6);
                let allowed: Vec<u32> = (0..size as u32)
                    .filter(|t| words[*t as usize / 32] >> (t % 32) & 1 == 1 && *t != end)
                    .collect();
                if allowed.is_empty() {
                    break;
                }
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                let token = allowed[(seed >> 20) as usize % allowed.len()];
                let began = Instant::now();
                follower.accept(token)?;
                accepts.push(began.elapsed().as_secs_f64() * 1e6);
            }
        }
        all.extend(masks.iter().copied());
        masks.sort_by(f64::total_cmp);
        accepts.sort_by(f64::total_cmp);
        starts.sort_by(f64::total_cmp);
        println!(
            "{name:14} {compile:10.1} {:9.0} {:14.1} {:6.1} {:6.1} {:6.1} {:6.0} {:15.1} {:6}",
            percentile(&starts, 0.5),
            masks.iter().sum::<f64>() / masks.len() as f64,
            percentile(&masks, 0.5),
            percentile(&masks, 0.9),
            percentile(&masks, 0.99),
            percentile(&masks, 1.0),
            percentile(&accepts, 0.5),
            masks.len()
        );
    }
    all.sort_by(f64::total_cmp);
    println!(
        "all masks: mean {:.1} µs, p50 {:.1}, p99 {:.1}",
        all.iter().sum::<f64>() / all.len() as f64,
        percentile(&all, 0.5),
        percentile(&all, 0.99)
    );
    println!("schemas   resident MB   kept   kept MB by estimate");
    let began = Instant::now();
    for n in 0..=3_000 {
        let schema = format!(
            r#"{{"type":"object","properties":{{"field_{n}":{{"type":"string","maxLength":{}}},"other_{n}":{{"type":"array",
            "items":{{"type":"integer","maximum":{n}}}}},"kind":{{"enum":["a{n}","b{n}","c{n}"]}}}},"required":["field_{n}"]}}"#,
            5 + n % 90
        );
        let mut follower = compiler.compile("json_schema", &schema, &[end])?;
        let mut words = vec![0_u32; size.div_ceil(32)];
        follower.mask(&mut words)?;
        if n % 500 == 0 {
            let (grammars, bytes) = compiler.kept();
            println!(
                "{n:7} {:13.0} {grammars:6} {:9.1}",
                resident(),
                bytes as f64 / 1e6
            );
        }
    }
    println!(
        "{:.1} ms a schema",
        began.elapsed().as_secs_f64() * 1e3 / 3_001.0
    );
    Ok(())
}
