#![allow(clippy::unwrap_used, clippy::panic)]

use super::{Cuts, DecodePlanner, Even, Geometry, ITEM_WORDS, MAX_PACK, OVERHEAD, TILE};
use crate::cuda::ops::{Limits, PlanRow, Planner};

/// An item as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Read {
    block: usize,
    token: i32,
    slot: i32,
    q_head: i32,
    kv_len: i32,
    begin: i32,
    end: i32,
    piece: i32,
    index: i32,
    pieces: i32,
}

fn rows(lens: &[u32]) -> Vec<PlanRow> {
    let row = |(r, &kv_len): (usize, &u32)| PlanRow {
        row: r as u32,
        slot: 7 + r as u32,
        first: 3 * r as u32,
        len: 1,
        kv_len,
        prefix_len: 0,
    };
    lens.iter().enumerate().map(row).collect()
}

fn limits(rows: &[PlanRow]) -> Limits {
    Limits {
        tokens: 1 << 14,
        rows: rows.len() as u32,
        outputs: 1,
        len: rows.iter().map(|r| r.kv_len).max().unwrap_or(1),
        block_size: 16,
    }
}

fn plan(geometry: Geometry, rows: &[PlanRow]) -> Vec<Read> {
    let mut planner = DecodePlanner::new(geometry);
    let mut words = vec![-9; 5];
    planner.plan(rows, &mut words);
    let words = &words[5..];
    assert!(words.len() <= planner.capacity(&limits(rows)));
    let blocks = geometry.blocks as usize;
    let starts = &words[..=blocks];
    let items = &words[geometry.items_at()..];
    assert_eq!(starts[0] as usize, blocks);
    assert!(starts.is_sorted());
    assert_eq!(starts[blocks] as usize * ITEM_WORDS, items.len());
    let mut all = Vec::new();
    for block in 0..blocks {
        let mine = std::iter::once(block).chain(starts[block] as usize..starts[block + 1] as usize);
        for (at, index) in mine.enumerate() {
            let w = &items[index * ITEM_WORDS..][..ITEM_WORDS];
            if w[4] == w[5] {
                // A block without work has one empty item and nothing else.
                assert_eq!((at, starts[block]), (0, starts[block + 1]));
                continue;
            }
            all.push(Read {
                block,
                token: w[0],
                slot: w[1],
                q_head: w[2],
                kv_len: w[3],
                begin: w[4],
                end: w[5],
                piece: w[6],
                index: w[7] & 0xffff,
                pieces: w[7] >> 16,
            });
        }
    }
    all
}

/// Every visible position of every query head exactly once, and pieces numbered without holes.
fn check(geometry: Geometry, rows: &[PlanRow], items: &[Read]) {
    let mut pieces_seen = vec![0; geometry.max_pieces(limits(rows).rows, limits(rows).len)];
    for row in rows {
        let mine: Vec<_> = items
            .iter()
            .filter(|i| i.token == row.first as i32)
            .collect();
        assert!(
            mine.iter()
                .all(|i| i.slot == row.slot as i32 && i.kv_len == row.kv_len as i32)
        );
        for head in 0..geometry.kv_heads * geometry.group {
            let group = head / geometry.group;
            let covers = |i: &&&Read| {
                let (first, all) = (i.q_head as u32, geometry.group);
                let end = (first + geometry.pack()).min((first / all + 1) * all);
                first / all == group && (first..end).contains(&head)
            };
            let mut parts: Vec<_> = mine.iter().filter(covers).collect();
            parts.sort_by_key(|i| i.begin);
            let from = geometry.window.map_or(0, |w| row.kv_len.saturating_sub(w)) / TILE;
            let mut at = from as i32;
            for (index, part) in parts.iter().enumerate() {
                assert_eq!(part.begin, at);
                assert!(part.end > part.begin);
                at = part.end;
                assert_eq!(part.pieces, parts.len() as i32);
                assert_eq!(part.index, index as i32);
                assert_eq!(
                    part.piece,
                    if parts.len() == 1 { -1 } else { parts[0].piece }
                );
            }
            assert_eq!(at as u32, row.kv_len.div_ceil(TILE));
        }
    }
    for item in items.iter().filter(|i| i.piece >= 0) {
        pieces_seen[(item.piece + item.index) as usize] += 1;
    }
    let used = pieces_seen.iter().filter(|&&n| n > 0).count();
    assert!(pieces_seen[..used].iter().all(|&n| n == 1));
}

fn load(items: &[Read], block: usize) -> f64 {
    let of = |i: &Read| f64::from(i.end - i.begin) + OVERHEAD;
    items.iter().filter(|i| i.block == block).map(of).sum()
}

fn even(kv_heads: u32, group: u32, blocks: u32) -> Geometry {
    Geometry {
        kv_heads,
        group,
        most: MAX_PACK,
        window: None,
        blocks,
        cuts: Cuts::Even(Even {
            least: 4,
            cut: 5,
            uncut: 20,
        }),
        rows: (0, u32::MAX),
    }
}

#[test]
fn a_long_row_is_divided_evenly() {
    let (g, rows) = (even(8, 4, 264), rows(&[32768]));
    let items = plan(g, &rows);
    check(g, &rows, &items);
    // 8 heads of 2048 tiles over 264 blocks: 62.06 each.
    assert!(items.iter().all(|i| (61..=65).contains(&(i.end - i.begin))));
    assert_eq!(items.len(), 264);
}

#[test]
fn a_short_row_is_not_cut_below_the_least() {
    let (g, rows) = (even(8, 4, 264), rows(&[1024]));
    let items = plan(g, &rows);
    check(g, &rows, &items);
    assert!(items.iter().all(|i| i.end - i.begin == 4));
}

#[test]
fn a_short_row_stays_whole() {
    let (g, rows) = (even(8, 4, 264), rows(&[290]));
    let items = plan(g, &rows);
    check(g, &rows, &items);
    // 19 tiles.
    assert!(items.iter().all(|i| i.piece < 0));
    assert!((0..264).all(|b| load(&items, b) <= 20.0));
}

#[test]
fn other_numbers_of_rows_are_not_planned() {
    let g = Geometry {
        rows: (0, 8),
        ..even(2, 2, 10)
    };
    // 9 rows run as 16.
    let mut words = Vec::new();
    DecodePlanner::new(g).plan(&rows(&[40; 9]), &mut words);
    assert!(words.is_empty());
    let rows = rows(&[40; 7]);
    check(g, &rows, &plan(g, &rows));
}

#[test]
fn one_token_is_one_item_per_head() {
    let (g, rows) = (even(2, 3, 9), rows(&[1]));
    let items = plan(g, &rows);
    check(g, &rows, &items);
    assert_eq!(items.len(), 2);
    assert_eq!(
        (items[1].q_head, items[1].piece, items[1].pieces),
        (3, -1, 1)
    );
}

#[test]
fn pairs_stay_whole_where_blocks_come_out_almost_even() {
    // 2048 pairs of 14 tiles over 264 blocks: 8 or less each.
    let (g, rows) = (even(8, 4, 264), rows(&[210; 256]));
    let items = plan(g, &rows);
    check(g, &rows, &items);
    assert!(items.iter().all(|i| i.piece < 0));
    assert!((0..264).all(|b| load(&items, b) <= 8.0 * (14.0 + OVERHEAD)));
}

#[test]
fn many_rows_are_balanced() {
    let lens: Vec<u32> = (0..256).map(|r| 1 + r * 7919 % 2000).collect();
    let (g, rows) = (even(8, 4, 264), rows(&lens));
    let items = plan(g, &rows);
    check(g, &rows, &items);
    let loads: Vec<f64> = (0..264).map(|b| load(&items, b)).collect();
    let mean = loads.iter().sum::<f64>() / 264.0;
    let most = loads.iter().copied().fold(0.0, f64::max);
    assert!(most < mean * 1.02 + 6.0, "most {most}, mean {mean}");
}

#[test]
fn anything_is_covered_once() {
    let mut seed = 1u32;
    let mut random = |below: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) % below
    };
    for _ in 0..400 {
        let lens: Vec<u32> = (0..1 + random(40))
            .map(|_| {
                let most = 1 << random(13);
                1 + random(most)
            })
            .collect();
        let g = Geometry {
            kv_heads: 1 + random(8),
            group: 1 + random(40),
            most: MAX_PACK,
            window: (random(3) == 0).then(|| 1 + random(700)),
            rows: (0, u32::MAX),
            blocks: 1 + random(300),
            cuts: if random(3) == 0 {
                Cuts::Fixed {
                    tiles: 1 + random(64),
                }
            } else {
                Cuts::Even(Even {
                    least: 1 << random(4),
                    cut: random(10),
                    uncut: random(40),
                })
            },
        };
        let rows = rows(&lens);
        check(g, &rows, &plan(g, &rows));
    }
}

#[test]
fn fixed_cuts_do_not_depend_on_the_batch() {
    let g = Geometry {
        cuts: Cuts::Fixed { tiles: 16 },
        window: Some(600),
        ..even(2, 4, 50)
    };
    let all = rows(&[3000, 100, 1024, 1025, 17]);
    let batch = plan(g, &all);
    check(g, &all, &batch);
    let ranges = |items: &[Read], token: i32| {
        let of = items.iter().filter(|i| i.token == token);
        let mut ranges: Vec<_> = of.map(|i| (i.q_head, i.begin, i.end, i.index)).collect();
        ranges.sort_unstable();
        ranges
    };
    for row in &all {
        let alone = plan(g, &[*row]);
        assert_eq!(
            ranges(&batch, row.first as i32),
            ranges(&alone, row.first as i32)
        );
    }
    // Position 2400 is the first that the row of 3000 sees: tile 150, cut at 160.
    assert_eq!(ranges(&batch, 0)[..2], [(0, 150, 160, 0), (0, 160, 176, 1)]);
}

#[test]
fn longer_rows_are_left_to_another_kernel() {
    let mut rows = rows(&[100, 200, 300]);
    rows[1].len = 2;
    let g = even(1, 1, 4);
    let items = plan(g, &rows);
    assert!(items.iter().all(|i| i.token != 3));
    check(g, &[rows[0], rows[2]], &items);
    let none = plan(g, &rows[1..2]);
    assert!(none.is_empty());
}
