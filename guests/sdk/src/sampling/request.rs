//! Typed reading of a request's sampling fields.

use crate::Error;
use serde_json::{Map, Value};
use std::fmt::Display;
use std::ops::RangeInclusive;

#[cfg(test)]
mod tests;

/// A request's sampling fields. `null` counts as absent.
///
/// All errors are [`Error::InvalidRequest`], and read `field: what was expected, got what was sent`.
///
/// ```
/// use guesthouse_sdk::sampling::Request;
/// let request = Request::parse(r#"{"temperature": 0.5, "top_p": 2}"#).unwrap();
/// assert_eq!(request.number("temperature", 0.0..=f64::INFINITY).unwrap(), Some(0.5));
/// assert_eq!(
///     request.number("top_p", 0.0..=1.0).unwrap_err().to_string(),
///     "invalid request: top_p: must be between 0 and 1, got 2"
/// );
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    map: Map<String, Value>,
    /// Of a field's own fields, "watermark.".
    path: String,
}

impl Request {
    /// Parses the request, a JSON object. What its field `sampler_args` has, an object, counts as the request's own fields, and
    /// more than those.
    pub fn parse(json: &str) -> Result<Self, Error> {
        match serde_json::from_str(json) {
            Ok(Value::Object(map)) => {
                let mut request = Self {
                    map,
                    path: String::new(),
                };
                if let Some(args) = request.object("sampler_args")? {
                    request.map.extend(args.map);
                }
                Ok(request)
            }
            Ok(_) => Err(Error::request("request: must be a JSON object")),
            Err(e) => Err(Error::request(format!("request: must be JSON: {e}"))),
        }
    }

    /// Value of a field that is present and not `null`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// An object's fields, if present.
    pub fn object(&self, key: &str) -> Result<Option<Self>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self {
                map: map.clone(),
                path: format!("{}{key}.", self.path),
            })),
            Some(v) => Err(self.wrong(key, "must be an object", v)),
        }
    }

    /// True or false, if present.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        let read = |v: &Value| {
            v.as_bool()
                .ok_or_else(|| self.wrong(key, "must be true or false", v))
        };
        self.get(key).map(read).transpose()
    }

    /// A whole number of 64 bits, with or without sign, if present.
    pub fn bits(&self, key: &str) -> Result<Option<u64>, Error> {
        match self.get(key).and_then(Value::as_u64) {
            Some(bits) => Ok(Some(bits)),
            None => Ok(self
                .whole(key, i64::MIN..=i64::MAX)?
                .map(i64::cast_unsigned)),
        }
    }

    /// A number above 0 and at most `most`, if present.
    pub fn above_zero(&self, key: &str, most: f64) -> Result<Option<f32>, Error> {
        match self.number(key, 0.0..=most)? {
            Some(0.0) => Err(self.wrong(key, "must be above 0", 0)),
            found => Ok(found),
        }
    }

    /// A number within `range`, if present.
    pub fn number(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, Error> {
        let Some(v) = self.get(key) else {
            return Ok(None);
        };
        let wanted = || match (range.start().is_finite(), range.end().is_finite()) {
            (true, true) => format!("must be between {} and {}", range.start(), range.end()),
            (true, false) => format!("must be at least {}", range.start()),
            (false, true) => format!("must be at most {}", range.end()),
            (false, false) => "must be a number".into(),
        };
        match v.as_f64() {
            Some(x) if range.contains(&x) && (x as f32).is_finite() => Ok(Some(x as f32)),
            _ => Err(self.wrong(key, wanted(), v)),
        }
    }

    /// A whole number within `range`, if present.
    pub fn whole(&self, key: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, Error> {
        let Some(v) = self.get(key) else {
            return Ok(None);
        };
        match v.as_i64().filter(|x| range.contains(x)) {
            Some(x) => Ok(Some(x)),
            None => Err(self.wrong(
                key,
                format!(
                    "must be a whole number from {} to {}",
                    range.start(),
                    range.end()
                ),
                v,
            )),
        }
    }

    /// A list of token ids below `vocab`, if present.
    pub fn tokens(&self, key: &str, vocab: u32) -> Result<Option<Vec<u32>>, Error> {
        self.get(key)
            .map(|v| self.token_list(key, v, vocab))
            .transpose()
    }

    /// A list of token sequences, if present; none of them empty.
    pub fn token_sequences(&self, key: &str, vocab: u32) -> Result<Option<Vec<Vec<u32>>>, Error> {
        let Some(v) = self.get(key) else {
            return Ok(None);
        };
        let lists = v
            .as_array()
            .ok_or_else(|| self.wrong(key, "must be a list of lists of token ids", v))?;
        let read = |v: &Value| {
            self.token_list(key, v, vocab).and_then(|l| {
                if l.is_empty() {
                    Err(self.wrong(key, "must not have an empty list", v))
                } else {
                    Ok(l)
                }
            })
        };
        lists.iter().map(read).collect::<Result<_, _>>().map(Some)
    }

    /// An object from token id (as a string, as OpenAI writes it) to number, if present, in the order sent.
    pub fn token_numbers(&self, key: &str, vocab: u32) -> Result<Option<Vec<(u32, f32)>>, Error> {
        let Some(v) = self.get(key) else {
            return Ok(None);
        };
        let map = v
            .as_object()
            .ok_or_else(|| self.wrong(key, "must be an object from token id to number", v))?;
        let read = |(id, number): (&String, &Value)| {
            let token = id
                .parse::<u32>()
                .ok()
                .filter(|t| *t < vocab)
                .ok_or_else(|| {
                    self.wrong(
                        key,
                        format!(
                            "must have token ids from 0 to {} as keys",
                            vocab.saturating_sub(1)
                        ),
                        id,
                    )
                })?;
            let number = number
                .as_f64()
                .ok_or_else(|| self.wrong(key, "must have numbers as values", number))?;
            Ok((token, number as f32))
        };
        map.iter().map(read).collect::<Result<_, _>>().map(Some)
    }

    fn token_list(&self, key: &str, v: &Value, vocab: u32) -> Result<Vec<u32>, Error> {
        let list = v
            .as_array()
            .ok_or_else(|| self.wrong(key, "must be a list of token ids", v))?;
        let read = |v: &Value| {
            v.as_u64()
                .and_then(|t| u32::try_from(t).ok())
                .filter(|t| *t < vocab)
                .ok_or_else(|| {
                    let wanted =
                        format!("must have token ids from 0 to {}", vocab.saturating_sub(1));
                    self.wrong(key, wanted, v)
                })
        };
        list.iter().map(read).collect()
    }

    /// The error `field: wanted, got found`, the found part cut to a line.
    pub fn wrong(&self, key: &str, wanted: impl Display, found: impl Display) -> Error {
        let found: String = found.to_string().chars().take(80).collect();
        Error::request(format!("{}{key}: {wanted}, got {found}", self.path))
    }
}
