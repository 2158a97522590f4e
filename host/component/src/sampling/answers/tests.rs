#![allow(clippy::unwrap_used)]
use super::*;

const TOKENS: [u32; 6] = [7, 8, 0, 5, 6, 9];
const LOGITS: [f32; 6] = [2.0, 1.0, f32::NEG_INFINITY, 3.0, 2.5, 2.0];

/// Two rows of three candidates, the first of which has two.
fn asked(branching: Branching) -> Asked<'static> {
    Asked {
        branching,
        rows: 2,
        tokens: Tokens::Candidates {
            n: 3,
            tokens: &TOKENS,
            logits: &LOGITS,
        },
    }
}

/// (row, token, flag, score) of each branch.
fn answer(branches: &[(u32, u32, u32, f32)]) -> wit::Choices {
    wit::Choices {
        parent: branches.iter().map(|b| b.0).collect(),
        token: branches.iter().map(|b| b.1).collect(),
        flags: branches.iter().map(|b| b.2).collect(),
        score: branches.iter().map(|b| b.3).collect(),
    }
}

#[test]
fn branches_arrive_in_the_order_given() {
    let given = answer(&[
        (1, 9, 0, -1.0),
        (0, 8, 1, f32::NEG_INFINITY),
        (1, 5, 0, 0.0),
    ]);
    let got = choices(&asked(Branching::Search), &given).unwrap();
    let branch = |row, token, next, score| Choice {
        row,
        token,
        next,
        score,
    };
    assert_eq!(
        got.branches,
        [
            branch(1, 9, Next::Continue, -1.0),
            branch(0, 8, Next::Finish, f32::NEG_INFINITY),
            branch(1, 5, Next::Continue, 0.0),
        ]
    );
}

#[test]
fn what_makes_no_sense_is_named() {
    let says =
        |branching, branches: &[_]| choices(&asked(branching), &answer(branches)).unwrap_err();
    let (search, plain) = (Branching::Search, Branching::Choices);
    assert_eq!(says(plain, &[(2, 7, 0, 0.0)]), "row 2 of 2 rows");
    assert_eq!(
        says(plain, &[(0, 5, 0, 0.0)]),
        "token 5 for row 0, which is not among its candidates"
    );
    // What fills up a row is no candidate.
    assert_eq!(
        says(plain, &[(0, 0, 0, 0.0)]),
        "token 0 for row 0, which is not among its candidates"
    );
    assert_eq!(
        says(plain, &[(0, 7, 2, 0.0)]),
        "flag 2 for row 0, expected 0 (continue) or 1 (finish)"
    );
    assert_eq!(
        says(plain, &[(1, 5, 0, f32::NAN)]),
        "score NaN for token 5 of row 1"
    );
    assert_eq!(
        says(plain, &[(1, 5, 0, 0.0), (1, 6, 0, 0.0)]),
        "2 branches for row 1, expected at most 1 outside a search"
    );
    assert_eq!(
        says(search, &[(1, 5, 0, 0.0); BRANCHES + 1]),
        "4097 branches, expected at most 4096"
    );
    let mut uneven = answer(&[(1, 5, 0, 0.0)]);
    uneven.score.clear();
    assert_eq!(
        choices(&asked(search), &uneven).unwrap_err(),
        "1 parents, 1 tokens, 1 flags and 0 scores, expected lists of one length"
    );
    let whole = Asked {
        branching: plain,
        rows: 1,
        tokens: Tokens::Below(10),
    };
    assert_eq!(
        choices(&whole, &answer(&[(0, 10, 0, 0.0)])).unwrap_err(),
        "token 10 for row 0, expected ids below 10"
    );
}

#[test]
fn rewritten_rows_are_whole_and_drawable() {
    let none = f32::NEG_INFINITY;
    logits(2, 2, &[0.0, none, none, -1.0]).unwrap();
    assert_eq!(
        logits(2, 2, &[0.0; 3]).unwrap_err(),
        "3 logits, expected 4: 2 rows of 2"
    );
    assert_eq!(
        logits(2, 2, &[0.0, 0.0, 0.0, f32::NAN]).unwrap_err(),
        "logit NaN for token 1 of row 1, expected a finite number or -inf"
    );
    assert_eq!(
        logits(1, 2, &[f32::INFINITY, 0.0]).unwrap_err(),
        "logit inf for token 0 of row 0, expected a finite number or -inf"
    );
    assert_eq!(
        logits(2, 2, &[0.0, 0.0, none, none]).unwrap_err(),
        "row 1 has no token above -inf"
    );
}

#[test]
fn selections_are_finished_branches() {
    selected(3, 2, &[2, 0]).unwrap();
    assert_eq!(
        selected(3, 2, &[3]).unwrap_err(),
        "index 3 of 3 finished branches"
    );
    assert_eq!(selected(3, 2, &[1, 1]).unwrap_err(), "index 1 twice");
    assert_eq!(
        selected(3, 2, &[0, 1, 2]).unwrap_err(),
        "3 branches, expected at most 2"
    );
    assert_eq!(
        selected(3, 2, &[]).unwrap_err(),
        "none of 3 finished branches"
    );
}
