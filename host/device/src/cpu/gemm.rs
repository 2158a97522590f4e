//! Matrix products `y = x Wᵀ + b` over packed matrices.
//!
//! # Order of the sums
//! Columns are taken in chunks of 256. In each chunk the even columns form one chain of fused multiply-adds from zero,
//! the odd ones another, both in ascending order; the chunks' chains are added to the result one after the other,
//! even before odd, and the bias last. A vector lane is a row of W, so no chain ever crosses lanes: results are bitwise
//! the same for one token and many, for any number of threads, and on every instruction set with a fused multiply-add.
//! The chunks keep the rounding error that of a sum of 128 terms; two chains hide half of the latency.
//!
//! # Floors
//! Weights are unpacked to f32 in registers, activations stay f32. Per 8 weights one token costs a shift, a mask, a
//! conversion, a multiply-add to scale and one to accumulate: about 5 vector instructions, 1.5 cycles on a core with
//! four vector pipes. SmolLM2-135M (134 M weights a token): 25 M cycles, 8 ms on one 3 GHz core, 4 ms on two; its 84 MB
//! of Q4_1 take as long at 20 GB/s. Up to four tokens share what is unpacked in registers: each further one costs a load
//! and a multiply-add, two 1.2 times one; reached 1.45, and 2.4 for four. Many tokens: 2·106 MFLOP each (the head runs on
//! wanted rows alone), at 16 multiply-adds a cycle and core 2.2 ms on one core, 1.1 ms on two.

#![allow(unsafe_code)]
#![allow(clippy::needless_range_loop)] // Loops over vectors become registers: plain indices say which.

use guesthouse_weights::BlockType;

use super::pack::{Format, PANEL, PackedMatrix};
use super::simd::{Isa, Kernel, Simd};
use unpack::Unpack;

mod unpack;

#[cfg(test)]
mod tests;

/// Columns summed before they join the result.
const CHUNK: usize = 256;

/// Tokens in one piece of work: enough to pay for unpacking a panel, few enough to stay in the second-level cache.
pub(crate) const TOKEN_TILE: usize = 96;

/// Tokens for which weights are unpacked in registers: for more, a tile that is unpacked once pays.
const FEW: usize = 4;

/// Scratch of one thread.
pub(crate) struct Scratch {
    /// One chunk of a panel, `[column][16]`.
    tile: [f32; CHUNK * PANEL],
    /// Sums of one panel, `[token][16]`. Rows of y are far apart, often by a multiple of the cache's period; only
    /// finished results go there.
    sums: [f32; TOKEN_TILE * PANEL],
}

impl Scratch {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            tile: [0.0; CHUNK * PANEL],
            sums: [0.0; TOKEN_TILE * PANEL],
        })
    }
}

/// `tokens` rows of x times one panel.
pub(crate) struct PanelProduct<'a> {
    pub matrix: &'a PackedMatrix,
    pub panel: usize,
    /// `matrix.rows()` long.
    pub bias: Option<&'a [f32]>,
    /// First of `tokens` rows of `matrix.cols()` elements, `x_stride` apart.
    pub x: *const f32,
    pub x_stride: usize,
    /// At most [`TOKEN_TILE`].
    pub tokens: usize,
    /// Where row 0 of the matrix puts its result for the first token; `y_stride` from token to token.
    pub y: *mut f32,
    pub y_stride: usize,
}

impl PanelProduct<'_> {
    /// Computes it.
    ///
    /// # Safety
    /// `x` and `y` are valid for what their fields say, do not overlap, and no other thread touches the panel's columns
    /// of y.
    pub(crate) unsafe fn run(&self, isa: Isa, scratch: &mut Scratch) {
        assert!(self.tokens <= TOKEN_TILE);
        let m = self.matrix;
        let first_row = self.panel * PANEL;
        let rows = PANEL.min(m.rows() - first_row);
        let mut bias = [0f32; PANEL];
        if let Some(all) = self.bias {
            bias[..rows].copy_from_slice(&all[first_row..first_row + rows]);
        }
        // Callers that keep one panel alone pass an address before it, which is never read or written.
        let y = self.y.wrapping_add(first_row);
        if self.tokens <= FEW && m.cols().is_multiple_of(m.format().block()) {
            let mut out = [[0f32; PANEL]; FEW];
            let gemv = Gemv {
                format: m.format(),
                panel: m.panel(self.panel),
                cols: m.cols(),
                x: self.x,
                x_stride: self.x_stride,
                out: &mut out[..self.tokens],
            };
            // SAFETY: x has `tokens` rows of `cols` elements, the panel covers `cols` columns in whole blocks.
            unsafe { isa.run(gemv) };
            for (t, sums) in out.iter().take(self.tokens).enumerate() {
                for (r, (sum, bias)) in sums.iter().zip(bias).take(rows).enumerate() {
                    let sum = if self.bias.is_some() {
                        sum + bias
                    } else {
                        *sum
                    };
                    // SAFETY: r < rows of this panel.
                    unsafe { *y.add(t * self.y_stride + r) = sum };
                }
            }
            return;
        }
        for start in (0..m.cols()).step_by(CHUNK) {
            let cols = CHUNK.min(m.cols() - start);
            let blocks = blocks_of(m, self.panel, start, cols);
            let tile_at = if m.format() == Format::F32 {
                blocks.as_ptr().cast::<f32>()
            } else {
                // SAFETY: the blocks cover the chunk, at most 256 columns, which is what the tile holds.
                unsafe {
                    isa.run(Fill {
                        format: m.format(),
                        blocks,
                        tile: &mut scratch.tile,
                    });
                };
                scratch.tile.as_ptr()
            };
            let micro = Micro {
                tile: tile_at,
                cols,
                // SAFETY: start < cols of x.
                x: unsafe { self.x.add(start) },
                x_stride: self.x_stride,
                tokens: self.tokens,
                sums: scratch.sums.as_mut_ptr(),
                place: if start == 0 {
                    Place::First
                } else {
                    Place::Later
                },
                bias: (self.bias.is_some() && start + cols == m.cols()).then_some(&bias),
            };
            // SAFETY: the tile holds `cols` columns of 16 rows; `sums` as many tokens; x as the caller promised.
            unsafe { isa.run(micro) };
        }
        for (t, sums) in scratch
            .sums
            .chunks_exact(PANEL)
            .take(self.tokens)
            .enumerate()
        {
            // SAFETY: `rows` columns of y exist from there on.
            unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), y.add(t * self.y_stride), rows) };
        }
    }
}

/// The panel blocks of columns `start..start + cols`, where start is a multiple of 256.
fn blocks_of(m: &PackedMatrix, panel: usize, start: usize, cols: usize) -> &[u8] {
    let (block, bytes) = (m.format().block(), m.format().panel_block_bytes());
    let first = start / block;
    let last = (start + cols).div_ceil(block);
    &m.panel(panel)[first * bytes..last * bytes]
}

/// Unpacks one row of a matrix into `out`, `cols` long (embedding look-up).
pub(crate) fn unpack_row(
    isa: Isa,
    m: &PackedMatrix,
    row: usize,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let lane = row % PANEL;
    for (start, out) in (0..m.cols()).step_by(CHUNK).zip(out.chunks_mut(CHUNK)) {
        let blocks = blocks_of(m, row / PANEL, start, out.len());
        // SAFETY: the blocks cover at most 256 columns.
        unsafe {
            isa.run(Fill {
                format: m.format(),
                blocks,
                tile: &mut scratch.tile,
            });
        };
        for (k, out) in out.iter_mut().enumerate() {
            *out = scratch.tile[k * PANEL + lane];
        }
    }
}

/// Calls `$call::<S, F $more>` with the [`Unpack`] type of a format.
macro_rules! by_format {
    ($format:expr, $call:ident [$($more:tt)*] ( $($arg:expr),* )) => {
        match $format {
            Format::F32 => $call::<S, unpack::F32 $($more)*>($($arg),*),
            Format::F16 => $call::<S, unpack::F16 $($more)*>($($arg),*),
            Format::Bf16 => $call::<S, unpack::Bf16 $($more)*>($($arg),*),
            Format::Quant(BlockType::Q4_0) => $call::<S, unpack::Q4_0 $($more)*>($($arg),*),
            Format::Quant(BlockType::Q4_1) => $call::<S, unpack::Q4_1 $($more)*>($($arg),*),
            Format::Quant(BlockType::Q5_0) => $call::<S, unpack::Q5_0 $($more)*>($($arg),*),
            Format::Quant(BlockType::Q5_1) => $call::<S, unpack::Q5_1 $($more)*>($($arg),*),
            Format::Quant(BlockType::Q8_0) => $call::<S, unpack::Q8_0 $($more)*>($($arg),*),
            Format::Quant(BlockType::Q2K) => $call::<S, unpack::Q2K $($more)*>($($arg),*),
            Format::Quant(BlockType::Q3K) => $call::<S, unpack::Q3K $($more)*>($($arg),*),
            Format::Quant(BlockType::Q4K) => $call::<S, unpack::Q4K $($more)*>($($arg),*),
            Format::Quant(BlockType::Q5K) => $call::<S, unpack::Q5K $($more)*>($($arg),*),
            Format::Quant(BlockType::Q6K) => $call::<S, unpack::Q6K $($more)*>($($arg),*),
            Format::Mxfp4 => $call::<S, unpack::Mxfp4 $($more)*>($($arg),*),
        }
    };
}

/// A few tokens: unpacks in registers and accumulates at once. Each of the `out.len()` rows of x, at most [`FEW`], has
/// `cols` elements, a whole number of blocks.
struct Gemv<'a> {
    format: Format,
    panel: &'a [u8],
    cols: usize,
    x: *const f32,
    x_stride: usize,
    out: &'a mut [[f32; PANEL]],
}

impl Kernel for Gemv<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self {
            format,
            panel,
            cols,
            x,
            x_stride,
            out,
        } = self;
        // SAFETY: the struct's contract.
        unsafe {
            match out {
                [one] => by_format!(format, gemv[, _](panel, cols, [x], [one])),
                [one, two] => {
                    let x = [x, x.add(x_stride)];
                    by_format!(format, gemv[, _](panel, cols, x, [one, two]));
                }
                [one, two, three] => {
                    let x = [x, x.add(x_stride), x.add(2 * x_stride)];
                    by_format!(format, gemv[, _](panel, cols, x, [one, two, three]));
                }
                [one, two, three, four] => {
                    let x = [0, 1, 2, 3].map(|t| x.add(t * x_stride));
                    by_format!(format, gemv[, _](panel, cols, x, [one, two, three, four]));
                }
                _ => {}
            }
        }
    }
}

/// All 16 rows at once for one token; for more, whose sums would not fit the registers, vector by vector.
#[inline(always)]
unsafe fn gemv<S: Simd, F: Unpack, const T: usize>(
    panel: &[u8],
    cols: usize,
    x: [*const f32; T],
    out: [&mut [f32; PANEL]; T],
) {
    debug_assert!(panel.len() == cols / F::BLOCK * F::BYTES);
    let at_once = if T == 1 { PANEL / S::LANES } else { 1 };
    let out = out.map(|out| out.as_mut_ptr());
    for lane in (0..PANEL).step_by(at_once * S::LANES) {
        let out = out.map(|out| out.wrapping_add(lane));
        // SAFETY: the caller's; `lane` and what follows it at once are vectors of the panel.
        unsafe {
            match at_once {
                4 => vectors::<S, F, T, 4>(panel.as_ptr(), cols, x, lane, out),
                2 => vectors::<S, F, T, 2>(panel.as_ptr(), cols, x, lane, out),
                _ => vectors::<S, F, T, 1>(panel.as_ptr(), cols, x, lane, out),
            }
        }
    }
}

/// Writes the sums of V vectors of rows from `lane` on.
#[inline(always)]
unsafe fn vectors<S: Simd, F: Unpack, const T: usize, const V: usize>(
    mut block: *const u8,
    cols: usize,
    x: [*const f32; T],
    lane: usize,
    out: [*mut f32; T],
) {
    let lanes: [usize; V] = std::array::from_fn(|v| lane + v * S::LANES);
    // SAFETY: blocks are taken from the panel one by one, columns stay below `cols`; `out` has room for V vectors.
    unsafe {
        let zero = [[S::splat(0.0); V]; T];
        let mut total = zero;
        let mut k = 0;
        while k < cols {
            let end = cols.min(k + CHUNK);
            let is_first = k == 0;
            let (mut even, mut odd) = (zero, zero);
            while k < end {
                for sub in 0..F::BLOCK / F::SUB {
                    let affine = lanes.map(|lane| F::affine::<S>(block, sub, lane));
                    for o in 0..F::SUB / 8 {
                        let octets = lanes.map(|lane| F::octet::<S>(block, sub, o, lane));
                        let column = k + sub * F::SUB + o * 8;
                        for i in 0..8 {
                            let chain = if i % 2 == 0 { &mut even } else { &mut odd };
                            for v in 0..V {
                                let w = F::weight::<S>(&octets[v], i, affine[v]);
                                for t in 0..T {
                                    let x = S::splat(*x[t].add(column + i));
                                    chain[t][v] = S::fma(w, x, chain[t][v]);
                                }
                            }
                        }
                    }
                }
                block = block.add(F::BYTES);
                k += F::BLOCK;
            }
            for t in 0..T {
                for v in 0..V {
                    let start = if is_first {
                        even[t][v]
                    } else {
                        S::add(total[t][v], even[t][v])
                    };
                    total[t][v] = S::add(start, odd[t][v]);
                }
            }
        }
        for t in 0..T {
            for v in 0..V {
                S::store(out[t].add(v * S::LANES), total[t][v]);
            }
        }
    }
}

/// Unpacks at most 256 columns into `tile[column][16]`.
struct Fill<'a> {
    format: Format,
    blocks: &'a [u8],
    tile: &'a mut [f32; CHUNK * PANEL],
}

impl Kernel for Fill<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the struct's contract.
        unsafe { by_format!(self.format, fill[](self.blocks, self.tile)) }
    }
}

#[inline(always)]
unsafe fn fill<S: Simd, F: Unpack>(blocks: &[u8], tile: &mut [f32; CHUNK * PANEL]) {
    debug_assert!(blocks.len() / F::BYTES * F::BLOCK <= CHUNK);
    let mut to = tile.as_mut_ptr();
    for block in blocks.chunks_exact(F::BYTES) {
        let block = block.as_ptr();
        for sub in 0..F::BLOCK / F::SUB {
            for v in 0..PANEL / S::LANES {
                // SAFETY: block is whole; the tile has room for 256 columns and `to` advances by a block's.
                unsafe {
                    let affine = F::affine::<S>(block, sub, v * S::LANES);
                    for o in 0..F::SUB / 8 {
                        let octet = F::octet::<S>(block, sub, o, v * S::LANES);
                        for i in 0..8 {
                            let column = sub * F::SUB + o * 8 + i;
                            S::store(
                                to.add(column * PANEL + v * S::LANES),
                                F::weight::<S>(&octet, i, affine),
                            );
                        }
                    }
                }
            }
        }
        // SAFETY: at most one past the end after the last block.
        to = unsafe { to.add(F::BLOCK * PANEL) };
    }
}

/// Where a chunk stands in the sum.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    First,
    Later,
}

/// `tokens` rows of x times an unpacked tile, added to `sums[token][16]`.
struct Micro<'a> {
    tile: *const f32,
    cols: usize,
    x: *const f32,
    x_stride: usize,
    tokens: usize,
    sums: *mut f32,
    place: Place,
    bias: Option<&'a [f32; PANEL]>,
}

/// Tokens whose accumulators fit the registers (two vectors of 8 each, with 16 registers).
const GROUP: usize = 6;

impl Kernel for Micro<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut token = 0;
        while token < self.tokens {
            // SAFETY: each call covers tokens below `self.tokens`.
            unsafe {
                match self.tokens - token {
                    1 => self.group::<S, 1>(token),
                    2 => self.group::<S, 2>(token),
                    3 => self.group::<S, 3>(token),
                    4 => self.group::<S, 4>(token),
                    5 => self.group::<S, 5>(token),
                    _ => self.group::<S, GROUP>(token),
                }
            }
            token += GROUP;
        }
    }
}

impl Micro<'_> {
    #[inline(always)]
    unsafe fn group<S: Simd, const T: usize>(&self, token: usize) {
        // SAFETY: tokens token..token + T exist.
        unsafe {
            let x = self.x.add(token * self.x_stride);
            let even = self.chain::<S, T>(x, 0);
            let odd = self.chain::<S, T>(x, 1);
            let mut t = 0;
            while t < T {
                self.join::<S>(token + t, &even[t], &odd[t]);
                t += 1;
            }
        }
    }

    /// Sums of columns `parity, parity + 2, …`.
    #[inline(always)]
    unsafe fn chain<S: Simd, const T: usize>(
        &self,
        x: *const f32,
        parity: usize,
    ) -> [[S::F; 4]; T] {
        let vectors = PANEL / S::LANES;
        // SAFETY: columns stay below `cols`, in the tile and in x.
        unsafe {
            let mut sums = [[S::splat(0.0); 4]; T];
            let mut w = self.tile.add(parity * PANEL);
            let mut x = x.add(parity.min(self.cols.saturating_sub(1)));
            for _ in 0..(self.cols + 1 - parity) / 2 {
                let mut weights = [S::splat(0.0); 4];
                for v in 0..vectors {
                    weights[v] = S::load(w.add(v * S::LANES));
                }
                for (t, sums) in sums.iter_mut().enumerate() {
                    let x = S::splat(*x.add(t * self.x_stride));
                    for v in 0..vectors {
                        sums[v] = S::fma(weights[v], x, sums[v]);
                    }
                }
                w = w.wrapping_add(2 * PANEL);
                x = x.wrapping_add(2);
            }
            sums
        }
    }

    /// Adds a token's two chains to its sums.
    #[inline(always)]
    unsafe fn join<S: Simd>(&self, token: usize, even: &[S::F; 4], odd: &[S::F; 4]) {
        for v in 0..PANEL / S::LANES {
            // SAFETY: 16 sums exist for the token.
            unsafe {
                let at = self.sums.add(token * PANEL + v * S::LANES);
                let start = match self.place {
                    Place::First => even[v],
                    Place::Later => S::add(S::load(at), even[v]),
                };
                let mut sum = S::add(start, odd[v]);
                if let Some(bias) = self.bias {
                    sum = S::add(sum, S::load(bias.as_ptr().add(v * S::LANES)));
                }
                S::store(at, sum);
            }
        }
    }
}
