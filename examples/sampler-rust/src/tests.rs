use super::*;
use guesthouse_sdk_step::testing::{Host, Offer};

#[test]
fn exp_is_close() {
    for x in [0.0, -0.1, -1.0, -3.0, -10.0] {
        assert!((exp(x) / x.exp() - 1.0).abs() < 1e-4, "{x}");
    }
    assert_eq!((exp(-1e9), exp(f64::NEG_INFINITY)), (0.0, 0.0));
}

#[test]
fn temperature_follows_entropy() {
    let sampler = Entropic {
        k: 20,
        min: 0.5,
        max: 1.5,
        seed: None,
    };
    assert_eq!(sampler.temperature(0.0), 0.5);
    assert_eq!(sampler.temperature(1.0), 1.0);
    assert_eq!(sampler.temperature(3.0), 1.25);
}

#[test]
fn a_uniform_number_picks_by_weight() {
    let weights = [0.5, 0.25, 0.25];
    for (u, i) in [
        (0.001, 0),
        (0.499, 0),
        (0.501, 1),
        (0.749, 1),
        (0.751, 2),
        (0.999, 2),
    ] {
        assert_eq!(draw(&weights, u), i, "{u}");
    }
}

/// Certain rows are taken as they come; where all is equal everything is drawn, of the k best alone.
#[test]
fn a_whole_request() {
    let model = |generated: &[u32]| {
        let logits = match generated.len() {
            0..4 => vec![0.0, 20.0, 0.0, 0.0],
            _ => vec![1.0, 0.0, 1.0, 0.0],
        };
        Offer::of_logits(logits)
    };
    let host = Host {
        model: &model,
        stop_tokens: vec![],
        max_tokens: 64,
        wanted: 2,
        vocab: 4,
    };
    for answer in host
        .run::<Entropic>(r#"{"sampler_args": {"k": 2}}"#)
        .unwrap()
    {
        let (certain, open) = answer.tokens.split_at(4);
        assert_eq!(certain, [1; 4]);
        assert!(open.contains(&0) && open.contains(&2) && !open.contains(&1) && !open.contains(&3));
    }
}

#[test]
fn arguments_are_checked() {
    let facts = || ModelFacts {
        vocab_size: 4,
        stop_tokens: vec![],
        max_len: 64,
        prompt_len: 1,
        max_tokens: 8,
        choices: 1,
    };
    let refused = |args: &str| {
        let request = Request::parse(&format!(r#"{{"sampler_args": {args}}}"#)).unwrap();
        Entropic::create(&request, facts())
            .err()
            .map(|e| e.to_string())
    };
    assert_eq!(refused(r#"{"k": 5, "min": null}"#), None);
    assert_eq!(
        refused(r#"{"k": 1.5}"#).unwrap(),
        "invalid request: k: must be a whole number from 1 to 1024, got 1.5"
    );
    assert_eq!(
        refused(r#"{"min": 1, "max": 0.5}"#).unwrap(),
        "invalid request: max: must be between 1 and 100, got 0.5"
    );
}
