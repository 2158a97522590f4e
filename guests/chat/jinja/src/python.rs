//! Python's spelling of values: `str(x)`, `repr(x)` and `json.dumps(x, ensure_ascii=False)`.

use minijinja::Value;
use minijinja::value::ValueKind;

/// `str(x)`: strings as they are, the rest as [`repr`].
pub fn str(value: &Value) -> String {
    match value.as_str() {
        Some(s) => s.to_owned(),
        None => repr(value),
    }
}

/// `s.splitlines()`.
pub fn splitlines(s: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = s;
    while let Some((at, c)) = rest.char_indices().find(|&(_, c)| ends_line(c)) {
        lines.push(&rest[..at]);
        rest = &rest[at + c.len_utf8()..];
        if c == '\r' {
            rest = rest.strip_prefix('\n').unwrap_or(rest);
        }
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

fn ends_line(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// Levels of nesting that are written; requests have at most 128.
const MAX_DEPTH: usize = 256;

/// `repr(x)`. What lies too deep is written as an ellipsis.
pub fn repr(value: &Value) -> String {
    let mut out = String::new();
    write_repr(value, 0, &mut out);
    out
}

fn write_repr(value: &Value, level: usize, out: &mut String) {
    match value.kind() {
        _ if level > MAX_DEPTH => out.push('…'),
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(&item, level + 1, out);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(&key, level + 1, out);
                out.push_str(": ");
                write_repr(
                    &value.get_item(&key).unwrap_or(Value::UNDEFINED),
                    level + 1,
                    out,
                );
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
}

/// Single quotes unless the string has one and no double quote.
fn quote(s: &str, out: &mut String) {
    let q = if s.contains('\'') && !s.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(q);
    for c in s.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == q => {
                out.push('\\');
                out.push(c);
            }
            c if is_shown(c) => out.push(c),
            c if u32::from(c) < 0x100 => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    out.push(q);
}

/// Python's `str.isprintable` for what is likely to be met: controls, blanks other than U+0020 and format characters
/// of the basic plane are not.
fn is_shown(c: char) -> bool {
    !matches!(u32::from(c), 0..0x20 | 0x7f..=0xa0 | 0xad | 0x2000..=0x200f | 0x2028..=0x202f | 0x205f..=0x206f | 0x3000 | 0xe000..=0xf8ff | 0xfeff)
}

/// `repr` of an int or float.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

/// `repr` of a float: shortest digits that round-trip, exponent form from 1e16 and below 1e-4.
pub fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let magnitude = x.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let s = format!("{x:e}");
        let (mantissa, exponent) = s.split_once('e').unwrap_or((&s, "0"));
        let (sign, digits) = exponent
            .strip_prefix('-')
            .map_or(("+", exponent), |d| ("-", d));
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    let s = format!("{x}");
    if s.contains('.') { s } else { s + ".0" }
}

/// Layout of [`dumps`]: Python's `indent`, `separators` and `sort_keys`.
#[derive(Debug, Clone)]
pub struct Dumps {
    /// Spaces per level; none writes one line.
    pub indent: Option<usize>,
    /// Between items.
    pub item_separator: String,
    /// After a key.
    pub key_separator: String,
    /// Order of keys.
    pub keys: KeyOrder,
    /// Spelling of characters beyond ASCII.
    pub charset: Charset,
}

/// Order of object keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrder {
    /// As they came.
    Given,
    /// By code point.
    Sorted,
}

/// Characters written as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charset {
    /// All.
    Unicode,
    /// Others as `\uXXXX`.
    Ascii,
}

impl Default for Dumps {
    fn default() -> Self {
        Self {
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            keys: KeyOrder::Given,
            charset: Charset::Unicode,
        }
    }
}

/// `json.dumps`.
///
/// # Errors
/// For a value that JSON cannot hold.
pub fn dumps(value: &Value, layout: &Dumps) -> Result<String, minijinja::Error> {
    let mut out = String::new();
    write_json(value, layout, 0, &mut out)?;
    Ok(out)
}

fn newline(layout: &Dumps, level: usize, out: &mut String) {
    if let Some(n) = layout.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', n.min(64) * level));
    }
}

fn write_json(
    value: &Value,
    layout: &Dumps,
    level: usize,
    out: &mut String,
) -> Result<(), minijinja::Error> {
    if level > MAX_DEPTH {
        return Err(minijinja::Error::new(
            minijinja::ErrorKind::BadSerialization,
            "tojson: the value is nested too deeply",
        ));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => json_string(value.as_str().unwrap_or_default(), layout.charset, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            if items.is_empty() {
                out.push_str("[]");
                return Ok(());
            }
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push_str(&layout.item_separator);
                }
                newline(layout, level + 1, out);
                write_json(item, layout, level + 1, out)?;
            }
            newline(layout, level, out);
            out.push(']');
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if keys.is_empty() {
                out.push_str("{}");
                return Ok(());
            }
            if layout.keys == KeyOrder::Sorted {
                keys.sort_by_key(str);
            }
            out.push('{');
            for (i, key) in keys.iter().enumerate() {
                if i > 0 {
                    out.push_str(&layout.item_separator);
                }
                newline(layout, level + 1, out);
                json_string(&str(key), layout.charset, out);
                out.push_str(&layout.key_separator);
                write_json(&value.get_item(key)?, layout, level + 1, out)?;
            }
            newline(layout, level, out);
            out.push('}');
        }
        kind => {
            let what = format!("Object of type {kind} is not JSON serializable");
            return Err(minijinja::Error::new(
                minijinja::ErrorKind::BadSerialization,
                what,
            ));
        }
    }
    Ok(())
}

fn json_string(s: &str, charset: Charset, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c if charset == Charset::Ascii && !(' '..='~').contains(&c) => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests;
