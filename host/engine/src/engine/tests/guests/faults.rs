//! Answers that cannot be applied.

use super::*;

/// The error of a request whose guest answers its first question so.
#[track_caller]
fn fault(draw: Draw, answer: Result<Answer, ChooserError>, expected: &str) {
    let mut bench = Bench::small();
    let bystander = submit(&mut bench.engine, request(2, vec![5, 6], 9));
    let chooser = bench
        .guests
        .chooser("odd", MockAnswers::After(0), move |_| answer.clone());
    let params = GenerationParams {
        n: 2,
        ..GenerationParams::default()
    };
    let outcome = bench.finish(asking(draw, with_params(1, vec![1, 2, 3], params)), chooser);
    let error = outcome.error.unwrap();
    assert_eq!(error.to_string(), expected);
    assert_eq!(error.label(), "chooser");
    let alone = finish(&mut small(), request(2, vec![5, 6], 9));
    assert_eq!(Outcome::of(1, &bystander), alone);
    assert_eq!(bench.engine.stats().failed, 1);
}

fn chose(branches: Vec<Choice>) -> Result<Answer, ChooserError> {
    Ok(Answer::Choices(Choices { branches }))
}

const CHOICES: Draw = Draw::Candidates(Asked {
    candidates: 3,
    branching: Branching::Choices,
    hidden: Hidden::Kept,
});

const SEARCH: Draw = Draw::Row(Asked {
    candidates: 1,
    branching: Branching::Search,
    hidden: Hidden::Kept,
});

/// The best token after the prompt of [`fault`].
fn best() -> TokenId {
    greedy_token(&[1, 2, 3])
}

#[test]
fn a_row_that_does_not_exist() {
    fault(
        CHOICES,
        chose(vec![go_on(0, best()), go_on(2, 1)]),
        "sampler module odd: stepping.step named row 2, but there are 2 rows",
    );
}

#[test]
fn a_token_outside_the_vocabulary() {
    fault(
        SEARCH,
        chose(vec![go_on(0, 97)]),
        "sampler module odd: stepping.step chose token 97 for row 0, which is outside the vocabulary of 97 tokens",
    );
}

#[test]
fn a_token_that_is_no_candidate() {
    let logits = row_after(
        &MockExecutor::small_info(),
        &[1, 2, 3],
        RandomKey {
            seed: 1,
            lineage: 0,
        },
    )
    .logits;
    let worst = (0..97u32).min_by(|&a, &b| logits[a as usize].total_cmp(&logits[b as usize]));
    let worst = worst.unwrap();
    fault(
        CHOICES,
        chose(vec![go_on(0, worst)]),
        &format!(
            "sampler module odd: stepping.step chose token {worst} for row 0, which is none of its 3 candidates"
        ),
    );
}

#[test]
fn a_score_that_is_no_number() {
    let score = Choice {
        score: f32::NAN,
        ..go_on(0, 5)
    };
    fault(
        SEARCH,
        chose(vec![score]),
        "sampler module odd: stepping.step scored token 5 of row 0 with NaN",
    );
}

#[test]
fn choices_that_fork() {
    fault(
        CHOICES,
        chose(vec![go_on(1, best()), go_on(1, best())]),
        "sampler module odd: stepping.step chose more than one token for row 1, but only a search may fork",
    );
}

#[test]
fn too_many_branches() {
    fault(
        SEARCH,
        chose((0..9).map(|token| go_on(0, token)).collect()),
        "sampler module odd: stepping.step continued 9 branches, but at most 8 may live at once",
    );
}

#[test]
fn too_many_finished_branches() {
    let done = Choice {
        next: Next::Finish,
        ..go_on(0, 1)
    };
    fault(
        SEARCH,
        chose(vec![done; 8 * 64 + 1]),
        "sampler module odd: stepping.step finished 513 branches, but at most 512 are kept",
    );
}

#[test]
fn an_end_without_a_result() {
    fault(
        SEARCH,
        chose(Vec::new()),
        "sampler module odd: stepping.step ended all branches, and none had finished",
    );
}

#[test]
fn a_selection_where_choices_are_due() {
    fault(
        CHOICES,
        Ok(Answer::Selected(vec![0])),
        "sampler module odd: stepping.step answered with a selection instead of choices",
    );
}

#[test]
fn a_failure_of_the_guest() {
    let message = "sampler module odd: stepping.step trapped: unreachable";
    fault(CHOICES, Err(ChooserError(message.to_owned())), message);
}

#[test]
fn a_reply_that_is_lost() {
    struct Silent;
    impl Chooser for Silent {
        fn module(&self) -> &str {
            "silent"
        }
        fn choose(&mut self, _: Rows, _: Reply) {}
        fn select(&mut self, _: Finished, _: Reply) {}
    }
    let mut bench = Bench::small();
    let outcome = bench.finish(asking(CHOICES, request(1, vec![1], 5)), Box::new(Silent));
    assert_eq!(
        outcome.error.unwrap().to_string(),
        "sampler module silent: the sampler guest ended without an answer"
    );
}

/// The error of a search that finishes two branches and then selects so.
#[track_caller]
fn selection(answer: Answer, expected: &str) {
    let mut bench = Bench::small();
    let chooser = bench
        .guests
        .chooser("odd", MockAnswers::After(0), move |question| {
            let done = |token| Choice {
                next: Next::Finish,
                ..go_on(0, token)
            };
            match question {
                MockQuestion::Choose(_) => chose(vec![done(1), done(2)]),
                MockQuestion::Select(finished) => {
                    assert_eq!(finished.wanted, 2);
                    assert_eq!(finished.lengths, [1, 1]);
                    Ok(answer.clone())
                }
            }
        });
    let params = GenerationParams {
        n: 2,
        ..GenerationParams::default()
    };
    let outcome = bench.finish(asking(SEARCH, with_params(1, vec![1], params)), chooser);
    assert_eq!(outcome.error.unwrap().to_string(), expected);
    assert!(outcome.tokens.iter().all(Vec::is_empty));
}

#[test]
fn selections_of_nothing_or_of_what_is_not_there() {
    selection(
        Answer::Selected(vec![0, 2]),
        "sampler module odd: stepping.select returned index 2, but there are 2 finished branches",
    );
    selection(
        Answer::Selected(vec![1, 1]),
        "sampler module odd: stepping.select returned index 1 twice",
    );
    selection(
        Answer::Selected(vec![0, 1, 0]),
        "sampler module odd: stepping.select returned 3 branches, but at most 2 are wanted",
    );
    selection(
        Answer::Selected(vec![]),
        "sampler module odd: stepping.select returned none of 2 branches",
    );
    selection(
        Answer::Choices(Choices::default()),
        "sampler module odd: stepping.select answered with choices instead of a selection",
    );
}
