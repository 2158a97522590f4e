//! What a sampler guest saw and chose, step by step: guests that tell.

use crate::serving::{Chat, GuestError, Guests, Planned, RequestScope, SamplerRequest};
use futures::future::BoxFuture;
use guesthouse_engine::{
    Answer, Answers, Chooser, ChooserError, Content, Finished, Next, Reply, RequestId, Rows,
    SamplingPlan, TokenId,
};
use guesthouse_tenants::Tenant;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};

/// Best tokens of a whole row that are told.
const TOLD: usize = 20;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Traced {
    /// The guest's plan.
    Plan {
        /// Stages in order, as they are written down.
        stages: Vec<String>,
        /// What follows them.
        draw: String,
        /// The seed, if the guest chose one.
        seed: Option<u64>,
    },
    /// What the guest was shown of one row.
    Row {
        /// Calls before this one.
        step: u32,
        /// Place in the call.
        row: u32,
        /// Number of its branch.
        branch: u32,
        /// Tokens that the branch has generated.
        length: u32,
        /// Of the whole row, nats; none where the guest sees all of it.
        entropy: Option<f32>,
        /// Best first.
        candidates: Vec<Candidate>,
    },
    /// A branch that the guest goes on with.
    Choice {
        /// The call.
        step: u32,
        /// The row that it continues.
        row: u32,
        /// The token.
        token: TokenId,
        /// `continue` or `finish`.
        next: &'static str,
        /// The guest's score.
        score: f32,
    },
    /// The finished branches that the guest returned, by their numbers, in its order.
    Selected {
        /// Numbers of branches.
        branches: Vec<u32>,
        /// Their scores.
        scores: Vec<f32>,
    },
    /// The guest's call failed.
    Failed {
        /// The call.
        step: u32,
        /// Why.
        error: String,
    },
}

/// A token that could be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Which.
    pub token: TokenId,
    /// After all stages.
    pub logit: f32,
    /// After all stages.
    pub probability: f32,
}

/// Takes what happens; called from guests' threads.
pub type Tell = Arc<dyn Fn(Traced) + Send + Sync>;

/// A model's guests, with all that its sampler guest does told.
pub struct TracedGuests {
    /// The guests.
    pub inner: Arc<dyn Guests>,
    /// Who is told.
    pub tell: Tell,
}

impl Guests for TracedGuests {
    fn scope(&self, now: u64, tenant: &Arc<Tenant>) -> Result<RequestScope, GuestError> {
        self.inner.scope(now, tenant)
    }

    fn open_chat(
        &self,
        scope: &RequestScope,
    ) -> BoxFuture<'static, Result<Box<dyn Chat>, GuestError>> {
        self.inner.open_chat(scope)
    }

    fn plan(&self, request: &SamplerRequest) -> Result<Planned, GuestError> {
        let mut planned = self.inner.plan(request)?;
        (self.tell)(plan(&planned.plan, planned.seed));
        if let Some(inner) = planned.chooser {
            planned.chooser = Some(Box::new(TracedChooser {
                inner,
                tell: Arc::clone(&self.tell),
                step: 0,
            }));
        }
        Ok(planned)
    }
}

fn plan(plan: &SamplingPlan, seed: Option<u64>) -> Traced {
    Traced::Plan {
        stages: plan
            .stages
            .iter()
            .map(|stage| format!("{stage:?}"))
            .collect(),
        draw: format!("{:?}", plan.draw),
        seed,
    }
}

struct TracedChooser {
    inner: Box<dyn Chooser>,
    tell: Tell,
    step: u32,
}

impl Chooser for TracedChooser {
    fn module(&self) -> &str {
        self.inner.module()
    }

    fn choose(&mut self, rows: Rows, reply: Reply) {
        for row in shown(self.step, &rows) {
            (self.tell)(row);
        }
        let reply = told(reply, &self.tell, Asked::Choices { step: self.step });
        self.step += 1;
        self.inner.choose(rows, reply);
    }

    fn select(&mut self, finished: Finished, reply: Reply) {
        let asked = Asked::Selected {
            step: self.step,
            finished: finished.clone(),
        };
        self.inner.select(finished, told(reply, &self.tell, asked));
    }
}

/// What was asked of the guest.
enum Asked {
    Choices { step: u32 },
    Selected { step: u32, finished: Finished },
}

/// The reply, with the answer told before it goes on.
fn told(reply: Reply, tell: &Tell, asked: Asked) -> Reply {
    let request = reply.request();
    let between = Between {
        reply: Mutex::new(Some(reply)),
        tell: Arc::clone(tell),
        asked,
    };
    Reply::new(request, Arc::new(between))
}

struct Between {
    reply: Mutex<Option<Reply>>,
    tell: Tell,
    asked: Asked,
}

impl Answers for Between {
    fn put(&self, _: RequestId, answer: Result<Answer, ChooserError>) {
        for event in answered(&self.asked, &answer) {
            (self.tell)(event);
        }
        let reply = self
            .reply
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(reply) = reply {
            reply.send(answer);
        }
    }
}

fn answered(asked: &Asked, answer: &Result<Answer, ChooserError>) -> Vec<Traced> {
    let (Asked::Choices { step } | Asked::Selected { step, .. }) = asked;
    match (answer, asked) {
        (Ok(Answer::Choices(choices)), _) => {
            let told = choices.branches.iter().map(|choice| Traced::Choice {
                step: *step,
                row: choice.row,
                token: choice.token,
                next: match choice.next {
                    Next::Continue => "continue",
                    Next::Finish => "finish",
                },
                score: choice.score,
            });
            told.collect()
        }
        (Ok(Answer::Selected(chosen)), Asked::Selected { finished, .. }) => {
            let of = |i: &u32| {
                let i = *i as usize;
                Some((*finished.branches.get(i)?, *finished.scores.get(i)?))
            };
            let (branches, scores) = chosen.iter().filter_map(of).unzip();
            vec![Traced::Selected { branches, scores }]
        }
        (Ok(Answer::Selected(_)), Asked::Choices { .. }) => Vec::new(),
        (Err(error), _) => vec![Traced::Failed {
            step: *step,
            error: error.to_string(),
        }],
    }
}

fn shown(step: u32, rows: &Rows) -> Vec<Traced> {
    let count = rows.branches.len();
    let row = |i: usize| Traced::Row {
        step,
        row: u32::try_from(i).unwrap_or(u32::MAX),
        branch: rows.branches[i],
        length: rows.lengths.get(i).copied().unwrap_or_default(),
        entropy: match &rows.content {
            Content::Candidates { entropy, .. } => entropy.get(i).copied(),
            Content::Logits(_) => None,
        },
        candidates: candidates(&rows.content, i, count),
    };
    (0..count).map(row).collect()
}

fn candidates(content: &Content, row: usize, rows: usize) -> Vec<Candidate> {
    match content {
        Content::Candidates {
            n,
            tokens,
            logits,
            log_sum_exp,
            ..
        } => {
            let (n, norm) = (
                *n as usize,
                log_sum_exp.get(row).copied().unwrap_or_default(),
            );
            let of_row = tokens.iter().zip(logits).skip(row * n).take(n);
            let left = of_row.filter(|(_, logit)| **logit > f32::NEG_INFINITY);
            left.map(|(&token, &logit)| candidate(token, logit, norm))
                .collect()
        }
        Content::Logits(all) => {
            let vocab = all.len() / rows.max(1);
            let logits = all.get(row * vocab..(row + 1) * vocab).unwrap_or_default();
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            let most = order.first().map_or(0.0, |&i| logits[i]);
            let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
            let norm = most + sum.ln() as f32;
            let best = order.into_iter().take(TOLD);
            best.map(|i| {
                candidate(
                    TokenId::try_from(i).unwrap_or(TokenId::MAX),
                    logits[i],
                    norm,
                )
            })
            .collect()
        }
    }
}

fn candidate(token: TokenId, logit: f32, norm: f32) -> Candidate {
    Candidate {
        token,
        logit,
        probability: (logit - norm).exp(),
    }
}

#[cfg(test)]
mod tests;
