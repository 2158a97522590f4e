//! Checks of prefill attention: both kernels, where this GPU runs them.

use std::sync::Arc;

use super::attention::{Case, run};
use super::report::KernelReport;
use crate::cuda::driver::Gpu;
use crate::cuda::ops::attention::Kernel;
use crate::cuda::ops::attention_generic::Which;
use crate::cuda::ops::attention_prefill::{Isa, Prefill};
use crate::cuda::options::CudaDtype;
use crate::error::Result;

/// Rows of many lengths: chunks that begin and end at, before and after boundaries of blocks and tiles. None is of one token.
const RAGGED: &[(u32, u32)] = &[
    (17, 17),
    (128, 128),
    (129, 300),
    (5, 1000),
    (64, 64),
    (33, 257),
    (2, 2049),
    (3, 128),
    (2, 129),
    (200, 1111),
    (16, 16),
];

fn cases() -> Vec<Case> {
    let ragged = |heads, kv_heads, dim| Case {
        every: 3,
        ..Case::new(heads, kv_heads, dim, RAGGED)
    };
    vec![
        Case::new(8, 2, 128, &[(2, 2)]),
        ragged(8, 2, 128),
        Case {
            dtype: CudaDtype::F16,
            ..ragged(8, 2, 64)
        },
        Case {
            window: Some(100),
            ..ragged(4, 4, 64)
        },
        Case {
            softcap: Some(5.0),
            window: Some(300),
            ..ragged(4, 2, 256)
        },
        Case {
            v_dim: 128,
            ..ragged(4, 4, 192)
        },
        Case {
            alibi: true,
            block_size: 32,
            ..ragged(7, 1, 80)
        },
        Case {
            sinks: true,
            dtype: CudaDtype::F16,
            ..ragged(6, 2, 96)
        },
        Case {
            prefix: true,
            ..ragged(32, 32, 128)
        },
        Case {
            prefix: true,
            window: Some(100),
            dtype: CudaDtype::F16,
            ..ragged(6, 2, 96)
        },
        Case {
            every: 61,
            ..Case::new(4, 1, 128, &[(300, 131_072)])
        },
        Case {
            every: 997,
            timed: true,
            ..Case::new(32, 8, 128, &[(2048, 2048); 8])
        },
        Case {
            every: 997,
            timed: true,
            ..Case::new(32, 8, 128, &[(8192, 8192)])
        },
        Case {
            every: 997,
            timed: true,
            ..Case::new(32, 8, 64, &[(2048, 2048); 8])
        },
    ]
}

/// Compares with the reference and times.
///
/// # Errors
/// When memory is short or the GPU is lost.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    for (isa, name) in [
        (Isa::Hopper, "attention/prefill_sm90"),
        (Isa::Ampere, "attention/prefill"),
    ] {
        for case in cases() {
            let done = run(name, gpu, &case, &|gpu, spec, _, planners| {
                let kernel = Prefill::of(isa, gpu, spec, Which::Long, planners)?;
                Ok(kernel.map(|k| Box::new(k) as Box<dyn Kernel>))
            })?;
            report(done);
        }
    }
    Ok(())
}
