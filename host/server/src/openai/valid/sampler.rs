//! What the sampler guest is asked: ranges checked, the model's defaults filled in.

use super::super::{ApiError, SamplingFields};
use super::ModelFacts;
use super::range::{number, positive};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Range checks, and what is left for the sampler guest.
pub(super) fn sampler_request(
    fields: &SamplingFields,
    min_tokens: u32,
    seed: Option<u64>,
    facts: &ModelFacts,
) -> Result<Map<String, Value>, ApiError> {
    let defaults = &facts.defaults;
    let mut temperature =
        number("temperature", fields.temperature, 0.0, f64::INFINITY)?.or(defaults.temperature);
    if fields.do_sample == Some(false) {
        temperature = Some(0.0);
    }
    let top_k = fields.top_k.or(defaults.top_k);
    if let Some(k) = top_k
        && (k < -1 || k > i64::from(u32::MAX))
    {
        return Err(ApiError::invalid(
            "top_k",
            format!("`top_k` must be -1 or 0 for all tokens, or at least 1, but is {k}"),
        ));
    }
    let numbers = [
        ("temperature", temperature),
        (
            "top_p",
            number("top_p", fields.top_p, 0.0, 1.0)?.or(defaults.top_p),
        ),
        (
            "min_p",
            number("min_p", fields.min_p, 0.0, 1.0)?.or(defaults.min_p),
        ),
        (
            "typical_p",
            positive("typical_p", fields.typical_p, 1.0)?.or(defaults.typical_p),
        ),
        (
            "repetition_penalty",
            positive(
                "repetition_penalty",
                fields.repetition_penalty,
                f64::INFINITY,
            )?
            .or(defaults.repetition_penalty),
        ),
        (
            "presence_penalty",
            number("presence_penalty", fields.presence_penalty, -2.0, 2.0)?,
        ),
        (
            "frequency_penalty",
            number("frequency_penalty", fields.frequency_penalty, -2.0, 2.0)?,
        ),
    ];
    let mut request = Map::new();
    for (name, value) in numbers {
        if let Some(value) = value {
            request.insert(name.to_owned(), json!(value));
        }
    }
    if let Some(k) = top_k {
        request.insert("top_k".to_owned(), json!(k));
    }
    stages(fields, &mut request);
    if let Some(bias) = &fields.logit_bias
        && !bias.is_empty()
    {
        request.insert("logit_bias".to_owned(), logit_bias(bias, facts.vocab)?);
    }
    if let Some(allowed) = &fields.allowed_token_ids {
        if allowed.is_empty() {
            return Err(ApiError::invalid(
                "allowed_token_ids",
                "`allowed_token_ids` is empty, so no token could be chosen",
            ));
        }
        check_ids("allowed_token_ids", allowed, facts.vocab)?;
        let allowed: BTreeSet<u32> = allowed.iter().copied().collect();
        request.insert("allowed_token_ids".to_owned(), json!(allowed));
    }
    if min_tokens > 0 {
        request.insert("min_tokens".to_owned(), json!(min_tokens));
    }
    if let Some(stop) = &fields.stop_token_ids {
        request.insert("stop_token_ids".to_owned(), json!(stop));
    }
    if let Some(ignore) = fields.ignore_eos {
        request.insert("ignore_eos".to_owned(), json!(ignore));
    }
    if let Some(seed) = seed {
        request.insert("seed".to_owned(), json!(seed));
    }
    Ok(request)
}

/// Fields whose ranges the guest checks.
fn stages(fields: &SamplingFields, request: &mut Map<String, Value>) {
    let numbers = [
        ("dry_multiplier", fields.dry_multiplier),
        ("dry_base", fields.dry_base),
        ("dynatemp_min", fields.dynatemp_min),
        ("dynatemp_max", fields.dynatemp_max),
        ("dynatemp_exponent", fields.dynatemp_exponent),
        ("top_n_sigma", fields.top_n_sigma),
        ("epsilon_cutoff", fields.epsilon_cutoff),
        ("eta_cutoff", fields.eta_cutoff),
        ("tfs", fields.tfs),
        ("xtc_probability", fields.xtc_probability),
        ("xtc_threshold", fields.xtc_threshold),
        ("mirostat_tau", fields.mirostat_tau),
        ("mirostat_eta", fields.mirostat_eta),
    ];
    let whole = [
        ("no_repeat_ngram_size", fields.no_repeat_ngram_size),
        ("dry_allowed_length", fields.dry_allowed_length),
        ("dry_range", fields.dry_range),
        ("mirostat_mode", fields.mirostat_mode),
    ];
    let numbers = numbers.map(|(name, value)| (name, value.map(|x| json!(x))));
    let whole = whole.map(|(name, value)| (name, value.map(|x| json!(x))));
    let watermark = [("watermark", fields.watermark.clone())];
    for (name, value) in numbers.into_iter().chain(whole).chain(watermark) {
        if let Some(value) = value {
            request.insert(name.to_owned(), value);
        }
    }
}

fn logit_bias(bias: &BTreeMap<String, f64>, vocab: u32) -> Result<Value, ApiError> {
    let mut by_id = BTreeMap::new();
    for (key, &value) in bias {
        let id = Some(key)
            .filter(|key| key.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|key| key.parse::<u32>().ok())
            .filter(|&id| id < vocab)
            .ok_or_else(|| {
                ApiError::invalid(
                    "logit_bias",
                    format!("`logit_bias` has the key {key:?}, expected a token id below {vocab}"),
                )
            })?;
        if !(-100.0..=100.0).contains(&value) {
            return Err(ApiError::invalid(
                "logit_bias",
                format!("`logit_bias` of token {id} must be between -100 and 100, but is {value}"),
            ));
        }
        by_id.insert(id, value);
    }
    Ok(Value::Object(
        by_id
            .into_iter()
            .map(|(id, value)| (id.to_string(), json!(value)))
            .collect(),
    ))
}

/// Refuses ids outside the vocabulary.
pub(super) fn check_ids(param: &str, ids: &[u32], vocab: u32) -> Result<(), ApiError> {
    match ids.iter().find(|&&id| id >= vocab) {
        Some(bad) => Err(ApiError::invalid(
            param,
            format!(
                "`{param}` has token id {bad}, which is outside the vocabulary of {vocab} tokens"
            ),
        )),
        None => Ok(()),
    }
}
