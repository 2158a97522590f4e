//! The two sampling worlds define the same types twice; these move between them.

use crate::bindings::exports::guesthouse::sampling::plan as step;
use crate::bindings::guesthouse::common::types as step_types;
use guesthouse_sdk::Error;
use guesthouse_sdk::sampling::{
    Asked, Attr, AttrValue, Draw, Mirostat, ModelFacts, SamplingPlan, Stage,
};

pub fn facts(f: step::ModelFacts) -> ModelFacts {
    ModelFacts {
        vocab_size: f.vocab_size,
        stop_tokens: f.stop_tokens,
        max_len: f.max_len,
        prompt_len: f.prompt_len,
        max_tokens: f.max_tokens,
        choices: f.choices,
    }
}

pub fn error(e: Error) -> step_types::Error {
    match e {
        Error::InvalidConfig(m) => step_types::Error::InvalidConfig(m),
        Error::InvalidRequest(m) => step_types::Error::InvalidRequest(m),
        Error::Unsupported(m) => step_types::Error::Unsupported(m),
        Error::Other(m) => step_types::Error::Other(m),
    }
}

pub fn plan(p: SamplingPlan) -> step::SamplingPlan {
    step::SamplingPlan {
        stages: p.stages.into_iter().map(stage).collect(),
        draw: match p.draw {
            Draw::Greedy => step::Draw::Greedy,
            Draw::Sample => step::Draw::Sample,
            Draw::Step(x) => step::Draw::Step(asked(x)),
            Draw::Logits(x) => step::Draw::Logits(asked(x)),
        },
        seed: p.seed,
        ext: p.ext.into_iter().map(attr).collect(),
    }
}

fn asked(a: Asked) -> step::Asked {
    step::Asked {
        candidates: a.candidates,
        search: a.search,
        hidden: a.hidden,
    }
}

fn mirostat(m: Mirostat) -> step::Mirostat {
    step::Mirostat {
        tau: m.tau,
        eta: m.eta,
    }
}

fn stage(s: Stage) -> step::Stage {
    match s {
        Stage::AllowedTokens(x) => step::Stage::AllowedTokens(x),
        Stage::BannedTokens(x) => step::Stage::BannedTokens(x),
        Stage::BadWords(x) => step::Stage::BadWords(x),
        Stage::LogitBias(x) => step::Stage::LogitBias(
            x.into_iter()
                .map(|b| step::TokenBias {
                    token: b.token,
                    bias: b.bias,
                })
                .collect(),
        ),
        Stage::MinTokens(x) => step::Stage::MinTokens(step::MinTokens {
            count: x.count,
            banned: x.banned,
        }),
        Stage::Penalties(x) => step::Stage::Penalties(step::Penalties {
            repetition: x.repetition,
            presence: x.presence,
            frequency: x.frequency,
        }),
        Stage::Grammar(x) => step::Stage::Grammar(step::Grammar {
            syntax: x.syntax,
            source: x.source,
        }),
        Stage::Temperature(x) => step::Stage::Temperature(x),
        Stage::TopK(x) => step::Stage::TopK(x),
        Stage::TopP(x) => step::Stage::TopP(x),
        Stage::MinP(x) => step::Stage::MinP(x),
        Stage::TypicalP(x) => step::Stage::TypicalP(x),
        Stage::NoRepeatNgram(x) => step::Stage::NoRepeatNgram(x),
        Stage::Dry(x) => step::Stage::Dry(step::Dry {
            multiplier: x.multiplier,
            base: x.base,
            allowed_length: x.allowed_length,
            range: x.range,
            breakers: x.breakers,
        }),
        Stage::DynamicTemperature(x) => step::Stage::DynamicTemperature(step::DynamicTemperature {
            min: x.min,
            max: x.max,
            exponent: x.exponent,
        }),
        Stage::TopNSigma(x) => step::Stage::TopNSigma(x),
        Stage::EpsilonCutoff(x) => step::Stage::EpsilonCutoff(x),
        Stage::EtaCutoff(x) => step::Stage::EtaCutoff(x),
        Stage::TailFree(x) => step::Stage::TailFree(x),
        Stage::Xtc(x) => step::Stage::Xtc(step::Xtc {
            probability: x.probability,
            threshold: x.threshold,
        }),
        Stage::Mirostat1(x) => step::Stage::Mirostat1(mirostat(x)),
        Stage::Mirostat2(x) => step::Stage::Mirostat2(mirostat(x)),
        Stage::Watermark(x) => step::Stage::Watermark(step::Watermark {
            key: x.key,
            gamma: x.gamma,
            delta: x.delta,
            context: x.context,
        }),
        Stage::Custom((name, attrs)) => {
            step::Stage::Custom((name, attrs.into_iter().map(attr).collect()))
        }
    }
}

fn attr(a: Attr) -> step_types::Attr {
    let value = match a.value {
        AttrValue::Int(x) => step_types::AttrValue::Int(x),
        AttrValue::Float(x) => step_types::AttrValue::Float(x),
        AttrValue::Flag(x) => step_types::AttrValue::Flag(x),
        AttrValue::Text(x) => step_types::AttrValue::Text(x),
        AttrValue::Ints(x) => step_types::AttrValue::Ints(x),
        AttrValue::Floats(x) => step_types::AttrValue::Floats(x),
    };
    step_types::Attr { key: a.key, value }
}
