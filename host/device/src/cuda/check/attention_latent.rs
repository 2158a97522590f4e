//! Checks of attention over latents.

use std::sync::Arc;

use guesthouse_graph::ValueLayout;

use super::attention::{Case, Make, agree, run};
use super::report::KernelReport;
use crate::cuda::driver::Gpu;
use crate::cuda::ops::attention::Kernel;
use crate::cuda::ops::attention_generic::{Generic, Which};
use crate::cuda::ops::attention_latent::Latent;
use crate::cuda::options::{CudaDtype, Numerics};
use crate::error::Result;

/// Rows of one token whose lengths lie at, before and after boundaries of tiles, blocks and fixed cuts.
const RAGGED: &[(u32, u32)] = &[
    (1, 1),
    (1, 15),
    (1, 16),
    (1, 17),
    (1, 31),
    (1, 32),
    (1, 33),
    (1, 64),
    (1, 65),
    (1, 100),
    (1, 257),
    (1, 1023),
    (1, 1024),
    (1, 1025),
    (1, 3001),
];

/// Prompts: whole, a chunk behind others, and lengths that groups of tokens do not divide.
const PROMPTS: &[(u32, u32)] = &[(33, 33), (2, 2), (17, 400), (7, 1030), (64, 64), (3, 2100)];

fn latents(heads: u32, (rank, rope): (u32, u32), rows: &[(u32, u32)]) -> Case {
    Case {
        k_dim: rank + rope,
        v_dim: rank,
        values: ValueLayout::PrefixOfKey,
        ..Case::new(heads, 1, rank, rows)
    }
}

fn cases() -> Vec<(Which, Case)> {
    const FULL: (u32, u32) = (512, 64);
    let mut cases = Vec::new();
    for (which, rows) in [(Which::Single, RAGGED), (Which::Long, PROMPTS)] {
        let mut add = |case| cases.push((which, case));
        add(latents(128, FULL, &rows[..1]));
        for heads in [16, 20, 40, 128] {
            add(latents(heads, FULL, rows));
        }
        add(Case {
            dtype: CudaDtype::F16,
            block_size: 48,
            ..latents(4, (48, 16), rows)
        });
        for heads in [16, 128] {
            add(Case {
                numerics: Numerics::BatchInvariant,
                ..latents(heads, FULL, rows)
            });
        }
    }
    let timed = |case| Case {
        timed: true,
        every: 61,
        ..case
    };
    let single: [(u32, &[(u32, u32)]); 5] = [
        (128, &[(1, 4096)]),
        (128, &[(1, 32768)]),
        (128, &[(1, 1100); 64]),
        (16, &[(1, 4096)]),
        (16, &[(1, 1100); 64]),
    ];
    for (heads, rows) in single {
        cases.push((Which::Single, timed(latents(heads, FULL, rows))));
    }
    for heads in [16, 128] {
        let prompt = latents(heads, FULL, &[(2048, 2048)]);
        cases.push((Which::Long, timed(prompt)));
    }
    cases
}

/// One sequence, of which the last 1, 3 or 70 tokens are computed.
fn invariance(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    let single: Make<'_> = &|gpu, spec, limits, planners| {
        let latent = Latent::new(gpu, spec, Which::Single, limits, planners)?;
        Ok(latent.map(|kernel| Box::new(kernel) as Box<dyn Kernel>))
    };
    let long: Make<'_> = &|gpu, spec, limits, planners| {
        let latent = Latent::new(gpu, spec, Which::Long, limits, planners)?;
        Ok(latent.map(|kernel| Box::new(kernel) as Box<dyn Kernel>))
    };
    for heads in [16, 40, 128] {
        for kv in [100, 1024, 5000] {
            let cases: Vec<(Case, Make<'_>)> = [(1, single), (3, long), (70, long)]
                .into_iter()
                .map(|(len, make)| {
                    let case = Case {
                        numerics: Numerics::BatchInvariant,
                        ..latents(heads, (512, 64), &[(len, kv)])
                    };
                    (case, make)
                })
                .collect();
            report(agree("attention/latent", gpu, &cases)?);
        }
    }
    Ok(())
}

/// Every case on this GPU.
///
/// # Errors
/// When memory is short or the GPU is lost.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    for (which, case) in cases() {
        report(run(
            "attention/latent",
            gpu,
            &case,
            &|gpu, spec, limits, planners| {
                let latent = Latent::new(gpu, spec, which, limits, planners)?;
                Ok(latent.map(|kernel| Box::new(kernel) as Box<dyn Kernel>))
            },
        )?);
    }
    invariance(gpu, report)?;
    // Types and shapes that tensor cores do not suit.
    for (dtype, dims) in [(CudaDtype::F32, (512, 64)), (CudaDtype::Bf16, (24, 6))] {
        for (which, rows) in [(Which::Single, RAGGED), (Which::Long, PROMPTS)] {
            let case = Case {
                dtype,
                every: 5,
                ..latents(10, dims, rows)
            };
            report(run("attention/generic", gpu, &case, &|gpu, spec, _, _| {
                let generic = Generic::new(gpu, spec, which)?;
                Ok(generic.map(|kernel| Box::new(kernel) as Box<dyn Kernel>))
            })?);
        }
    }
    Ok(())
}
