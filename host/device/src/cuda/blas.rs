//! Matrix products by cuBLASLt.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::{result, sys};

use super::driver::{Buffer, Gpu};
use super::libs;
use super::ops::own::Gating;
use super::options::{CudaDtype, Numerics};
use crate::error::{DeviceError, Result};

/// Workspace of one product; what NVIDIA recommends for Hopper, doubled.
const WORKSPACE: usize = 64 << 20;

/// Algorithms asked for.
const CANDIDATES: usize = 16;

/// `y [m, n] = x [m, k] · w [n, k]ᵀ + bias [n]`, sums in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    pub m: u32,
    pub n: u32,
    pub k: u32,
    /// Elements from row to row of x.
    pub x_stride: u32,
    /// Elements from row to row of y.
    pub y_stride: u32,
    /// Type of x and w.
    pub input: CudaDtype,
    /// Type of y: the same, or f32.
    pub output: CudaDtype,
    /// Whether a bias of y's type is added.
    pub bias: bool,
    /// Whether y [m, n / 2] is the activation of gate rows times up rows. Only our own kernels do that.
    pub gating: Option<Gating>,
}

/// Device addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operands {
    pub x: u64,
    pub w: u64,
    /// 0 where there is none.
    pub bias: u64,
    pub y: u64,
}

/// One of the library's ways to compute a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Algorithm {
    algo: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

impl Algorithm {
    /// For keeping on disk.
    pub(crate) fn words(&self) -> [u64; 9] {
        let mut words = [0; 9];
        words[..8].copy_from_slice(&self.algo.data);
        words[8] = self.workspace as u64;
        words
    }

    /// The inverse of [`Self::words`].
    pub(crate) fn of(words: [u64; 9]) -> Self {
        let mut algo = sys::cublasLtMatmulAlgo_t { data: [0; 8] };
        algo.data.copy_from_slice(&words[..8]);
        Self {
            algo,
            workspace: words[8] as usize,
        }
    }
}

/// The library with its workspace.
pub(crate) struct Lt {
    handle: sys::cublasLtHandle_t,
    workspace: Buffer,
    /// The library's version number.
    pub version: usize,
}

// SAFETY: the handle may be used from any thread; the workspace is used in stream order.
unsafe impl Send for Lt {}
// SAFETY: likewise.
unsafe impl Sync for Lt {}

fn failed(doing: &'static str) -> impl Fn(CublasError) -> DeviceError {
    move |error| DeviceError::Gpu {
        doing,
        what: format!("cuBLASLt: {:?}", error.0),
    }
}

fn cuda_type(dtype: CudaDtype) -> sys::cudaDataType {
    match dtype {
        CudaDtype::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
        CudaDtype::F16 => sys::cudaDataType_t::CUDA_R_16F,
        CudaDtype::F32 => sys::cudaDataType_t::CUDA_R_32F,
    }
}

/// Descriptors of one product, freed on drop.
struct Described {
    matmul: sys::cublasLtMatmulDesc_t,
    /// A = w, B = x, D = y; the library is column-major, so that y is its `[n, m]`.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
}

impl Described {
    fn new(p: &Product, bias: u64) -> Result<Self> {
        let err = failed("describing a matrix product");
        let matmul = result::create_matmul_desc(
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cudaDataType_t::CUDA_R_32F,
        )
        .map_err(&err)?;
        let mut described = Self {
            matmul,
            layouts: [std::ptr::null_mut(); 3],
        };
        let set = |attribute, value: &[u8]| {
            // SAFETY: the descriptor is alive, the value has the attribute's size.
            unsafe {
                result::set_matmul_desc_attribute(
                    matmul,
                    attribute,
                    value.as_ptr().cast(),
                    value.len(),
                )
            }
            .map_err(&err)
        };
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &1i32.to_ne_bytes())?;
        if p.bias {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
            set(
                Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE,
                &epilogue.to_ne_bytes(),
            )?;
            set(
                Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                &bias.to_ne_bytes(),
            )?;
        }
        let (input, output) = (cuda_type(p.input), cuda_type(p.output));
        let shapes = [
            (input, p.k, p.n, p.k),
            (input, p.k, p.m, p.x_stride),
            (output, p.n, p.m, p.y_stride),
        ];
        for (layout, (ty, rows, cols, stride)) in described.layouts.iter_mut().zip(shapes) {
            *layout = result::create_matrix_layout(
                ty,
                u64::from(rows),
                u64::from(cols),
                i64::from(stride),
            )
            .map_err(&err)?;
        }
        Ok(described)
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        unsafe {
            for layout in self.layouts.into_iter().filter(|l| !l.is_null()) {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.matmul);
        }
    }
}

impl Lt {
    /// Opens the library.
    ///
    /// # Errors
    /// When it is missing.
    pub(crate) fn open(gpu: &Arc<Gpu>) -> Result<Self> {
        libs::load(libs::CUBLASLT)?;
        let handle = result::create_handle().map_err(failed("opening cuBLASLt"))?;
        Ok(Self {
            handle,
            workspace: gpu.allocate(WORKSPACE, "the workspace of matrix products")?,
            // SAFETY: the library is loaded.
            version: unsafe { sys::cublasLtGetVersion() },
        })
    }

    /// Ways to compute a product, the library's favourite first; batch-invariant ones split no sum.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn algorithms(&self, p: &Product, numerics: Numerics) -> Result<Vec<Algorithm>> {
        let err = failed("choosing an algorithm");
        let described = Described::new(p, self.workspace.address())?;
        let preference = result::create_matmul_pref().map_err(&err)?;
        let mut found: Vec<sys::cublasLtMatmulHeuristicResult_t> = Vec::with_capacity(CANDIDATES);
        let mut count = 0;
        let [a, b, d] = described.layouts;
        // SAFETY: all descriptors are alive; the list has room for as many entries as are asked for, and `count` of them
        // are written.
        let status = unsafe {
            let bytes = WORKSPACE;
            result::set_matmul_pref_attribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const bytes).cast::<c_void>(),
                size_of::<usize>(),
            )
            .map_err(&err)?;
            if numerics == Numerics::BatchInvariant {
                let none = 0u32;
                result::set_matmul_pref_attribute(
                    preference,
                    sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                    (&raw const none).cast::<c_void>(),
                    size_of::<u32>(),
                )
                .map_err(&err)?;
            }
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                described.matmul,
                a,
                b,
                d,
                d,
                preference,
                CANDIDATES as i32,
                found.as_mut_ptr(),
                &raw mut count,
            )
            .result();
            let _ = result::destroy_matmul_pref(preference);
            if status.is_ok() {
                found.set_len((count as usize).min(CANDIDATES));
            }
            status
        };
        status.map_err(&err)?;
        Ok(found
            .into_iter()
            .filter(|r| r.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS)
            .map(|r| Algorithm {
                algo: r.algo,
                workspace: r.workspaceSize,
            })
            .collect())
    }

    /// Enqueues a product.
    ///
    /// # Errors
    /// When the library refuses it.
    pub(crate) fn run(
        &self,
        gpu: &Gpu,
        p: &Product,
        operands: &Operands,
        algorithm: &Algorithm,
    ) -> Result<()> {
        let described = Described::new(p, operands.bias)?;
        let [a, b, d] = described.layouts;
        let (one, zero) = (1f32, 0f32);
        // SAFETY: descriptors are alive, addresses lie in live buffers of the shapes described, and the workspace is as
        // large as any algorithm was allowed to ask for.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.handle,
                described.matmul,
                (&raw const one).cast(),
                operands.w as *const c_void,
                a,
                operands.x as *const c_void,
                b,
                (&raw const zero).cast(),
                operands.y as *const c_void,
                d,
                operands.y as *mut c_void,
                d,
                &raw const algorithm.algo,
                self.workspace.address() as *mut c_void,
                algorithm.workspace.min(WORKSPACE),
                gpu.stream().cast(),
            )
        };
        status.result().map_err(failed("multiplying matrices"))
    }
}

impl Drop for Lt {
    fn drop(&mut self) {
        // SAFETY: made by `open`, destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
