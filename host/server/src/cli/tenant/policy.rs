//! Policies on the command line.

use anyhow::{Context, Result};
use clap::Args;
use guesthouse_tenants::Policy;
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// What a tenant may do.
#[derive(Debug, Default, Args)]
pub(super) struct PolicyOptions {
    /// A whole policy, a JSON object; the other options change it.
    #[arg(long, value_name = "FILE.json")]
    policy: Option<PathBuf>,
    /// Models that it may use, by the names that requests use, with commas; '*' is all.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    models: Vec<String>,
    /// Its part of the machine, relative to other tenants' (default: 1).
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
    /// Smaller runs earlier, before any weighing (default: 0).
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
    /// Whether it may bring modules of its own.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    uploads: Option<bool>,
    /// Whether it shares prefix-cache entries with other tenants that do.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    shared_cache: Option<bool>,
    /// Requests begun per minute; none is unlimited, as in all limits.
    #[arg(long, value_name = "N|none", value_parser = limit)]
    requests_per_minute: Option<Value>,
    /// Tokens per minute, of prompts and answers.
    #[arg(long, value_name = "N|none", value_parser = limit)]
    tokens_per_minute: Option<Value>,
    /// Sequences (prompts times choices) that are not finished.
    #[arg(long, value_name = "N|none", value_parser = limit)]
    concurrent_sequences: Option<Value>,
    /// KV blocks that its running sequences hold.
    #[arg(long, value_name = "N|none", value_parser = limit)]
    kv_blocks: Option<Value>,
    /// Bytes of its modules and their compiled code.
    #[arg(long, value_name = "N|none", value_parser = limit)]
    module_bytes: Option<Value>,
    /// Compilations of its modules per hour.
    #[arg(long, value_name = "N|none", value_parser = limit)]
    compilations_per_hour: Option<Value>,
    /// CPU time of its guests per minute, milliseconds.
    #[arg(long, value_name = "N|none", value_parser = limit)]
    guest_ms_per_minute: Option<Value>,
    /// Memory of its guests at once, bytes.
    #[arg(long, value_name = "N|none", value_parser = limit)]
    guest_memory_bytes: Option<Value>,
}

/// JSON's `null` is no limit.
fn limit(text: &str) -> Result<Value, String> {
    if text == "none" {
        return Ok(Value::Null);
    }
    let number = text.parse::<u64>();
    number
        .map(Value::from)
        .map_err(|_| "expected a whole number, or none".to_owned())
}

impl PolicyOptions {
    /// The policy of `--policy`.
    pub(super) fn whole(&self) -> Result<Option<Policy>> {
        let Some(path) = &self.policy else {
            return Ok(None);
        };
        let read = || -> Result<Policy> {
            let json = serde_json::from_slice(&std::fs::read(path)?)?;
            Ok(Policy::from_json(json)?)
        };
        let policy = read().with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Some(policy))
    }

    /// `base`, or the policy of `--policy`, with what the other options change.
    pub(super) fn on(&self, base: &Policy) -> Result<Policy> {
        let whole = self.whole()?;
        Ok(whole.as_ref().unwrap_or(base).patched(&self.patch())?)
    }

    /// What the options but `--policy` change, as a JSON merge patch.
    pub(super) fn patch(&self) -> Value {
        let quotas = given([
            ("requests_per_minute", self.requests_per_minute.clone()),
            ("tokens_per_minute", self.tokens_per_minute.clone()),
            ("concurrent_sequences", self.concurrent_sequences.clone()),
            ("kv_blocks", self.kv_blocks.clone()),
            ("module_bytes", self.module_bytes.clone()),
            ("compilations_per_hour", self.compilations_per_hour.clone()),
            ("guest_ms_per_minute", self.guest_ms_per_minute.clone()),
            ("guest_memory_bytes", self.guest_memory_bytes.clone()),
        ]);
        let models = match self.models.as_slice() {
            [] => None,
            names if names.iter().any(|name| name == "*") => Some(json!("all")),
            names => Some(json!({ "only": names })),
        };
        given([
            ("models", models),
            ("weight", self.weight.map(Value::from)),
            ("priority", self.priority.map(Value::from)),
            ("uploads", self.uploads.map(Value::from)),
            ("shared_cache", self.shared_cache.map(Value::from)),
            ("quotas", Some(quotas)),
        ])
    }
}

/// An object of the fields that there are.
fn given<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let fields = fields
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(fields.collect::<Map<_, _>>())
}
