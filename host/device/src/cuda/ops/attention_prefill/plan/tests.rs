#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

fn row(slot: u32, first: u32, len: u32, kv_len: u32) -> PlanRow {
    PlanRow {
        row: slot,
        slot,
        first,
        len,
        kv_len,
    }
}

fn plan(geometry: Geometry, rows: &[PlanRow]) -> Vec<i32> {
    let mut planner = PrefillPlanner::new(geometry);
    let mut out = Vec::new();
    planner.plan(rows, &mut out);
    let limits = Limits {
        tokens: rows.iter().map(|r| r.len).sum(),
        rows: rows.len() as u32,
        outputs: 1,
        len: 4096,
        block_size: 16,
    };
    assert!(out.len() <= planner.capacity(&limits));
    out
}

const LONG: Geometry = Geometry {
    tokens: 32,
    kv_tile: 128,
    window: None,
    which: Which::Long,
};

#[test]
fn rows_are_cut_and_the_longest_come_first() {
    let rows = [row(5, 0, 1, 900), row(2, 1, 70, 70), row(7, 71, 40, 300)];
    let expected = [
        [5, 0, 0, 0, 0, 0, 0, 0],
        // The end of the chunk of 40 at positions 260..300 reaches into the third tile, as does its beginning.
        [71, 32, 260, 300, 7, 0, 0, 0],
        [103, 8, 292, 300, 7, 0, 0, 0],
        [1, 32, 0, 70, 2, 0, 0, 0],
        [33, 32, 32, 70, 2, 0, 0, 0],
        [65, 6, 64, 70, 2, 0, 0, 0],
    ];
    assert_eq!(plan(LONG, &rows), expected.concat());
}

#[test]
fn single_tokens_are_another_plan() {
    let rows = [row(5, 0, 1, 100), row(2, 1, 70, 70), row(3, 71, 1, 900)];
    let single = Geometry {
        which: Which::Single,
        ..LONG
    };
    let expected = [
        [2, 0, 0, 0, 0, 0, 0, 0],
        [71, 1, 899, 900, 3, 0, 0, 0],
        [0, 1, 99, 100, 5, 0, 0, 0],
    ];
    assert_eq!(plan(single, &rows), expected.concat());
    assert_eq!(plan(single, &[]), [0; 8]);
}

#[test]
fn a_window_bounds_the_work() {
    // Of 2048 positions a token sees the last 100: less than the 300 that the other row has.
    let rows = [row(0, 0, 2, 2048), row(1, 2, 2, 300)];
    let windowed = Geometry {
        window: Some(100),
        ..LONG
    };
    assert_eq!(plan(LONG, &rows)[8], 0);
    let out = plan(windowed, &rows);
    // Positions 1947..2048 are in one tile, 199..300 in two.
    assert_eq!(out[8], 2);
}
