//! `guesthouse sample`: one prompt through one sampler, with what the sampler saw and chose.

use super::options::ModelOptions;
use crate::llm::{Completion, Llm, SamplingParams};
use crate::model::modules::read_module;
use crate::model::store::{ModuleName, Provenance};
use crate::model::trace::{Candidate, Traced, TracedGuests};
use crate::model::{ModuleRef, load};
use anyhow::{Context, Result};
use clap::Args;
use guesthouse_tokenizer::{SkipSpecial, Tokenizer};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// What a sampler of a file is called while the command runs.
const GIVEN: &str = "given";

/// Candidates told per row in text.
const SHOWN: usize = 8;

#[derive(Debug, Args)]
pub(super) struct Sample {
    #[command(flatten)]
    model: ModelOptions,
    /// Continue this text.
    #[arg(long)]
    prompt: String,
    /// The sampler: a .wasm file, or the name of a module.
    #[arg(long, value_name = "WASM|NAME", conflicts_with = "sampler_module")]
    sampler: Option<ModuleRef>,
    /// What the sampler is told: a JSON object.
    #[arg(long, value_name = "JSON", value_parser = object)]
    sampler_args: Option<Object>,
    /// More fields of the request, such as {"temperature": 0.5, "n": 2}: a JSON object.
    #[arg(long, value_name = "JSON", value_parser = object)]
    params: Option<Object>,
    /// Most tokens of an answer.
    #[arg(long, default_value_t = 16)]
    max_tokens: u32,
    /// Makes the answer repeatable.
    #[arg(long)]
    seed: Option<u64>,
    /// Tell per step what the sampler saw and chose, and what it logged.
    #[arg(long)]
    trace: bool,
    /// Write JSON lines instead of text.
    #[arg(long)]
    json: bool,
}

/// A JSON object.
#[derive(Clone, Debug)]
struct Object(Map<String, Value>);

fn object(text: &str) -> Result<Object, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(Object(map)),
        Ok(_) => Err("expected a JSON object".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl Sample {
    pub(super) fn run(self) -> Result<()> {
        let modules = self.model.modules()?;
        // Named in the request, it decides what `best_of` and the like mean.
        let sampler = match &self.sampler {
            None => None,
            Some(ModuleRef::Name(name)) => Some(name.clone()),
            Some(ModuleRef::File(path)) => {
                let name = ModuleName::parse(GIVEN)?;
                let file = Provenance::File(path.clone());
                let placed = modules.put(&name, &read_module(path)?, file);
                placed.with_context(|| path.display().to_string())?;
                Some(name)
            }
        };
        let name = self.model.name();
        let options = self.model.options();
        let mut loaded = load(name, &self.model.local()?, &modules, &options)
            .with_context(|| format!("could not load {name}"))?;
        let teller = Arc::new(Teller {
            tokenizer: Arc::clone(&loaded.served.tokenizer),
            json: self.json,
            steps: Mutex::new(0),
        });
        if self.trace
            && let Some(served) = Arc::get_mut(&mut loaded.served)
        {
            let (inner, told) = (Arc::clone(&served.guests), Arc::clone(&teller));
            served.guests = Arc::new(TracedGuests {
                inner,
                tell: Arc::new(move |event| told.tell(&event)),
            });
        }
        let llm = Llm::serve(loaded.served)?;
        let answers = llm.generate([self.prompt.as_str()], &self.params(sampler.as_ref()))?;
        for answer in &answers {
            teller.answer(answer, self.trace);
        }
        Ok(())
    }

    fn params(&self, sampler: Option<&ModuleName>) -> SamplingParams {
        let mut other = self.params.clone().map_or_else(Map::new, |p| p.0);
        if let Some(name) = sampler {
            other.insert("sampler".to_owned(), json!(name.as_str()));
        }
        if let Some(Object(args)) = &self.sampler_args {
            other.insert("sampler_args".to_owned(), Value::Object(args.clone()));
        }
        SamplingParams {
            max_tokens: Some(self.max_tokens),
            seed: self.seed,
            // Of samplers that only plan, this tells what they were given.
            logprobs: self.trace.then_some(SHOWN as u32),
            other,
            ..SamplingParams::default()
        }
    }
}

/// Writes to standard output, from several threads.
struct Teller {
    tokenizer: Arc<Tokenizer>,
    json: bool,
    /// Rows told.
    steps: Mutex<u32>,
}

impl Teller {
    fn text(&self, token: u32) -> String {
        self.tokenizer
            .decode(&[token], SkipSpecial::No)
            .unwrap_or_default()
    }

    fn tell(&self, event: &Traced) {
        if matches!(event, Traced::Row { .. }) {
            *self.steps.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        }
        let line = if self.json {
            self.line(event).to_string()
        } else {
            self.words(event)
        };
        // Whoever closed the pipe has seen enough.
        let _ = writeln!(std::io::stdout(), "{line}");
    }

    /// The event with the text of its tokens.
    fn line(&self, event: &Traced) -> Value {
        let mut line = json!(event);
        match event {
            Traced::Row { candidates, .. } => {
                for (value, candidate) in line["candidates"]
                    .as_array_mut()
                    .into_iter()
                    .flatten()
                    .zip(candidates)
                {
                    value["text"] = json!(self.text(candidate.token));
                }
            }
            Traced::Choice { token, .. } => line["text"] = json!(self.text(*token)),
            _ => {}
        }
        line
    }

    fn words(&self, event: &Traced) -> String {
        match event {
            Traced::Plan { stages, draw, seed } => {
                let seed = seed.map_or(String::new(), |seed| format!(", seed {seed}"));
                let stages = if stages.is_empty() {
                    "no stages".to_owned()
                } else {
                    stages.join(", ")
                };
                format!("plan: {stages}; then {draw}{seed}")
            }
            Traced::Row {
                step,
                row,
                branch,
                length,
                entropy,
                candidates,
            } => {
                let entropy = entropy.map_or(String::new(), |h| format!(", entropy {h:.3}"));
                let list: Vec<String> = candidates
                    .iter()
                    .take(SHOWN)
                    .map(|c| self.candidate(c))
                    .collect();
                format!(
                    "step {step} row {row} (branch {branch}, {length} tokens{entropy}): {}{}",
                    list.join("  "),
                    if candidates.len() > SHOWN {
                        "  …"
                    } else {
                        ""
                    }
                )
            }
            Traced::Choice {
                step,
                row,
                token,
                next,
                score,
            } => {
                format!(
                    "step {step} row {row} -> {:?} ({token}), {next}, score {score}",
                    self.text(*token)
                )
            }
            Traced::Selected { branches, scores } => {
                format!("selected branches {branches:?} with scores {scores:?}")
            }
            Traced::Failed { step, error } => format!("step {step} failed: {error}"),
        }
    }

    fn candidate(&self, candidate: &Candidate) -> String {
        format!(
            "{:?} {:.1} %",
            self.text(candidate.token),
            100.0 * candidate.probability
        )
    }

    fn answer(&self, answer: &Completion, trace: bool) {
        let planned_only = *self.steps.lock().unwrap_or_else(PoisonError::into_inner) == 0;
        let mut out = std::io::stdout();
        for choice in &answer.choices {
            if self.json {
                let line = json!({
                    "event": "answer",
                    "index": choice.index,
                    "text": choice.text,
                    "finish_reason": choice.finish_reason,
                    "logprobs": choice.logprobs,
                });
                let _ = writeln!(out, "{line}");
                continue;
            }
            if trace && planned_only {
                self.scores(choice.logprobs.as_ref());
            }
            let _ = writeln!(out, "answer {}: {:?}", choice.index, choice.text);
        }
    }

    /// Per token of an answer, what the model thought likeliest.
    fn scores(&self, logprobs: Option<&Value>) {
        let list = |key: &str| {
            logprobs
                .and_then(|l| l.get(key))
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        };
        let (tokens, own, best) = (list("tokens"), list("token_logprobs"), list("top_logprobs"));
        for (step, ((token, logprob), best)) in tokens.iter().zip(&own).zip(&best).enumerate() {
            let best: Vec<String> = best
                .as_object()
                .into_iter()
                .flatten()
                .map(|(text, l)| {
                    format!(
                        "{text:?} {:.1} %",
                        100.0 * l.as_f64().unwrap_or(f64::NEG_INFINITY).exp()
                    )
                })
                .collect();
            let own = 100.0 * logprob.as_f64().unwrap_or(f64::NEG_INFINITY).exp();
            let _ = writeln!(
                std::io::stdout(),
                "step {step}: {}  -> {token} ({own:.1} % before the stages)",
                best.join("  ")
            );
        }
    }
}
