//! How kernels that go through rows touch memory, and their grids.

use guesthouse_graph::{Rows, ValueType};

use super::Place;
use crate::cuda::compiler::Source;
use crate::cuda::launch::Grid;
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::model_flag;

/// Threads of a block of the kernels that go through rows.
pub(crate) const THREADS: u32 = 256;

/// Most blocks along y.
const MAX_Y: u32 = 65_535;

/// Bytes of a load or store at most.
const WIDEST: usize = 16;

/// Elements that move in one access: as many as 16 bytes of the smallest type hold, halved until it divides every length
/// and no access of any operand is misaligned. Accesses of wider types are cut to 16 bytes.
pub(crate) fn elements(places: &[&Place], lengths: &[usize]) -> usize {
    let smallest = places.iter().map(|p| p.element).min().unwrap_or(4);
    let mut n = WIDEST / smallest;
    let fits = |n: usize| {
        lengths.iter().all(|l| l.is_multiple_of(n))
            && places.iter().all(|p| {
                let bytes = (n * p.element).min(WIDEST);
                // A broadcast value has no second row.
                let stride = if p.arena == Rows::Broadcast {
                    0
                } else {
                    p.stride
                };
                stride.is_multiple_of(bytes) && p.offset.is_multiple_of(bytes)
            })
    };
    while n > 1 && !fits(n) {
        n /= 2;
    }
    n
}

/// A grid of so many accesses per row, `items` per thread: chunks of a row along x, rows along y and z.
pub(crate) fn rows_grid(accesses: usize, items: usize, rows: u32) -> Grid {
    let chunks = accesses.div_ceil(THREADS as usize * items) as u32;
    Grid::new(chunks, THREADS).yz(rows.min(MAX_Y), rows.div_ceil(MAX_Y))
}

/// A kernel whose values are of the model's type, or f32.
pub(crate) fn source(
    file: &'static str,
    entry: &'static str,
    dtype: CudaDtype,
    value: &Place,
) -> Source {
    let source = Source::new(file, entry).flag(model_flag(dtype));
    if value.ty == ValueType::F32 && dtype != CudaDtype::F32 {
        source.flag("VALUE_F32")
    } else {
        source
    }
}

/// The kernels' name of a value's element type.
pub(crate) fn type_name(place: &Place) -> &'static str {
    match place.ty {
        ValueType::Model => "model_t",
        ValueType::F32 => "float",
        ValueType::I32 => "int",
    }
}

#[cfg(test)]
mod tests;
