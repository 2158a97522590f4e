//! Memory that several threads write at once, in parts that do not overlap.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};

use crate::error::{DeviceError, Result};

/// 64-byte aligned zeroed bytes of fixed address. Large ones cost nothing until touched.
pub(crate) struct Buffer {
    /// First aligned byte, of `size`.
    ptr: *mut u8,
    size: usize,
    /// What was allocated.
    base: *mut u8,
    layout: Layout,
}

// SAFETY: a Buffer is plain memory; whoever dereferences its pointer proves that accesses do not conflict.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

/// Alignment of a buffer's first byte: a cache line.
const LINE: usize = 64;
/// What the allocator gives zeroed without touching it: large zeroed blocks of a larger alignment are written at once,
/// which would make the whole KV cache resident before its first use.
const LAZY: usize = 16;

impl Buffer {
    /// Allocates `bytes`, at least 64. Pages become resident when they are first used.
    pub(crate) fn zeroed(bytes: usize, what: &'static str) -> Result<Self> {
        let error = DeviceError::Memory { what, bytes };
        let size = bytes.max(LINE);
        let padded = size.checked_add(LINE);
        let Some(layout) = padded.and_then(|n| Layout::from_size_align(n, LAZY).ok()) else {
            return Err(error);
        };
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            return Err(error);
        }
        // SAFETY: at most LINE - 1 bytes into an allocation of size + LINE bytes.
        let ptr = unsafe { base.add(base.align_offset(LINE).min(LINE)) };
        Ok(Self {
            ptr,
            size,
            base,
            layout,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.size
    }

    pub(crate) fn floats(&self) -> *mut f32 {
        self.ptr.cast()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base, self.layout) };
    }
}

/// A value during a step: rows of f32 (or i32) elements in an arena.
#[derive(Clone, Copy)]
pub(crate) struct Tensor {
    ptr: *mut f32,
    /// Elements from row to row; 0 when one row stands for all.
    pub stride: usize,
    /// Elements of a row.
    pub width: usize,
}

// SAFETY: an address and two sizes; whoever dereferences it proves that accesses do not conflict.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// # Safety
    /// As many rows as are accessed later lie inside a live [`Buffer`].
    pub(crate) unsafe fn new(ptr: *mut f32, stride: usize, width: usize) -> Self {
        Self { ptr, stride, width }
    }

    pub(crate) fn at(&self, row: usize) -> *mut f32 {
        self.ptr.wrapping_add(row * self.stride)
    }

    /// # Safety
    /// The row exists and nobody writes it meanwhile.
    pub(crate) unsafe fn row<'a>(&self, row: usize) -> &'a [f32] {
        // SAFETY: the caller's promise; width elements of a row are contiguous.
        unsafe { std::slice::from_raw_parts(self.at(row), self.width) }
    }

    /// # Safety
    /// The row exists and nobody else touches it meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn row_mut<'a>(&self, row: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise; width elements of a row are contiguous.
        unsafe { std::slice::from_raw_parts_mut(self.at(row), self.width) }
    }

    /// The integers of a row.
    ///
    /// # Safety
    /// As [`Tensor::row`].
    pub(crate) unsafe fn ints<'a>(&self, row: usize) -> &'a [i32] {
        // SAFETY: i32 has the size and alignment of f32, and any bits are valid.
        unsafe { std::slice::from_raw_parts(self.at(row).cast(), self.width) }
    }

    /// # Safety
    /// As [`Tensor::row_mut`].
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn ints_mut<'a>(&self, row: usize) -> &'a mut [i32] {
        // SAFETY: i32 has the size and alignment of f32, and any bits are valid.
        unsafe { std::slice::from_raw_parts_mut(self.at(row).cast(), self.width) }
    }
}
