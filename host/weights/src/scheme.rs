//! How a logical tensor's numbers are stored: plain elements or quantized blocks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{DType, WeightsError};

/// Block-quantized formats of GGML. A block covers [`BlockType::block_len`] consecutive elements of one row.
///
/// The byte layouts are those of `ggml-common.h` (`block_q4_0`, `block_q4_K`, …), without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[allow(non_camel_case_types)]
pub enum BlockType {
    /// 32 elements: f16 scale, 4-bit quants around 8.
    Q4_0,
    /// 32 elements: f16 scale and minimum, 4-bit quants.
    Q4_1,
    /// 32 elements: f16 scale, 5-bit quants around 16.
    Q5_0,
    /// 32 elements: f16 scale and minimum, 5-bit quants.
    Q5_1,
    /// 32 elements: f16 scale, signed 8-bit quants.
    Q8_0,
    /// 256 elements: 16 sub-blocks with 4-bit scales and minimums, 2-bit quants.
    Q2K,
    /// 256 elements: 16 sub-blocks with 6-bit scales, 3-bit quants.
    Q3K,
    /// 256 elements: 8 sub-blocks with 6-bit scales and minimums, 4-bit quants.
    Q4K,
    /// 256 elements: 8 sub-blocks with 6-bit scales and minimums, 5-bit quants.
    Q5K,
    /// 256 elements: 16 sub-blocks with 8-bit scales, 6-bit quants.
    Q6K,
}

impl BlockType {
    /// Every block type.
    pub const ALL: [Self; 10] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Elements in one block.
    #[must_use]
    pub const fn block_len(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// The name as llama.cpp writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
            Self::Q2K => "q2_K",
            Self::Q3K => "q3_K",
            Self::Q4K => "q4_K",
            Self::Q5K => "q5_K",
            Self::Q6K => "q6_K",
        }
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BlockType {
    type Err = WeightsError;

    fn from_str(name: &str) -> Result<Self, WeightsError> {
        Self::ALL
            .into_iter()
            .find(|b| b.name() == name)
            .ok_or_else(|| WeightsError::unknown_scheme(name))
    }
}

impl TryFrom<String> for BlockType {
    type Error = WeightsError;

    fn try_from(name: String) -> Result<Self, WeightsError> {
        name.parse()
    }
}

impl From<BlockType> for String {
    fn from(block: BlockType) -> Self {
        block.name().to_owned()
    }
}

/// Storage scheme of a logical tensor.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Scheme {
    /// Elements one after the other.
    Plain(DType),
    /// GGML blocks along the last dimension.
    Block(BlockType),
    /// OCP microscaling FP4 in the layout of GGML's `block_mxfp4`: 32 elements share one e8m0 scale byte, then 16 bytes of
    /// e2m1 pairs, elements i (low nibble) and i + 16.
    Mxfp4,
}

const MXFP4_LEN: usize = 32;
const MXFP4_BYTES: usize = 17;

impl Scheme {
    /// Elements and bytes of the smallest unit that can stand alone: 1 element for plain schemes, a block for others.
    #[must_use]
    pub const fn unit(self) -> (usize, usize) {
        match self {
            Self::Plain(dtype) => (1, dtype.bytes()),
            Self::Block(block) => (block.block_len(), block.block_bytes()),
            Self::Mxfp4 => (MXFP4_LEN, MXFP4_BYTES),
        }
    }

    /// Bytes of one row of `cols` elements; `None` when `cols` is not a whole number of blocks (or overflows).
    #[must_use]
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        let (len, bytes) = self.unit();
        if cols.is_multiple_of(len) {
            (cols / len).checked_mul(bytes)
        } else {
            None
        }
    }

    /// Whether rows are made of multi-element blocks, so that rows can be moved losslessly but columns cannot.
    #[must_use]
    pub const fn is_row_blocked(self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    /// The element type of a plain scheme.
    #[must_use]
    pub const fn plain(self) -> Option<DType> {
        match self {
            Self::Plain(dtype) => Some(dtype),
            Self::Block(_) | Self::Mxfp4 => None,
        }
    }
}

impl From<DType> for Scheme {
    fn from(dtype: DType) -> Self {
        Self::Plain(dtype)
    }
}

impl From<BlockType> for Scheme {
    fn from(block: BlockType) -> Self {
        Self::Block(block)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Plain(dtype) => dtype.name(),
            Self::Block(block) => block.name(),
            Self::Mxfp4 => "mxfp4",
        })
    }
}

impl FromStr for Scheme {
    type Err = WeightsError;

    fn from_str(name: &str) -> Result<Self, WeightsError> {
        if name == "mxfp4" {
            return Ok(Self::Mxfp4);
        }
        name.parse()
            .map(Self::Plain)
            .or_else(|_| name.parse().map(Self::Block))
    }
}

impl TryFrom<String> for Scheme {
    type Error = WeightsError;

    fn try_from(name: String) -> Result<Self, WeightsError> {
        name.parse()
    }
}

impl From<Scheme> for String {
    fn from(scheme: Scheme) -> Self {
        scheme.to_string()
    }
}

#[cfg(test)]
mod tests;
