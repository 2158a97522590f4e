//! transformers' searches on a golden model, replayed on its recorded candidates (`tests/golden/beam.py`).

use super::*;
use serde::Deserialize;
use std::collections::HashMap;

#[derive(Deserialize)]
struct Recorded {
    vocab: u32,
    prefixes: Vec<Prefix>,
    searches: Vec<Recording>,
}

#[derive(Deserialize)]
struct Prefix {
    generated: Vec<u32>,
    tokens: Vec<u32>,
    logits: Vec<f32>,
    log_sum_exp: f32,
}

/// Arguments of `generate`, and what it returned.
#[derive(Deserialize)]
struct Recording {
    end_tokens: Vec<u32>,
    num_beams: u32,
    num_return_sequences: u32,
    length_penalty: f32,
    early_stopping: serde_json::Value,
    max_new_tokens: u32,
    sequences: Vec<Sequence>,
}

#[derive(Deserialize)]
struct Sequence {
    tokens: Vec<u32>,
    score: f32,
}

#[test]
fn searches_find_what_transformers_finds() {
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
                hidden: vec![],
            };
            (&prefix.generated[..], offer)
        })
        .collect();
    let model = |generated: &[u32]| offers[generated].clone();
    assert!(recorded.searches.len() > 5);
    for search in &recorded.searches {
        let host = Host {
            model: &model,
            stop_tokens: search.end_tokens.clone(),
            max_tokens: search.max_new_tokens,
            wanted: search.num_return_sequences,
            vocab: recorded.vocab,
        };
        let request = format!(
            r#"{{"beam_width": {}, "length_penalty": {}, "early_stopping": {}}}"#,
            search.num_beams, search.length_penalty, search.early_stopping
        );
        let found = host.run::<Beam>(&request).unwrap();
        let tokens: Vec<&Vec<u32>> = found.iter().map(|branch| &branch.tokens).collect();
        let wanted: Vec<&Vec<u32>> = search.sequences.iter().map(|s| &s.tokens).collect();
        assert_eq!(tokens, wanted, "{request}");
        for (branch, wanted) in found.iter().zip(&search.sequences) {
            let tolerance = 1e-4 * wanted.score.abs().max(1.0);
            assert!(
                (branch.score - wanted.score).abs() < tolerance,
                "{request}: {} for {}",
                branch.score,
                wanted.score
            );
        }
    }
}
