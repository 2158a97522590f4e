//! Sources of the CUDA kernels, embedded for compilation on the user's machine.
//!
//! This crate only carries text: it must not know devices, launches or compilers. It is empty until the CUDA device
//! exists; the CPU's kernels are Rust and stand in `guesthouse-device`.
//!
//! ```
//! assert!(guesthouse_kernels::SOURCES.is_empty());
//! ```

/// Every kernel file: (path below `kernels/`, CUDA C++ text).
pub const SOURCES: &[(&str, &str)] = &[];
