//! The executor over a tiny Llama: what is in the batch, how a prompt is cut and how many threads work change nothing.

#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod support;

use std::sync::Arc;

use guesthouse_device::{CpuDevice, CpuOptions, DeviceExecutor, KvBudget};
use guesthouse_engine::{
    Draw, Dry, Input, LogprobsMode, SampleTask, Sampled, SamplingPlan, Stage, TokenId,
};
use guesthouse_graph::PassOptions;
use guesthouse_weights::{BlockType, DType, Scheme};
use support::drive::{Driver, task, token};
use support::llama::Llama;

fn options(threads: usize) -> CpuOptions {
    CpuOptions {
        threads,
        kv: KvBudget::Blocks(256),
        block_size: 16,
        max_step_tokens: 512,
        max_slots: 16,
        max_len: 1024,
    }
}

fn load(
    model: &Llama,
    scheme: Scheme,
    threads: usize,
    passes: &PassOptions,
) -> Driver<DeviceExecutor> {
    let source = model.weights(scheme, 3);
    let plan = model.plan(Arc::clone(&source) as _, passes);
    Driver::new(CpuDevice::load(&plan, source.as_ref(), &options(threads), &mut |_| {}).unwrap())
}

fn prompt(n: usize, seed: u32) -> Vec<TokenId> {
    (0..n as u32)
        .map(|i| (i * 37 + seed * 101 + i * i) % 300)
        .collect()
}

/// Token, bits of its log-probability, rank, best tokens likewise.
type Bits = (TokenId, u32, u32, Vec<(TokenId, u32)>);

/// Everything in a result, bit by bit.
fn bits(samples: &[Sampled]) -> Vec<Bits> {
    let one = |s: &Sampled| {
        let top = s.top.iter().map(|(t, l)| (*t, l.to_bits())).collect();
        (s.token, s.logprob.to_bits(), s.rank, top)
    };
    samples.iter().map(one).collect()
}

fn sampled() -> SamplingPlan {
    SamplingPlan {
        stages: vec![Stage::Temperature(0.9), Stage::TopP(0.95)],
        draw: Draw::Sample,
    }
}

#[test]
fn chunks_threads_and_passes_change_no_bit() {
    for scheme in [
        Scheme::Plain(DType::F32),
        Scheme::Plain(DType::Bf16),
        Scheme::Block(BlockType::Q4_1),
    ] {
        for window in [None, Some(24)] {
            let model = Llama {
                window,
                ..Llama::tiny()
            };
            let prompt = prompt(83, 1);
            let want = load(&model, scheme, 1, &PassOptions::default()).generate(
                0,
                &prompt,
                512,
                40,
                &sampled(),
            );
            for threads in 1..4 {
                for chunk in [1, 7, 16, 50, 512] {
                    let mut driver = load(&model, scheme, threads, &PassOptions::default());
                    let got = driver.generate(0, &prompt, chunk, 40, &sampled());
                    assert_eq!(
                        bits(&got),
                        bits(&want),
                        "{scheme}, window {window:?}, {threads} threads, chunks of {chunk}"
                    );
                }
            }
            let minimal = load(&model, scheme, 2, &PassOptions::minimal()).generate(
                0,
                &prompt,
                33,
                40,
                &sampled(),
            );
            assert_eq!(
                bits(&minimal),
                bits(&want),
                "{scheme}, window {window:?}, without passes"
            );
        }
    }
}

#[test]
fn a_batch_gives_what_each_sequence_gives_alone() {
    let model = Llama {
        window: Some(20),
        ..Llama::tiny()
    };
    let scheme = Scheme::Block(BlockType::Q8_0);
    let prompts: Vec<Vec<TokenId>> = (0..10).map(|i| prompt(3 + 9 * i, i as u32)).collect();
    let alone: Vec<Vec<Sampled>> = prompts
        .iter()
        .map(|p| {
            load(&model, scheme, 1, &PassOptions::default()).generate(0, p, 512, 12, &sampled())
        })
        .collect();
    let mut driver = load(&model, scheme, 2, &PassOptions::default());
    let mut rows = Vec::new();
    for (i, p) in prompts.iter().enumerate() {
        driver.admit(i as u32, p, &sampled(), 7);
    }
    for (i, p) in prompts.iter().enumerate() {
        let row = driver.row(i as u32, 0, p.len() as u32, Input::History);
        rows.push(row);
    }
    let tasks: Vec<_> = (0..10).map(|i| task(i, i)).collect();
    let mut ticket = driver.launch(rows, tasks.clone());
    let mut together: Vec<Vec<Sampled>> = vec![Vec::new(); 10];
    for step in 0..12u32 {
        let next = (step < 11).then(|| {
            let rows = (0..10u32)
                .map(|i| {
                    let at = prompts[i as usize].len() as u32 + step;
                    driver.row(i, at, 1, Input::From { ticket, sample: i })
                })
                .collect();
            driver.launch(rows, tasks.clone())
        });
        let output = guesthouse_engine::Executor::collect(&mut driver.executor, ticket).unwrap();
        for (i, list) in together.iter_mut().enumerate() {
            list.push(token(&output, i));
        }
        if let Some(next) = next {
            ticket = next;
        }
    }
    for (i, (alone, together)) in alone.iter().zip(&together).enumerate() {
        assert_eq!(bits(alone), bits(together), "sequence {i}");
    }
}

#[test]
fn prompt_logprobs_are_those_of_decoding_the_prompt() {
    let model = Llama::tiny();
    let scheme = Scheme::Plain(DType::F16);
    // More rows than the head takes at once.
    let prompt = prompt(300, 5);
    let mut driver = load(&model, scheme, 2, &PassOptions::default());
    driver.admit(0, &prompt, &SamplingPlan::greedy(), 1);
    let mut row = driver.row(0, 0, 300, Input::History);
    row.prompt_logprobs = Some(3);
    let output = driver.step(vec![row], vec![task(0, 0)]);
    let entries = &output.prompt_logprobs[0].entries;
    assert_eq!(entries.len(), 299);
    // The same with one token at a time, where the sampled position's logits give the log-probabilities.
    let mut driver = load(&model, scheme, 1, &PassOptions::default());
    driver.admit(0, &prompt, &SamplingPlan::greedy(), 1);
    for (i, entry) in entries.iter().enumerate() {
        assert_eq!(entry.token, prompt[i + 1]);
        let row = driver.row(0, i as u32, 1, Input::History);
        let mut want = task(0, 0);
        want.top_logprobs = 300;
        let output = driver.step(vec![row], vec![want]);
        let top = token(&output, 0).top;
        let rank = top.iter().position(|(t, _)| *t == prompt[i + 1]).unwrap();
        assert_eq!(
            top[rank].1.to_bits(),
            entry.logprob.to_bits(),
            "position {i}"
        );
        assert_eq!(entry.top[..], top[..3]);
    }
}

#[test]
fn broken_plans_are_errors() {
    use guesthouse_engine::{Executor, Masks, StepPlan, Ticket};
    let model = Llama::tiny();
    let empty = StepPlan {
        ticket: Ticket(0),
        released: Vec::new(),
        admitted: Vec::new(),
        copies: Vec::new(),
        rows: Vec::new(),
        samples: Vec::new(),
    };
    let run = |change: &dyn Fn(&mut Driver<DeviceExecutor>, &mut StepPlan)| {
        let mut driver = load(
            &model,
            Scheme::Plain(DType::F32),
            1,
            &PassOptions::default(),
        );
        let mut plan = empty.clone();
        change(&mut driver, &mut plan);
        driver.executor.launch(plan).unwrap();
        driver.executor.sample(Ticket(0), Masks::default()).unwrap();
        driver
            .executor
            .collect(Ticket(0))
            .map_err(|e| e.to_string())
    };
    assert!(run(&|_, _| {}).is_ok());
    let error = run(&|d, p| p.rows.push(d.row(3, 0, 1, Input::History))).unwrap_err();
    assert!(error.contains("slot 3 is empty"), "{error}");
    let error = run(&|_, p| p.released.push(guesthouse_engine::Slot(99))).unwrap_err();
    assert!(error.contains("slot 99 of 16"), "{error}");
    let error = run(&|d, p| {
        d.admit(0, &[5, 999], &SamplingPlan::greedy(), 0);
        let row = d.row(0, 0, 2, Input::History);
        p.rows.push(row);
        p.admitted = d.take_admitted();
    })
    .unwrap_err();
    assert!(
        error.contains("token 999 is outside the vocabulary of 300"),
        "{error}"
    );
    let error = run(&|d, p| {
        d.admit(0, &[5, 6], &SamplingPlan::greedy(), 0);
        let mut row = d.row(0, 0, 2, Input::History);
        row.new_blocks.clear();
        p.rows.push(row);
        p.admitted = d.take_admitted();
    })
    .unwrap_err();
    assert!(error.contains("0 blocks where 1 are needed"), "{error}");
}

#[test]
fn a_fork_over_copied_blocks_goes_on_like_its_parent() {
    use guesthouse_engine::{
        Admission, BlockCopy, BlockId, Executor, GroupId, Masks, RandomKey, Row, Slot, StepPlan,
        Ticket,
    };
    let model = Llama::tiny();
    let scheme = Scheme::Plain(DType::F32);
    // 20 tokens: one whole block, which the fork shares, and a partial one, which it copies.
    let prompt = prompt(20, 2);
    let plan = SamplingPlan::greedy();
    let want = load(&model, scheme, 1, &PassOptions::default()).generate(0, &prompt, 512, 6, &plan);
    let mut driver = load(&model, scheme, 2, &PassOptions::default());
    driver.admit(0, &prompt, &plan, 0);
    let row = driver.row(0, 0, 20, Input::History);
    let first = token(&driver.step(vec![row], vec![task(0, 0)]), 0);
    let mut history = prompt.clone();
    history.push(first.token);
    let copy = BlockCopy {
        group: GroupId(0),
        from: BlockId(1),
        to: BlockId(40),
    };
    let step = |ticket: u64,
                admitted: Vec<Admission>,
                copies: Vec<BlockCopy>,
                start: u32,
                input: Input| StepPlan {
        ticket: Ticket(ticket),
        released: Vec::new(),
        admitted,
        copies,
        rows: vec![Row {
            slot: Slot(1),
            start,
            len: 1,
            input,
            new_blocks: Vec::new(),
            prompt_logprobs: None,
        }],
        samples: vec![task(0, 1)],
    };
    let fork = Admission {
        slot: Slot(1),
        tokens: history,
        prompt_len: 20,
        sampling: Arc::new(plan.clone()),
        mu: None,
        random: RandomKey {
            seed: 0,
            lineage: 1,
        },
        blocks: vec![vec![BlockId(0), BlockId(40)]],
    };
    let mut got = vec![first];
    let mut plan = step(1, vec![fork], vec![copy], 20, Input::History);
    for i in 0..5u64 {
        let ticket = driver.executor.launch(plan).unwrap();
        driver.executor.sample(ticket, Masks::default()).unwrap();
        got.push(token(&driver.executor.collect(ticket).unwrap(), 0));
        let known = Input::Known(vec![got[got.len() - 1].token]);
        plan = step(2 + i, Vec::new(), Vec::new(), 21 + i as u32, known);
    }
    assert_eq!(bits(&got), bits(&want));
}

#[test]
fn what_the_cpu_cannot_run_fails_at_load_with_its_place() {
    use guesthouse_graph::{
        BuilderLimits, CacheKind, CacheSharding, CacheSpec, GraphBuilder, LatentAttention,
        ModelInfo, Plan, PlanOptions, Sharding, SourceCatalog, ValueLayout,
    };
    use guesthouse_weights::MemorySource;
    let source = Arc::new(MemorySource::new());
    let mut b = GraphBuilder::new(
        Arc::new(SourceCatalog::new(Arc::clone(&source) as _)),
        BuilderLimits::default(),
    );
    let ids = b.token_ids().unwrap();
    let table = b.constant(&[4, 8], vec![0.5; 32]).unwrap();
    let x = b.embedding(table, ids).unwrap();
    b.scope("layers.0.self_attn").unwrap();
    let cache = CacheSpec {
        kind: CacheKind::Full,
        kv_heads: 1,
        k_dim: 6,
        v_dim: 4,
        values: ValueLayout::PrefixOfKey,
        sharding: CacheSharding::Replicated,
    };
    // Attention over latents runs once a pass has absorbed it, and no pass is run here.
    let attention = LatentAttention {
        cache: b.declare_cache(cache).unwrap(),
        kv_b: b.constant(&[2 * (2 + 4), 4], vec![0.5; 48]).unwrap(),
        nope: 2,
        v_dim: 4,
        scale: 0.5,
    };
    let q = b.reshape(x, &[2, 4]).unwrap();
    let latent = b.slice(x, 0, 0, 4).unwrap();
    let k_rope = b.slice(x, 0, 4, 2).unwrap();
    let o = b.latent_attention(q, latent, k_rope, attention).unwrap();
    let x = b.reshape(o, &[8]).unwrap();
    let logits = b.linear(x, table, None, Sharding::Replicated).unwrap();
    b.output_logits(logits).unwrap();
    let info = ModelInfo {
        architecture: "Test".to_owned(),
        vocab_size: 4,
        max_position: 8,
    };
    let plan = Arc::new(Plan::compile(b.finish(info).unwrap(), &PlanOptions::new(4)).unwrap());
    let error = CpuDevice::load(&plan, source.as_ref(), &options(1), &mut |_| {})
        .err()
        .unwrap();
    assert_eq!(error.label(), "device_unsupported");
    let text = error.to_string();
    assert!(
        text.contains("LatentAttention") && text.contains("layers.0.self_attn"),
        "{text}"
    );
}

/// Stages that look at the history, and a draw that depends on the position.
fn watchful() -> SamplingPlan {
    SamplingPlan {
        stages: vec![
            Stage::Penalties {
                repetition: 1.3,
                presence: 0.4,
                frequency: 0.6,
            },
            // Every pair of equal neighbours.
            Stage::BadWords((0..300).map(|t| vec![t, t]).collect()),
            Stage::NoRepeatNgram(2),
            Stage::Dry(Dry {
                multiplier: 1.5,
                base: 2.0,
                allowed_length: 1,
                range: 0,
                breakers: Vec::new(),
            }),
            Stage::MinTokens {
                count: 5,
                banned: (0..100).collect(),
            },
            Stage::Xtc {
                probability: 0.5,
                threshold: 0.01,
            },
            Stage::Temperature(0.2),
            Stage::TopK(40),
        ],
        draw: Draw::Sample,
    }
}

/// A row whose positions are all sampled.
fn drafted(
    driver: &mut Driver<DeviceExecutor>,
    start: u32,
    tokens: &[TokenId],
    mode: LogprobsMode,
) -> Vec<Sampled> {
    let len = tokens.len() as u32;
    let row = driver.row(0, start, len, Input::Known(tokens.to_vec()));
    let tasks = (0..len).rev().map(|back| SampleTask {
        back,
        logprobs: mode,
        ..task(0, 0)
    });
    let output = driver.step(vec![row], tasks.collect());
    (0..len as usize).map(|i| token(&output, i)).collect()
}

#[test]
fn positions_of_a_draft_give_what_single_steps_give() {
    let model = Llama {
        window: Some(24),
        ..Llama::tiny()
    };
    let scheme = Scheme::Plain(DType::Bf16);
    let prompt = prompt(37, 3);
    let passes = PassOptions::default();
    let one = load(&model, scheme, 1, &passes).generate(0, &prompt, 512, 14, &watchful());
    let tokens: Vec<TokenId> = one.iter().map(|s| s.token).collect();
    let mut driver = load(&model, scheme, 2, &passes);
    driver.admit(0, &prompt, &watchful(), 7);
    let row = driver.row(0, 0, 37, Input::History);
    let first = token(&driver.step(vec![row], vec![task(0, 0)]), 0);
    assert_eq!(bits(&[first]), bits(&one[..1]));
    // Right drafts: the token after each is known.
    let got = drafted(&mut driver, 37, &tokens[..4], LogprobsMode::Raw);
    assert_eq!(bits(&got), bits(&one[1..5]));
    // The second of four is wrong: what comes before it counts, and the rest is forgotten.
    let wrong = [tokens[4], tokens[5], (tokens[6] + 1) % 300, tokens[7], 8];
    let got = drafted(&mut driver, 41, &wrong, LogprobsMode::Raw);
    assert_eq!(bits(&got[..2]), bits(&one[5..7]));
    assert_eq!(got[1].token, tokens[6]);
    let got = drafted(&mut driver, 43, &tokens[6..9], LogprobsMode::Raw);
    assert_eq!(bits(&got), bits(&one[7..10]));
    // Refused from the first on, and one token at a time from there.
    drafted(&mut driver, 46, &[tokens[9], 1, 1, 1, 1], LogprobsMode::Raw);
    for i in 10..13 {
        let at = 37 + i as u32;
        let got = drafted(&mut driver, at, &tokens[i..=i], LogprobsMode::Raw);
        assert_eq!(bits(&got), bits(&one[i + 1..i + 2]));
    }
}

#[test]
fn processed_log_probabilities_are_those_after_the_stages() {
    let model = Llama::tiny();
    let scheme = Scheme::Plain(DType::F32);
    let mut driver = load(&model, scheme, 1, &PassOptions::default());
    driver.admit(0, &prompt(9, 4), &watchful(), 7);
    let row = driver.row(0, 0, 9, Input::History);
    driver.step(vec![row], Vec::new());
    let got = drafted(&mut driver, 9, &[3, 3, 7], LogprobsMode::Processed);
    for (i, s) in got.iter().enumerate() {
        assert_eq!(s.logprob.to_bits(), s.processed_logprob.to_bits(), "{i}");
        let sum: f64 = s.top.iter().map(|t| f64::from(t.1).exp()).sum();
        assert!(sum <= 1.0 + 1e-6);
        let place = s.top.iter().position(|t| t.0 == s.token);
        assert!(place.is_none_or(|p| s.rank as usize <= p + 1));
        // Each ends with a token whose repetition is banned.
        assert_ne!(s.token, [3, 3, 7][i]);
    }
}

#[test]
fn drafts_that_break_the_contract_are_errors() {
    let fails = |start: u32, known: &[TokenId], back: u32| {
        let model = Llama::tiny();
        let scheme = Scheme::Plain(DType::F32);
        let mut driver = load(&model, scheme, 1, &PassOptions::default());
        driver.admit(0, &prompt(6, 4), &SamplingPlan::greedy(), 7);
        let row = driver.row(0, 0, 6, Input::History);
        driver.step(vec![row], Vec::new());
        let row = driver.row(0, start, known.len() as u32, Input::Known(known.to_vec()));
        let back = SampleTask { back, ..task(0, 0) };
        let ticket = driver.launch(vec![row], vec![back]);
        let outcome = guesthouse_engine::Executor::collect(&mut driver.executor, ticket);
        outcome.map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(fails(6, &[1, 2], 1), Ok(()));
    let hole = fails(7, &[1, 2], 0).unwrap_err();
    assert!(
        hole.contains("slot 0: 2 known tokens up to position 9 of a history of 6"),
        "{hole}"
    );
    let prompt = fails(5, &[1, 2], 0).unwrap_err();
    assert!(prompt.contains("6 of them the prompt"), "{prompt}");
    let back = fails(6, &[1, 2], 2).unwrap_err();
    assert!(
        back.contains("a sample 2 positions before the last of row 0, which has 2"),
        "{back}"
    );
}
