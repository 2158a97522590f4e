//! A search of plain PyTorch on a golden model, replayed on what the model says (`tests/golden/contrastive.py`).

use super::*;
use serde::Deserialize;
use std::collections::HashMap;

#[derive(Deserialize)]
struct Recorded {
    vocab: u32,
    search: Recording,
    prefixes: Vec<Prefix>,
}

#[derive(Deserialize)]
struct Recording {
    penalty_alpha: f32,
    top_k: u32,
    max_new_tokens: u32,
    end_tokens: Vec<u32>,
    tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct Prefix {
    generated: Vec<u32>,
    tokens: Vec<u32>,
    logits: Vec<f32>,
    log_sum_exp: f32,
    hidden: Vec<f32>,
}

#[test]
fn the_search_is_that_of_the_reference() {
    let text = include_str!("../../testdata/replay.json");
    let recorded: Recorded = serde_json::from_str(text).unwrap();
    let offers: HashMap<&[u32], Offer> = recorded
        .prefixes
        .iter()
        .map(|prefix| {
            let offer = Offer {
                tokens: prefix.tokens.clone(),
                logits: prefix.logits.clone(),
                log_sum_exp: prefix.log_sum_exp,
                hidden: prefix.hidden.clone(),
            };
            (&prefix.generated[..], offer)
        })
        .collect();
    let search = recorded.search;
    let host = Host {
        model: &|generated| offers[generated].clone(),
        stop_tokens: search.end_tokens,
        max_tokens: search.max_new_tokens,
        wanted: 1,
        vocab: recorded.vocab,
    };
    let request = format!(
        r#"{{"penalty_alpha": {}, "candidates": {}}}"#,
        search.penalty_alpha, search.top_k
    );
    let found = host.run::<Contrastive>(&request).unwrap();
    assert_eq!(found[0].tokens, search.tokens);
}
