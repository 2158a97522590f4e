#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::cpu::sample::mirostat::Mirostat;

fn result(failure: u32, top_count: u32) -> ResultWords {
    ResultWords {
        token: 7,
        failure,
        logprob: -0.5,
        rank: 2,
        top_count,
        max: 2.0,
        log_sum: 1.0,
        ..ResultWords::zeroed()
    }
}

fn note(top: u32) -> Note {
    Note {
        top,
        top_at: 0,
        stages: (0, 2),
        bad_temperature: -1.0,
        refused: None,
        mirostat: None,
        hand: Hand::Token,
    }
}

#[test]
fn best_tokens_are_sorted_and_the_rest_is_masked() {
    let top = |token, logit| TopWords { token, logit };
    // Zeros are equal, so the lower id comes first; what was not found has no probability.
    let tops = [top(4, 0.0), top(1, 2.0), top(0, -0.0), top(9, 5.0)];
    let s = sampled(&result(0, 3), &tops, &note(5));
    assert_eq!(
        s.top,
        [
            (1, -1.0),
            (0, -3.0),
            (4, -3.0),
            (2, f32::NEG_INFINITY),
            (3, f32::NEG_INFINITY)
        ]
    );
    assert_eq!((s.token, s.logprob, s.rank), (7, -0.5, 2));
}

#[test]
fn failures_say_what_the_cpu_says() {
    let notes = Notes {
        draws: vec![note(0)],
        stages: vec!["banned tokens", "top-p"],
        refusals: Vec::new(),
        tops: 0,
    };
    let outcome = |failure| {
        outcome(
            &result(failure, 0),
            Lists::default(),
            &note(0),
            &notes,
            Widths::default(),
        )
    };
    let why = |failure| match outcome(failure) {
        SampleOutcome::Refused(why) => why,
        other => panic!("{other:?}"),
    };
    // The model's doing, and the request's.
    assert!(matches!(outcome(1), SampleOutcome::Failed(why) if why.contains("not finite")));
    assert!(why(2).contains("masked"));
    assert!(why(3).ends_with("stages banned tokens, top-p"));
    assert!(why(4 | 3 << 8).starts_with("temperature -1:"));
    assert!(why(5).contains("probabilities"));
}

#[test]
fn refusals_and_mirostat_states() {
    let notes = Notes {
        refusals: vec!["no such stage".to_owned()],
        ..Notes::default()
    };
    let refused = Note {
        refused: Some(0),
        stages: (0, 0),
        ..note(0)
    };
    for failure in [0, 3] {
        let got = outcome(
            &result(failure, 0),
            Lists::default(),
            &refused,
            &notes,
            Widths::default(),
        );
        assert_eq!(got, SampleOutcome::Refused("no such stage".to_owned()));
    }
    let state = Mirostat {
        tau: 3.0,
        eta: 0.5,
        mu: 6.0,
    };
    let words = ResultWords {
        surprise: 5.0,
        ..result(0, 0)
    };
    let noted = Note {
        mirostat: Some(state),
        ..note(0)
    };
    // Two bits too surprising: the bound falls by half of that.
    assert_eq!(sampled(&words, &[], &noted).mu, Some(5.0));
}

#[test]
fn handed_rows_are_read_from_their_places() {
    let floats: Vec<f32> = (0..40).map(|i| i as f32).collect();
    let list = [0, 1, 2, 3].map(|i| CandidateWords {
        token: 10 + i,
        logit: 9.0 - i as f32,
        reported: 5.0 - i as f32,
        rank: 3 * i,
    });
    let lists = Lists {
        tops: &[],
        candidates: &list,
        floats: &floats,
    };
    let widths = Widths {
        vocab: 5,
        hidden: 2,
    };
    let about = |hidden_at| About {
        uniform: 0.25,
        hidden_at,
    };
    let of = |hand| {
        let result = ResultWords {
            listed: 2,
            log_sum_exp: 4.5,
            entropy: 0.5,
            ..result(0, 0)
        };
        let note = Note { hand, ..note(0) };
        outcome(&result, lists, &note, &Notes::default(), widths)
    };
    let SampleOutcome::Candidates(c) = of(Hand::Candidates {
        list_at: 1,
        about: about(Some(8)),
    }) else {
        panic!("no candidates");
    };
    assert_eq!((c.tokens, c.logits), (vec![11, 12], vec![8.0, 7.0]));
    // max 2 and a sum of e.
    assert_eq!((c.logprobs, c.ranks), (vec![1.0, 0.0], vec![3, 6]));
    assert_eq!((c.log_sum_exp, c.entropy, c.uniform), (4.5, 0.5, 0.25));
    assert_eq!(c.hidden, [8.0, 9.0]);
    let SampleOutcome::Row(r) = of(Hand::Row {
        row_at: 20,
        raw_at: Some(32),
        about: about(None),
    }) else {
        panic!("no row");
    };
    assert_eq!(r.logits, [20.0, 21.0, 22.0, 23.0, 24.0]);
    assert_eq!(r.raw, Some(vec![32.0, 33.0, 34.0, 35.0, 36.0]));
    assert!(r.hidden.is_empty());
    let same = of(Hand::Row {
        row_at: 0,
        raw_at: Some(0),
        about: about(None),
    });
    assert!(matches!(same, SampleOutcome::Row(r) if r.raw.is_none()));
}
