//! Matrices as the kernels want them: 16 rows side by side.
//!
//! A matrix `[rows, cols]` is cut into panels of [`PANEL`] rows. Within a panel the bytes of one block of columns
//! (1 block = 8 columns of a plain format, 32 or 256 of a quantized one) stand together for all 16 rows, so that a
//! vector holds the same column of several rows. No bit is lost and (but for expanded 6-bit scales) none is added. The
//! last panel is filled up with rows of zeros, and the last block of a plain format with columns of zeros.

use guesthouse_weights::{BlockType, DType, Scheme};

pub(super) mod mxfp4;
pub(super) mod planes;
#[cfg(test)]
mod tests;

/// Rows side by side.
pub(crate) const PANEL: usize = 16;

/// What a packed matrix stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    F32,
    F16,
    Bf16,
    Quant(BlockType),
    Mxfp4,
}

impl Format {
    /// The packed form of a scheme; none where rows must first be expanded to f32.
    pub(crate) fn of(scheme: Scheme) -> Option<Self> {
        match scheme {
            Scheme::Plain(DType::F32) => Some(Self::F32),
            Scheme::Plain(DType::F16) => Some(Self::F16),
            Scheme::Plain(DType::Bf16) => Some(Self::Bf16),
            Scheme::Block(block) => Some(Self::Quant(block)),
            Scheme::Mxfp4 => Some(Self::Mxfp4),
            _ => None,
        }
    }

    /// Columns of a block.
    pub(crate) const fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 8,
            Self::Quant(b) => b.block_len(),
            Self::Mxfp4 => mxfp4::LEN,
        }
    }

    /// Bytes of one block of 16 rows.
    pub(crate) const fn panel_block_bytes(self) -> usize {
        match self {
            Self::F32 => 8 * PANEL * 4,
            Self::F16 | Self::Bf16 => 8 * PANEL * 2,
            Self::Quant(b) => planes::bytes(b),
            Self::Mxfp4 => mxfp4::BYTES,
        }
    }
}

/// 64-byte aligned storage.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A packed matrix.
pub(crate) struct PackedMatrix {
    format: Format,
    rows: usize,
    cols: usize,
    data: Vec<Line>,
}

impl PackedMatrix {
    /// Packs `rows × cols` row-major elements stored as `format`; `bytes` holds them exactly. Works on `threads`
    /// threads.
    pub(crate) fn new(
        format: Format,
        rows: usize,
        cols: usize,
        bytes: &[u8],
        threads: usize,
    ) -> Self {
        let mut packed = Self {
            format,
            rows,
            cols,
            data: Vec::new(),
        };
        let panel_bytes = packed.panel_bytes();
        let total = panel_bytes * packed.panels();
        packed.data = vec![Line([0; 64]); total.div_ceil(64)];
        if total == 0 {
            return packed;
        }
        let row_bytes = bytes.len() / rows;
        let out = &mut bytemuck::cast_slice_mut::<Line, u8>(&mut packed.data)[..total];
        let each = packed_panels(rows).div_ceil(threads.max(1));
        std::thread::scope(|scope| {
            for (part, out) in out.chunks_mut(each * panel_bytes).enumerate() {
                let mut work = move || {
                    for (i, panel) in out.chunks_mut(panel_bytes).enumerate() {
                        let first = (part * each + i) * PANEL;
                        for row in first..rows.min(first + PANEL) {
                            let bytes = &bytes[row * row_bytes..(row + 1) * row_bytes];
                            pack_row(format, bytes, row - first, panel);
                        }
                    }
                };
                if threads > 1 {
                    scope.spawn(work);
                } else {
                    work();
                }
            }
        });
        packed
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn panels(&self) -> usize {
        packed_panels(self.rows)
    }

    /// Blocks that cover the columns.
    pub(crate) fn blocks(&self) -> usize {
        self.cols.div_ceil(self.format.block())
    }

    fn panel_bytes(&self) -> usize {
        self.blocks() * self.format.panel_block_bytes()
    }

    /// The blocks of one panel, in column order.
    pub(crate) fn panel(&self, index: usize) -> &[u8] {
        let n = self.panel_bytes();
        &bytemuck::cast_slice::<Line, u8>(&self.data)[index * n..(index + 1) * n]
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len() * 64
    }
}

fn packed_panels(rows: usize) -> usize {
    rows.div_ceil(PANEL)
}

/// Writes one row into its place `r` of a panel.
fn pack_row(format: Format, bytes: &[u8], r: usize, panel: &mut [u8]) {
    match format {
        Format::F32 => interleave::<4>(bytes, r, panel),
        Format::F16 | Format::Bf16 => interleave::<2>(bytes, r, panel),
        Format::Quant(b) => {
            let blocks = bytes.chunks_exact(b.block_bytes());
            for (block, out) in blocks.zip(panel.chunks_exact_mut(planes::bytes(b))) {
                planes::pack(b, block, r, out);
            }
        }
        Format::Mxfp4 => {
            let blocks = bytes.as_chunks().0.iter();
            for (block, out) in blocks.zip(panel.chunks_exact_mut(mxfp4::BYTES)) {
                mxfp4::pack(block, r, out);
            }
        }
    }
}

fn interleave<const N: usize>(bytes: &[u8], r: usize, panel: &mut [u8]) {
    for (k, element) in bytes.chunks_exact(N).enumerate() {
        let at = (k * PANEL + r) * N;
        panel[at..at + N].copy_from_slice(element);
    }
}
