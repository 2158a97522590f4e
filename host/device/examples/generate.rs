//! Speed of the CPU device on a Llama in GGUF form: `generate MODEL.gguf [threads]`.

#[path = "../tests/support/drive.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::panic
)]
mod drive;
#[path = "../tests/support/llama.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::panic
)]
mod llama;

use std::sync::Arc;
use std::time::Instant;

use guesthouse_device::{CpuDevice, CpuOptions, KvBudget};
use guesthouse_engine::{Executor, Input, SamplingPlan};
use guesthouse_graph::PassOptions;
use guesthouse_weights::gguf::hf::hf_config;
use guesthouse_weights::{Gguf, GgufSource, WeightSource};

/// Wall time and CPU time (of all threads; 0 where there is no `/proc`), seconds.
fn clock(start: Instant) -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = stat.rsplit(')').next().map_or(0.0, |s| {
        s.split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|t| t.parse::<f64>().ok())
            .sum()
    });
    (start.elapsed().as_secs_f64(), ticks / 100.0)
}

/// Tokens per second of wall time, and what an idle machine would reach judging by CPU time.
fn report(what: &str, tokens: u32, threads: usize, (w0, c0): (f64, f64), (w1, c1): (f64, f64)) {
    let tokens = f64::from(tokens);
    let wall = tokens / (w1 - w0);
    let cpu = tokens / (c1 - c0) * threads as f64;
    println!("{what}: {wall:.1} tok/s, {cpu:.1} by CPU time on {threads} threads");
}

#[allow(clippy::unwrap_used)]
fn main() {
    let epoch = Instant::now();
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "model.gguf".to_owned());
    let threads = args.next().and_then(|n| n.parse().ok()).unwrap_or(2);
    let gguf = Arc::new(Gguf::open(&path).unwrap());
    let config = hf_config(&gguf).unwrap();
    let number = |name: &str| config[name].as_u64().unwrap() as u32;
    let source: Arc<dyn WeightSource> = Arc::new(GgufSource::new(Arc::clone(&gguf)).unwrap());
    let model = llama::Llama {
        vocab: number("vocab_size"),
        hidden: number("hidden_size"),
        layers: number("num_hidden_layers"),
        heads: number("num_attention_heads"),
        kv_heads: number("num_key_value_heads"),
        head_dim: number("hidden_size") / number("num_attention_heads"),
        ffn: number("intermediate_size"),
        theta: config["rope_theta"].as_f64().unwrap_or(10_000.0) as f32,
        eps: config["rms_norm_eps"].as_f64().unwrap() as f32,
        tied: source.info("lm_head.weight").is_none(),
        window: None,
    };
    println!("{model:?}");
    let plan = model.plan(Arc::clone(&source), &PassOptions::default());
    let options = CpuOptions {
        threads,
        kv: KvBudget::Bytes(1 << 30),
        ..CpuOptions::default()
    };
    let start = Instant::now();
    let executor = CpuDevice::load(&plan, source.as_ref(), &options, &mut |_| {}).unwrap();
    println!("loaded in {:.2?}, {:?}", start.elapsed(), executor.memory());
    let mut driver = drive::Driver::new(executor);
    // "The capital of France is"
    let prompt = [504, 3575, 282, 4649, 314];
    let out = driver.generate(0, &prompt, 512, 12, &SamplingPlan::greedy());
    println!("{:?}", out.iter().map(|s| s.token).collect::<Vec<_>>());
    println!("{:?}", out[0]);

    for _ in 0..3 {
        let start = clock(epoch);
        driver.generate(0, &prompt, 512, 64, &SamplingPlan::greedy());
        report("decode", 64, threads, start, clock(epoch));
    }
    for n in [128u32, 512] {
        let long: Vec<u32> = (0..n).map(|i| i * 7 % 40_000 + 10).collect();
        let start = clock(epoch);
        driver.generate(0, &long, 512, 1, &SamplingPlan::greedy());
        report(&format!("prefill {n}"), n, threads, start, clock(epoch));
    }
    for n in [2u32, 4, 16, 48] {
        let mut rows = Vec::new();
        for i in 0..n {
            driver.admit(i, &prompt, &SamplingPlan::greedy(), 0);
        }
        for i in 0..n {
            let row = driver.row(i, 0, 5, Input::History);
            rows.push(row);
        }
        let tasks: Vec<_> = (0..n).map(|i| drive::task(i, i)).collect();
        let mut ticket = driver.launch(rows, tasks.clone());
        let start = clock(epoch);
        for step in 0..32 {
            let rows = (0..n)
                .map(|i| driver.row(i, 5 + step, 1, Input::From { ticket, sample: i }))
                .collect();
            let next = driver.launch(rows, tasks.clone());
            driver.executor.collect(ticket).unwrap();
            ticket = next;
        }
        driver.executor.collect(ticket).unwrap();
        report(
            &format!("{n} sequences"),
            n * 32,
            threads,
            start,
            clock(epoch),
        );
        for i in 0..n {
            driver.release(i);
        }
    }
}
