//! Where two answers differ first.

use serde_json::Value;

use super::decode::packed;
use super::read::RecordedCall;

/// Characters of a value that are shown.
const SHOWN: usize = 200;

/// The first difference between a record and what its guest does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Line of the record, from 1.
    pub line: u64,
    /// Number of the call, from 1.
    pub call: u64,
    /// Name of the module as recorded.
    pub module: String,
    /// Exported function.
    pub function: String,
    /// Path within the output: "ok.choices.token\[2\]", or "log\[0\]".
    pub field: String,
    /// What the record says.
    pub recorded: String,
    /// What came now.
    pub got: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "call {} (line {}), {} of module {}: {} was {}, is {}",
            self.call, self.line, self.function, self.module, self.field, self.recorded, self.got
        )
    }
}

/// Compares what came out of a call.
pub(super) fn first_difference(
    recorded: &RecordedCall,
    function: &str,
    output: &Value,
    log: &[String],
) -> Option<Difference> {
    let (field, was, is) = if recorded.function == function {
        let lines = |lines: &[String]| lines.iter().map(|line| Value::from(&**line)).collect();
        differ("", &recorded.output, output)
            .or_else(|| differ("log", &lines(&recorded.log), &lines(log)))?
    } else {
        let was = recorded.function.clone();
        ("function".to_owned(), was, function.to_owned())
    };
    Some(Difference {
        line: recorded.line,
        call: recorded.call,
        module: recorded.module.clone(),
        function: recorded.function.clone(),
        field,
        recorded: was,
        got: is,
    })
}

type Found = (String, String, String);

fn differ(path: &str, was: &Value, is: &Value) -> Option<Found> {
    if was == is {
        return None;
    }
    match (was, is) {
        (Value::Object(a), Value::Object(b)) => {
            for kind in ["u32", "f32"] {
                if let (Some(a), Some(b)) = (packed(was, kind), packed(is, kind)) {
                    return words(path, kind, &a, &b);
                }
            }
            let missing = Value::String("(nothing)".to_owned());
            a.keys()
                .chain(b.keys().filter(|key| !a.contains_key(*key)))
                .find_map(|key| {
                    let path = join(path, key);
                    match (a.get(key), b.get(key)) {
                        (Some(was), Some(is)) => differ(&path, was, is),
                        (was, is) => Some((
                            path,
                            show(was.unwrap_or(&missing)),
                            show(is.unwrap_or(&missing)),
                        )),
                    }
                })
        }
        (Value::Array(a), Value::Array(b)) => {
            let pairs = a.iter().zip(b).enumerate();
            let first = pairs
                .into_iter()
                .find_map(|(i, (was, is))| differ(&format!("{path}[{i}]"), was, is));
            first.or_else(|| Some(lengths(path, a.len(), b.len())))
        }
        _ => Some((path.to_owned(), show(was), show(is))),
    }
}

fn words(path: &str, kind: &str, was: &[[u8; 4]], is: &[[u8; 4]]) -> Option<Found> {
    let number = |word: [u8; 4]| match kind {
        "f32" => {
            let bits = u32::from_le_bytes(word);
            format!("{:?} (bits {bits:08x})", f32::from_bits(bits))
        }
        _ => u32::from_le_bytes(word).to_string(),
    };
    let first = was.iter().zip(is).position(|(was, is)| was != is);
    match first {
        Some(i) => Some((format!("{path}[{i}]"), number(was[i]), number(is[i]))),
        None if was.len() != is.len() => Some(lengths(path, was.len(), is.len())),
        // Two spellings of the same bytes.
        None => None,
    }
}

fn lengths(path: &str, was: usize, is: usize) -> Found {
    (join(path, "length"), was.to_string(), is.to_string())
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn show(value: &Value) -> String {
    let text = value.to_string();
    let mut shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests;
