//! The key-value section.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::cursor::{Cursor, malformed};
use crate::WeightsError;

/// Real files have fewer than a hundred keys.
pub(super) const MAX_ENTRIES: usize = 1 << 16;
/// The format's own limit.
const MAX_KEY: usize = (1 << 16) - 1;
/// Vocabularies, the largest real arrays, stay below a million.
const MAX_ARRAY: usize = 1 << 24;
const MAX_NESTING: usize = 4;
/// The keys and values of a real file take a few megabytes. Together with the other limits this bounds what a hostile
/// file can make us allocate to about four times as much.
const MAX_BYTES: usize = 512 << 20;

macro_rules! value_kinds {
    ($($(#[$doc:meta])* $kind:ident($type:ty) = $code:literal),* $(,)?) => {
        /// A metadata value.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Value {
            $($(#[$doc])* $kind($type),)*
            /// UTF-8 text.
            String(String),
            /// Values of one kind.
            Array(Array),
        }

        /// An array value.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Array {
            $($(#[$doc])* $kind(Vec<$type>),)*
            /// UTF-8 texts.
            String(Vec<String>),
            /// Arrays.
            Array(Vec<Array>),
        }

        impl Value {
            /// The name of the kind, for messages.
            const fn kind(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => stringify!($kind),)*
                    Self::String(_) => "String",
                    Self::Array(_) => "Array",
                }
            }

            fn parse(cursor: &mut Cursor<'_>, code: u32, key: &str) -> Result<Self, WeightsError> {
                Ok(match code {
                    $($code => Self::$kind(<$type>::read(cursor, key)?),)*
                    STRING => Self::String(cursor.string(key)?.to_owned()),
                    ARRAY => Self::Array(Array::parse(cursor, key, 0)?),
                    other => return Err(unknown_kind(cursor, key, other)),
                })
            }
        }

        impl Array {
            /// Number of elements.
            #[must_use]
            pub const fn len(&self) -> usize {
                match self {
                    $(Self::$kind(values) => values.len(),)*
                    Self::String(values) => values.len(),
                    Self::Array(values) => values.len(),
                }
            }

            fn parse(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Self, WeightsError> {
                if depth == MAX_NESTING {
                    return Err(cursor.malformed(format!("the array '{key}' is nested more than {MAX_NESTING} deep")));
                }
                let code = cursor.u32(key)?;
                Ok(match code {
                    $($code => {
                        let count = array_count(cursor, key, <$type>::BYTES)?;
                        Self::$kind((0..count).map(|_| <$type>::read(cursor, key)).collect::<Result<_, _>>()?)
                    })*
                    STRING => {
                        let count = array_count(cursor, key, 8)?;
                        let strings = (0..count).map(|_| cursor.string(key).map(str::to_owned));
                        Self::String(strings.collect::<Result<_, _>>()?)
                    }
                    ARRAY => {
                        let count = array_count(cursor, key, 12)?;
                        let arrays = (0..count).map(|_| Self::parse(cursor, key, depth + 1));
                        Self::Array(arrays.collect::<Result<_, _>>()?)
                    }
                    other => return Err(unknown_kind(cursor, key, other)),
                })
            }
        }
    };
}

const STRING: u32 = 8;
const ARRAY: u32 = 9;

value_kinds! {
    /// Unsigned 8-bit.
    U8(u8) = 0,
    /// Signed 8-bit.
    I8(i8) = 1,
    /// Unsigned 16-bit.
    U16(u16) = 2,
    /// Signed 16-bit.
    I16(i16) = 3,
    /// Unsigned 32-bit.
    U32(u32) = 4,
    /// Signed 32-bit.
    I32(i32) = 5,
    /// 32-bit float.
    F32(f32) = 6,
    /// One byte, 0 or 1.
    Bool(bool) = 7,
    /// Unsigned 64-bit.
    U64(u64) = 10,
    /// Signed 64-bit.
    I64(i64) = 11,
    /// 64-bit float.
    F64(f64) = 12,
}

fn unknown_kind(cursor: &Cursor<'_>, key: &str, code: u32) -> WeightsError {
    cursor.malformed(format!(
        "metadata '{key}' before byte {} has value type {code}, known are 0 to 12",
        cursor.position()
    ))
}

/// The count of an array whose elements take at least `element` bytes each, checked against what is left of the file.
fn array_count(cursor: &mut Cursor<'_>, key: &str, element: usize) -> Result<usize, WeightsError> {
    let count = cursor.count(key, MAX_ARRAY)?;
    if count * element > cursor.remaining() {
        return Err(cursor.malformed(format!(
            "the array '{key}' claims {count} elements, but only {} bytes are left",
            cursor.remaining()
        )));
    }
    Ok(count)
}

/// Fixed-size values.
trait Scalar: Sized {
    const BYTES: usize;
    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, WeightsError>;
}

macro_rules! scalars {
    ($($type:ty),*) => {$(
        impl Scalar for $type {
            const BYTES: usize = size_of::<$type>();
            fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, WeightsError> {
                cursor.array(key).map(Self::from_le_bytes)
            }
        }
    )*};
}

scalars!(u8, i8, u16, i16, u32, i32, f32, u64, i64, f64);

impl Scalar for bool {
    const BYTES: usize = 1;

    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, WeightsError> {
        match u8::read(cursor, key)? {
            0 => Ok(false),
            1 => Ok(true),
            other => {
                Err(cursor.malformed(format!("the boolean '{key}' is {other}, expected 0 or 1")))
            }
        }
    }
}

impl Value {
    /// The value as an integer, whatever its width; `None` for other kinds and numbers out of range.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        Some(match *self {
            Self::U8(n) => n.into(),
            Self::I8(n) => n.into(),
            Self::U16(n) => n.into(),
            Self::I16(n) => n.into(),
            Self::U32(n) => n.into(),
            Self::I32(n) => n.into(),
            Self::I64(n) => n,
            Self::U64(n) => n.try_into().ok()?,
            _ => return None,
        })
    }

    /// The value as an unsigned integer, whatever its width.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U64(n) => Some(n),
            _ => self.as_i64()?.try_into().ok(),
        }
    }
}

impl Array {
    /// Whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// All keys and values. The typed getters answer `Ok(None)` for a key that is absent and an error for one of another
/// kind; integers of any width are accepted where they fit.
#[derive(Debug)]
pub struct Metadata {
    path: PathBuf,
    entries: HashMap<String, Value>,
}

impl Metadata {
    pub(super) fn parse(cursor: &mut Cursor<'_>, count: usize) -> Result<Self, WeightsError> {
        cursor.limit(MAX_BYTES);
        let mut entries = HashMap::new();
        for n in 0..count {
            let key = cursor.string("a metadata key")?;
            if key.is_empty() || key.len() > MAX_KEY || key.contains(char::is_control) {
                return Err(cursor.malformed(format!(
                    "metadata key {n} has {} bytes, expected 1 to {MAX_KEY} and no control characters",
                    key.len()
                )));
            }
            let code = cursor.u32(key)?;
            let value = Value::parse(cursor, code, key)?;
            if entries.insert(key.to_owned(), value).is_some() {
                return Err(cursor.malformed(format!("metadata '{key}' appears twice")));
            }
        }
        Ok(Self {
            path: cursor.path().to_owned(),
            entries,
        })
    }

    /// The file that the metadata is from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Any value.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }

    /// All keys with their values, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, WeightsError> {
        let Some(value) = self.entries.get(key) else {
            return Ok(None);
        };
        convert(value).map(Some).ok_or_else(|| {
            let kind = value.kind();
            let what =
                format!("metadata '{key}' should be {expected}, found a value of kind {kind}");
            malformed(&self.path, what)
        })
    }

    /// A string.
    ///
    /// # Errors
    /// When the value is of another kind; so for all getters.
    pub fn str(&self, key: &str) -> Result<Option<&str>, WeightsError> {
        self.typed(key, "a string", |v| match v {
            Value::String(s) => Some(s.as_str()),
            _ => None,
        })
    }

    /// A boolean.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn bool(&self, key: &str) -> Result<Option<bool>, WeightsError> {
        self.typed(key, "a boolean", |v| match *v {
            Value::Bool(b) => Some(b),
            _ => None,
        })
    }

    /// An unsigned integer.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn u64(&self, key: &str) -> Result<Option<u64>, WeightsError> {
        self.typed(key, "an unsigned integer", Value::as_u64)
    }

    /// An unsigned 32-bit integer, such as a token id.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn u32(&self, key: &str) -> Result<Option<u32>, WeightsError> {
        self.typed(key, "an unsigned 32-bit integer", |v| {
            v.as_u64()?.try_into().ok()
        })
    }

    /// A float; a 64-bit one is rounded.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn f32(&self, key: &str) -> Result<Option<f32>, WeightsError> {
        self.typed(key, "a float", |v| match *v {
            Value::F32(x) => Some(x),
            Value::F64(x) => Some(x as f32),
            _ => None,
        })
    }

    /// An array of strings.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, WeightsError> {
        self.typed(key, "an array of strings", |v| match v {
            Value::Array(Array::String(s)) => Some(s.as_slice()),
            _ => None,
        })
    }

    /// An array of 32-bit floats.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, WeightsError> {
        self.typed(key, "an array of 32-bit floats", |v| match v {
            Value::Array(Array::F32(x)) => Some(x.as_slice()),
            _ => None,
        })
    }

    /// An array of integers of at most 32 bits.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, WeightsError> {
        self.typed(key, "an array of 32-bit integers", |v| match v {
            Value::Array(Array::I32(x)) => Some(x.clone()),
            Value::Array(Array::U32(x)) => x.iter().map(|&n| n.try_into().ok()).collect(),
            Value::Array(Array::U8(x)) => Some(x.iter().map(|&n| n.into()).collect()),
            Value::Array(Array::I8(x)) => Some(x.iter().map(|&n| n.into()).collect()),
            Value::Array(Array::U16(x)) => Some(x.iter().map(|&n| n.into()).collect()),
            Value::Array(Array::I16(x)) => Some(x.iter().map(|&n| n.into()).collect()),
            _ => None,
        })
    }
}
