//! What one step of samplers that choose tokens costs: `cargo run --release -p guesthouse-component --example step_costs`.
//!
//! 64 requests of one row with 256 candidates, a store each; the guest does top-k 50 and top-p 0.9. First the calls alone, one
//! after the other on one thread; then through [`SamplerThreads`], from the first question to the last answer. Medians of wall
//! time.
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

    let mut open: Vec<_> = (0..REQUESTS).map(|_| begin(&module)).collect();
    let calls = median(|| {
        let rows: Vec<_> = (0..REQUESTS).map(rows).collect();
        let started = Instant::now();
        for (stepping, rows) in open.iter_mut().zip(rows) {
            stepping.step(rows).unwrap();
        }
        started.elapsed()
    });
    println!("{REQUESTS} calls on this thread, a store each: {calls:?}");

    let threads = SamplerThreads::new(ThreadsConfig::new(|_, _, _| Err("unused".into())));
    let mut choosers: Vec<_> = open.into_iter().map(|s| threads.chooser(s)).collect();
    let answers = Arc::new(Count {
        left: AtomicUsize::new(0),
        waits: std::thread::current(),
        failed: Mutex::new(None),
    });
    let mut asked = Vec::new();
    let steps = median(|| {
        let rows: Vec<_> = (0..REQUESTS).map(rows).collect();
        answers.left.store(REQUESTS, Ordering::SeqCst);
        let started = Instant::now();
        for (id, (chooser, rows)) in choosers.iter_mut().zip(rows).enumerate() {
            let to = Arc::clone(&answers) as Arc<dyn Answers>;
            chooser.choose(rows, Reply::new(RequestId(id as u64), to));
        }
        asked.push(started.elapsed());
        while answers.left.load(Ordering::SeqCst) > 0 {
            std::thread::park();
        }
        started.elapsed()
    });
    asked.sort_unstable();
    println!("the same through the sampler threads: {steps:?}");
    println!(
        "  of which the engine's thread asks: {:?}",
        asked[asked.len() / 2]
    );
    if let Some(error) = &*answers.failed.lock().unwrap() {
        println!("  {error}");
    }
    for lane in threads.usage() {
        println!(
            "  {} calls, {:?} of CPU time on average",
            lane.calls,
            lane.cpu / lane.calls as u32
        );
    }
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

fn median(mut run: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<_> = (0..SAMPLES).map(|_| run()).collect();
    times.sort_unstable();
    times[SAMPLES / 2]
}
