//! One GPU: its context and stream, device memory, pinned host memory, events.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUevent_flags, CUstream};
use cudarc::driver::{DriverError, result, sys};

use super::compiler::Compiler;
use super::libs;
use crate::error::{DeviceError, Result};

/// What a GPU is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Properties {
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that one block may have, bytes.
    pub shared_per_block: u32,
    /// Bytes of L2.
    pub l2: usize,
    /// Bytes of memory.
    pub memory: usize,
}

impl Properties {
    /// Whether wgmma and tensor copies exist: compute capability 9.0 alone.
    pub(crate) fn is_hopper(&self) -> bool {
        self.capability == (9, 0)
    }

    /// As the compiler wants it, such as `sm_90a`.
    pub(crate) fn arch(&self) -> String {
        let (major, minor) = self.capability;
        let suffix = if self.is_hopper() { "a" } else { "" };
        format!("sm_{major}{minor}{suffix}")
    }
}

/// A GPU with its context and the stream on which everything runs in order.
pub(crate) struct Gpu {
    pub properties: Properties,
    pub compiler: Compiler,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: CUstream,
}

// SAFETY: contexts and streams may be used from any thread in which the context is current; `bind` makes it so.
unsafe impl Send for Gpu {}
// SAFETY: the driver's functions are thread-safe.
unsafe impl Sync for Gpu {}

/// What the driver said, with what was being done.
pub(crate) fn failed(doing: &'static str) -> impl Fn(DriverError) -> DeviceError {
    move |error| DeviceError::Gpu {
        doing,
        what: match error.error_string() {
            Ok(text) => text.to_string_lossy().into_owned(),
            Err(_) => format!("{:?}", error.0),
        },
    }
}

/// Loads the driver; the number of GPUs that it sees.
///
/// # Errors
/// When there is no driver.
pub(crate) fn count() -> Result<usize> {
    // The bindings panic where the library is missing.
    libs::load(libs::DRIVER)?;
    result::init().map_err(failed("starting the driver"))?;
    let count = result::device::get_count().map_err(failed("counting GPUs"))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Properties of a GPU; makes no context.
///
/// # Errors
/// When there is no such GPU.
pub(crate) fn properties(ordinal: usize) -> Result<Properties> {
    let found = count()?;
    if ordinal >= found {
        return Err(DeviceError::Absent {
            device: "cuda",
            why: format!(
                "GPU {ordinal} was asked for, the driver sees {found}; check --device and CUDA_VISIBLE_DEVICES"
            ),
        });
    }
    let doing = "reading the GPU's properties";
    let device = result::device::get(ordinal as i32).map_err(failed(doing))?;
    let attribute = |a: Attribute| {
        // SAFETY: `device` came from the driver.
        let value = unsafe { result::device::get_attribute(device, a) }
            .map_err(failed("reading the GPU's properties"))?;
        Ok::<u32, DeviceError>(u32::try_from(value).unwrap_or(0))
    };
    Ok(Properties {
        name: result::device::get_name(device).map_err(failed(doing))?,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_per_block: attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
        l2: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        // SAFETY: as above.
        memory: unsafe { result::device::total_mem(device) }.map_err(failed(doing))?,
    })
}

impl Gpu {
    /// Opens a GPU. Kernels are compiled into `cache`.
    ///
    /// # Errors
    /// When the driver or the compiler is missing, or the GPU is too old.
    pub(crate) fn open(ordinal: usize, cache: Option<&std::path::Path>) -> Result<Arc<Self>> {
        let properties = properties(ordinal)?;
        if properties.capability < (8, 0) {
            let (major, minor) = properties.capability;
            return Err(DeviceError::Absent {
                device: "cuda",
                why: format!(
                    "{} has compute capability {major}.{minor}; 8.0 (Ampere) or later is needed",
                    properties.name
                ),
            });
        }
        let compiler = Compiler::new(&properties.arch(), cache)?;
        let device = result::device::get(ordinal as i32).map_err(failed("opening the GPU"))?;
        // SAFETY: `device` came from the driver; the context is released on drop.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(failed("opening the GPU"))?;
        // SAFETY: the context is alive.
        unsafe { result::ctx::set_current(context) }.map_err(failed("opening the GPU"))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(failed("opening the GPU"))?;
        Ok(Arc::new(Self {
            properties,
            compiler,
            device,
            context,
            stream,
        }))
    }

    /// Makes the context current in this thread. Every thread that calls anything else here must have done so.
    ///
    /// # Errors
    /// When the GPU is lost.
    pub(crate) fn bind(&self) -> Result<()> {
        // SAFETY: the context lives as long as `self`.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed("binding the GPU"))
    }

    /// The stream.
    pub(crate) fn stream(&self) -> CUstream {
        self.stream
    }

    /// Waits until all that was enqueued has run.
    ///
    /// # Errors
    /// When a kernel failed or the GPU is lost.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.stream) }.map_err(failed("waiting for the GPU"))
    }

    /// Bytes that nobody holds.
    ///
    /// # Errors
    /// When the GPU is lost.
    pub(crate) fn free_memory(&self) -> Result<usize> {
        Ok(result::mem_get_info()
            .map_err(failed("reading free memory"))?
            .0)
    }

    /// Memory on the GPU, contents undefined.
    ///
    /// # Errors
    /// When there is not enough.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: usize, what: &'static str) -> Result<Buffer> {
        // SAFETY: the context is current.
        let address = unsafe { result::malloc_sync(bytes.max(256)) }
            .map_err(|_| DeviceError::Memory { what, bytes })?;
        Ok(Buffer {
            gpu: Arc::clone(self),
            address,
            bytes: bytes.max(256),
        })
    }

    /// Memory on the GPU, all zero.
    ///
    /// # Errors
    /// When there is not enough.
    pub(crate) fn allocate_zeroed(
        self: &Arc<Self>,
        bytes: usize,
        what: &'static str,
    ) -> Result<Buffer> {
        let buffer = self.allocate(bytes, what)?;
        self.fill(buffer.address, 0, buffer.bytes)?;
        self.synchronize()?;
        Ok(buffer)
    }

    /// Memory on the GPU holding these bytes.
    ///
    /// # Errors
    /// When there is not enough.
    pub(crate) fn upload(self: &Arc<Self>, bytes: &[u8], what: &'static str) -> Result<Buffer> {
        let buffer = self.allocate(bytes.len(), what)?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Page-locked host memory, all zero.
    ///
    /// # Errors
    /// When there is not enough.
    pub(crate) fn pinned(self: &Arc<Self>, bytes: usize) -> Result<Pinned> {
        let bytes = bytes.max(64);
        // 2 is CU_MEMHOSTALLOC_DEVICEMAP: kernels read it at the same address.
        // SAFETY: the context is current.
        let data = unsafe { result::malloc_host(bytes, 2) }.map_err(|_| DeviceError::Memory {
            what: "pinned staging",
            bytes,
        })?;
        // SAFETY: just allocated with this size.
        unsafe { std::ptr::write_bytes(data.cast::<u8>(), 0, bytes) };
        Ok(Pinned {
            gpu: Arc::clone(self),
            data: data.cast(),
            bytes,
        })
    }

    /// Enqueues a copy within the GPU. Both ranges must lie within live buffers.
    ///
    /// # Errors
    /// When the GPU is lost.
    pub(crate) fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: callers pass ranges of live buffers.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream) }
            .map_err(failed("copying on the GPU"))
    }

    /// Enqueues a copy of `count` lines of `bytes` each, which begin `pitches` bytes apart in source and target. All lie
    /// within live buffers.
    ///
    /// # Errors
    /// When the GPU is lost.
    pub(crate) fn copy_lines(
        &self,
        (from, to): (u64, u64),
        pitches: (usize, usize),
        bytes: usize,
        count: usize,
    ) -> Result<()> {
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: from,
            srcArray: std::ptr::null_mut(),
            srcPitch: pitches.0,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: to,
            dstArray: std::ptr::null_mut(),
            dstPitch: pitches.1,
            WidthInBytes: bytes,
            Height: count,
        };
        // SAFETY: callers pass ranges of live buffers.
        unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, self.stream) }
            .result()
            .map_err(failed("copying on the GPU"))
    }

    /// Enqueues setting bytes.
    ///
    /// # Errors
    /// When the GPU is lost.
    pub(crate) fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: callers pass a range of a live buffer.
        unsafe { result::memset_d8_async(address, byte, bytes, self.stream) }
            .map_err(failed("filling GPU memory"))
    }

    /// An event that can measure time.
    ///
    /// # Errors
    /// When the GPU is lost.
    pub(crate) fn event(self: &Arc<Self>) -> Result<Event> {
        let event = result::event::create(CUevent_flags::CU_EVENT_DEFAULT)
            .map_err(failed("making an event"))?;
        Ok(Event {
            gpu: Arc::clone(self),
            event,
        })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        // SAFETY: nothing else holds the stream, and the context was retained by `open`.
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            self.compiler.unload();
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// Memory on the GPU; freed on drop.
pub(crate) struct Buffer {
    gpu: Arc<Gpu>,
    address: u64,
    bytes: usize,
}

impl Buffer {
    /// Device address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies from the host and waits.
    ///
    /// # Errors
    /// When the range does not fit or the GPU is lost.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        if offset
            .checked_add(from.len())
            .is_none_or(|end| end > self.bytes)
        {
            return Err(DeviceError::plan("a write beyond the end of GPU memory"));
        }
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies within the buffer, checked above.
        unsafe { result::memcpy_htod_async(self.address + offset as u64, from, self.gpu.stream) }
            .map_err(failed("copying to the GPU"))?;
        self.gpu.synchronize()
    }

    /// Copies to the host, after all that was enqueued.
    ///
    /// # Errors
    /// When the range does not fit or the GPU is lost.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        if offset
            .checked_add(to.len())
            .is_none_or(|end| end > self.bytes)
        {
            return Err(DeviceError::plan("a read beyond the end of GPU memory"));
        }
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies within the buffer, checked above.
        unsafe { result::memcpy_dtoh_async(to, self.address + offset as u64, self.gpu.stream) }
            .map_err(failed("copying from the GPU"))?;
        self.gpu.synchronize()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: allocated by `allocate`, freed once; the driver waits for kernels that use it.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Page-locked host memory that kernels may read at the same address.
pub(crate) struct Pinned {
    gpu: Arc<Gpu>,
    data: *mut u8,
    bytes: usize,
}

// SAFETY: it is memory like any other.
unsafe impl Send for Pinned {}

impl Pinned {
    /// The address, valid on host and device.
    pub(crate) fn address(&self) -> u64 {
        self.data as u64
    }

    pub(crate) fn slice(&self) -> &[u8] {
        // SAFETY: allocated with this size and initialised.
        unsafe { std::slice::from_raw_parts(self.data, self.bytes) }
    }

    pub(crate) fn slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this size and initialised; `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.bytes) }
    }

    /// As 32-bit words.
    pub(crate) fn words_mut(&mut self) -> &mut [i32] {
        bytemuck::cast_slice_mut(&mut self.slice_mut()[..])
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: allocated by `pinned`, freed once.
            let _ = unsafe { result::free_host(self.data.cast::<c_void>()) };
        }
    }
}

/// A point in the stream.
pub(crate) struct Event {
    gpu: Arc<Gpu>,
    event: sys::CUevent,
}

// SAFETY: events may be used from any thread in which the context is current.
unsafe impl Send for Event {}

impl Event {
    /// Marks the present end of the stream.
    ///
    /// # Errors
    /// When the GPU is lost.
    pub(crate) fn record(&self) -> Result<()> {
        // SAFETY: event and stream are alive.
        unsafe { result::event::record(self.event, self.gpu.stream) }
            .map_err(failed("recording an event"))
    }

    /// Waits for it.
    ///
    /// # Errors
    /// When a kernel before it failed.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.event) }.map_err(failed("running the model"))
    }

    /// Milliseconds from an earlier event to this one; both must have been waited for.
    ///
    /// # Errors
    /// When one was not recorded.
    pub(crate) fn since(&self, earlier: &Event) -> Result<f32> {
        // SAFETY: both events are alive.
        unsafe { result::event::elapsed(earlier.event, self.event) }
            .map_err(failed("measuring time"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: made by `event`, destroyed once.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}
