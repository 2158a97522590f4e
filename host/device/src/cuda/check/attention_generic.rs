//! Checks of generic attention.

use std::sync::Arc;

use super::attention::{Case, run};
use super::report::KernelReport;
use crate::cuda::driver::Gpu;
use crate::cuda::ops::attention::Kernel;
use crate::cuda::ops::attention_generic::{Generic, Which};
use crate::cuda::options::CudaDtype;
use crate::error::Result;

/// Chunks of several tokens that begin and end around boundaries of blocks.
const CHUNKS: &[(u32, u32)] = &[(2, 2), (17, 17), (5, 1000), (64, 64), (33, 257), (16, 31)];

/// Rows of one token.
const SINGLE: &[(u32, u32)] = &[(1, 1), (1, 16), (1, 17), (1, 129), (1, 1000)];

fn cases() -> Vec<Case> {
    let f32 = |heads, kv_heads, dim, rows| Case {
        dtype: CudaDtype::F32,
        ..Case::new(heads, kv_heads, dim, rows)
    };
    let both = |case: Case| {
        [CHUNKS, SINGLE].map(|rows| Case {
            rows: rows.to_vec(),
            ..case.clone()
        })
    };
    let mut cases = Vec::new();
    for case in [
        f32(4, 2, 16, CHUNKS),
        Case {
            v_dim: 7,
            ..f32(6, 2, 10, CHUNKS)
        },
        Case {
            window: Some(20),
            sinks: true,
            ..f32(8, 1, 128, CHUNKS)
        },
        Case {
            alibi: true,
            block_size: 32,
            ..f32(5, 5, 64, CHUNKS)
        },
        Case {
            softcap: Some(5.0),
            v_dim: 128,
            ..Case::new(4, 4, 192, CHUNKS)
        },
        Case {
            dtype: CudaDtype::F16,
            ..Case::new(16, 1, 512, CHUNKS)
        },
        Case {
            prefix: true,
            ..f32(4, 2, 16, CHUNKS)
        },
        Case {
            prefix: true,
            window: Some(20),
            v_dim: 7,
            ..f32(6, 2, 10, CHUNKS)
        },
    ] {
        cases.extend(both(case));
    }
    cases.push(f32(4, 1, 64, &[(1, 131_072)]));
    cases.push(Case {
        timed: true,
        ..f32(32, 8, 128, &[(1, 1024); 8])
    });
    cases.push(Case {
        every: 61,
        timed: true,
        ..f32(32, 8, 128, &[(512, 512)])
    });
    cases
}

/// Compares with the reference and times.
///
/// # Errors
/// When memory is short or the GPU is lost.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    for case in cases() {
        let which = if case.rows.iter().all(|(len, _)| *len == 1) {
            Which::Single
        } else {
            Which::Long
        };
        let done = run("attention/generic", gpu, &case, &|gpu, spec, _, _| {
            let kernel = Generic::new(gpu, spec, which)?;
            Ok(kernel.map(|k| Box::new(k) as Box<dyn Kernel>))
        })?;
        report(done);
    }
    Ok(())
}
