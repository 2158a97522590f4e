//! Typed reading of JSON objects.

use crate::Error;
use serde_json::{Map, Value};

#[cfg(test)]
mod tests;

/// A JSON object and where it stands, so that errors can name the field.
///
/// A field that is `null` counts as absent, as in Hugging Face's configs. All errors are [`Error::InvalidConfig`] and say
/// which field, what was expected and what was found.
///
/// ```
/// use guesthouse_sdk::Config;
/// let config = Config::parse(r#"{"hidden_size": 64, "text_config": {"head_dim": null}}"#).unwrap();
/// assert_eq!(config.u32("hidden_size").unwrap(), 64);
/// assert_eq!(config.object("text_config").unwrap().unwrap().opt_u32("head_dim").unwrap(), None);
/// assert_eq!(
///     config.u32("vocab_size").unwrap_err().to_string(),
///     "invalid config: vocab_size is missing; expected a whole number of at least 0"
/// );
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    map: Map<String, Value>,
    /// "" or "text_config."
    path: String,
}

impl Config {
    /// Parses a whole document, which must be an object.
    pub fn parse(json: &str) -> Result<Self, Error> {
        match serde_json::from_str(json) {
            Ok(Value::Object(map)) => Ok(Self {
                map,
                path: String::new(),
            }),
            Ok(other) => Err(Error::config(format!(
                "expected a JSON object, found {}",
                kind(&other)
            ))),
            Err(e) => Err(Error::config(format!("not JSON: {e}"))),
        }
    }

    /// The language model's part of a multimodal config: `text_config` if there is one, else all of it.
    pub fn text(&self) -> Result<Self, Error> {
        Ok(self.object("text_config")?.unwrap_or_else(|| self.clone()))
    }

    /// Value of a field that is present and not `null`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// Whether the field is written at all, be it as `null`.
    pub fn mentions(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// Names of all fields.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// An error about a field: its path, `what` was wanted, and the value found.
    pub fn wrong(&self, key: &str, what: &str) -> Error {
        let path = &self.path;
        match self.get(key) {
            None => Error::config(format!("{path}{key} is missing; expected {what}")),
            Some(v) => Error::config(format!("{path}{key} is {}; expected {what}", shorten(v))),
        }
    }

    fn opt<T>(
        &self,
        key: &str,
        what: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => read(v).map(Some).ok_or_else(|| self.wrong(key, what)),
        }
    }

    /// A whole number that fits in 32 bits, if present.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.opt(key, WHOLE, as_u32)
    }

    /// A whole number that must be present.
    pub fn u32(&self, key: &str) -> Result<u32, Error> {
        self.opt_u32(key)?.ok_or_else(|| self.wrong(key, WHOLE))
    }

    /// A whole number with a default.
    pub fn u32_or(&self, key: &str, default: u32) -> Result<u32, Error> {
        Ok(self.opt_u32(key)?.unwrap_or(default))
    }

    /// A whole number of at least 1 that must be present: a size or a count.
    pub fn size(&self, key: &str) -> Result<u32, Error> {
        self.opt_size(key)?.ok_or_else(|| self.wrong(key, POSITIVE))
    }

    /// A whole number of at least 1, if present.
    pub fn opt_size(&self, key: &str) -> Result<Option<u32>, Error> {
        self.opt(key, POSITIVE, |v| as_u32(v).filter(|&n| n > 0))
    }

    /// The first of several names for one thing that is present, else the first.
    pub fn first_of<'a>(&self, keys: &[&'a str]) -> &'a str {
        let present = keys.iter().find(|k| self.get(k).is_some());
        present.or(keys.first()).copied().unwrap_or("")
    }

    /// [`Self::size`] of the first of several names that is present.
    pub fn size_of(&self, keys: &[&str]) -> Result<u32, Error> {
        self.size(self.first_of(keys))
    }

    /// [`Self::opt_size`] of the first of several names that is present.
    pub fn opt_size_of(&self, keys: &[&str]) -> Result<Option<u32>, Error> {
        self.opt_size(self.first_of(keys))
    }

    /// A finite number, if present.
    pub fn opt_f64(&self, key: &str) -> Result<Option<f64>, Error> {
        self.opt(key, NUMBER, Value::as_f64)
    }

    /// A finite number that must be present.
    pub fn f64(&self, key: &str) -> Result<f64, Error> {
        self.opt_f64(key)?.ok_or_else(|| self.wrong(key, NUMBER))
    }

    /// A finite number, rounded to f32, if present.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        Ok(self.opt_f64(key)?.map(|x| x as f32))
    }

    /// A finite number, rounded to f32, that must be present.
    pub fn f32(&self, key: &str) -> Result<f32, Error> {
        Ok(self.f64(key)? as f32)
    }

    /// A finite number, rounded to f32, with a default.
    pub fn f32_or(&self, key: &str, default: f32) -> Result<f32, Error> {
        Ok(self.opt_f32(key)?.unwrap_or(default))
    }

    /// `true` or `false` with a default.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool, Error> {
        Ok(self
            .opt(key, "true or false", Value::as_bool)?
            .unwrap_or(default))
    }

    /// A string, if present.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => v
                .as_str()
                .map(Some)
                .ok_or_else(|| self.wrong(key, "a string")),
        }
    }

    /// A string that must be present.
    pub fn str(&self, key: &str) -> Result<&str, Error> {
        self.opt_str(key)?
            .ok_or_else(|| self.wrong(key, "a string"))
    }

    /// A list of finite numbers, if present.
    pub fn opt_f32s(&self, key: &str) -> Result<Option<Vec<f32>>, Error> {
        self.opt(key, "a list of numbers", |v| {
            v.as_array()?
                .iter()
                .map(|x| x.as_f64().map(|x| x as f32))
                .collect()
        })
    }

    /// A list of whole numbers, if present.
    pub fn opt_u32s(&self, key: &str) -> Result<Option<Vec<u32>>, Error> {
        self.opt(key, "a list of whole numbers", |v| {
            v.as_array()?.iter().map(as_u32).collect()
        })
    }

    /// A list of strings, if present.
    pub fn opt_strs(&self, key: &str) -> Result<Option<Vec<&str>>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => v
                .as_array()
                .and_then(|a| a.iter().map(Value::as_str).collect::<Option<_>>())
                .map(Some)
                .ok_or_else(|| self.wrong(key, "a list of strings")),
        }
    }

    /// An object inside this one, if present.
    pub fn object(&self, key: &str) -> Result<Option<Self>, Error> {
        self.opt(key, "an object", |v| v.as_object().cloned())
            .map(|map| {
                map.map(|map| Self {
                    map,
                    path: format!("{}{key}.", self.path),
                })
            })
    }

    /// Refuses the field unless it is absent or equals one of `known`: for settings that change the maths and that this
    /// guest implements in some forms only.
    pub fn only(&self, key: &str, known: &[Value]) -> Result<(), Error> {
        match self.get(key) {
            Some(v) if !known.contains(v) => {
                let list: Vec<_> = known.iter().map(Value::to_string).collect();
                Err(self.wrong(
                    key,
                    &format!(
                        "{}, since this guest implements nothing else",
                        list.join(" or ")
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    /// One name of `layer_types` per layer, checked against `known`; `default(i)` where the config has no list.
    pub fn layer_types(
        &self,
        layers: u32,
        known: &[&str],
        default: impl Fn(u32) -> String,
    ) -> Result<Vec<String>, Error> {
        let Some(types) = self.opt_strs("layer_types")? else {
            return Ok((0..layers).map(default).collect());
        };
        if types.len() != layers as usize {
            return Err(Error::config(format!(
                "{}layer_types has {} entries; expected one per layer, {layers}",
                self.path,
                types.len()
            )));
        }
        match types.iter().find(|t| !known.contains(t)) {
            Some(t) => Err(Error::config(format!(
                "{}layer_types has {t:?}; expected {}",
                self.path,
                known.join(" or ")
            ))),
            None => Ok(types.into_iter().map(String::from).collect()),
        }
    }
}

const WHOLE: &str = "a whole number of at least 0";
const POSITIVE: &str = "a whole number of at least 1";
const NUMBER: &str = "a number";

/// Some exporters write counts as `2.0`.
fn as_u32(v: &Value) -> Option<u32> {
    let n = v.as_u64().or_else(|| {
        v.as_f64()
            .filter(|x| x.fract() == 0.0 && *x >= 0.0 && *x < 4e9)
            .map(|x| x as u64)
    })?;
    u32::try_from(n).ok()
}

fn kind(v: &Value) -> &'static str {
    match v {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The value as JSON, cut so that a hostile config cannot fill the log.
fn shorten(v: &Value) -> String {
    let text = v.to_string();
    match text.char_indices().nth(80) {
        Some((i, _)) => format!("{}…", &text[..i]),
        None => text,
    }
}
