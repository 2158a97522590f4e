//! Sources of the CUDA kernels, embedded for compilation on the user's machine.
//!
//! This crate only carries text: it must not know devices, launches or compilers. The sources stand beside it, one folder
//! per kind of kernel; `include/` holds the headers, which name each other by their path below `kernels/`. The CPU's
//! kernels are Rust and stand in `guesthouse-device`.
//!
//! The first lines of a `.cu` file are read by [`Header`]:
//! ```text
//! // arch: sm_80+
//! // variants: MODEL_BF16 HEAD_DIM=128; MODEL_F16 HEAD_DIM=64
//! ```
//! names the GPUs that it compiles for (`sm_90a`: that one alone) and the sets of definitions that the tests compile.
//!
//! ```
//! use guesthouse_kernels::{Header, SOURCES};
//!
//! for (path, text) in SOURCES.iter().filter(|(path, _)| path.ends_with(".cu")) {
//!     let header = Header::parse(text).unwrap_or_else(|| panic!("{path} begins without a header"));
//!     assert!(!header.variants.is_empty());
//! }
//! ```

mod header;

pub use header::{Arch, Header};

/// Every kernel file, sorted: (path below `kernels/`, CUDA C++ text).
pub const SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sources.rs"));

/// The text of a file.
#[must_use]
pub fn source(path: &str) -> Option<&'static str> {
    let at = SOURCES.binary_search_by(|(p, _)| (*p).cmp(path)).ok()?;
    Some(SOURCES[at].1)
}
