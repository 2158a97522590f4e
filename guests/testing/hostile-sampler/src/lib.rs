//! A sampler guest that does whatever its request says.
//!
//! `step:X`, `search:X` and `logits:X` plan the draw of that name and do X in each later call.

wit_bindgen::generate!({
    path: ["../../../wit/common", "../../../wit/sampling"],
    world: "guesthouse:sampling/step-sampler-guest",
    generate_all,
});

#[path = "../../asked.rs"]
mod asked;
#[path = "../../misbehave.rs"]
mod misbehave;
mod stepping;

use exports::guesthouse::sampling::plan::{
    Asked, Draw, Grammar, Guest, GuestSampler, MinTokens, ModelFacts, Penalties, Sampler,
    SamplingPlan, Stage, TokenBias,
};
use guesthouse::common::types::{Attr, AttrValue, Error};

pub(crate) struct Hostile;

fn asked(candidates: u32) -> Asked {
    Asked {
        candidates,
        search: false,
        hidden: false,
    }
}

pub(crate) struct Hold {
    pub(crate) request: String,
    pub(crate) vocab: u32,
}

impl Guest for Hostile {
    type Sampler = Hold;
}

impl GuestSampler for Hold {
    fn create(request: String, facts: ModelFacts) -> Result<Sampler, Error> {
        misbehave::set_hook();
        let request = asked::asked(&request).to_owned();
        if request == "error" {
            return Err(Error::InvalidRequest("temperature must not be hot".into()));
        }
        if request == "leak-handles" {
            // Handles to samplers of its own that it never gives away nor drops.
            loop {
                let spare = Sampler::new(Hold {
                    request: String::new(),
                    vocab: 0,
                });
                std::mem::forget(spare);
            }
        }
        Ok(Sampler::new(Hold {
            request,
            vocab: facts.vocab_size,
        }))
    }

    fn plan(&self) -> Result<SamplingPlan, Error> {
        misbehave::misbehave(&self.request);
        let (mut draw, mut ext, mut seed) = (Draw::Sample, vec![], None);
        let stages = match self.request.as_str() {
            "token-out-of-range" => vec![Stage::BannedTokens(vec![0, self.vocab])],
            "bias-out-of-range" => vec![Stage::LogitBias(vec![TokenBias {
                token: u32::MAX,
                bias: 1.0,
            }])],
            "nan-temperature" => vec![Stage::Temperature(f32::NAN)],
            "zero-temperature" => vec![Stage::Temperature(0.0)],
            "infinite-bias" => vec![Stage::LogitBias(vec![TokenBias {
                token: 0,
                bias: f32::INFINITY,
            }])],
            "negative-top-p" => vec![Stage::TopP(-0.5)],
            "nan-penalty" => {
                vec![Stage::Penalties(Penalties {
                    repetition: 1.0,
                    presence: f32::NAN,
                    frequency: 0.0,
                })]
            }
            "many-stages" => vec![Stage::TopK(1); 10_000],
            "many-tokens" => vec![Stage::BannedTokens(vec![0; 500_000]); 6],
            "huge-list" => vec![Stage::BannedTokens(vec![0; 3_000_000])],
            "empty-bad-word" => vec![Stage::BadWords(vec![vec![]])],
            "nothing-left" => vec![
                Stage::AllowedTokens(vec![1]),
                Stage::MinTokens(MinTokens {
                    count: 2,
                    banned: vec![1],
                }),
            ],
            "nothing-allowed" => vec![Stage::AllowedTokens(vec![])],
            "grammar" => vec![Stage::Grammar(Grammar {
                syntax: "ebnf".into(),
                source: "root ::= \"a\"".into(),
            })],
            "custom-stage" => vec![Stage::Custom(("xtc".into(), vec![]))],
            "setting" => {
                ext.push(Attr {
                    key: "mirostat".into(),
                    value: AttrValue::Int(2),
                });
                vec![]
            }
            "step" => {
                draw = Draw::Step(asked(256));
                vec![]
            }
            "logits" => {
                draw = Draw::Logits(asked(1));
                vec![]
            }
            "no-candidates" => {
                draw = Draw::Step(asked(0));
                vec![]
            }
            request if request.starts_with("step:") => {
                draw = Draw::Step(asked(4));
                vec![]
            }
            request if request.starts_with("search:") => {
                draw = Draw::Step(Asked {
                    search: true,
                    ..asked(4)
                });
                vec![]
            }
            request if request.starts_with("logits:") => {
                draw = Draw::Logits(asked(1));
                vec![]
            }
            _ => {
                seed = Some(7);
                vec![Stage::Temperature(0.5), Stage::TopK(3)]
            }
        };
        Ok(SamplingPlan {
            stages,
            draw,
            seed,
            ext,
        })
    }
}

export!(Hostile);
