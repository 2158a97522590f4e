//! The CUDA device without a server: `cuda check [FILTER]`, `cuda parity`, `cuda scores`, `cuda bench 8b|1b|tiny SEQUENCES INPUT OUTPUT
//! [eager|invariant] [sampled] [q4_K|…]`, `cuda profile 8b|1b|tiny SEQUENCESxLENGTH…`.

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

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use guesthouse_device::{
    CpuDevice, CpuOptions, CudaDevice, CudaDtype, CudaGraphs, CudaOptions, DeviceExecutor,
    KvBudget, KvMemory, Numerics,
};
use guesthouse_engine::{
    CacheSalt, Draw, Engine, EngineConfig, Event, GenerationParams, Input, Owner, PrefixCaching,
    Priority, Progress, Request, RequestId, Sampled, SamplingPlan, Stage,
};
use guesthouse_graph::PassOptions;
use guesthouse_weights::{BlockType, DType, Scheme, WeightSource};
use llama::Llama;

type Failure = Box<dyn std::error::Error>;

fn shape(name: &str) -> Option<Llama> {
    let llama = |hidden, layers, heads, head_dim, ffn, tied| Llama {
        vocab: 128_256,
        hidden,
        layers,
        heads,
        kv_heads: 8,
        head_dim,
        ffn,
        theta: 500_000.0,
        eps: 1e-5,
        tied,
        window: None,
    };
    match name {
        "8b" => Some(llama(4096, 32, 32, 128, 14_336, false)),
        "1b" => Some(llama(2048, 16, 32, 64, 8192, true)),
        "tiny" => Some(Llama::tiny()),
        _ => None,
    }
}

fn cache_dir() -> Option<PathBuf> {
    let home = std::env::var_os("HOME")?;
    Some(PathBuf::from(home).join(".cache/guesthouse/kernels"))
}

fn check(filter: Option<&str>) -> Result<(), Failure> {
    let mut failed = 0;
    guesthouse_device::cuda::check::run(filter, &mut |r| {
        failed += usize::from(r.verdict == guesthouse_device::cuda::check::Verdict::Fail);
        let rate = match (r.bandwidth(), r.throughput()) {
            (Some(b), _) => format!("{:.2} TB/s", b / 1e12),
            (_, Some(t)) => format!("{:.0} TFLOP/s", t / 1e12),
            _ => String::new(),
        };
        println!(
            "{:<24} {:<56} {:9.2e} of {:9.2e} {:>9} {rate:>12} {}",
            r.name,
            r.case,
            r.error,
            r.tolerance,
            r.seconds
                .map_or(String::new(), |s| format!("{:.1} us", s * 1e6)),
            r.verdict
        );
    })?;
    println!("{failed} failed");
    Ok(())
}

/// A tiny model on CPU and GPU: tokens and log-probabilities of prompts of several lengths.
fn parity() -> Result<(), Failure> {
    for (dtype, tolerance) in [
        (CudaDtype::F32, 1e-3f32),
        (CudaDtype::Bf16, 0.08),
        (CudaDtype::F16, 0.02),
    ] {
        let plain = Scheme::Plain(DType::Bf16);
        let blocks = [
            BlockType::Q4_1,
            BlockType::Q8_0,
            BlockType::Q4K,
            BlockType::Q6K,
        ];
        let quantized = blocks.map(|b| (Scheme::Block(b), None));
        for (scheme, window) in [(plain, None), (plain, Some(24))]
            .into_iter()
            .chain(quantized)
        {
            let mut model = Llama {
                window,
                ..Llama::tiny()
            };
            if scheme.unit().0 > 64 {
                // Rows are whole blocks.
                (model.hidden, model.head_dim, model.ffn) = (256, 64, 512);
            }
            let source: Arc<dyn WeightSource> = model.weights(scheme, 1);
            let cpu = CpuOptions {
                kv: KvBudget::Bytes(64 << 20),
                ..CpuOptions::default()
            };
            let cuda = CudaOptions {
                dtype,
                kv: KvMemory::Bytes(64 << 20),
                cache_dir: cache_dir(),
                max_slots: 8,
                max_len: 2048,
                ..CudaOptions::default()
            };
            let passes = PassOptions::default();
            let plan = model.plan(Arc::clone(&source), &passes);
            let cpu = CpuDevice::load(&plan, source.as_ref(), &cpu, &mut |_| {})?;
            let plan = model.plan_of(Arc::clone(&source), &passes, dtype.bytes());
            let gpu = CudaDevice::load(&plan, source.as_ref(), &cuda, &mut |_| {})?;
            compare(
                cpu,
                gpu,
                tolerance,
                &format!("{} {scheme} window {window:?}", dtype.name()),
            );
        }
    }
    Ok(())
}

/// A model of SmolLM2's shape, every position of several prompts in one step scored on CPU and GPU.
fn scores() -> Result<(), Failure> {
    let model = Llama {
        vocab: 49_152,
        hidden: 576,
        layers: 4,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        ffn: 1536,
        theta: 100_000.0,
        eps: 1e-5,
        tied: true,
        window: None,
    };
    let passes = PassOptions::default();
    for (scheme, dtype, numerics) in [
        (Scheme::Plain(DType::Bf16), CudaDtype::Bf16, Numerics::Fast),
        (
            Scheme::Plain(DType::Bf16),
            CudaDtype::Bf16,
            Numerics::BatchInvariant,
        ),
        (Scheme::Plain(DType::Bf16), CudaDtype::F16, Numerics::Fast),
        (
            Scheme::Block(BlockType::Q4_1),
            CudaDtype::Bf16,
            Numerics::Fast,
        ),
        (
            Scheme::Block(BlockType::Q4_1),
            CudaDtype::Bf16,
            Numerics::BatchInvariant,
        ),
        (
            Scheme::Block(BlockType::Q4_1),
            CudaDtype::F32,
            Numerics::Fast,
        ),
    ] {
        let source: Arc<dyn WeightSource> = model.weights(scheme, 1);
        let cpu = CpuOptions {
            kv: KvBudget::Bytes(64 << 20),
            ..CpuOptions::default()
        };
        let cuda = CudaOptions {
            dtype,
            numerics,
            kv: KvMemory::Bytes(64 << 20),
            cache_dir: cache_dir(),
            max_slots: 8,
            max_len: 2048,
            max_step_tokens: 512,
            ..CudaOptions::default()
        };
        let plan = model.plan(Arc::clone(&source), &passes);
        let cpu = CpuDevice::load(&plan, source.as_ref(), &cpu, &mut |_| {})?;
        let plan = model.plan_of(Arc::clone(&source), &passes, dtype.bytes());
        let gpu = CudaDevice::load(&plan, source.as_ref(), &cuda, &mut |_| {})?;
        let (mut cpu, mut gpu) = (drive::Driver::new(cpu), drive::Driver::new(gpu));
        for lengths in [&[3u32, 9][..], &[40, 20], &[96, 72, 48, 24], &[200]] {
            let (a, b) = (scored(&mut cpu, lengths), scored(&mut gpu, lengths));
            let mut wrong = Vec::new();
            let (mut worst, mut sum) = (0f32, 0f32);
            for (i, (a, b)) in a.iter().zip(&b).enumerate() {
                let off = (a.logprob - b.logprob).abs();
                (worst, sum) = (worst.max(off), sum + off);
                if off.is_nan() || off >= 0.5 {
                    wrong.push((i, a.logprob, b.logprob));
                }
            }
            println!(
                "{scheme} as {} {numerics:?} {lengths:?}: {} positions, off by {worst:.2e}, mean {:.2e}, {} wrong {:?}",
                dtype.name(),
                a.len(),
                sum / a.len() as f32,
                wrong.len(),
                &wrong[..wrong.len().min(12)]
            );
        }
    }
    Ok(())
}

/// Scores of all prompt tokens, the prompts in one step.
fn scored(driver: &mut drive::Driver<DeviceExecutor>, lengths: &[u32]) -> Vec<Sampled> {
    let mut rows = Vec::new();
    for (slot, &len) in (0u32..).zip(lengths) {
        let prompt: Vec<u32> = (0..len)
            .map(|i| (i * 7919 + slot * 104_729 + 17) % 49_000)
            .collect();
        driver.admit(slot, &prompt, &SamplingPlan::greedy(), 7);
    }
    for (slot, &len) in (0u32..).zip(lengths) {
        let mut row = driver.row(slot, 0, len, Input::History);
        row.prompt_logprobs = Some(4);
        rows.push(row);
    }
    let tasks = (0..lengths.len() as u32)
        .map(|i| drive::task(i, i))
        .collect();
    let output = driver.step(rows, tasks);
    for slot in 0..lengths.len() as u32 {
        driver.release(slot);
    }
    output
        .prompt_logprobs
        .into_iter()
        .flat_map(|p| p.entries)
        .collect()
}

fn compare(cpu: DeviceExecutor, gpu: DeviceExecutor, tolerance: f32, what: &str) {
    let (mut cpu, mut gpu) = (drive::Driver::new(cpu), drive::Driver::new(gpu));
    for (len, chunk) in [(1u32, 512u32), (5, 512), (33, 512), (150, 64), (700, 512)] {
        let prompt: Vec<u32> = (0..len).map(|i| i * 7 % 290 + 3).collect();
        let greedy = SamplingPlan::greedy();
        let a = cpu.generate(0, &prompt, chunk, 12, &greedy);
        let b = gpu.generate(0, &prompt, chunk, 12, &greedy);
        let mut worst = 0f32;
        let mut same = 0;
        for (a, b) in a.iter().zip(&b) {
            if a.token != b.token {
                break;
            }
            same += 1;
            worst = worst.max((a.logprob - b.logprob).abs());
        }
        let verdict = if worst <= tolerance && same > 0 {
            "ok"
        } else {
            "FAIL"
        };
        println!(
            "{what}: prompt {len}: {same} of 12 tokens alike, log-probability off by {worst:.2e} {verdict}"
        );
        if same == 0 {
            let show = |s: &[Sampled]| s.iter().map(|s| (s.token, s.logprob)).collect::<Vec<_>>();
            println!("  cpu {:?}\n  gpu {:?}", show(&a), show(&b));
        }
    }
}

struct Load {
    sequences: u32,
    input: u32,
    output: u32,
}

fn bench(model: &Llama, load: &Load, words: &[String]) -> Result<(), Failure> {
    let has = |word: &str| words.iter().any(|w| w == word);
    let blocks: Option<BlockType> = words.iter().find_map(|w| w.parse().ok());
    let source: Arc<dyn WeightSource> = match blocks {
        Some(blocks) => model.weights(Scheme::Block(blocks), 1),
        None => model.dummy(),
    };
    let plan = model.plan_of(Arc::clone(&source), &PassOptions::default(), 2);
    let options = CudaOptions {
        cache_dir: cache_dir(),
        max_len: (load.input + load.output + 16).max(4096),
        graphs: if has("eager") {
            CudaGraphs::Eager
        } else {
            CudaGraphs::Captured
        },
        numerics: if has("invariant") {
            Numerics::BatchInvariant
        } else {
            Numerics::Fast
        },
        max_step_tokens: 8192,
        ..CudaOptions::default()
    };
    let start = Instant::now();
    let executor = CudaDevice::load(&plan, source.as_ref(), &options, &mut |_| {})?;
    println!(
        "loaded in {:.2} s, {:?}",
        start.elapsed().as_secs_f64(),
        executor.memory()
    );
    let config = EngineConfig {
        max_waiting: 4096,
        max_running: 256,
        max_step_tokens: 8192,
        prefix_cache: PrefixCaching::Off,
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(executor, config);
    let sampling = if has("sampled") {
        SamplingPlan {
            stages: vec![Stage::Temperature(0.8), Stage::TopP(0.9)],
            draw: Draw::Sample,
        }
    } else {
        SamplingPlan::greedy()
    };
    let sampling = Arc::new(sampling);
    for round in 0..3u64 {
        let before = engine.stats();
        let mut receivers = Vec::new();
        for i in 0..load.sequences {
            let (sender, events) = mpsc::channel::<Event>();
            let prompt = (0..load.input)
                .map(|t| {
                    (t.wrapping_mul(2_654_435_761) ^ (i * 977 + round as u32 * 31))
                        % (model.vocab - 1)
                })
                .collect();
            engine.submit(
                Request {
                    id: RequestId(round * 100_000 + u64::from(i) + 1),
                    cache_salt: CacheSalt::default(),
                    prompt,
                    params: GenerationParams {
                        max_tokens: load.output,
                        ..GenerationParams::default()
                    },
                    sampling: Arc::clone(&sampling),
                    seed: u64::from(i),
                    priority: Priority::default(),
                    owner: Owner::default(),
                },
                Box::new(sender),
            )?;
            receivers.push(events);
        }
        let start = Instant::now();
        let mut first = None;
        let mut steps = Vec::new();
        let mut tokens = 0;
        let mut last = Instant::now();
        while engine.step()? != Progress::Idle {
            let now = Instant::now();
            let mut new = 0;
            for events in &receivers {
                new += events
                    .try_iter()
                    .filter(|e| matches!(e, Event::Token { .. }))
                    .count();
            }
            if new > 0 {
                first.get_or_insert(now - start);
            }
            if new == load.sequences as usize {
                steps.push((now - last).as_secs_f64() * 1e3);
            }
            tokens += new;
            last = now;
        }
        let total = start.elapsed().as_secs_f64();
        steps.sort_by(f64::total_cmp);
        let after = engine.stats();
        let exposed = (after.exposed_nanos - before.exposed_nanos) as f64 / 1e3;
        println!(
            "round {round}: total {total:.3} s, {:.0} output tok/s, first token {:.2} ms, step median {:.3} ms (least {:.3}, p90 {:.3}), {} steps, {:.1} us a step not hidden",
            tokens as f64 / total,
            first.map_or(0.0, |f| f.as_secs_f64() * 1e3),
            steps.get(steps.len() / 2).copied().unwrap_or(0.0),
            steps.first().copied().unwrap_or(0.0),
            steps.get(steps.len() * 9 / 10).copied().unwrap_or(0.0),
            after.steps - before.steps,
            exposed / (after.steps - before.steps).max(1) as f64
        );
    }
    Ok(())
}

fn profile(model: &Llama, works: &[(u32, u32)]) -> Result<(), Failure> {
    let source: Arc<dyn WeightSource> = model.dummy();
    let plan = model.plan_of(Arc::clone(&source), &PassOptions::default(), 2);
    let longest = works.iter().map(|w| w.1).max().unwrap_or(1);
    let options = CudaOptions {
        cache_dir: cache_dir(),
        max_len: longest.max(4096),
        ..CudaOptions::default()
    };
    let mut device = CudaDevice::new(&plan, source.as_ref(), &options, &mut |_| {})?;
    for &(rows, len) in works {
        println!("{rows} sequences of {len}");
        for share in device.profile(rows, len)? {
            let time = share.time.as_secs_f64() * 1e6;
            println!(
                "  {:<24} {:4} launches {time:9.1} us, {:7.2} each",
                share.name,
                share.count,
                time / share.count as f64
            );
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: cuda check [FILTER] | parity | scores | bench 8b|1b|tiny SEQUENCES INPUT OUTPUT [eager|invariant] [sampled] [q4_K|…] | profile 8b|1b|tiny SEQUENCESxLENGTH…";
    match args.first().map(String::as_str) {
        Some("check") => check(args.get(1).map(String::as_str)),
        Some("parity") => parity(),
        Some("scores") => scores(),
        Some("profile") => {
            let works: Vec<(u32, u32)> = args[1..]
                .iter()
                .filter_map(|w| w.split_once('x'))
                .filter_map(|(rows, len)| Some((rows.parse().ok()?, len.parse().ok()?)))
                .collect();
            match args.get(1).and_then(|name| shape(name)) {
                Some(model) => profile(&model, &works),
                None => Err(usage.into()),
            }
        }
        Some("bench") => {
            let number = |i: usize| args.get(i).and_then(|a| a.parse().ok());
            let model = args.get(1).and_then(|name| shape(name));
            match (model, number(2), number(3), number(4)) {
                (Some(model), Some(sequences), Some(input), Some(output)) => {
                    let load = Load {
                        sequences,
                        input,
                        output,
                    };
                    bench(&model, &load, &args[5..])
                }
                _ => Err(usage.into()),
            }
        }
        _ => Err(usage.into()),
    }
}
