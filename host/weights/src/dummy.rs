//! Made-up weights, for timing models whose checkpoint is not at hand.

use std::borrow::Cow;
use std::collections::BTreeMap;

use half::{bf16, f16};

use crate::memory::fnv1a;
use crate::{DType, Scheme, TensorInfo, WeightSource, WeightsError};

/// Elements that a thread makes before it takes more.
const CHUNK: usize = 1 << 20;

/// The values of a tensor: element i (row-major) is `offset + scale · u(i)` with u uniform in [−1, 1), computed in f32
/// and rounded to nearest even into the tensor's type.
///
/// All integer arithmetic wraps at 32 bits:
/// ```text
/// x = low(i) · 0x9E3779B9 + seed + high(i) · 0x85EBCA6B      low, high: the halves of the 64-bit index
/// x ^= x >> 16;  x *= 0x7FEB352D;  x ^= x >> 15;  x *= 0x846CA68B;  x ^= x >> 16      (Wellons' lowbias32)
/// u = (signed x) · 2⁻³¹
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DummyFill {
    /// Stands for the tensor's name.
    pub seed: u32,
    /// Mean.
    pub offset: f32,
    /// Largest distance to the mean.
    pub scale: f32,
}

impl DummyFill {
    /// Values that keep activations in range: norms' weights lie around 1, rows of a matrix have unit length or so, and
    /// the rest (biases) is small.
    #[must_use]
    pub fn of(name: &str, info: &TensorInfo) -> Self {
        let hash = fnv1a(name.as_bytes());
        let seed = (hash ^ (hash >> 32)) as u32;
        let of_norm = name.rsplit('.').nth(1);
        let norm = of_norm.is_some_and(|of| of.contains("norm") || of.starts_with("ln_"));
        let (offset, scale) = match info.shape.len() {
            0 | 1 if norm && name.ends_with("weight") => (1.0, 0.1),
            0 | 1 => (0.0, 0.02),
            _ => (0.0, (3.0 / info.cols().max(1) as f32).sqrt()),
        };
        Self {
            seed,
            offset,
            scale,
        }
    }

    /// Element `index`, before it is rounded to the tensor's type.
    #[must_use]
    pub fn value(&self, index: u64) -> f32 {
        let (low, high) = (index as u32, (index >> 32) as u32);
        let mut x = low
            .wrapping_mul(0x9E37_79B9)
            .wrapping_add(self.seed)
            .wrapping_add(high.wrapping_mul(0x85EB_CA6B));
        x ^= x >> 16;
        x = x.wrapping_mul(0x7FEB_352D);
        x ^= x >> 15;
        x = x.wrapping_mul(0x846C_A68B);
        x ^= x >> 16;
        let unit = x.cast_signed() as f32 * 0.5f32.powi(31);
        self.offset + self.scale * unit
    }
}

/// A source of made-up plain tensors. Nothing is held; reading makes the values, on all cores.
#[derive(Clone, Debug, Default)]
pub struct DummySource {
    tensors: BTreeMap<String, TensorInfo>,
}

impl DummySource {
    /// These tensors.
    ///
    /// # Errors
    /// [`WeightsError::Size`] for a shape whose bytes overflow, or a type that is not f32, f16 or bf16.
    pub fn new(
        tensors: impl IntoIterator<Item = (String, TensorInfo)>,
    ) -> Result<Self, WeightsError> {
        let tensors: BTreeMap<_, _> = tensors.into_iter().collect();
        for (name, info) in &tensors {
            let float = matches!(
                info.scheme,
                Scheme::Plain(DType::F32 | DType::F16 | DType::Bf16)
            );
            if !float || info.byte_len().is_none() {
                return Err(WeightsError::Size {
                    scheme: info.scheme.to_string(),
                    expected: "f32, f16 or bf16 elements whose bytes can be counted".to_owned(),
                    found: format!("shape {:?} of dummy tensor '{name}'", info.shape),
                });
            }
        }
        Ok(Self { tensors })
    }
}

impl WeightSource for DummySource {
    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.tensors.get(name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, WeightsError> {
        let missing = || WeightsError::missing(name, "the dummy weights");
        let info = self.tensors.get(name).ok_or_else(missing)?;
        let (len, dtype) = info
            .byte_len()
            .zip(info.scheme.plain())
            .ok_or_else(missing)?;
        let mut bytes = vec![0; len];
        fill(&mut bytes, dtype, DummyFill::of(name, info));
        Ok(Cow::Owned(bytes))
    }

    fn dummy(&self, name: &str) -> Option<DummyFill> {
        self.tensors.get(name).map(|info| DummyFill::of(name, info))
    }
}

/// Writes the values over all of `bytes`.
fn fill(bytes: &mut [u8], dtype: DType, fill: DummyFill) {
    let width = dtype.bytes();
    let chunks: Vec<(usize, &mut [u8])> = bytes.chunks_mut(CHUNK * width).enumerate().collect();
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(chunks.len());
    let work = |chunk: usize, bytes: &mut [u8]| {
        let first = (chunk * CHUNK) as u64;
        let values = (first..).map(|i| fill.value(i));
        match dtype {
            DType::F32 => put(bytes, values, f32::to_le_bytes),
            DType::F16 => put(bytes, values, |v| f16::from_f32(v).to_le_bytes()),
            _ => put(bytes, values, |v| bf16::from_f32(v).to_le_bytes()),
        }
    };
    if threads <= 1 {
        chunks.into_iter().for_each(|(i, b)| work(i, b));
        return;
    }
    let queue = std::sync::Mutex::new(chunks.into_iter());
    let next = || queue.lock().ok().and_then(|mut q| q.next());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((i, b)) = next() {
                    work(i, b);
                }
            });
        }
    });
}

fn put<const N: usize>(
    bytes: &mut [u8],
    values: impl Iterator<Item = f32>,
    store: impl Fn(f32) -> [u8; N],
) {
    let (elements, _) = bytes.as_chunks_mut::<N>();
    for (to, value) in elements.iter_mut().zip(values) {
        *to = store(value);
    }
}

#[cfg(test)]
mod tests;
