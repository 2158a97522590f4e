//! Mirostat's state over many tokens, and watermarks found again.

use guesthouse_engine::Watermark;

use super::watermark::is_green;
use super::*;

/// One row of Zipf-like logits per position, of which the draws are independent.
fn zipf(n: usize, position: usize) -> Vec<f32> {
    (0..n)
        .map(|t| {
            let rank = (t * 37 + position * 11) % n;
            -1.2 * ((rank + 1) as f32).ln()
        })
        .collect()
}

fn generate(stages: Vec<Stage>, tokens: usize, vocab: usize) -> (Vec<u32>, Vec<Option<f32>>, f64) {
    let plan = SamplingPlan {
        stages,
        draw: DrawKind::Sample,
    };
    let mut history = History::for_plan(&[1, 2, 3], 3, &plan);
    let (mut mu, mut mus, mut bits) = (None, Vec::new(), 0.0);
    let mut work = Work::default();
    for i in 0..tokens {
        let row = zipf(vocab, i);
        let draw_ = Draw {
            mu,
            ..drawn(&plan, &history, 5)
        };
        let s = token(draw(Isa::detect(), &row, &draw_, &mut work));
        bits += f64::from(-s.logprob) / std::f64::consts::LN_2;
        mu = s.mu;
        mus.push(mu);
        history.extend(&[s.token]);
    }
    (history.tokens().to_vec(), mus, bits / tokens as f64)
}

/// Both algorithms hold the mean surprise at tau, which the untouched distribution is far from.
#[test]
fn mirostat_reaches_its_target() {
    let (_, none, free) = generate(vec![], 400, 1000);
    assert!(free > 6.0 && none.iter().all(Option::is_none));
    for stage in [
        Stage::Mirostat1 { tau: 3.5, eta: 0.1 },
        Stage::Mirostat2 { tau: 3.5, eta: 0.1 },
    ] {
        let (_, mus, bits) = generate(vec![stage.clone()], 400, 1000);
        assert!((bits - 3.5).abs() < 0.25, "{stage:?}: {bits}");
        assert!(mus.iter().all(Option::is_some));
    }
}

/// `mu - eta · (surprise - tau)`, with the surprise that the token had where it entered the stage, whatever comes behind.
#[test]
fn mirostat_states_by_hand() {
    let row = [3.0f32, 2.0, 1.0, 0.0];
    let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
    let history = History::default();
    let behind = vec![
        vec![],
        vec![Stage::Temperature(0.1)],
        vec![Stage::LogitBias(vec![(2, 50.0)]), Stage::TopK(1)],
    ];
    for more in behind {
        let stages = [vec![Stage::Mirostat2 { tau: 4.0, eta: 0.5 }], more].concat();
        let plan = SamplingPlan {
            stages,
            draw: DrawKind::Sample,
        };
        for (mu, before) in [(None, 8.0), (Some(7.0), 7.0)] {
            let draw_ = Draw {
                mu,
                ..drawn(&plan, &history, 3)
            };
            let s = token(draw(Isa::detect(), &row, &draw_, &mut Work::default()));
            let p = f64::from(row[s.token as usize]).exp() / sum;
            let want = before - 0.5 * (-p.log2() - 4.0);
            assert!((f64::from(s.mu.unwrap()) - want).abs() < 1e-5);
        }
    }
}

/// z of the share of green tokens; without the key it is about normal.
#[test]
fn watermarks_are_found_with_the_key_alone() {
    let mark = Watermark {
        key: 0xfeed_beef_0123,
        gamma: 0.25,
        delta: 4.0,
        context: 2,
    };
    let (tokens, _, _) = generate(vec![Stage::Watermark(mark)], 200, 1000);
    let (plain, _, _) = generate(vec![], 200, 1000);
    let z = |mark: &Watermark, tokens: &[u32]| {
        let n = (tokens.len() - 3) as f64;
        let green = (3..tokens.len())
            .filter(|&i| is_green(mark, &tokens[..i], tokens[i]))
            .count();
        let gamma = f64::from(mark.gamma);
        (green as f64 - gamma * n) / (n * gamma * (1.0 - gamma)).sqrt()
    };
    let other = Watermark { key: 1, ..mark };
    assert!(z(&mark, &tokens) > 10.0, "{}", z(&mark, &tokens));
    assert!(z(&other, &tokens).abs() < 3.5, "{}", z(&other, &tokens));
    assert!(z(&mark, &plain).abs() < 3.5, "{}", z(&mark, &plain));
}
