use super::*;
use guesthouse_sdk_step::testing::{Host, Offer};

/// Token 0 is likelier than token 1, token 2 is a tail.
fn run(request: &str) -> Vec<u32> {
    let model = |_: &[u32]| Offer::of_probabilities(&[0.6, 0.39, 0.01]);
    let host = Host {
        model: &model,
        stop_tokens: vec![],
        max_tokens: 400,
        wanted: 1,
        vocab: 3,
    };
    host.run::<Guest>(request).unwrap().swap_remove(0).tokens
}

#[test]
fn the_tail_is_never_drawn() {
    let tokens = run("{}");
    let count = |token| tokens.iter().filter(|t| **t == token).count();
    // 242 expected of 400, with a standard deviation of 10.
    assert!((190..290).contains(&count(0)), "{}", count(0));
    assert_eq!(count(2), 0);
}

#[test]
fn arguments_count() {
    assert_eq!(run(r#"{"sampler_args": {"min_p": 1}}"#), [0; 400]);
    assert!(run(r#"{"min_p": 0}"#).contains(&2));
}
