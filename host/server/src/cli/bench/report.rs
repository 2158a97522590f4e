//! Distributions, and how they are printed.

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// When the tokens of one answer came.
#[derive(Clone, Debug)]
pub(super) struct Timing {
    pub(super) sent: Instant,
    /// Of each token, or each chunk of a stream.
    pub(super) tokens: Vec<Instant>,
    /// Output tokens counted.
    pub(super) output_tokens: u64,
}

impl Timing {
    fn first(&self) -> Option<Duration> {
        self.tokens.first().map(|t| *t - self.sent)
    }

    fn total(&self) -> Option<Duration> {
        self.tokens.last().map(|t| *t - self.sent)
    }

    /// Time per output token after the first.
    fn per_token(&self) -> Option<Duration> {
        let (first, last) = (self.tokens.first()?, self.tokens.last()?);
        let rest = u32::try_from(self.output_tokens)
            .ok()?
            .checked_sub(1)
            .filter(|n| *n > 0)?;
        Some((*last - *first) / rest)
    }
}

/// Milliseconds: mean, median, 90th and 99th percentile (nearest rank).
pub(super) fn distribution(mut samples: Vec<Duration>) -> Option<Value> {
    if samples.is_empty() {
        return None;
    }
    samples.sort_unstable();
    let ms = |d: Duration| (d.as_secs_f64() * 1e6).round() / 1e3;
    let rank = |p: usize| ms(samples[(samples.len() * p).div_ceil(100).max(1) - 1]);
    let mean = samples.iter().sum::<Duration>() / u32::try_from(samples.len()).unwrap_or(u32::MAX);
    Some(json!({"mean": ms(mean), "p50": rank(50), "p90": rank(90), "p99": rank(99)}))
}

/// Distributions of time to first token, time per output token, inter-token latency and whole latency.
pub(super) fn latencies(timings: &[Timing]) -> Map<String, Value> {
    let gaps = timings
        .iter()
        .flat_map(|t| t.tokens.windows(2).map(|w| w[1] - w[0]))
        .collect();
    let all = [
        (
            "ttft_ms",
            timings.iter().filter_map(Timing::first).collect(),
        ),
        (
            "tpot_ms",
            timings.iter().filter_map(Timing::per_token).collect(),
        ),
        ("itl_ms", gaps),
        (
            "e2el_ms",
            timings.iter().filter_map(Timing::total).collect(),
        ),
    ];
    all.into_iter()
        .filter_map(|(name, samples)| Some((name.to_owned(), distribution(samples)?)))
        .collect()
}

/// Where a result goes.
#[derive(Debug, Args)]
pub(super) struct Output {
    /// Print the result as JSON instead of as a table.
    #[arg(long)]
    json: bool,
    /// Write the result here as JSON.
    #[arg(long, value_name = "FILE")]
    output_json: Option<PathBuf>,
}

impl Output {
    /// Prints results, and writes them as JSON where asked: one as an object, more as a list.
    pub(super) fn publish(&self, results: &[Map<String, Value>]) -> Result<()> {
        let text = match results {
            [one] => serde_json::to_string_pretty(one)?,
            all => serde_json::to_string_pretty(all)?,
        };
        if self.json {
            println!("{text}");
        } else {
            for (i, result) in results.iter().enumerate() {
                if i > 0 {
                    println!();
                }
                table(result);
            }
        }
        if let Some(path) = &self.output_json {
            std::fs::write(path, text + "\n")
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

fn table(result: &Map<String, Value>) {
    for (key, value) in result {
        match value {
            Value::Object(parts) => {
                let parts: Vec<String> = parts.iter().map(|(k, v)| format!("{k} {v}")).collect();
                println!("{key:<28} {}", parts.join("  "));
            }
            Value::String(text) => println!("{key:<28} {text}"),
            other => println!("{key:<28} {other}"),
        }
    }
}

/// Two decimals.
pub(super) fn rate(count: u64, time: Duration) -> Value {
    json!((count as f64 / time.as_secs_f64().max(1e-9) * 100.0).round() / 100.0)
}
