use super::*;

fn planner(which: Which, heads: u32, cuts: Cuts) -> LatentPlanner {
    let shape = Shape::new(64, 32, 3);
    let geometry = Geometry {
        kv_heads: 1,
        group: heads,
        most: shape.rows,
        window: None,
        blocks: 4,
        cuts,
        rows: (0, u32::MAX),
    };
    LatentPlanner {
        inner: DecodePlanner::new(geometry),
        which,
        tokens: shape.tokens(heads),
        layout: Layout::new(&geometry, 100, 1 << 16),
        rows: Vec::new(),
    }
}

fn row(first: u32, len: u32, kv_len: u32) -> PlanRow {
    PlanRow {
        row: 0,
        slot: 7,
        first,
        len,
        kv_len,
        prefix_len: 0,
    }
}

/// Token, first head, positions, first and last tile, first piece of each item.
fn items(words: &[i32], layout: Layout, blocks: usize) -> Vec<[i32; 6]> {
    let plan = &words[layout.items_at()..];
    let items = plan[(blocks + 1).next_multiple_of(8)..].chunks_exact(8);
    let mut found: Vec<[i32; 6]> = items
        .filter(|i| i[4] < i[5])
        .map(|i| [i[0], i[2], i[3], i[4], i[5], i[6]])
        .collect();
    found.sort_unstable();
    found
}

/// 16 heads: items of four tokens, which see what their last one does.
#[test]
fn few_heads_of_neighbours_share_items() {
    let mut planner = planner(Which::Long, 16, Cuts::Fixed { tiles: NO_CUT });
    let mut words = Vec::new();
    planner.plan(&[row(0, 1, 50), row(1, 6, 40)], &mut words);
    assert_eq!(words[0], 0);
    // Tokens 1..5 end at position 38, 5..7 at 40: three tiles of 16 each.
    let expected = vec![[1, 0, 38, 0, 3, -1], [5, 0, 40, 0, 3, -1]];
    assert_eq!(items(&words, planner.layout, 4), expected);
}

/// 128 heads: two items a token; of single tokens, cut at every 64 tiles.
#[test]
fn many_heads_are_cut_and_their_pairs_listed() {
    let mut planner = planner(Which::Single, 128, Cuts::Fixed { tiles: 64 });
    let mut words = Vec::new();
    planner.plan(&[row(0, 1, 1030), row(1, 6, 40)], &mut words);
    let expected = vec![
        [0, 0, 1030, 0, 64, 0],
        [0, 0, 1030, 64, 65, 0],
        [0, 64, 1030, 0, 64, 2],
        [0, 64, 1030, 64, 65, 2],
    ];
    assert_eq!(items(&words, planner.layout, 4), expected);
    let mut pairs: Vec<&[i32]> = words[4..12].chunks(4).collect();
    pairs.sort_unstable();
    assert_eq!(words[0], 2);
    assert_eq!(pairs, [[0, 0, 0, 2], [0, 64, 2, 2]]);
}

#[test]
fn plans_stay_within_their_capacity() {
    let limits = Limits {
        tokens: 100,
        rows: 100,
        outputs: 1,
        len: 1 << 16,
        block_size: 16,
    };
    for which in [Which::Single, Which::Long] {
        for cuts in [Cuts::Even(EVEN), Cuts::Fixed { tiles: 64 }] {
            let mut planner = planner(which, 128, cuts);
            let len = if which == Which::Single { 1 } else { 10 };
            let rows: Vec<PlanRow> = (0..100 / len).map(|i| row(i * len, len, 60_000)).collect();
            let mut words = Vec::new();
            planner.plan(&rows, &mut words);
            assert!(words.len() <= planner.capacity(&limits));
        }
    }
}
