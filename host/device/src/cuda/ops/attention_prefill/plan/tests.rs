#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

fn row(slot: u32, first: u32, len: u32, kv_len: u32) -> PlanRow {
    PlanRow {
        row: slot,
        slot,
        first,
        len,
        kv_len,
        prefix_len: 0,
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
    kv_heads: 6,
    position_bytes: 512,
    section_bytes: 16 << 20,
};

#[test]
fn rows_are_cut_and_the_longest_come_first() {
    let rows = [row(5, 0, 1, 900), row(2, 1, 70, 70), row(7, 71, 40, 300)];
    let expected = [
        [5, 0, 6, 0, 0, 0, 0, 0],
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
        [2, 0, 6, 0, 0, 0, 0, 0],
        [71, 1, 899, 900, 3, 0, 0, 0],
        [0, 1, 99, 100, 5, 0, 0, 0],
    ];
    assert_eq!(plan(single, &rows), expected.concat());
    assert_eq!(plan(single, &[]), [0, 0, 6, 0, 0, 0, 0, 0]);
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

#[test]
fn rows_whose_keys_do_not_fit_together_come_one_after_the_other() {
    // With all six heads a row of 256 positions has 768 KiB.
    let rows = [
        row(0, 0, 64, 256),
        row(1, 64, 64, 256),
        row(2, 128, 64, 256),
    ];
    let slots = |section_bytes| {
        let out = plan(
            Geometry {
                section_bytes,
                ..LONG
            },
            &rows,
        );
        let entries = out[8..].chunks_exact(8).map(|e| e[4]);
        (out[2], entries.collect::<Vec<_>>())
    };
    assert_eq!(slots(2 << 20), (6, vec![0, 0, 1, 1, 2, 2]));
    assert_eq!(slots(1 << 20), (6, vec![0, 0, 1, 1, 2, 2]));
    // Four of six heads fit, which is no divisor.
    assert_eq!(slots(600 << 10).0, 3);
    assert_eq!(slots(300 << 10).0, 2);
    assert_eq!(slots(0).0, 1);
}

#[test]
fn long_tiles_come_first_within_a_section_alone() {
    let rows = [row(0, 0, 300, 300), row(1, 300, 200, 200)];
    let lens = |section_bytes| {
        let geometry = Geometry {
            tokens: 100,
            section_bytes,
            ..LONG
        };
        let out = plan(geometry, &rows);
        let entries = out[8..].chunks_exact(8).map(|e| (e[4], e[2]));
        entries.collect::<Vec<_>>()
    };
    // Row and position of each tile; they visit 3, 2 and 1 tiles of keys, and 2 and 1.
    assert_eq!(
        lens(16 << 20),
        [(0, 200), (0, 100), (1, 100), (0, 0), (1, 0)]
    );
    assert_eq!(
        lens(1 << 20),
        [(0, 200), (0, 100), (0, 0), (1, 100), (1, 0)]
    );
}

#[test]
fn tokens_of_a_prefix_visit_all_of_it() {
    let rows = [PlanRow {
        prefix_len: 150,
        ..row(3, 0, 160, 160)
    }];
    // Without a prefix the first four entries would visit one tile of 128 keys and come after the fifth.
    let expected = [
        [5, 0, 6, 0, 0, 0, 0, 0],
        [0, 32, 0, 160, 3, 150, 0, 0],
        [32, 32, 32, 160, 3, 150, 0, 0],
        [64, 32, 64, 160, 3, 150, 0, 0],
        [96, 32, 96, 160, 3, 150, 0, 0],
        [128, 32, 128, 160, 3, 150, 0, 0],
    ];
    assert_eq!(plan(LONG, &rows), expected.concat());
}
