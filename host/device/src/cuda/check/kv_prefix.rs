//! Writing keys whose prefix are the values: nothing may change on the way, and nothing else is written.

use std::sync::Arc;

use guesthouse_graph::{ValueLayout, ValueType};

use super::KernelReport;
use super::memory::{DTYPES, Memory, Pending, Words, decode, error, run_together};
use crate::cuda::driver::Gpu;
use crate::cuda::ops::CacheArgs;
use crate::cuda::ops::rope::{Places, Rotate, RotateSpec, Writing};
use crate::cuda::options::CudaDtype;
use crate::error::Result;

const BLOCK: usize = 16;

/// Blocks of the one sequence, of 5 in all.
const TABLE: [i32; 3] = [4, 1, 3];

/// Positions, the last of padding.
const POSITIONS: [i32; 6] = [0, 15, 16, 30, 47, 5];

/// Every type, with wide accesses and without.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    for dtype in DTYPES {
        let cases = [(512, 64), (48, 16), (7, 3)].map(|dims| one(gpu, dtype, dims));
        let cases: Vec<Pending> = cases.into_iter().collect::<Result<_>>()?;
        run_together(dtype.name(), cases, report)?;
    }
    Ok(())
}

fn one(gpu: &Arc<Gpu>, dtype: CudaDtype, (v_dim, rest): (usize, usize)) -> Result<Pending> {
    let width = v_dim + rest;
    let mut memory = Memory::new(gpu, dtype, POSITIONS.len(), 0);
    let (v, latents) = memory.input(v_dim, ValueType::Model);
    let (k, ropes) = memory.input(rest, ValueType::Model);
    let words = Words {
        positions: POSITIONS.to_vec(),
        row_of: vec![0, 0, 0, 0, 0, -1],
        slot: vec![0],
        prompt_len: vec![48],
        admitted_len: vec![48],
        ..Words::default()
    };
    let ready_tables = gpu.upload(bytemuck::cast_slice(&TABLE), "checking")?;
    let bytes = 5 * BLOCK * width * dtype.bytes();
    let keys = gpu.allocate(bytes, "checking")?;
    gpu.fill(keys.address(), 0xff, bytes)?;
    let cache = CacheArgs {
        keys: keys.address(),
        values: keys.address(),
        tables: ready_tables.address(),
        table_stride: TABLE.len() as i32,
        heads: 1,
        k_dim: width as i32,
        v_dim: v_dim as i32,
        block_size: BLOCK as i32,
        blocks: 5,
    };
    let ready = memory.ready(&words, vec![cache])?;
    let places = Places::new(gpu, &[0], POSITIONS.len() as u32)?;
    let spec = RotateSpec {
        write: Some(Writing {
            cache: 0,
            places: places.places().remove(0),
            kv_heads: 1,
            k_dim: rest,
            v_dim,
            values: ValueLayout::PrefixOfKey,
            block_size: BLOCK as u32,
            k,
            v,
        }),
        ..RotateSpec::default()
    };
    let instr = Rotate::new(gpu, dtype, spec)?;
    Ok(Box::new(move || {
        ready.launch(&places)?;
        ready.launch(&instr)?;
        gpu_done(&ready, &v)?;
        let mut found = vec![0; bytes];
        keys.read(0, &mut found)?;
        drop(ready_tables);
        let mut expected = vec![f64::NAN; 5 * BLOCK * width];
        for (t, &position) in POSITIONS.iter().enumerate().take(POSITIONS.len() - 1) {
            let position = position as usize;
            let line = TABLE[position / BLOCK] as usize * BLOCK + position % BLOCK;
            let (head, tail) = expected[line * width..(line + 1) * width].split_at_mut(v_dim);
            head.copy_from_slice(&latents[t * v_dim..(t + 1) * v_dim]);
            tail.copy_from_slice(&ropes[t * rest..(t + 1) * rest]);
        }
        let worst = error(&decode(dtype, &found), &expected);
        let case = format!("{} keys of {v_dim} + {rest}", dtype.name());
        Ok(KernelReport::new("kv/prefix", case, worst, 0.0))
    }))
}

/// Waits for what was enqueued.
fn gpu_done(ready: &super::memory::Ready, value: &crate::cuda::ops::Place) -> Result<()> {
    ready.read(value).map(drop)
}
