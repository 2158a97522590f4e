//! Grammars of every syntax, within small limits.

use guesthouse_grammar::{GrammarCompiler, Limits, Syntax};
use guesthouse_tokenizer::{GgufVocab, Tokenizer};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Over the 256 bytes.
fn compiler() -> Option<&'static GrammarCompiler> {
    static COMPILER: OnceLock<Option<GrammarCompiler>> = OnceLock::new();
    let compiler = COMPILER.get_or_init(|| {
        let limits = Limits {
            source_bytes: 4 << 10,
            rules: 500,
            grammar_size: 5_000,
            lexer_states: 2_000,
            lexer_fuel: (100_000, 20_000),
            compile_time: Duration::from_secs(5),
            cache_bytes: 0,
            ..Limits::default()
        };
        let tokenizer = Tokenizer::from_gguf(bytes()).ok()?;
        Some(GrammarCompiler::new(Arc::new(tokenizer), 257, limits))
    });
    compiler.as_ref()
}

/// Token `b` is the byte `b`, as GPT-2 writes bytes; the last one ends texts.
fn bytes() -> GgufVocab {
    let shifted = |byte: u8| matches!(byte, 0..=0x20 | 0x7f..=0xa0 | 0xad);
    let mut next = 0x100;
    let mut token = |byte: u8| {
        if !shifted(byte) {
            return char::from(byte).to_string();
        }
        next += 1;
        char::from_u32(next - 1).unwrap_or_default().to_string()
    };
    let mut tokens: Vec<String> = (0..=255).map(&mut token).collect();
    tokens.push("<|end|>".to_owned());
    let mut types = vec![1; 256];
    types.push(3);
    GgufVocab {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        token_types: Some(types),
        merges: Some(Vec::new()),
        eos: Some(256),
        ..GgufVocab::default()
    }
}

/// The first byte says which syntax, the rest is the source.
pub fn grammar(data: &[u8]) {
    let Some((&syntax, source)) = data.split_first() else {
        return;
    };
    let syntax = Syntax::ALL[usize::from(syntax) % Syntax::ALL.len()];
    if let (Ok(source), Some(compiler)) = (std::str::from_utf8(source), compiler())
        && let Err(error) = compiler.compile(syntax.name(), source, &[256])
    {
        assert!(!error.to_string().is_empty());
    }
}
