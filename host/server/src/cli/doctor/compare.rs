//! A model on the CPU and on the GPU: the same prompts, scored position by position.

use crate::cli::options::modules;
use crate::model::load::on_device;
use crate::model::{DeviceChoice, DtypeChoice, LoadFormat, LoadOptions, ModelFiles};
use crate::source::LocalModel;
use anyhow::{Context, Result, anyhow, bail};
use guesthouse_device::{CudaDtype, Numerics};
use guesthouse_engine::{
    CacheSalt, Engine, EngineConfig, Event, GenerationParams, Owner, PrefixCaching, Priority,
    Progress, Request, RequestId, Sampled, SamplingPlan, TokenId,
};
use guesthouse_tokenizer::AddSpecial;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::sync::{Arc, mpsc};

/// Best tokens compared at each position.
const TOP: u32 = 32;
/// In log-probability, times max(1, the largest one compared).
const F32_TOLERANCE: f64 = 1e-3;
/// Of 16 bits, in log-probability, on average over all that is compared. Single positions say little: on the random prompts
/// that are compared by default, transformers' own bf16 run of SmolLM2-135M is off from its f32 run by 0.12 on average and by
/// 3.8 at worst.
const HALF_MEAN: f64 = 0.15;
/// Of 16 bits: share of positions at which both prefer the same token; 0.89 there.
const HALF_AGREED: f64 = 0.85;

/// What is compared.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    pub(super) model: LocalModel,
    pub(super) format: LoadFormat,
    pub(super) ordinal: usize,
    pub(super) numerics: Numerics,
    /// Texts; random ids where there are none.
    pub(super) prompts: Vec<String>,
    /// Number and length of random prompts.
    pub(super) random: (usize, usize),
}

/// How two devices' answers differ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Difference {
    /// Log-probabilities compared.
    compared: usize,
    largest: f64,
    sum: f64,
    /// Of the reference's.
    magnitude: f64,
    positions: usize,
    /// Positions at which both prefer the same token.
    agreed: usize,
    /// Largest lead of the reference's first token where they do not.
    lead: f64,
}

impl Comparison {
    /// Compares, prints, and returns how many comparisons failed.
    pub(super) fn run(&self) -> Result<usize> {
        let files = ModelFiles::open(&self.model, self.format)?;
        let prompts = self.prompts(&files)?;
        let reference = self.score(&files, DeviceChoice::Cpu, CudaDtype::F32, &prompts)?;
        let cuda = DeviceChoice::Cuda {
            ordinal: self.ordinal,
        };
        let mut failed = 0;
        println!("\nmodel on {cuda} against the CPU, teacher-forced:");
        for dtype in [CudaDtype::F32, CudaDtype::Bf16] {
            let found = self.score(&files, cuda, dtype, &prompts)?;
            let d = difference(&reference, &found);
            let good = d.passes(dtype);
            failed += usize::from(!good);
            println!(
                "{}  {:<9} largest error {:.1e}, mean {:.1e} over {} log-probabilities; same best token at {} of {} positions, \
                 largest lead where not {:.1e}",
                if good { "ok  " } else { "FAIL" },
                dtype.name(),
                d.largest,
                d.sum / d.compared.max(1) as f64,
                d.compared,
                d.agreed,
                d.positions,
                d.lead,
            );
        }
        Ok(failed)
    }

    fn prompts(&self, files: &ModelFiles) -> Result<Vec<Vec<TokenId>>> {
        if !self.prompts.is_empty() {
            let tokenizer = files.tokenizer()?;
            let encode = |text: &String| Ok(tokenizer.encode_raw(text, AddSpecial::Yes)?);
            return self.prompts.iter().map(encode).collect();
        }
        let vocab = match files.vocab_size() {
            Some(size) => size.max(1),
            None => files.tokenizer()?.vocab_size() as u32,
        };
        let mut random = StdRng::seed_from_u64(1);
        let (count, longest) = self.random;
        // Lengths of all kinds, the longest among them.
        let lengths = (0..count).map(|i| (longest * (count - i) / count).max(2));
        Ok(lengths
            .map(|n| (0..n).map(|_| random.random_range(0..vocab)).collect())
            .collect())
    }

    /// Per prompt: its tokens from the second on, each with the best [`TOP`] there.
    fn score(
        &self,
        files: &ModelFiles,
        device: DeviceChoice,
        dtype: CudaDtype,
        prompts: &[Vec<TokenId>],
    ) -> Result<Vec<Vec<Sampled>>> {
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) as u32;
        let options = LoadOptions {
            device,
            dtype: DtypeChoice::Exactly(dtype),
            load_format: self.format,
            numerics: self.numerics,
            max_model_len: Some(longest + 2),
            max_num_seqs: prompts.len() as u32,
            max_num_batched_tokens: Some(512),
            gpu_memory_utilization: 0.9,
            ..LoadOptions::default()
        };
        let ready = on_device(files, &modules()?, &options)
            .with_context(|| format!("the model does not run on {device}"))?;
        let config = EngineConfig {
            prefix_cache: PrefixCaching::Off,
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(ready.executor, config);
        let mut answers = Vec::new();
        for (i, prompt) in prompts.iter().enumerate() {
            let (sender, events) = mpsc::channel::<Event>();
            let request = Request {
                id: RequestId(i as u64 + 1),
                cache_salt: CacheSalt::default(),
                prompt: prompt.clone(),
                params: GenerationParams {
                    max_tokens: 1,
                    prompt_logprobs: Some(TOP),
                    ..GenerationParams::default()
                },
                sampling: Arc::new(SamplingPlan::greedy()),
                seed: 0,
                priority: Priority::default(),
                owner: Owner::default(),
            };
            engine.submit(request, Box::new(sender))?;
            answers.push(events);
        }
        while engine.step()? != Progress::Idle {}
        answers.iter().map(scores).collect()
    }
}

fn scores(events: &mpsc::Receiver<Event>) -> Result<Vec<Sampled>> {
    let mut found = None;
    for event in events.try_iter() {
        match event {
            Event::PromptLogprobs(scores) => found = Some(scores),
            Event::Failed { error, .. } => bail!(error),
            _ => {}
        }
    }
    found.ok_or_else(|| anyhow!("a prompt was not scored"))
}

fn difference(reference: &[Vec<Sampled>], found: &[Vec<Sampled>]) -> Difference {
    let mut d = Difference::default();
    let pairs = reference.iter().flatten().zip(found.iter().flatten());
    for (r, f) in pairs {
        d.positions += 1;
        d.add(r.logprob, f.logprob);
        for (token, logprob) in &r.top {
            if let Some((_, other)) = f.top.iter().find(|(t, _)| t == token) {
                d.add(*logprob, *other);
            }
        }
        let (Some(&(best, first)), Some(&(chosen, _))) = (r.top.first(), f.top.first()) else {
            continue;
        };
        if best == chosen {
            d.agreed += 1;
        } else {
            let other = r.top.iter().find(|(t, _)| *t == chosen);
            let lead = other.map_or(f64::INFINITY, |(_, l)| f64::from(first - l));
            d.lead = d.lead.max(lead);
        }
    }
    d
}

impl Difference {
    fn add(&mut self, reference: f32, found: f32) {
        let error = f64::from(found - reference).abs();
        let error = if error.is_nan() { f64::INFINITY } else { error };
        self.compared += 1;
        self.sum += error;
        self.largest = self.largest.max(error);
        self.magnitude = self.magnitude.max(f64::from(reference).abs());
    }

    /// f32: within tolerance, and best tokens differ only where two are about equally good. 16 bits: close on average.
    fn passes(&self, dtype: CudaDtype) -> bool {
        let mean = self.sum / self.compared.max(1) as f64;
        let agreed = self.agreed as f64 / self.positions.max(1) as f64;
        let close = match dtype {
            CudaDtype::F32 => {
                let most = F32_TOLERANCE * self.magnitude.max(1.0);
                self.largest <= most && self.lead <= 2.0 * most
            }
            CudaDtype::F16 | CudaDtype::Bf16 => {
                self.largest.is_finite() && mean <= HALF_MEAN && agreed >= HALF_AGREED
            }
        };
        self.positions > 0 && close
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(logprob: f32, top: &[(u32, f32)]) -> Sampled {
        Sampled {
            token: 0,
            logprob,
            rank: 1,
            processed_logprob: logprob,
            mu: None,
            top: top.to_vec(),
        }
    }

    #[test]
    fn differences_by_hand() {
        let reference = vec![vec![
            at(-1.0, &[(1, -0.5), (2, -1.5), (3, -2.0)]),
            at(-9.0, &[(4, -0.1), (5, -0.15)]),
        ]];
        let found = vec![vec![
            at(-1.25, &[(1, -0.5), (2, -1.625), (9, -2.0)]),
            at(-9.0, &[(5, -0.125), (4, -0.1)]),
        ]];
        let d = difference(&reference, &found);
        assert_eq!((d.compared, d.positions, d.agreed), (6, 2, 1));
        assert!((d.largest - 0.25).abs() < 1e-6 && (d.magnitude - 9.0).abs() < 1e-6);
        assert!((d.lead - 0.05).abs() < 1e-6, "{}", d.lead);
        assert!(!d.passes(CudaDtype::F32) && !d.passes(CudaDtype::Bf16));
        let same = difference(&reference, &reference);
        assert!(same.passes(CudaDtype::F32));
        assert!(
            !Difference::default().passes(CudaDtype::Bf16),
            "nothing compared"
        );
        let nan = vec![vec![at(f32::NAN, &[]), at(-9.0, &[])]];
        assert!(!difference(&reference, &nan).passes(CudaDtype::Bf16));
    }
}
