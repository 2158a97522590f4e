//! Matrix products by kernels of our own, as candidates beside the library's.

use std::sync::Arc;

use guesthouse_graph::{Activation, Gate};

use super::{gemv, skinny};
use crate::cuda::blas::{Operands, Product};
use crate::cuda::driver::Gpu;
use crate::cuda::options::Numerics;
use crate::error::{DeviceError, Result};

/// What a product with gate and up rows in blocks of eight turns them into: `act(gate) * up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Gating {
    /// `x * sigmoid(x)`
    Silu,
    /// Exact GELU.
    Gelu,
    /// GELU, tanh approximation.
    GeluTanh,
}

impl Gating {
    /// Rows of gate, then as many of up: the order in which kernels take gate-up weights.
    pub(crate) const BLOCK: usize = 8;

    /// The kernels' form of a gate; none where they lack it.
    pub(crate) fn of(gate: Gate) -> Option<Self> {
        match gate {
            Gate::Plain(Activation::Silu) => Some(Self::Silu),
            Gate::Plain(Activation::Gelu) => Some(Self::Gelu),
            Gate::Plain(Activation::GeluTanh) => Some(Self::GeluTanh),
            Gate::Plain(_) | Gate::Clamped { .. } => None,
        }
    }

    /// `GATE` of the kernels.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Silu => 1,
            Self::Gelu => 2,
            Self::GeluTanh => 3,
        }
    }
}

/// A kernel and how it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Gemv(gemv::Shape),
    Skinny(skinny::Shape),
    /// Skinny without a split, the tile chosen by m: bitwise the same for every m.
    Invariant,
}

impl Way {
    /// The number that is kept on disk.
    fn number(self) -> u32 {
        match self {
            Self::Invariant => 0,
            Self::Gemv(s) => 1 << 28 | (s.chunk / 256) << 12 | s.stages << 4 | s.split,
            Self::Skinny(s) => {
                2 << 28
                    | s.tokens << 16
                    | s.groups << 12
                    | s.boxes << 8
                    | u32::from(s.deal == skinny::Deal::Steps) << 4
                    | s.resident
            }
        }
    }

    fn of(number: u32) -> Option<Self> {
        match number >> 28 {
            0 => Some(Self::Invariant),
            1 => Some(Self::Gemv(gemv::Shape {
                chunk: (number >> 12 & 0xff) * 256,
                stages: number >> 4 & 0xff,
                split: number & 0xf,
            })),
            2 => Some(Self::Skinny(skinny::Shape {
                tokens: number >> 16 & 0xfff,
                groups: number >> 12 & 0xf,
                boxes: number >> 8 & 0xf,
                deal: match number >> 4 & 0xf {
                    0 => skinny::Deal::Tiles,
                    _ => skinny::Deal::Steps,
                },
                resident: number & 0xf,
            })),
            _ => None,
        }
    }
}

/// Our kernels.
pub(crate) struct Own {
    gpu: Arc<Gpu>,
    gemv: gemv::Gemv,
    skinny: skinny::Skinny,
}

impl Own {
    /// Changes when a number means another variant.
    pub(crate) const VERSION: u32 = 6;

    /// Nothing is compiled yet.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Ok(Self {
            gpu: Arc::clone(gpu),
            gemv: gemv::Gemv::default(),
            skinny: skinny::Skinny::new(gpu)?,
        })
    }

    /// Variants that compute a product, the most promising first. For [`Numerics::BatchInvariant`] one, whose results do
    /// not depend on m.
    pub(crate) fn candidates(&self, p: &Product, numerics: Numerics) -> Vec<u32> {
        let gpu = &*self.gpu;
        let hopper = skinny::Skinny::computes(gpu, p);
        if numerics == Numerics::BatchInvariant {
            return hopper
                .then(|| Way::Invariant.number())
                .into_iter()
                .collect();
        }
        let mut ways: Vec<Way> = gemv::Gemv::shape(gpu, p)
            .map(Way::Gemv)
            .into_iter()
            .collect();
        if hopper {
            ways.extend(skinny::candidates(p).into_iter().map(Way::Skinny));
        }
        for &way in &ways {
            // All compile side by side; what fails is reported when it is launched.
            let _ = match way {
                Way::Gemv(shape) => self.gemv.kernel(gpu, shape, p).map(drop),
                Way::Skinny(shape) => self.skinny.kernel(gpu, shape, p).map(drop),
                Way::Invariant => Ok(()),
            };
        }
        ways.into_iter().map(Way::number).collect()
    }

    /// Enqueues a product.
    ///
    /// # Errors
    /// When there is no such variant, operands are not aligned to 16 bytes, or the driver refuses the launch.
    pub(crate) fn run(
        &self,
        gpu: &Gpu,
        p: &Product,
        operands: &Operands,
        variant: u32,
    ) -> Result<()> {
        match Way::of(variant) {
            Some(Way::Gemv(shape)) => self.gemv.launch(gpu, shape, p, operands),
            Some(Way::Skinny(shape)) => self.skinny.launch(gpu, shape, p, operands),
            Some(Way::Invariant) => {
                self.skinny
                    .launch(gpu, skinny::Shape::unsplit(p.m), p, operands)
            }
            None => Err(DeviceError::plan(format!("no matrix kernel {variant}"))),
        }
    }
}

#[cfg(test)]
mod tests;
