//! Golden models on a device under an engine that the test steps itself.
//!
//! The test programs run on other machines too: `GUESTHOUSE_GOLDEN_DIR` names the folder of the golden models there.

use guesthouse_component::{Runtime, RuntimeConfig};
use guesthouse_device::{CudaDtype, CudaGraphs, DeviceExecutor, Numerics};
use guesthouse_engine::{
    Attachments, CacheSalt, Chooser, Engine, EngineConfig, Event, FinishReason, GenerationParams,
    Owner, PrefixCaching, Priority, Progress, Request, RequestId, Sampled, SamplingPlan, Stats,
};
use guesthouse_graph::{CacheKind, PassOptions, Plan, PlanOptions};
use guesthouse_server::model::load::{build_graph, on_device};
use guesthouse_server::model::{
    DeviceChoice, DtypeChoice, GuestChoice, LoadFormat, LoadOptions, ModelFiles, ModuleStore,
};
use guesthouse_server::source::LocalModel;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};

/// Every folder of golden cases, or those of `GUESTHOUSE_GOLDEN_CASES`, which are separated by commas.
pub(crate) fn cases() -> &'static [String] {
    static FOUND: OnceLock<Vec<String>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let entries = std::fs::read_dir(golden("")).unwrap();
        let mut found: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| golden(name).join("golden.json").is_file())
            .collect();
        found.sort();
        if let Ok(wanted) = std::env::var("GUESTHOUSE_GOLDEN_CASES") {
            let wanted: Vec<&str> = wanted.split(',').collect();
            found.retain(|name| wanted.contains(&name.as_str()));
        }
        assert!(!found.is_empty(), "no golden cases in {:?}", golden(""));
        found
    })
}

pub(crate) fn golden(name: &str) -> PathBuf {
    let folder = std::env::var_os("GUESTHOUSE_GOLDEN_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/cases"),
        PathBuf::from,
    );
    folder.join(name)
}

/// A device and how it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    Cpu,
    Cuda {
        dtype: CudaDtype,
        numerics: Numerics,
        graphs: CudaGraphs,
    },
}

impl Where {
    /// As users get it.
    pub(crate) fn cuda(dtype: CudaDtype, numerics: Numerics) -> Self {
        Self::Cuda {
            dtype,
            numerics,
            graphs: CudaGraphs::Captured,
        }
    }

    pub(crate) fn element_bytes(self) -> u64 {
        match self {
            Self::Cpu => 4,
            Self::Cuda { dtype, .. } => dtype.bytes() as u64,
        }
    }

    /// What log-probabilities of `name` may differ from the reference: in float32 by the stated factor of what golden.json
    /// allows, in 16 bits on average by 1.5 times what transformers' own run in that type does (`tests/golden/half.py`)
    /// and each, whose extremes scatter more, by 3 times its largest.
    pub(crate) fn tolerance(self, name: &str) -> Tolerance {
        let read = |file: &str| -> Value {
            let text = std::fs::read_to_string(golden(name).join(file)).unwrap();
            serde_json::from_str(&text).unwrap()
        };
        let exact = |by: f64| Tolerance {
            each: by * read("golden.json")["tolerance"].as_f64().unwrap(),
            mean: f64::INFINITY,
        };
        let half = |dtype: &str| {
            let found = &read("half.json")[dtype];
            Tolerance {
                each: 3.0 * found["largest"].as_f64().unwrap(),
                mean: 1.5 * found["mean"].as_f64().unwrap(),
            }
        };
        match self {
            Self::Cpu => exact(1.0),
            Self::Cuda { dtype, .. } => match dtype {
                // 1e-3 · max(1, max|reference|).
                CudaDtype::F32 => exact(10.0),
                CudaDtype::Bf16 => half("bfloat16"),
                CudaDtype::F16 => half("float16"),
            },
        }
    }
}

/// Limits of differences of log-probabilities.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tolerance {
    pub(crate) each: f64,
    pub(crate) mean: f64,
}

/// One runtime for a test process; compiled guests are shared by all.
pub(crate) fn modules() -> &'static Arc<ModuleStore> {
    static MODULES: OnceLock<Arc<ModuleStore>> = OnceLock::new();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let cache_dir = target.is_dir().then(|| target.join("modules"));
    MODULES.get_or_init(|| {
        let config = RuntimeConfig {
            cache_dir,
            ..RuntimeConfig::default()
        };
        ModuleStore::new(Runtime::new(config).unwrap())
    })
}

/// How to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) step_tokens: u32,
    pub(crate) running: u32,
    /// Positions that fit the KV cache; none is plenty.
    pub(crate) kv_positions: Option<u64>,
    pub(crate) prefix_cache: PrefixCaching,
    pub(crate) threads: usize,
    pub(crate) device: Where,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            step_tokens: 512,
            running: 64,
            kv_positions: None,
            prefix_cache: PrefixCaching::Off,
            threads: 2,
            device: Where::Cpu,
        }
    }
}

fn plan(files: &ModelFiles) -> Plan {
    let graph = build_graph(modules(), files, &GuestChoice::default())
        .unwrap()
        .graph;
    let graph = guesthouse_graph::optimize(graph, &PassOptions::default()).unwrap();
    Plan::compile(graph, &PlanOptions::new(4)).unwrap()
}

/// Whether sequences of a model keep growing: some layer sees all positions.
pub(crate) fn sees_all(model: &Path) -> bool {
    plan(&open(model))
        .groups
        .iter()
        .any(|group| group.spec.kind == CacheKind::Full)
}

/// Whether sequences of a model have states, which exist at their end alone.
pub(crate) fn has_states(model: &Path) -> bool {
    plan(&open(model))
        .groups
        .iter()
        .any(|group| matches!(group.spec.kind, CacheKind::Recurrent { .. }))
}

fn open(model: &Path) -> ModelFiles {
    ModelFiles::open(&LocalModel::Folder(model.to_owned()), LoadFormat::Auto).unwrap()
}

pub(crate) fn engine(model: &Path, setup: Setup) -> Engine<DeviceExecutor> {
    let files = open(model);
    let plan = plan(&files);
    let per_position: u64 = plan
        .groups
        .iter()
        .map(|group| group.bytes_per_position(setup.device.element_bytes() as usize) as u64)
        .sum();
    let states: u64 = plan
        .groups
        .iter()
        .map(|group| group.bytes_per_sequence() as u64)
        .sum();
    // Where positions are few, states are those of short sequences.
    let sequences = setup
        .kv_positions
        .map_or(u64::from(setup.running), |positions| positions / 32);
    let options = LoadOptions {
        max_num_seqs: setup.running,
        max_num_batched_tokens: Some(setup.step_tokens),
        device: match setup.device {
            Where::Cpu => DeviceChoice::Cpu,
            Where::Cuda { .. } => DeviceChoice::Cuda { ordinal: 0 },
        },
        max_model_len: Some(plan.graph.info.max_position.min(512)),
        kv_cache_bytes: Some(
            per_position * setup.kv_positions.unwrap_or(1 << 15) + states * sequences,
        ),
        threads: Some(setup.threads),
        ..LoadOptions::default()
    };
    let options = match setup.device {
        Where::Cpu => options,
        Where::Cuda {
            dtype,
            numerics,
            graphs,
        } => LoadOptions {
            dtype: DtypeChoice::Exactly(dtype),
            numerics,
            graphs,
            ..options
        },
    };
    let ready = on_device(&files, modules(), &options).unwrap();
    let config = EngineConfig {
        max_waiting: 4096,
        max_running: setup.running as usize,
        max_step_tokens: setup.step_tokens,
        prefix_cache: setup.prefix_cache,
        ..EngineConfig::default()
    };
    Engine::new(ready.executor, config)
}

/// What to generate.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) prompt: Vec<u32>,
    pub(crate) params: GenerationParams,
    pub(crate) sampling: Arc<SamplingPlan>,
    pub(crate) seed: u64,
}

impl Ask {
    pub(crate) fn greedy(prompt: Vec<u32>, max_tokens: u32) -> Self {
        let params = GenerationParams {
            max_tokens,
            ..GenerationParams::default()
        };
        Self {
            prompt,
            params,
            sampling: Arc::new(SamplingPlan::greedy()),
            seed: 0,
        }
    }
}

/// All that an ask got.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Got {
    /// Per choice.
    pub(crate) tokens: Vec<Vec<Sampled>>,
    pub(crate) prompt: Vec<Sampled>,
    pub(crate) reasons: Vec<Option<FinishReason>>,
}

impl Got {
    pub(crate) fn ids(&self, choice: usize) -> Vec<u32> {
        self.tokens[choice].iter().map(|s| s.token).collect()
    }
}

pub(crate) fn request(ask: &Ask, id: u64) -> Request {
    Request {
        id: RequestId(id),
        cache_salt: CacheSalt::default(),
        prompt: ask.prompt.clone(),
        params: ask.params.clone(),
        sampling: Arc::clone(&ask.sampling),
        seed: ask.seed,
        priority: Priority::default(),
        owner: Owner::default(),
    }
}

/// Submits everything at once and steps until idle.
pub(crate) fn run(engine: &mut Engine<DeviceExecutor>, asks: &[Ask]) -> Vec<Got> {
    run_with(engine, asks.iter().map(|ask| (ask.clone(), None)).collect())
}

/// The same, with the guests that choose tokens.
pub(crate) fn run_with(
    engine: &mut Engine<DeviceExecutor>,
    asks: Vec<(Ask, Option<Box<dyn Chooser>>)>,
) -> Vec<Got> {
    let mut answers = Vec::new();
    let first = engine.stats().finished + engine.stats().failed + engine.stats().cancelled;
    for (i, (ask, chooser)) in asks.into_iter().enumerate() {
        let (sender, events) = mpsc::channel::<Event>();
        let id = first * 1000 + i as u64 + 1;
        let attachments = Attachments {
            chooser,
            ..Attachments::from(Box::new(sender))
        };
        engine.submit(request(&ask, id), attachments).unwrap();
        answers.push((events, ask.params.n as usize));
    }
    while engine.step().unwrap() != Progress::Idle {}
    engine.check_integrity().unwrap();
    answers
        .iter()
        .map(|(events, choices)| collect(events, *choices))
        .collect()
}

fn collect(events: &mpsc::Receiver<Event>, n: usize) -> Got {
    let mut got = Got {
        tokens: vec![Vec::new(); n],
        reasons: vec![None; n],
        ..Got::default()
    };
    for event in events.try_iter() {
        match event {
            Event::Started { .. } => {}
            Event::PromptLogprobs(scored) => got.prompt = scored,
            Event::Token { choice, sampled } => got.tokens[choice as usize].push(sampled),
            Event::Finished { choice, reason } => got.reasons[choice as usize] = Some(reason),
            Event::Embedding(vector) => panic!("a vector: {vector:?}"),
            Event::Failed { error, .. } => panic!("{error}"),
        }
    }
    assert!(
        got.reasons.iter().all(Option::is_some),
        "unfinished: {got:?}"
    );
    got
}

/// Runs each ask alone on a fresh engine with plenty of everything.
pub(crate) fn alone(model: &Path, asks: &[Ask], device: Where) -> Vec<Got> {
    let setup = Setup {
        device,
        ..Setup::default()
    };
    let mut engine = engine(model, setup);
    asks.iter()
        .map(|ask| run(&mut engine, std::slice::from_ref(ask)).remove(0))
        .collect()
}

/// Nothing is held when nothing runs.
pub(crate) fn assert_idle(stats: &Stats) {
    assert_eq!(
        (stats.blocks_used, stats.running, stats.waiting),
        (0, 0, 0),
        "{stats:?}"
    );
}
