//! What applies to every request, also where nothing is drawn.

use super::{Dry, Grammar, MinTokens, ModelFacts, Penalties, Request, Stage, TokenBias, Watermark};
use crate::Error;

/// Stages of the fields that say which tokens may come, and which more easily. In this order:
///
/// | Field | Default | |
/// |---|---|---|
/// | `grammar` | none | `{"syntax", "source"}`, which the host makes of `structured_outputs` or `response_format` |
/// | `allowed_token_ids` | all | at least one |
/// | `bad_words_token_ids` | none | lists of tokens, which the host makes of `bad_words` |
/// | `no_repeat_ngram_size` | 0, none | no n-gram of prompt and output comes twice (Hugging Face) |
/// | `min_tokens` | 0 | so many before a stop token |
/// | `logit_bias` | none | bounded to -100 and 100 |
/// | `repetition_penalty` | 1 | above 0 |
/// | `presence_penalty`, `frequency_penalty` | 0 | -2 to 2 |
/// | `dry_multiplier` | 0, none | "don't repeat yourself", with `dry_base` (1.75; at least 1), `dry_allowed_length` (2; at least 1), `dry_range` (0, all) and `dry_breaker_token_ids`, which the host makes of `dry_sequence_breakers` |
/// | `watermark` | none | `{"key", "gamma": 0.25, "delta": 2, "context": 1}` (Kirchenbauer et al. 2023) |
///
/// # Errors
/// When a field is out of its range, also where it has no effect.
pub fn constraints(request: &Request, facts: &ModelFacts) -> Result<Vec<Stage>, Error> {
    let vocab = facts.vocab_size;
    let mut stages = vec![];
    stages.extend(grammar(request)?.map(Stage::Grammar));
    if let Some(allowed) = request.tokens("allowed_token_ids", vocab)? {
        if allowed.is_empty() {
            return Err(request.wrong(
                "allowed_token_ids",
                "must have at least one token id",
                "[]",
            ));
        }
        stages.push(Stage::AllowedTokens(allowed));
    }
    let bad_words = request.token_sequences("bad_words_token_ids", vocab)?;
    stages.extend(
        bad_words
            .filter(|words| !words.is_empty())
            .map(Stage::BadWords),
    );
    let ngram = request.whole("no_repeat_ngram_size", 0..=u32::MAX.into())?;
    stages.extend(
        ngram
            .filter(|n| *n > 0)
            .map(|n| Stage::NoRepeatNgram(n as u32)),
    );
    stages.extend(min_tokens(request, facts)?.map(Stage::MinTokens));
    if let Some(bias) = request.token_numbers("logit_bias", vocab)?
        && !bias.is_empty()
    {
        let bound = |(token, bias): (u32, f32)| TokenBias {
            token,
            bias: bias.clamp(-100.0, 100.0),
        };
        stages.push(Stage::LogitBias(bias.into_iter().map(bound).collect()));
    }
    stages.extend(penalties(request)?.map(Stage::Penalties));
    stages.extend(dry(request, vocab)?.map(Stage::Dry));
    stages.extend(watermark(request)?.map(Stage::Watermark));
    Ok(stages)
}

/// Tokens that end a generation, ascending: the model's, unless `ignore_eos`, and the request's `stop_token_ids`.
///
/// # Errors
/// When a field has the wrong type.
pub fn end_tokens(request: &Request, facts: &ModelFacts) -> Result<Vec<u32>, Error> {
    let ignored = request.flag("ignore_eos")?.unwrap_or(false);
    let own = if ignored {
        &[][..]
    } else {
        &facts.stop_tokens[..]
    };
    stops(request, own, facts.vocab_size)
}

/// `tokens` and the request's `stop_token_ids` that the vocabulary has.
fn stops(request: &Request, tokens: &[u32], vocab: u32) -> Result<Vec<u32>, Error> {
    let asked = request
        .tokens("stop_token_ids", u32::MAX)?
        .unwrap_or_default();
    let mut all: Vec<u32> = tokens.iter().copied().chain(asked).collect();
    all.retain(|token| *token < vocab);
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

fn grammar(request: &Request) -> Result<Option<Grammar>, Error> {
    let Some(given) = request.get("grammar") else {
        return Ok(None);
    };
    let text = |key: &str| given.get(key).and_then(|v| v.as_str()).map(String::from);
    match (text("syntax"), text("source")) {
        (Some(syntax), Some(source)) => Ok(Some(Grammar { syntax, source })),
        _ => Err(Error::request(
            "grammar: must be an object with the strings syntax and source",
        )),
    }
}

fn min_tokens(request: &Request, facts: &ModelFacts) -> Result<Option<MinTokens>, Error> {
    let count = request.whole("min_tokens", 0..=u32::MAX.into())?;
    let banned = stops(request, &facts.stop_tokens, facts.vocab_size)?;
    let count = count.unwrap_or(0) as u32;
    Ok((count > 0).then_some(MinTokens { count, banned }))
}

fn penalties(request: &Request) -> Result<Option<Penalties>, Error> {
    let repetition = request.above_zero("repetition_penalty", f64::INFINITY)?;
    let presence = request.number("presence_penalty", -2.0..=2.0)?;
    let frequency = request.number("frequency_penalty", -2.0..=2.0)?;
    let given = Penalties {
        repetition: repetition.unwrap_or(1.0),
        presence: presence.unwrap_or(0.0),
        frequency: frequency.unwrap_or(0.0),
    };
    let none = Penalties {
        repetition: 1.0,
        presence: 0.0,
        frequency: 0.0,
    };
    Ok((given != none).then_some(given))
}

fn dry(request: &Request, vocab: u32) -> Result<Option<Dry>, Error> {
    let length = u32::MAX.into();
    let multiplier = request.number("dry_multiplier", 0.0..=f64::INFINITY)?;
    let base = request.number("dry_base", 1.0..=f64::INFINITY)?;
    let allowed_length = request.whole("dry_allowed_length", 1..=length)?;
    let range = request.whole("dry_range", 0..=length)?;
    let breakers = request.tokens("dry_breaker_token_ids", vocab)?;
    let dry = Dry {
        multiplier: multiplier.unwrap_or(0.0),
        base: base.unwrap_or(1.75),
        allowed_length: allowed_length.unwrap_or(2) as u32,
        range: range.unwrap_or(0) as u32,
        breakers: breakers.unwrap_or_default(),
    };
    Ok((dry.multiplier > 0.0).then_some(dry))
}

fn watermark(request: &Request) -> Result<Option<Watermark>, Error> {
    let Some(given) = request.object("watermark")? else {
        return Ok(None);
    };
    let Some(key) = given.bits("key")? else {
        return Err(given.wrong("key", "must be a whole number", "none"));
    };
    let gamma = given.above_zero("gamma", 1.0)?.unwrap_or(0.25);
    if gamma == 1.0 {
        return Err(given.wrong("gamma", "must be below 1", 1));
    }
    Ok(Some(Watermark {
        key,
        gamma,
        delta: given.number("delta", -100.0..=100.0)?.unwrap_or(2.0),
        context: given.whole("context", 1..=8)?.unwrap_or(1) as u32,
    }))
}
