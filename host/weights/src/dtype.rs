//! Element types of plain (unquantized) tensors.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::WeightsError;

/// Type of one element of a plain tensor, stored little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// 8-bit float with 4 exponent and 3 mantissa bits (finite, "fn" form).
    F8E4M3,
    /// 8-bit float with 5 exponent and 2 mantissa bits.
    F8E5M2,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 16-bit integer.
    I16,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer.
    U8,
    /// One byte: 0 is false, everything else is true.
    Bool,
}

impl DType {
    /// Every element type.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::I64,
        Self::I32,
        Self::I16,
        Self::I8,
        Self::U8,
        Self::Bool,
    ];

    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::F8E4M3 | Self::F8E5M2 | Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// The name that [`fmt::Display`], serde and [`FromStr`] use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8E4M3 => "f8_e4m3",
            Self::F8E5M2 => "f8_e5m2",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::Bool => "bool",
        }
    }

    /// Whether the elements are floating-point numbers.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::F32 | Self::F16 | Self::Bf16 | Self::F8E4M3 | Self::F8E5M2
        )
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = WeightsError;

    fn from_str(name: &str) -> Result<Self, WeightsError> {
        Self::ALL
            .into_iter()
            .find(|d| d.name() == name)
            .ok_or_else(|| WeightsError::unknown_scheme(name))
    }
}

impl TryFrom<String> for DType {
    type Error = WeightsError;

    fn try_from(name: String) -> Result<Self, WeightsError> {
        name.parse()
    }
}

impl From<DType> for String {
    fn from(dtype: DType) -> Self {
        dtype.name().to_owned()
    }
}

#[cfg(test)]
mod tests;
