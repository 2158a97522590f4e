//! What one step of samplers that choose tokens costs: `cargo run --release -p guesthouse-component --example step_costs`.
//!
//! 64 requests of one row with 256 candidates; the guest does top-k 50 and top-p 0.9. A store each, then one store for all
//! (a trusted module). First the calls alone, one after the other on one thread; then through [`SamplerThreads`], from the first question to the
//! last answer. Medians of wall time and, for busy machines, of processor time.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::{Duration, Instant};

use guesthouse_component::{
    CallContext, ModelFacts, Origin, Runtime, RuntimeConfig, SamplerModule, SamplerThreads,
    Stepping, ThreadsConfig,
};
use guesthouse_engine::{
    Answer, Answers, ChooserError, Content, RandomKey, Reply, RequestId, Rows,
};
use rustix::time::{ClockId, clock_gettime};

const REQUESTS: usize = 64;
const CANDIDATES: u32 = 256;
const SAMPLES: usize = 501;

fn main() {
    let file =
        Path::new(env!("GUESTHOUSE_GUESTS_DIR")).join("guesthouse_testing_step_sampler.wasm");
    let bytes = std::fs::read(file).unwrap();
    let runtime = Runtime::new(RuntimeConfig::default()).unwrap();
    let module = runtime.load("step", &bytes, Origin::File).unwrap();
    let module = module.sampler().unwrap();
    println!("{REQUESTS} requests, a store each");
    measure(&module);
    println!("{REQUESTS} requests, one store");
    measure(&module.trusted());
}

fn measure(module: &SamplerModule) {
    let mut open: Vec<_> = (0..REQUESTS).map(|_| begin(module)).collect();
    let direct = Times::of(ClockId::ThreadCPUTime, |rows| {
        for (stepping, rows) in open.iter_mut().zip(rows) {
            stepping.step(rows).unwrap();
        }
    });
    println!("  calls on this thread: {direct}");

    let threads = SamplerThreads::new(ThreadsConfig::new(|_, _, _| Err("unused".into())));
    let mut choosers: Vec<_> = open.into_iter().map(|s| threads.chooser(s)).collect();
    let answers = Arc::new(Count {
        left: AtomicUsize::new(0),
        waits: std::thread::current(),
        failed: Mutex::new(None),
    });
    let mut asked = Vec::new();
    let pooled = Times::of(ClockId::ProcessCPUTime, |rows| {
        answers.left.store(REQUESTS, Ordering::SeqCst);
        let began = cpu(ClockId::ThreadCPUTime);
        for (id, (chooser, rows)) in choosers.iter_mut().zip(rows).enumerate() {
            let to = Arc::clone(&answers) as Arc<dyn Answers>;
            chooser.choose(rows, Reply::new(RequestId(id as u64), to));
        }
        asked.push(cpu(ClockId::ThreadCPUTime).saturating_sub(began));
        while answers.left.load(Ordering::SeqCst) > 0 {
            std::thread::park();
        }
    });
    println!("  through the sampler threads: {pooled}");
    println!(
        "    of which the asking thread: {:?} of processor time",
        median(&mut asked)
    );
    if let Some(error) = &*answers.failed.lock().unwrap() {
        println!("    {error}");
    }
}

/// Medians of one step.
struct Times {
    wall: Duration,
    cpu: Duration,
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {:?} of processor time", self.wall, self.cpu)
    }
}

impl Times {
    fn of(clock: ClockId, mut step: impl FnMut(Vec<Rows>)) -> Self {
        let (mut wall, mut used) = (Vec::new(), Vec::new());
        for _ in 0..SAMPLES {
            let rows = (0..REQUESTS).map(rows).collect();
            let (began, cpu_began) = (Instant::now(), cpu(clock));
            step(rows);
            used.push(cpu(clock).saturating_sub(cpu_began));
            wall.push(began.elapsed());
        }
        Self {
            wall: median(&mut wall),
            cpu: median(&mut used),
        }
    }
}

fn cpu(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

struct Count {
    left: AtomicUsize,
    waits: Thread,
    failed: Mutex<Option<ChooserError>>,
}

impl Answers for Count {
    fn put(&self, _: RequestId, answer: Result<Answer, ChooserError>) {
        if let Err(error) = answer {
            *self.failed.lock().unwrap() = Some(error);
        }
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.waits.unpark();
        }
    }
}

fn begin(module: &SamplerModule) -> Stepping {
    let facts = ModelFacts {
        vocab_size: 151_936,
        stop_tokens: vec![2],
        max_len: 4096,
        prompt_len: 16,
        max_tokens: 256,
        choices: 1,
    };
    let context = CallContext::new("bench", 1_700_000_000);
    module.begin("{}", &facts, context).unwrap().1.unwrap()
}

fn rows(request: usize) -> Rows {
    let key = RandomKey {
        seed: request as u64,
        lineage: 0,
    };
    Rows {
        branches: vec![0],
        choices: vec![0],
        last: vec![1],
        lengths: vec![9],
        uniform: vec![(request as f32 + 0.5) / REQUESTS as f32],
        random: vec![(key, 25)],
        content: Content::Candidates {
            n: CANDIDATES,
            tokens: (0..CANDIDATES).collect(),
            logits: (0..CANDIDATES).map(|i| -(i as f32) / 16.0).collect(),
            log_sum_exp: vec![2.8],
            entropy: vec![3.0],
        },
        hidden: Vec::new(),
    }
}
