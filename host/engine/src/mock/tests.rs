//! Each rule of the contract, broken once.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::{BlockCopy, BlockId, GroupId, RandomKey, SamplingPlan};

const GROUP: GroupId = GroupId(0);

fn admission(slot: u32, tokens: &[TokenId], blocks: &[u32]) -> Admission {
    Admission {
        slot: Slot(slot),
        tokens: tokens.to_vec(),
        prompt_len: tokens.len() as u32,
        sampling: Arc::new(SamplingPlan::greedy()),
        mu: None,
        random: RandomKey {
            seed: 0,
            lineage: 0,
        },
        blocks: vec![blocks.iter().copied().map(BlockId).collect()],
    }
}

fn row(slot: u32, start: u32, len: u32, new_blocks: &[u32]) -> Row {
    let new_blocks = new_blocks
        .iter()
        .map(|&block| (GROUP, BlockId(block)))
        .collect();
    Row {
        slot: Slot(slot),
        start,
        len,
        input: Input::History,
        new_blocks,
        prompt_logprobs: None,
    }
}

fn plan(ticket: u64, admitted: Vec<Admission>, rows: Vec<Row>) -> StepPlan {
    StepPlan {
        ticket: Ticket(ticket),
        released: Vec::new(),
        admitted,
        copies: Vec::new(),
        rows,
        samples: Vec::new(),
    }
}

fn sampled(plan: StepPlan, slot: u32) -> StepPlan {
    StepPlan {
        samples: vec![SampleTask {
            row: 0,
            slot: Slot(slot),
            back: 0,
            top_logprobs: 0,
            logprobs: crate::LogprobsMode::Raw,
        }],
        ..plan
    }
}

/// Slot 0 computed 6 tokens in blocks 0 and 1 and sampled a seventh; not collected.
fn started() -> MockExecutor {
    let mut mock = MockExecutor::new(MockExecutor::small_info());
    let first = plan(
        0,
        vec![admission(0, &[1, 2, 3, 4, 5, 6], &[])],
        vec![row(0, 0, 6, &[0, 1])],
    );
    mock.launch(sampled(first, 0)).unwrap();
    mock.sample(Ticket(0), Masks::default()).unwrap();
    mock
}

fn decode(ticket: u64, from: u64) -> StepPlan {
    let input = Input::From {
        ticket: Ticket(from),
        sample: 0,
    };
    sampled(
        plan(
            ticket,
            Vec::new(),
            vec![Row {
                input,
                ..row(0, 6, 1, &[])
            }],
        ),
        0,
    )
}

#[track_caller]
fn refused(mock: &mut MockExecutor, plan: StepPlan, why: &str) {
    let error = mock.launch(plan).unwrap_err();
    assert!(error.message.contains(why), "{}", error.message);
}

#[test]
fn a_plan_in_order_runs() {
    let mut mock = started();
    mock.launch(decode(1, 0)).unwrap();
    mock.sample(Ticket(1), Masks::default()).unwrap();
    let first = mock.collect(Ticket(0)).unwrap();
    let second = mock.collect(Ticket(1)).unwrap();
    let token = |output: &StepOutput| match &output.samples[0] {
        SampleOutcome::Token(sampled) => sampled.token,
        other => panic!("{other:?}"),
    };
    // The same tokens as one prompt give the same next token.
    let mut again = MockExecutor::new(MockExecutor::small_info());
    let tokens = [1, 2, 3, 4, 5, 6, token(&first)];
    again
        .launch(sampled(
            plan(
                0,
                vec![admission(3, &tokens, &[])],
                vec![row(3, 0, 7, &[9, 4])],
            ),
            3,
        ))
        .unwrap();
    again.sample(Ticket(0), Masks::default()).unwrap();
    assert_eq!(token(&again.collect(Ticket(0)).unwrap()), token(&second));
}

#[test]
fn tickets_are_in_order() {
    refused(&mut started(), decode(2, 0), "step 2 instead of 1");
    assert!(started().collect(Ticket(1)).is_err());
    assert!(
        started().sample(Ticket(0), Masks::default()).is_err(),
        "twice"
    );
    let mut unsampled = MockExecutor::new(MockExecutor::small_info());
    unsampled
        .launch(plan(
            0,
            vec![admission(0, &[1], &[])],
            vec![row(0, 0, 1, &[0])],
        ))
        .unwrap();
    assert!(unsampled.collect(Ticket(0)).is_err());
}

#[test]
fn slots_are_released_when_no_step_uses_them() {
    let releasing = |slot| StepPlan {
        released: vec![Slot(slot)],
        ..plan(1, vec![admission(1, &[1], &[])], vec![row(1, 0, 1, &[5])])
    };
    refused(&mut started(), releasing(0), "which step 0 uses");
    refused(&mut started(), releasing(4), "which is empty");
    let mut mock = started();
    mock.collect(Ticket(0)).unwrap();
    mock.launch(releasing(0)).unwrap();
}

#[test]
fn slots_are_admitted_once() {
    refused(
        &mut started(),
        plan(1, vec![admission(0, &[1], &[])], vec![row(0, 0, 1, &[5])]),
        "is taken",
    );
    refused(
        &mut started(),
        plan(1, vec![admission(8, &[1], &[])], vec![row(8, 0, 1, &[5])]),
        "does not exist",
    );
}

#[test]
fn inputs_are_the_slots_own() {
    refused(&mut started(), decode(1, 7), "step 7 is not in flight");
    let mut mock = started();
    mock.collect(Ticket(0)).unwrap();
    refused(&mut mock, decode(1, 0), "step 0 is not in flight");
    let other = Row {
        input: Input::From {
            ticket: Ticket(0),
            sample: 0,
        },
        ..row(1, 1, 1, &[5])
    };
    refused(
        &mut started(),
        plan(1, vec![admission(1, &[1], &[])], vec![other]),
        "is not the row's",
    );
    let long = Row {
        input: Input::Known(vec![1, 2]),
        ..row(0, 6, 1, &[])
    };
    refused(
        &mut started(),
        plan(1, Vec::new(), vec![long]),
        "starts at 6, but 5 are computed",
    );
    refused(
        &mut started(),
        plan(1, Vec::new(), vec![row(0, 5, 1, &[])]),
        "starts at 5",
    );
}

#[test]
fn blocks_are_written_by_one_sequence() {
    // Slot 1 shares block 1, which slot 0 is still filling.
    let sharing = admission(1, &[1, 2, 3, 4, 5, 6, 7], &[0, 1]);
    refused(
        &mut started(),
        plan(1, vec![sharing], vec![row(1, 6, 1, &[])]),
        "writes block",
    );
    // A copy may be written, and gives what the original would.
    let copy = BlockCopy {
        group: GROUP,
        from: BlockId(1),
        to: BlockId(2),
    };
    let sharing = admission(1, &[1, 2, 3, 4, 5, 6, 7], &[0]);
    let copying = StepPlan {
        copies: vec![copy],
        ..plan(1, vec![sharing], vec![row(1, 6, 1, &[2])])
    };
    started().launch(copying).unwrap();
}

#[test]
fn blocks_are_reused_when_no_step_touches_them() {
    // Slot 0 is gone, but its block 1 is under way in step 1.
    let mut mock = started();
    mock.launch(decode(1, 0)).unwrap();
    mock.sample(Ticket(1), Masks::default()).unwrap();
    mock.collect(Ticket(0)).unwrap();
    mock.slots.remove(&Slot(0));
    let reusing = plan(2, vec![admission(1, &[9], &[])], vec![row(1, 0, 1, &[1])]);
    refused(&mut mock, reusing, "which step 1 uses");
}

#[test]
fn blocks_hold_what_the_history_says() {
    for (tokens, blocks) in [([1, 2, 3, 9, 5], [0]), ([1, 2, 3, 4, 5], [7])] {
        let wrong = plan(
            1,
            vec![admission(1, &tokens, &blocks)],
            vec![row(1, 4, 1, &[5])],
        );
        refused(&mut started(), wrong, "stale");
    }
    let right = plan(
        1,
        vec![admission(1, &[1, 2, 3, 4, 5], &[0])],
        vec![row(1, 4, 1, &[5])],
    );
    started().launch(right).unwrap();
}

#[test]
fn samples_follow_the_end_of_a_history() {
    let early = plan(
        1,
        vec![admission(1, &[1, 2], &[])],
        vec![row(1, 0, 1, &[5])],
    );
    refused(
        &mut started(),
        sampled(early, 1),
        "where its history does not end",
    );
}

#[test]
fn rows_keep_to_the_limits() {
    let info = ExecutorInfo {
        whole_prompt: true,
        max_step_tokens: 4,
        ..MockExecutor::small_info()
    };
    let split = plan(
        0,
        vec![admission(0, &[1, 2, 3], &[])],
        vec![row(0, 0, 2, &[0])],
    );
    refused(
        &mut MockExecutor::new(info.clone()),
        split,
        "its prompt is split",
    );
    let long = plan(
        0,
        vec![admission(0, &[1; 5], &[])],
        vec![row(0, 0, 5, &[0, 1])],
    );
    refused(&mut MockExecutor::new(info), long, "1 rows with 5 tokens");
    let twice = plan(
        1,
        vec![admission(1, &[1, 2], &[])],
        vec![row(1, 0, 1, &[5]), row(1, 0, 1, &[])],
    );
    refused(&mut started(), twice, "two rows");
    let missing = plan(
        1,
        vec![admission(1, &[1; 5], &[])],
        vec![row(1, 0, 5, &[5])],
    );
    refused(&mut started(), missing, "no block for position 4");
}

#[test]
fn masks_and_stages_restrict_the_choice() {
    let choose = |stages: Vec<crate::Stage>, masks: Masks| {
        let mut mock = MockExecutor::new(MockExecutor::small_info());
        let sampling = Arc::new(SamplingPlan {
            stages,
            draw: crate::Draw::Greedy,
        });
        let admitted = vec![Admission {
            sampling,
            ..admission(0, &[1, 2], &[])
        }];
        mock.launch(sampled(plan(0, admitted, vec![row(0, 0, 2, &[0])]), 0))
            .unwrap();
        mock.sample(Ticket(0), masks).unwrap();
        mock.collect(Ticket(0)).unwrap().samples.remove(0)
    };
    let token = |outcome| match outcome {
        SampleOutcome::Token(Sampled { token, rank, .. }) => (token, rank),
        other => panic!("{other:?}"),
    };
    use crate::Sampled;
    let (best, rank) = token(choose(Vec::new(), Masks::default()));
    assert_eq!(rank, 1);
    assert_eq!(
        token(choose(
            vec![crate::Stage::BannedTokens(vec![best])],
            Masks::default()
        ))
        .1,
        2
    );
    let only = (best + 1) % 97;
    assert_eq!(
        token(choose(
            vec![crate::Stage::AllowedTokens(vec![only])],
            Masks::default()
        ))
        .0,
        only
    );
    let mut words = vec![0; 4];
    words[only as usize / 32] = 1 << (only % 32);
    assert_eq!(
        token(choose(
            Vec::new(),
            Masks {
                samples: vec![0],
                stride: 4,
                words: Arc::new(words)
            }
        ))
        .0,
        only
    );
    assert!(matches!(
        choose(
            Vec::new(),
            Masks {
                samples: vec![0],
                stride: 4,
                words: Arc::new(vec![0; 4])
            }
        ),
        SampleOutcome::Refused(_)
    ));
}

/// What follows these tokens, computed in one row.
fn follows(tokens: &[TokenId]) -> SampleOutcome {
    let mut mock = MockExecutor::new(MockExecutor::small_info());
    let row = row(0, 0, tokens.len() as u32, &[0, 1]);
    let first = plan(0, vec![admission(0, tokens, &[])], vec![row]);
    mock.launch(sampled(first, 0)).unwrap();
    mock.sample(Ticket(0), Masks::default()).unwrap();
    mock.collect(Ticket(0)).unwrap().samples.remove(0)
}

#[test]
fn drafts_are_sampled_at_each_position_and_forgotten_when_refused() {
    let mut mock = MockExecutor::new(MockExecutor::small_info());
    let drafted = Row {
        input: Input::Known(vec![7, 8]),
        ..row(0, 0, 5, &[0, 1])
    };
    let mut drafting = sampled(
        plan(0, vec![admission(0, &[1, 2, 3], &[])], vec![drafted]),
        0,
    );
    let task = drafting.samples[0].clone();
    drafting.samples = (0..3)
        .rev()
        .map(|back| SampleTask {
            back,
            ..task.clone()
        })
        .collect();
    mock.launch(drafting).unwrap();
    mock.sample(Ticket(0), Masks::default()).unwrap();
    let expected = [
        follows(&[1, 2, 3]),
        follows(&[1, 2, 3, 7]),
        follows(&[1, 2, 3, 7, 8]),
    ];
    assert_eq!(mock.collect(Ticket(0)).unwrap().samples, expected);
    // 7 was refused: 9 takes its place.
    let known = Row {
        input: Input::Known(vec![9]),
        ..row(0, 3, 1, &[])
    };
    mock.launch(sampled(plan(1, Vec::new(), vec![known]), 0))
        .unwrap();
    mock.sample(Ticket(1), Masks::default()).unwrap();
    let samples = mock.collect(Ticket(1)).unwrap().samples;
    assert_eq!(samples, [follows(&[1, 2, 3, 9])]);
    let far = StepPlan {
        samples: vec![SampleTask { back: 1, ..task }],
        ..plan(
            2,
            Vec::new(),
            vec![Row {
                input: Input::Known(vec![4]),
                ..row(0, 4, 1, &[])
            }],
        )
    };
    refused(&mut mock, far, "where its history does not end");
}
