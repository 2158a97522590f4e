//! Expectations are by hand: probabilities 0.5, 0.3, 0.2.

use super::*;

fn logits() -> Vec<f32> {
    [0.5f32, 0.3, 0.2].iter().map(|p| p.ln() + 7.0).collect()
}

#[test]
fn softmax_is_of_the_given_logits() {
    for (p, wanted) in softmax(&logits()).into_iter().zip([0.5, 0.3, 0.2]) {
        assert!((p - wanted).abs() < 1e-6);
    }
}

#[test]
fn truncations_count_the_best() {
    let l = logits();
    assert_eq!(
        [0.0, 0.49, 0.51, 0.79, 0.81, 1.0].map(|p| top_p(&l, p)),
        [1, 1, 2, 2, 3, 3]
    );
    // 0.3 / 0.5 = 0.6 and 0.2 / 0.5 = 0.4.
    assert_eq!(
        [0.0, 0.39, 0.41, 0.61, 1.0].map(|p| min_p(&l, p)),
        [3, 3, 2, 1, 1]
    );
    assert_eq!([1, 2, 5].map(|k| top_k(&l, k)), [1, 2, 3]);
    assert_eq!((top_p(&[], 0.5), min_p(&[], 0.5)), (0, 0));
}

#[test]
fn derived_numbers_are_uniform_and_reproducible() {
    let numbers: Vec<f32> = Uniforms::new(0.5).take(10_000).collect();
    assert_eq!(numbers, Uniforms::new(0.5).take(10_000).collect::<Vec<_>>());
    assert_ne!(numbers[0], Uniforms::new(0.25).next().unwrap());
    assert!(numbers.iter().all(|u| *u > 0.0 && *u < 1.0));
    let mut tenths = [0f64; 10];
    for u in &numbers {
        tenths[(u * 10.0) as usize] += 1.0;
    }
    // Chi-square with 9 degrees of freedom: above 27.9 once in 1,000.
    let chi: f64 = tenths.iter().map(|n| (n - 1000.0).powi(2) / 1000.0).sum();
    assert!(chi < 27.9, "{chi}");
}

#[test]
fn draws_without_replacement_follow_plackett_luce() {
    let l = logits();
    let mut pairs = std::collections::BTreeMap::new();
    let n = 20_000;
    for i in 0..n {
        let seed = (i as f32 + 0.5) / n as f32;
        let drawn = sample_distinct(&l, 2, Uniforms::new(seed));
        *pairs.entry((drawn[0], drawn[1])).or_insert(0u32) += 1;
    }
    // P(a, b) = p_a · p_b / (1 - p_a).
    let p = [0.5, 0.3, 0.2];
    let mut chi = 0.0;
    for (a, b) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let expected = f64::from(n) * p[a] * p[b] / (1.0 - p[a]);
        chi += (f64::from(pairs[&(a, b)]) - expected).powi(2) / expected;
    }
    // Five degrees of freedom: above 20.5 once in 1,000.
    assert!(chi < 20.5, "{chi}");
}
