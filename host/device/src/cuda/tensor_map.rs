//! Descriptions of tensors for Hopper's copy engine (TMA).

#![allow(unsafe_code)]

use std::ffi::c_void;

use cudarc::driver::sys;

use super::driver::failed;
use super::options::CudaDtype;
use crate::error::Result;

/// `TensorMap` of the kernels: a tensor in device memory and the boxes in which it is copied.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct TensorMap([u64; 16]);

/// A dimension of a tensor, innermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dim {
    /// Elements.
    pub len: u64,
    /// Bytes from one to the next; a multiple of 16, but for the innermost, where it is not looked at.
    pub stride: u64,
    /// Elements of a box, at most 256.
    pub tile: u32,
}

impl TensorMap {
    /// Boxes whose lines along the innermost dimension are 128 bytes, laid out in shared memory with the 128-byte swizzle.
    /// What lies outside of the tensor reads as zeros.
    ///
    /// # Errors
    /// When the address is not a multiple of 16, or the driver refuses the shape.
    pub(crate) fn swizzled<const N: usize>(
        dtype: CudaDtype,
        address: u64,
        dims: [Dim; N],
    ) -> Result<Self> {
        let lens = dims.map(|d| d.len);
        let strides = dims.map(|d| d.stride);
        let tile = dims.map(|d| d.tile);
        let steps = [1_u32; N];
        let ty = match dtype {
            CudaDtype::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            CudaDtype::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            CudaDtype::F32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        };
        // SAFETY: a map is plain data for which zero is a value.
        let mut map: sys::CUtensorMap = unsafe { std::mem::zeroed() };
        // SAFETY: the arrays have the rank's length (strides one less); the driver only encodes the address.
        let status = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                ty,
                N as u32,
                address as *mut c_void,
                lens.as_ptr(),
                strides[1..].as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        status
            .result()
            .map_err(failed("describing a tensor to the copy engine"))?;
        Ok(Self(map.opaque))
    }
}
