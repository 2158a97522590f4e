//! Two rows of three candidates; the second has two left. Logits are logarithms of the probabilities.

use super::*;

fn rows() -> Rows {
    let rows = wit::Rows {
        branches: vec![4, 9],
        choices: vec![0, 2],
        last: vec![11, 12],
        lengths: vec![3, 5],
        uniform: vec![0.25, 0.75],
        hidden: vec![1.0, 2.0, 3.0, 4.0],
    };
    let candidates = wit::Candidates {
        n: 3,
        tokens: vec![5, 6, 7, 8, 9, 0],
        logits: vec![
            0.5f32.ln(),
            0.25f32.ln(),
            0.125f32.ln(),
            3f32.ln(),
            0.0,
            f32::NEG_INFINITY,
        ],
        log_sum_exp: vec![0.0, 4f32.ln()],
        entropy: vec![1.0, 0.5],
    };
    Rows::new(rows, candidates)
}

#[test]
fn a_row_has_what_the_flat_lists_say() {
    let rows = rows();
    assert_eq!(rows.len(), 2);
    let row = rows.get(1);
    assert_eq!(
        (row.index(), row.branch(), row.choice(), row.last()),
        (1, 9, 2, 12)
    );
    assert_eq!((row.generated(), row.uniform()), (5, 0.75));
    assert_eq!((row.entropy(), row.log_sum_exp()), (0.5, 4f32.ln()));
    assert_eq!(row.hidden(), [3.0, 4.0]);
    assert_eq!(rows.get(0).tokens(), [5, 6, 7]);
}

#[test]
fn tokens_that_the_stages_removed_are_no_candidates() {
    let rows = rows();
    let row = rows.get(1);
    assert_eq!(row.tokens(), [8, 9]);
    let found: Vec<(u32, f32)> = row
        .candidates()
        .map(|c| (c.token, c.logprob.exp()))
        .collect();
    assert_eq!(found.len(), 2);
    // 3 of 4, and 1 of 4.
    for ((token, p), (wanted, q)) in found.into_iter().zip([(8, 0.75), (9, 0.25)]) {
        assert_eq!(token, wanted);
        assert!((p - q).abs() < 1e-6, "{p}");
    }
    assert!((row.logprob(1) - 0.25f32.ln()).abs() < 1e-6);
}

#[test]
fn draws_are_among_the_candidates() {
    let rows = rows();
    let row = rows.get(0);
    // Of the three: 4/7, 2/7, 1/7.
    let places: Vec<usize> = [0.1, 0.57, 0.58, 0.85, 0.86, 0.9999]
        .into_iter()
        .map(|u| row.sample(u))
        .collect();
    assert_eq!(places, [0, 0, 1, 1, 2, 2]);
    let mut all = row.sample_distinct(9);
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2]);
}

#[test]
fn whole_rows_are_by_token() {
    let rows = wit::Rows {
        branches: vec![0, 1],
        choices: vec![0, 1],
        last: vec![0, 0],
        lengths: vec![0, 0],
        uniform: vec![0.5, 0.5],
        hidden: vec![],
    };
    let mut rows = Rows::whole(rows, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(rows.vocab(), 3);
    assert_eq!(rows.get(1).logits(), [4.0, 5.0, 6.0]);
    assert!(rows.get(1).hidden().is_empty());
    rows.logits_mut(1)[0] = 9.0;
    assert_eq!(rows.into_logits(), [1.0, 2.0, 3.0, 9.0, 5.0, 6.0]);
}
