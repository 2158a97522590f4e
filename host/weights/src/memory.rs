//! Tensors held in memory, for tests and dummy weights.

use std::borrow::Cow;
use std::collections::BTreeMap;

use half::{bf16, f16};

use crate::{BlockType, DType, Scheme, TensorInfo, WeightSource, WeightsError};

/// A [`WeightSource`] over owned bytes.
#[derive(Clone, Debug, Default)]
pub struct MemorySource {
    tensors: BTreeMap<String, (TensorInfo, Vec<u8>)>,
}

impl MemorySource {
    /// A source without tensors.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces a tensor.
    ///
    /// # Errors
    /// [`WeightsError::Size`] when `bytes` is not exactly what `info` needs.
    pub fn insert(
        &mut self,
        name: impl Into<String>,
        info: TensorInfo,
        bytes: Vec<u8>,
    ) -> Result<(), WeightsError> {
        let name = name.into();
        if info.byte_len() != Some(bytes.len()) {
            return Err(WeightsError::Size {
                scheme: info.scheme.to_string(),
                expected: expected_bytes(&info),
                found: format!("{} bytes for tensor '{name}'", bytes.len()),
            });
        }
        self.tensors.insert(name, (info, bytes));
        Ok(())
    }

    /// Adds or replaces a plain f32 tensor.
    ///
    /// # Errors
    /// [`WeightsError::Size`] when the number of values does not fit `shape`.
    pub fn insert_f32(
        &mut self,
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        values: &[f32],
    ) -> Result<(), WeightsError> {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.insert(name, TensorInfo::new(shape, DType::F32), bytes)
    }

    /// Random tensors: values of magnitude up to about 0.05, the same for the same `seed`, name and info, whatever
    /// else is in the list. Integers and booleans are 0 or 1.
    ///
    /// # Errors
    /// [`WeightsError::Size`] when a shape overflows or its rows are not whole blocks.
    pub fn dummy(
        tensors: impl IntoIterator<Item = (String, TensorInfo)>,
        seed: u64,
    ) -> Result<Self, WeightsError> {
        let mut source = Self::new();
        for (name, info) in tensors {
            let len = info.byte_len().ok_or_else(|| WeightsError::Size {
                scheme: info.scheme.to_string(),
                expected: expected_bytes(&info),
                found: format!("shape {:?} of tensor '{name}'", info.shape),
            })?;
            let mut rng = SplitMix(seed ^ fnv1a(name.as_bytes()));
            let bytes = random_bytes(info.scheme, len, &mut rng);
            source.tensors.insert(name, (info, bytes));
        }
        Ok(source)
    }
}

impl WeightSource for MemorySource {
    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.tensors.get(name).map(|(info, _)| info.clone())
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, WeightsError> {
        self.tensors
            .get(name)
            .map(|(_, bytes)| Cow::Borrowed(bytes.as_slice()))
            .ok_or_else(|| WeightsError::missing(name, "memory"))
    }
}

fn expected_bytes(info: &TensorInfo) -> String {
    match info.byte_len() {
        Some(n) => format!("{n} bytes for shape {:?}", info.shape),
        None => format!(
            "a last dimension that is a multiple of {} and a size that fits in memory",
            info.scheme.unit().0
        ),
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [-0.05, 0.05).
    fn small(&mut self) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1u32 << 24) as f32;
        (unit - 0.5) * 0.1
    }
}

pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3)
    })
}

fn random_bytes(scheme: Scheme, len: usize, rng: &mut SplitMix) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    match scheme {
        Scheme::Plain(dtype) => {
            while out.len() < len {
                push_element(&mut out, dtype, rng);
            }
        }
        Scheme::Block(block) => {
            while out.len() < len {
                push_block(&mut out, block, rng);
            }
        }
        Scheme::Mxfp4 => {
            while out.len() < len {
                // e8m0 121 is 2^-6; the largest e2m1 value is 6.
                out.push(119);
                out.extend(std::iter::repeat_with(|| rng.next() as u8).take(16));
            }
        }
    }
    out
}

fn push_element(out: &mut Vec<u8>, dtype: DType, rng: &mut SplitMix) {
    let value = rng.small();
    let bit = rng.next() & 1;
    match dtype {
        DType::F32 => out.extend(value.to_le_bytes()),
        DType::F16 => out.extend(f16::from_f32(value).to_le_bytes()),
        DType::Bf16 => out.extend(bf16::from_f32(value).to_le_bytes()),
        // Sign, then exponent 2^-5 to 2^-6 (bias 7) and a random mantissa.
        DType::F8E4M3 => out.push((rng.next() as u8 & 0x87) | ((1 + bit as u8) << 3)),
        // Sign, then exponent 2^-5 to 2^-6 (bias 15) and a random mantissa.
        DType::F8E5M2 => out.push((rng.next() as u8 & 0x83) | ((9 + bit as u8) << 2)),
        DType::I64 => out.extend(bit.to_le_bytes()),
        DType::I32 => out.extend((bit as u32).to_le_bytes()),
        DType::I16 => out.extend((bit as u16).to_le_bytes()),
        DType::I8 | DType::U8 | DType::Bool => out.push(bit as u8),
    }
}

/// Random quants; the f16 scales are chosen so that dequantized magnitudes stay about 0.05.
fn push_block(out: &mut Vec<u8>, block: BlockType, rng: &mut SplitMix) {
    let start = out.len();
    out.extend(std::iter::repeat_with(|| rng.next() as u8).take(block.block_bytes()));
    let bytes = &mut out[start..];
    let mut put = |at: usize, value: f32| {
        bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
    };
    match block {
        BlockType::Q4_0 => put(0, 0.006),
        BlockType::Q4_1 => {
            put(0, 0.006);
            put(2, -0.045);
        }
        BlockType::Q5_0 => put(0, 0.003),
        BlockType::Q5_1 => {
            put(0, 0.003);
            put(2, -0.0465);
        }
        BlockType::Q8_0 => put(0, 0.0004),
        // d·15·3 − dmin·15
        BlockType::Q2K => {
            put(80, 0.001);
            put(82, 0.0015);
        }
        // d·32·4
        BlockType::Q3K => put(108, 0.0004),
        // d·63·15 − dmin·63
        BlockType::Q4K => {
            put(0, 0.00005);
            put(2, 0.0004);
        }
        // d·63·31 − dmin·63
        BlockType::Q5K => {
            put(0, 0.000_025);
            put(2, 0.0004);
        }
        // d·128·32
        BlockType::Q6K => put(208, 0.000_012),
    }
}

#[cfg(test)]
mod tests;
