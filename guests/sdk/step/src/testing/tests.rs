//! The host for tests refuses what a host refuses.

use super::*;
use crate::{Choices, Finished};
use guesthouse_sdk::sampling::{Sampler, SamplingPlan};

/// Does what the request's `do` says.
struct Odd(String);

impl Sampler for Odd {
    fn create(request: &Request, _: ModelFacts) -> Result<Self, Error> {
        let what = request.get("do").and_then(|v| v.as_str());
        Ok(Self(what.unwrap_or_default().into()))
    }

    fn plan(&self) -> Result<SamplingPlan, Error> {
        let asked = Asked {
            candidates: 2,
            search: self.0 != "fork a choice" && self.0 != "draw",
            hidden: false,
        };
        Ok(SamplingPlan {
            stages: vec![],
            draw: match self.0.as_str() {
                "draw" => Draw::Logits(asked),
                "plan" => Draw::Greedy,
                _ => Draw::Step(asked),
            },
            seed: None,
            ext: vec![],
        })
    }
}

impl StepSampler for Odd {
    fn step(&mut self, rows: &Rows) -> Choices {
        let mut choices = Choices::new();
        let row = rows.get(0);
        match self.0.as_str() {
            "no candidate" => choices.go_on(&row, 0, 0.0),
            "NaN" => choices.go_on(&row, 3, f32::NAN),
            "fork a choice" | "fork" => {
                choices.finish(&row, 3, -1.0);
                choices.finish(&row, 2, -0.5);
            }
            _ => {}
        }
        choices
    }

    fn select(&mut self, finished: &Finished) -> Vec<u32> {
        match self.0.as_str() {
            "fork" => crate::best_scores(finished),
            _ => vec![0],
        }
    }
}

fn run(what: &str) -> Result<Vec<Branch>, Error> {
    let model = |_: &[u32]| Offer::of_logits(vec![0.0, 1.0, 2.0, 3.0]);
    let host = Host {
        model: &model,
        stop_tokens: vec![],
        max_tokens: 3,
        wanted: 1,
        vocab: 4,
    };
    host.run::<Odd>(&format!("{{\"do\": \"{what}\"}}"))
}

#[test]
fn what_a_host_refuses_is_refused() {
    for (what, message) in [
        ("no candidate", "token 0 is no candidate of row 0"),
        ("NaN", "choice 0 has a score of NaN"),
        ("fork a choice", "choice 1 forks row 0"),
        ("end", "0 of 0 branches is selected"),
        ("plan", "the plan's draw is Draw::Greedy"),
    ] {
        assert_eq!(run(what).unwrap_err().to_string(), message);
    }
}

#[test]
fn forks_finish_and_the_best_is_selected() {
    let answers = run("fork").unwrap();
    assert_eq!(answers.len(), 1);
    assert_eq!((&answers[0].tokens[..], answers[0].score), (&[2][..], -0.5));
}

#[test]
fn whole_rows_are_drawn_from() {
    let answers = run("draw").unwrap();
    assert_eq!((answers.len(), answers[0].tokens.len()), (1, 3));
}
