//! Whole ways: from a source to what is allowed.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::testing::{END, Random, WORDS, accepts, allowed, compiler, start, tokenizer, walk};
use std::time::{Duration, Instant};

/// `"id"`: an integer of 1 to 99, `"kind"`: one of two, perhaps `"tags"`: at most two short words.
const SCHEMA: &str = r#"{"type": "object", "properties": {
    "id": {"type": "integer", "minimum": 1, "maximum": 99},
    "kind": {"enum": ["red", "blé"]},
    "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-c]{1,3}$"}, "maxItems": 2}},
    "required": ["id", "kind"], "additionalProperties": false}"#;

fn follows_schema(text: &[u8]) -> bool {
    let Ok(serde_json::Value::Object(map)) = serde_json::from_slice(text) else {
        return false;
    };
    let tag = |tag: &serde_json::Value| {
        tag.as_str()
            .is_some_and(|t| (1..=3).contains(&t.len()) && t.bytes().all(|b| b"abc".contains(&b)))
    };
    map.keys()
        .all(|key| ["id", "kind", "tags"].contains(&key.as_str()))
        && map["id"].as_u64().is_some_and(|id| (1..=99).contains(&id))
        && ["red", "blé"].contains(&map["kind"].as_str().unwrap_or_default())
        && map.get("tags").is_none_or(|tags| {
            tags.as_array()
                .is_some_and(|tags| tags.len() <= 2 && tags.iter().all(tag))
        })
}

#[test]
fn random_outputs_follow_their_schema() {
    let (compiler, tokenizer) = (compiler(), tokenizer(WORDS));
    let mut ended = 0;
    for seed in 0..40 {
        if let Some(text) = walk(&compiler, &tokenizer, ("json_schema", SCHEMA), seed) {
            ended += 1;
            assert!(
                follows_schema(&text),
                "{:?}",
                String::from_utf8_lossy(&text)
            );
        }
    }
    assert!(ended >= 36, "{ended} of 40 ended");
}

#[test]
fn random_outputs_match_their_expression() {
    let (compiler, tokenizer) = (compiler(), tokenizer(WORDS));
    for (pattern, syntax) in [
        (r"(abc|bcd)+[0-9]{2,4}é?", "regex"),
        (r"^\d{3}-[α-ω日]{1,3}$", "regex"),
        (r#"[" \n]{2,5}(true|false)"#, "regex"),
    ] {
        let whole = anchored(pattern);
        for seed in 0..15 {
            if let Some(text) = walk(&compiler, &tokenizer, (syntax, pattern), seed) {
                let text = String::from_utf8(text).unwrap();
                assert!(whole.is_match(&text).unwrap(), "{text:?} against {pattern}");
            }
        }
    }
}

fn anchored(pattern: &str) -> fancy_regex::Regex {
    let inner = pattern.trim_start_matches('^').trim_end_matches('$');
    fancy_regex::Regex::new(&format!("^(?:{inner})\\z")).unwrap()
}

#[test]
fn every_choice_and_nothing_else() {
    let (compiler, tokenizer) = (compiler(), tokenizer(WORDS));
    let choices = r#"["a", "abc", "abcd\n", "\"quoted\"", "日本", "a/b\\c\u007f"]"#;
    let list: Vec<String> = serde_json::from_str(choices).unwrap();
    for choice in &list {
        assert!(accepts(&compiler, "choice", choices, choice), "{choice:?}");
    }
    for other in ["", "ab", "abcd", "abca", "quoted", "日"] {
        assert!(!accepts(&compiler, "choice", choices, other), "{other:?}");
    }
    for seed in 0..20 {
        let text = walk(&compiler, &tokenizer, ("choice", choices), seed).unwrap();
        assert!(list.contains(&String::from_utf8(text).unwrap()));
    }
    assert!(accepts(&compiler, "choice", r#"["", "a"]"#, ""));
    assert!(accepts(&compiler, "choice", r#"["", "a"]"#, "a"));
    assert!(accepts(&compiler, "choice", r#"[""]"#, ""));
    assert!(!accepts(&compiler, "choice", r#"[""]"#, "a"));
}

/// The mask against enumeration: a token is allowed where some word begins with the text that it makes.
#[test]
fn masks_are_the_tokens_that_keep_the_text_a_prefix() {
    let tokenizer = tokenizer(&["ab", "abc", "bc", "ca", "日本", "xy", "abcabc"]);
    let size = tokenizer.vocab_size();
    let compiler = GrammarCompiler::new(Arc::clone(&tokenizer), size, Limits::default());
    // Nothing in it is forced but for the 日, whose characters have one continuation.
    let parts = ["ab", "b", "ca", "日"];
    let mut words: Vec<Vec<u8>> = Vec::new();
    for a in parts {
        for b in parts {
            for c in parts {
                words.push(format!("{a}{b}{c}").into_bytes());
                words.push(format!("{a}{b}").into_bytes());
            }
        }
    }
    let mut random = Random(7);
    for _ in 0..20 {
        let mut follower = start(&compiler, "regex", "(ab|b|ca|日){2,3}").unwrap();
        let mut text: Vec<u8> = Vec::new();
        loop {
            let can_end = words.contains(&text);
            let expected: Vec<TokenId> = (0..size as TokenId)
                .filter(|&token| {
                    if tokenizer.is_control(token) {
                        return token == END && can_end;
                    }
                    let next = [text.as_slice(), &tokenizer.token_bytes(token)].concat();
                    words.iter().any(|word| word.starts_with(&next))
                })
                .collect();
            let mask = allowed(&mut follower, size);
            let forced = follower.forced();
            match forced.first() {
                // What is forced is one way to write the only continuation.
                Some(&only) => {
                    assert_eq!(mask, [only]);
                    assert!(expected.contains(&only));
                }
                None => assert_eq!(mask, expected, "{:?}", String::from_utf8_lossy(&text)),
            }
            let token = mask[random.below(mask.len())];
            follower.accept(token).unwrap();
            if token == END {
                break;
            }
            text.extend(tokenizer.token_bytes(token));
        }
    }
}

#[test]
fn every_prefix_of_a_valid_text_is_allowed_as_the_tokenizer_writes_it() {
    let (compiler, tokenizer) = (compiler(), tokenizer(WORDS));
    let object = r#"{"name":"hello 日本","type":[123,true,null,{"age":0.5}]}"#;
    let own = r#"{"id":12,"kind":"blé","tags":["abc"]}"#;
    for (syntax, source, text) in [
        ("json_object", "", object),
        ("json_schema", SCHEMA, own),
        ("json_schema", "{}", object),
        ("regex", r#"[\s\S]*"#, object),
        (
            "lark",
            "start: WORD (\" \" WORD)*\nWORD: /[a-z]+/",
            "hello abc true",
        ),
    ] {
        let mut follower = start(&compiler, syntax, source).unwrap();
        for token in tokenizer.encode_text(text).unwrap() {
            let mask = allowed(&mut follower, tokenizer.vocab_size());
            assert!(mask.contains(&token), "{syntax}: token {token} of {text}");
            follower.accept(token).unwrap();
        }
        follower.accept(END).unwrap();
    }
}

#[test]
fn what_would_break_the_grammar_is_refused_and_ends_the_sequence() {
    let compiler = compiler();
    for (text, bad) in [
        ("", b'['),
        (r#"{"id":"#, b'0'),
        (r#"{"id":99"#, b'9'),
        (r#"{"id":1,"kind":"red"#, b'x'),
    ] {
        let mut follower = start(&compiler, "json_schema", SCHEMA).unwrap();
        for byte in text.bytes() {
            follower.accept(2 + u32::from(byte)).unwrap();
        }
        assert!(!allowed(&mut follower, 300).contains(&(2 + u32::from(bad))));
        assert!(!allowed(&mut follower, 300).contains(&END));
        let mut other = follower.fork();
        let error = other.accept(2 + u32::from(bad)).unwrap_err();
        assert!(error.0.contains("does not allow token"), "{error}");
        assert_eq!(other.mask(&mut [0; 20]).unwrap_err(), error);
        // The end, a control token, and ids without a token.
        for token in [END, 1, 1_000_000, u32::MAX] {
            assert!(follower.fork().accept(token).is_err());
        }
        // What failed is no matter of the one it was forked from.
        allowed(&mut follower, 300);
    }
}

#[test]
fn all_stop_tokens_end_it_and_only_there() {
    let compiler = compiler();
    let q = 2 + u32::from(b'q');
    let mut follower = compiler.compile("regex", "a+", &[0, 1, q]).unwrap();
    let a = 2 + u32::from(b'a');
    assert_eq!(allowed(&mut follower, 300)[0], a);
    follower.accept(a).unwrap();
    let mask = allowed(&mut follower, 300);
    assert_eq!(mask, [0, 1, a, q]);
    for stop in [0, 1, q] {
        let mut ended = follower.fork();
        ended.accept(stop).unwrap();
        assert_eq!(allowed(&mut ended, 300), [0, 1, q]);
        assert!(ended.accept(a).is_err());
    }
    // Nothing can follow: only the end.
    let mut follower = start(&compiler, "regex", "ab").unwrap();
    follower.accept(a).unwrap();
    follower.accept(a + 1).unwrap();
    assert_eq!(allowed(&mut follower, 300), [END]);
    assert!(follower.forced().is_empty());
    let mut follower = compiler.compile("regex", "a", &[]).unwrap();
    follower.accept(a).unwrap();
    let error = follower.mask(&mut [0; 20]).unwrap_err();
    assert!(error.0.contains("no stop token"), "{error}");
}

#[test]
fn forced_tokens_are_the_tokenizer_s() {
    let (compiler, tokenizer) = (compiler(), tokenizer(WORDS));
    let mut follower = start(&compiler, "regex", "hello 日本true[ab]").unwrap();
    let expected = tokenizer.encode_text("hello 日本true").unwrap();
    let forced = follower.forced();
    assert!(!forced.is_empty());
    assert!(
        expected.starts_with(&forced) && forced.len() + 1 >= expected.len(),
        "{forced:?}"
    );
    for token in forced {
        assert_eq!(allowed(&mut follower, 400), [token]);
        follower.accept(token).unwrap();
    }
}

#[test]
fn characters_may_be_split_between_tokens() {
    let compiler = compiler();
    let mut follower = start(&compiler, "regex", "[é日]").unwrap();
    let [first, second, third] = "日".as_bytes() else {
        unreachable!()
    };
    assert!(follower.fork().accept(2 + 0xff).is_err());
    follower.accept(2 + u32::from(*first)).unwrap();
    assert!(follower.fork().accept(2 + 0xa9).is_err());
    follower.accept(2 + u32::from(*second)).unwrap();
    assert!(follower.fork().accept(END).is_err());
    follower.accept(2 + u32::from(*third)).unwrap();
    follower.accept(END).unwrap();
}

#[test]
fn forks_go_their_own_ways() {
    let compiler = compiler();
    let mut first = start(&compiler, "regex", "a(b|c)d").unwrap();
    let a = 2 + u32::from(b'a');
    first.accept(a).unwrap();
    let mut second = first.fork();
    first.accept(a + 1).unwrap();
    assert_eq!(allowed(&mut first, 300), [a + 3]);
    assert!(allowed(&mut second, 300).contains(&(a + 2)));
    second.accept(a + 2).unwrap();
    second.accept(a + 3).unwrap();
    second.accept(END).unwrap();
    first.accept(a + 3).unwrap();
}

#[test]
fn grammars_are_kept_within_their_bound() {
    let tokenizer = tokenizer(WORDS);
    let size = tokenizer.vocab_size();
    let limits = Limits {
        cache_bytes: 4 << 20,
        ..Limits::default()
    };
    let compiler = GrammarCompiler::new(tokenizer, size, limits);
    let schema = |n: usize| {
        format!(r#"{{"type": "object", "properties": {{"f{n}": {{"type": "integer"}}}}}}"#)
    };
    for n in 0..200 {
        start(&compiler, "json_schema", &schema(n)).unwrap();
        let (grammars, bytes) = compiler.kept();
        assert!(grammars >= 1 && bytes <= 4 << 20, "{grammars}, {bytes}");
    }
    let (grammars, bytes) = compiler.kept();
    assert!(grammars < 200);
    // The last ones are still there: nothing changes.
    start(&compiler, "json_schema", &schema(199)).unwrap();
    assert_eq!(compiler.kept(), (grammars, bytes));
}

/// Each ends with an error or works, in bounded time, and the next grammar works.
#[test]
fn hostile_sources_end() {
    let compiler = compiler();
    let deep = |open: &str, close: &str, n: usize| open.repeat(n) + &close.repeat(n);
    let many: Vec<String> = (0..50_000).map(|n| format!("\"v{n}\"")).collect();
    let chain: String = (0..15_000).map(|n| format!("r{n}: r{}\n", n + 1)).collect();
    let terminals: String = (0..15_000).map(|n| format!("T{n}: T{}\n", n + 1)).collect();
    let doubling: String = (0..60)
        .map(|n| format!("r{n} ::= r{} r{}\n", n + 1, n + 1))
        .collect();
    let cases: Vec<(&str, String)> = vec![
        ("json_schema", deep(r#"{"items":"#, "}", 5_000)),
        ("json_schema", format!(r#"{{"a": {}}}"#, deep("[", "]", 100_000))),
        ("json_schema", deep(r#"{"type":"array","items":"#, "}", 100).replace(":}", ":{}}")),
        ("json_schema", format!(r#"{{"enum": [{}]}}"#, many.join(","))),
        ("json_schema", r##"{"$ref": "#"}"##.into()),
        ("json_schema", r##"{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}"##.into()),
        ("json_schema", r##"{"allOf": [{"$ref": "#"}, {"type": "object"}]}"##.into()),
        ("json_schema", r##"{"type": "array", "items": {"$ref": "#"}, "minItems": 1}"##.into()),
        ("json_schema", r#"{"type": "string", "maxLength": 4000000000}"#.into()),
        ("json_schema", r#"{"type": "array", "minItems": 1000000000}"#.into()),
        ("json_schema", r#"{"type": "string", "pattern": "(a*)*(b*)*((c|d)*)*$"}"#.into()),
        ("json_schema", r#"{"x-guidance": 7}"#.into()),
        ("json_schema", r#"{"properties": 7}"#.into()),
        ("regex", "((a{1000}){1000}){1000}".into()),
        ("regex", "(a|a|a|aa)*(.*.*.*.*){100}b".into()),
        ("regex", "(.*a){50}(.*b){50}".into()),
        ("regex", deep("(", ")", 100_000)),
        ("regex", r"(?=a)b".into()),
        ("regex", r"\p{L}{500}(\w|\d){500}".into()),
        ("choice", format!("[{}]", many.join(","))),
        ("lark", format!("start: {}", deep("(", ")", 100_000))),
        ("lark", format!("start: r0\n{chain}r15000: \"a\"")),
        ("lark", format!("start: T0\n{terminals}T15000: \"a\"")),
        ("lark", "start: start".into()),
        ("lark", "start: start start | \"a\"".into()),
        ("lark", "start: A\nA: A".into()),
        ("lark", "start: a{1000000}\na: \"x\" a |".into()),
        ("lark", "start: /(?s:.)*/ /(?s:.)*/ /(?s:.)*/".into()),
        ("lark", "start: %json {\"type\": 1}".into()),
        ("lark", "\u{0}\u{1}\u{feff}".into()),
        ("lark", "start: <[0-4294967295]>".into()),
        ("gbnf", format!("root ::= {}", deep("(", ")", 100_000))),
        ("gbnf", format!("root ::= r0\n{doubling}r60 ::= \"a\"")),
        ("gbnf", "root ::= root".into()),
        ("gbnf", "root ::= ((([a-z]{0,9999}){0,9999}){0,9999})*".into()),
        ("gbnf", format!("root ::= \"a\"{}", "*".repeat(100_000))),
        ("structural_tag", deep("[", "]", 100_000)),
        ("json_schema", " ".repeat(10 << 20)),
        ("lark", "a".repeat(10 << 20)),
    ];
    for (syntax, source) in cases {
        let began = Instant::now();
        let outcome = start(&compiler, syntax, &source);
        let head: String = source.chars().take(60).collect();
        let text = match outcome {
            Ok(mut follower) => match follower.mask(&mut [0; 16]) {
                Ok(()) => "works".to_owned(),
                Err(error) => error.0,
            },
            Err(error) => error.to_string(),
        };
        println!("{syntax} {head:?}: {text} ({:?})", began.elapsed());
        assert!(text.len() < 2_000, "{text}");
        // The limit of compiling, with room for a busy machine.
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    assert!(accepts(&compiler, "regex", "a", "a"));
}
