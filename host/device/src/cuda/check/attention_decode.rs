//! Checks of decode attention.

use std::sync::Arc;

use super::attention::{Case, run};
use super::report::KernelReport;
use crate::cuda::driver::Gpu;
use crate::cuda::ops::attention::Kernel;
use crate::cuda::ops::attention_decode::Decode;
use crate::cuda::options::{CudaDtype, Numerics};
use crate::error::Result;

/// Rows of one token whose lengths lie at, before and after boundaries of tiles and blocks.
const RAGGED: &[(u32, u32)] = &[
    (1, 1),
    (1, 15),
    (1, 16),
    (1, 17),
    (1, 31),
    (1, 32),
    (1, 33),
    (1, 48),
    (1, 64),
    (1, 65),
    (1, 100),
    (1, 255),
    (1, 256),
    (1, 257),
    (1, 1000),
    (1, 3001),
];

fn cases() -> Vec<Case> {
    let ragged = |heads, kv_heads, dim| Case::new(heads, kv_heads, dim, RAGGED);
    let timed = |rows: &[(u32, u32)]| Case {
        timed: true,
        ..Case::new(32, 8, 128, rows)
    };
    let fixed = |case| Case {
        numerics: Numerics::BatchInvariant,
        ..case
    };
    vec![
        Case::new(8, 2, 128, &[(1, 1)]),
        ragged(8, 2, 128),
        fixed(ragged(8, 2, 128)),
        Case {
            block_size: 48,
            ..ragged(2, 2, 128)
        },
        Case {
            dtype: CudaDtype::F16,
            window: Some(50),
            ..ragged(14, 2, 64)
        },
        fixed(Case {
            window: Some(1500),
            ..ragged(14, 2, 64)
        }),
        Case {
            softcap: Some(5.0),
            window: Some(300),
            ..ragged(8, 4, 256)
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
            ..ragged(16, 2, 96)
        },
        // More query heads than one item has.
        Case {
            alibi: true,
            sinks: true,
            ..ragged(40, 2, 128)
        },
        Case::new(4, 1, 128, &[(1, 131_072)]),
        timed(&[(1, 1024)]),
        timed(&[(1, 32768)]),
        timed(&[(1, 1100); 64]),
        timed(&[(1, 210); 256]),
        Case {
            timed: true,
            ..Case::new(32, 8, 64, &[(1, 1100); 64])
        },
    ]
}

/// Compares with the reference and times.
///
/// # Errors
/// When memory is short or the GPU is lost.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    for case in cases() {
        let done = run(
            "attention/decode",
            gpu,
            &case,
            &|gpu, spec, limits, planners| {
                let kernel = Decode::new(gpu, spec, limits, planners)?;
                Ok(kernel.map(|k| Box::new(k) as Box<dyn Kernel>))
            },
        )?;
        report(done);
    }
    Ok(())
}
