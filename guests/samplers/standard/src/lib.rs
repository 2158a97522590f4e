//! The sampler of every ordinary request: no call per step, all of it is the plan.
//!
//! Parameters, their ranges and the order of stages are those of vLLM's V1 sampler, with two additions: `typical_p`
//! (Meister et al. 2022) after `min_p`, and `top_p` of 0, which keeps the best token.

use guesthouse_sdk::Error;
use guesthouse_sdk::sampling::{
    Draw, Grammar, MinTokens, ModelFacts, Penalties, Request, Sampler, SamplingPlan, Stage,
    TokenBias,
};

#[cfg(test)]
mod tests;

struct Standard {
    plan: SamplingPlan,
}

impl Sampler for Standard {
    fn create(request: &Request, facts: ModelFacts) -> Result<Self, Error> {
        let mut stages = constraints(request, &facts)?;
        let draw = randomness(request, &facts, &mut stages)?;
        // -1 is vLLM's way to say none; other negative seeds are as good as any.
        let seed = match request.get("seed").and_then(|s| s.as_u64()) {
            Some(seed) => Some(seed),
            None => request
                .whole("seed", i64::MIN..=i64::MAX)?
                .filter(|s| *s != -1)
                .map(i64::cast_unsigned),
        };
        Ok(Self {
            plan: SamplingPlan {
                stages,
                draw,
                seed,
                ext: vec![],
            },
        })
    }

    fn plan(&self) -> Result<SamplingPlan, Error> {
        Ok(self.plan.clone())
    }
}

/// What applies to greedy requests too.
fn constraints(request: &Request, facts: &ModelFacts) -> Result<Vec<Stage>, Error> {
    let vocab = facts.vocab_size;
    let mut stages = vec![];
    if let Some(grammar) = grammar(request)? {
        stages.push(Stage::Grammar(grammar));
    }
    if let Some(allowed) = request.tokens("allowed_token_ids", vocab)? {
        if allowed.is_empty() {
            return Err(Error::request(
                "allowed_token_ids: must have at least one token id, got []",
            ));
        }
        stages.push(Stage::AllowedTokens(allowed));
    }
    if let Some(words) = request.token_sequences("bad_words_token_ids", vocab)?
        && !words.is_empty()
    {
        stages.push(Stage::BadWords(words));
    }
    let count = request
        .whole("min_tokens", 0..=u32::MAX.into())?
        .unwrap_or(0) as u32;
    let stops = request
        .tokens("stop_token_ids", u32::MAX)?
        .unwrap_or_default();
    if count > 0 {
        let mut banned: Vec<u32> = facts
            .stop_tokens
            .iter()
            .chain(&stops)
            .copied()
            .filter(|t| *t < vocab)
            .collect();
        banned.sort_unstable();
        banned.dedup();
        stages.push(Stage::MinTokens(MinTokens { count, banned }));
    }
    if let Some(bias) = request.token_numbers("logit_bias", vocab)?
        && !bias.is_empty()
    {
        let bound = |(token, bias): (u32, f32)| TokenBias {
            token,
            bias: bias.clamp(-100.0, 100.0),
        };
        stages.push(Stage::LogitBias(bias.into_iter().map(bound).collect()));
    }
    let repetition = request
        .number("repetition_penalty", 0.0..=f64::INFINITY)?
        .unwrap_or(1.0);
    if repetition == 0.0 {
        return Err(Error::request("repetition_penalty: must be above 0, got 0"));
    }
    let penalties = Penalties {
        repetition,
        presence: request
            .number("presence_penalty", -2.0..=2.0)?
            .unwrap_or(0.0),
        frequency: request
            .number("frequency_penalty", -2.0..=2.0)?
            .unwrap_or(0.0),
    };
    if penalties
        != (Penalties {
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
        })
    {
        stages.push(Stage::Penalties(penalties));
    }
    Ok(stages)
}

/// `{"syntax", "source"}`, prepared by the host from `structured_outputs` or `response_format`.
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

/// Temperature and truncation, all checked even where greedy makes them moot.
fn randomness(
    request: &Request,
    facts: &ModelFacts,
    stages: &mut Vec<Stage>,
) -> Result<Draw, Error> {
    let temperature = request
        .number("temperature", 0.0..=f64::INFINITY)?
        .unwrap_or(1.0);
    let min_p = request.number("min_p", 0.0..=1.0)?.unwrap_or(0.0);
    let typical_p = request.number("typical_p", 0.0..=1.0)?.unwrap_or(1.0);
    let top_k = request.whole("top_k", -1..=u32::MAX.into())?.unwrap_or(0);
    let top_p = request.number("top_p", 0.0..=1.0)?.unwrap_or(1.0);
    if typical_p == 0.0 {
        return Err(Error::request("typical_p: must be above 0, got 0"));
    }
    if temperature == 0.0 {
        return Ok(Draw::Greedy);
    }
    // vLLM's lower bound: below it logits overflow.
    let temperature = temperature.max(0.01);
    if temperature != 1.0 {
        stages.push(Stage::Temperature(temperature));
    }
    if min_p > 0.0 {
        stages.push(Stage::MinP(min_p));
    }
    if typical_p < 1.0 {
        stages.push(Stage::TypicalP(typical_p));
    }
    if top_k > 0 && top_k < facts.vocab_size.into() {
        stages.push(Stage::TopK(top_k as u32));
    }
    if top_p < 1.0 {
        stages.push(Stage::TopP(top_p));
    }
    // One token is left: take it without a draw.
    Ok(if top_p == 0.0 || min_p == 1.0 {
        Draw::Greedy
    } else {
        Draw::Sample
    })
}

guesthouse_sdk::export_sampler!(Standard);
