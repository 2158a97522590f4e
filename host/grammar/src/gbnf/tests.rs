#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::testing::{WORDS, accepts, compiler, start, tokenizer, walk};

/// How the grammar is written: with large terminals, or by characters.
fn by_characters(source: &str) -> bool {
    let lark = to_lark(source, &Limits::default()).unwrap();
    let grammar = parse::parse(source, &Limits::default()).unwrap();
    lark == lark::write(&grammar, lark::Terminals::Characters).text
}

fn error(source: &str) -> String {
    to_lark(source, &Limits::default()).unwrap_err().to_string()
}

const LIST: &str = r##"
# A list of numbers.
root  ::= "[" ws ( item ( "," ws item )* )? "]"  # comment
item  ::= (number | root) ws
number ::= "-"? ("0" | [1-9] [0-9]{0,3})
ws    ::= ([ \t\n] ws)?
"##;

/// Read by hand: what the grammar says.
fn list(text: &[u8]) -> Option<&[u8]> {
    fn space(mut text: &[u8]) -> &[u8] {
        while let [b' ' | b'\t' | b'\n', rest @ ..] = text {
            text = rest;
        }
        text
    }
    fn item(text: &[u8]) -> Option<&[u8]> {
        if text.first() == Some(&b'[') {
            return list(text).map(space);
        }
        let text = text.strip_prefix(b"-").unwrap_or(text);
        let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
        match (digits, text.first()?) {
            (1, b'0') => Some(space(&text[1..])),
            (1..=4, b'1'..=b'9') => Some(space(&text[digits..])),
            _ => None,
        }
    }
    let mut text = space(text.strip_prefix(b"[")?);
    if let Some(rest) = text.strip_prefix(b"]") {
        return Some(rest);
    }
    loop {
        text = item(text)?;
        if let Some(rest) = text.strip_prefix(b"]") {
            return Some(rest);
        }
        text = space(text.strip_prefix(b",")?);
    }
}

#[test]
fn lists_are_what_a_reader_by_hand_reads() {
    let (compiler, tokenizer) = (compiler(), tokenizer(WORDS));
    assert!(!by_characters(LIST));
    for text in ["[]", "[ 1,-0, [ ] ,[[]]]", "[1234]"] {
        assert_eq!(list(text.as_bytes()), Some(&b""[..]));
        assert!(accepts(&compiler, "gbnf", LIST, text), "{text}");
    }
    for text in ["", "[", "[1,]", "[01]", "[12345]", "[1]]", "[--1]", "[1 2]"] {
        assert_ne!(list(text.as_bytes()), Some(&b""[..]));
        assert!(!accepts(&compiler, "gbnf", LIST, text), "{text}");
    }
    let mut ended = 0;
    for seed in 0..30 {
        if let Some(text) = walk(&compiler, &tokenizer, ("gbnf", LIST), seed) {
            ended += 1;
            assert_eq!(
                list(&text),
                Some(&b""[..]),
                "{:?}",
                String::from_utf8_lossy(&text)
            );
        }
    }
    assert!(ended > 10, "{ended}");
}

/// llama.cpp's own way to write JSON.
#[test]
fn json_is_json() {
    let json = r##"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"##;
    assert!(!by_characters(json));
    let (compiler, tokenizer) = (compiler(), tokenizer(WORDS));
    for text in [r#"{}"#, r#"{"a":[1,-2.5e3, {"b\u00e9":"日本"}], "c":null}"#] {
        assert!(accepts(&compiler, "gbnf", json, text), "{text}");
    }
    for text in ["[]", r#"{"a":tru}"#, r#"{ "a" : 1"#, r#"{"\x":1}"#, "{,}"] {
        assert!(!accepts(&compiler, "gbnf", json, text), "{text}");
    }
    for seed in 0..20 {
        if let Some(text) = walk(&compiler, &tokenizer, ("gbnf", json), seed) {
            let value: Result<serde_json::Value, _> = serde_json::from_slice(&text);
            assert!(value.is_ok(), "{:?}", String::from_utf8_lossy(&text));
        }
    }
}

/// Here a greedy lexer would be wrong: the letters before the `x` may be `x`s, and keywords begin names.
#[test]
fn ambiguous_ends_are_exact() {
    let compiler = compiler();
    let source = "root ::= [a-z]* \"x\" tail\ntail ::= \"(\" root \")\" | \"\"";
    assert!(by_characters(source) || accepts(&compiler, "gbnf", source, "xx"));
    for text in ["x", "xx", "abx", "ax(x)", "xx(bx(x))"] {
        assert!(accepts(&compiler, "gbnf", source, text), "{text}");
    }
    for text in ["", "a", "x(a)", "x()", "xy"] {
        assert!(!accepts(&compiler, "gbnf", source, text), "{text}");
    }
    let source = "root ::= \"if\" root | name root | \";\"\nname ::= [a-z]";
    assert!(by_characters(source));
    for text in [";", "if;", "i;", "ifif;", "aif;", "iif;"] {
        assert!(accepts(&compiler, "gbnf", source, text), "{text}");
    }
}

#[test]
fn all_of_the_syntax() {
    let compiler = compiler();
    let check = |source: &str, yes: &[&str], no: &[&str]| {
        for text in yes {
            assert!(
                accepts(&compiler, "gbnf", source, text),
                "{text:?} of {source}"
            );
        }
        for text in no {
            assert!(
                !accepts(&compiler, "gbnf", source, text),
                "{text:?} of {source}"
            );
        }
    };
    check(
        r#"root ::= "a\n\t\"\\\x41\u00e9\U0001F600""#,
        &["a\n\t\"\\Aé😀"],
        &["a"],
    );
    check(
        r"root ::= [^a-c\]\n]",
        &["d", "é", "日"],
        &["a", "b", "]", "\n", "dd"],
    );
    check(r"root ::= [a\-z] [-x] [x-]", &["a--", "-xx"], &["b--"]);
    check("root ::= .", &["a", "\n", "日"], &["", "ab"]);
    check("root ::= \"ab\"{2}", &["abab"], &["ab", "ababab"]);
    check("root ::= \"a\"{2,}", &["aa", "aaaa"], &["a"]);
    check(
        "root ::= \"a\"{0,2} \"b\"{0} \"c\"?",
        &["", "a", "aac", "c"],
        &["aaa", "b"],
    );
    check("root ::= (\"a\" | \"b\")+\n\n\n", &["a", "abba"], &[""]);
    check(
        "root ::= a-1\na-1 ::=\n  \"x\"\n  | \"y\" # one\n  | b_2\nb_2 ::= (\n\"z\"\n)",
        &["x", "y", "z"],
        &["a"],
    );
    check("root ::= | \"a\"", &["", "a"], &["b"]);
    check("root ::= \"\"", &[""], &["a"]);
    let mut follower = start(&compiler, "gbnf", "root ::= <|tool|> \"a\"").unwrap();
    follower.accept(1).unwrap();
}

#[test]
fn errors_tell_line_and_column() {
    for (source, expected) in [
        ("", "line 1, column 1: there is no rule `root`"),
        (
            "root ::= \"a\n",
            "line 1, column 10: this text never ends; close it with `\"`",
        ),
        (
            "root ::= (\"a\"\n",
            "line 2, column 1: expected `)`, found the end",
        ),
        (
            "root ::= a\nb ::= \"é\" %",
            "line 2, column 11: expected the end of the rule, found `%`",
        ),
        (
            "root ::= missing",
            "line 1, column 10: the rule `missing` is used, but there is none",
        ),
        (
            "root := \"a\"",
            "line 1, column 6: expected `::=`, found `:`",
        ),
        (
            "root ::= \"a\"\nroot ::= \"b\"",
            "line 2, column 1: the rule `root` is there already",
        ),
        (
            "root ::= [z-a]",
            "line 1, column 11: this range's end is before its beginning",
        ),
        (
            "root ::= []",
            "line 1, column 10: this class has no character",
        ),
        ("root ::= \"\\q\"", "line 1, column 11: unknown escape"),
        (
            "root ::= \"\\ud800\"",
            "line 1, column 11: expected 4 hexadecimal digits of a character",
        ),
        (
            "root ::= \"a\"{3,2}",
            "line 1, column 13: the least number of repetitions is above the largest",
        ),
        (
            "root ::= \"a\"{99999}",
            "line 1, column 14: `99999` repetitions are above 10000",
        ),
        (
            "root ::= !<|a|>",
            "line 1, column 10: negated tokens (`!`) are not supported",
        ),
    ] {
        assert_eq!(error(source), expected, "{source}");
    }
    let deep = format!("root ::= {}", "(".repeat(1000));
    assert_eq!(
        error(&deep),
        "line 1, column 210: the depth of brackets is 201; at most 200 is allowed"
    );
}
