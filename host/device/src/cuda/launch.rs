//! Launching kernels.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::{result, sys};

use super::compiler::{Module, Source};
use super::driver::{Gpu, failed};
use crate::error::{DeviceError, Result};

/// A kernel's one parameter, passed by value.
///
/// # Safety
/// The type is `repr(C)` and has the size and field offsets of the kernel's parameter structure; device addresses in it
/// lie in buffers that live until the kernel has run.
pub(crate) unsafe trait Params: Copy {}

/// How many threads, in which arrangement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Blocks in x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, bytes.
    pub shared: u32,
    /// Blocks of a cluster along x; 1 is none.
    pub cluster: u32,
}

impl Grid {
    /// So many blocks in a row, no shared memory.
    pub(crate) fn new(blocks: u32, threads: u32) -> Self {
        Self {
            blocks: [blocks, 1, 1],
            threads,
            shared: 0,
            cluster: 1,
        }
    }

    /// With more dimensions.
    #[must_use]
    pub(crate) fn yz(mut self, y: u32, z: u32) -> Self {
        self.blocks[1] = y;
        self.blocks[2] = z;
        self
    }

    /// With dynamic shared memory.
    #[must_use]
    pub(crate) fn shared(mut self, bytes: u32) -> Self {
        self.shared = bytes;
        self
    }

    /// With clusters.
    #[must_use]
    pub(crate) fn cluster(mut self, blocks: u32) -> Self {
        self.cluster = blocks;
        self
    }
}

/// A function on the GPU. Cheap to clone. It compiles in the background until it is first launched.
#[derive(Clone)]
pub(crate) struct Kernel {
    shared: Arc<Shared>,
}

struct Shared {
    entry: &'static str,
    module: Arc<Module>,
    function: OnceLock<Function>,
    /// Dynamic shared memory allowed so far.
    allowed: AtomicU32,
}

#[derive(Clone, Copy)]
struct Function(sys::CUfunction);

// SAFETY: functions may be launched from any thread in which their context is current.
unsafe impl Send for Function {}
// SAFETY: likewise.
unsafe impl Sync for Function {}

impl Gpu {
    /// A kernel; its compilation begins now and is waited for at its first use.
    ///
    /// # Errors
    /// When there is no such file.
    pub(crate) fn kernel(&self, source: &Source) -> Result<Kernel> {
        Ok(Kernel {
            shared: Arc::new(Shared {
                entry: source.entry,
                module: self.compiler.module(source)?,
                function: OnceLock::new(),
                // Static shared memory counts against the 48 KiB that need no permission.
                allowed: AtomicU32::new(16 << 10),
            }),
        })
    }
}

impl Kernel {
    fn function(&self) -> Result<sys::CUfunction> {
        if let Some(function) = self.shared.function.get() {
            return Ok(function.0);
        }
        let function = self.shared.module.function(self.shared.entry)?;
        // All kernels ask for the same division of L1: a multiprocessor is idle while the division changes, and holds no
        // blocks of two kernels that differ in it.
        // SAFETY: the function is loaded.
        unsafe {
            result::function::set_function_attribute(
                function,
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                100,
            )
        }
        .map_err(failed("dividing L1"))?;
        Ok(self.shared.function.get_or_init(|| Function(function)).0)
    }

    /// Waits until the kernel is compiled and loaded.
    ///
    /// # Errors
    /// What the compiler said.
    pub(crate) fn ready(&self) -> Result<()> {
        self.function().map(drop)
    }

    /// Blocks of this shape that one multiprocessor holds at a time.
    ///
    /// # Errors
    /// What the compiler or the driver said.
    pub(crate) fn blocks_per_multiprocessor(&self, threads: u32, shared: u32) -> Result<u32> {
        let function = self.function()?;
        self.allow(function, shared)?;
        // SAFETY: the function is loaded.
        let blocks = unsafe {
            result::occupancy::max_active_block_per_multiprocessor(
                function,
                threads as i32,
                shared as usize,
            )
        };
        let blocks = blocks.map_err(failed("asking for a kernel's occupancy"))?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Permits the function so much dynamic shared memory. Several handles may share a function: what one of them was
    /// permitted is never taken back.
    fn allow(&self, function: sys::CUfunction, shared: u32) -> Result<()> {
        const ATTRIBUTE: sys::CUfunction_attribute =
            sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        if shared <= self.shared.allowed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let doing = failed("raising a kernel's shared memory");
        // SAFETY: the function is loaded.
        let permitted = unsafe { result::function::get_function_attribute(function, ATTRIBUTE) };
        let permitted = u32::try_from(permitted.map_err(&doing)?).unwrap_or(0);
        let permitted = permitted.max(shared);
        // Also where nothing is raised: static shared memory counts against what needs no permission.
        // SAFETY: the function is loaded.
        unsafe { result::function::set_function_attribute(function, ATTRIBUTE, permitted as i32) }
            .map_err(&doing)?;
        self.shared.allowed.store(permitted, Ordering::Relaxed);
        Ok(())
    }

    /// Enqueues the kernel. On Hopper and later its blocks may start before the kernel ahead has ended, so it calls
    /// `wait_for_previous`. A grid without blocks is left out.
    ///
    /// # Errors
    /// When the driver refuses the launch.
    pub(crate) fn launch<P: Params>(&self, gpu: &Gpu, grid: Grid, params: &P) -> Result<()> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let function = self.function()?;
        self.allow(function, grid.shared)?;
        // SAFETY: an attribute is plain data for which zero is a value.
        let mut attributes: [sys::CUlaunchAttribute; 2] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        if gpu.properties.capability >= (9, 0) {
            attributes[count].id =
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[count]
                .value
                .programmaticStreamSerializationAllowed = 1;
            count += 1;
        }
        if grid.cluster > 1 {
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes[count].value.clusterDim.x = grid.cluster;
            attributes[count].value.clusterDim.y = 1;
            attributes[count].value.clusterDim.z = 1;
            count += 1;
        }
        let config = sys::CUlaunchConfig {
            gridDimX: grid.blocks[0],
            gridDimY: grid.blocks[1],
            gridDimZ: grid.blocks[2],
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: grid.shared,
            hStream: gpu.stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
        let mut pointers = [std::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        // SAFETY: `Params` promises that the structure is the kernel's; the driver copies it before it returns.
        let status = unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                function,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        status.result().map_err(|e| DeviceError::Gpu {
            doing: "launching a kernel",
            what: format!(
                "{} of {} with {grid:?}: {:?}",
                self.shared.entry,
                self.shared.module.name(),
                e.0
            ),
        })
    }
}
