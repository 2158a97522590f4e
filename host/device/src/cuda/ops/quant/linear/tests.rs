use super::{Cut, Shape, Span, TOKENS, cut};

fn span(n: u32, column: u32, bias: bool) -> Span {
    Span { n, column, bias }
}

fn whole(part: usize, rows: u32) -> Cut {
    Cut { part, row: 0, rows }
}

#[test]
fn neighbours_without_biases_share_a_piece() {
    let qkv = [
        span(4096, 0, false),
        span(1024, 4096, false),
        span(1024, 5120, false),
    ];
    let expected = vec![vec![whole(0, 4096), whole(1, 1024), whole(2, 1024)]];
    assert_eq!(cut(&qkv, 8192), expected);
    // The second part's columns do not follow the first's: a plain matrix stands between them.
    let apart = [span(64, 0, false), span(64, 128, false)];
    assert_eq!(
        cut(&apart, 8192),
        vec![vec![whole(0, 64)], vec![whole(1, 64)]]
    );
    let biased = [span(37, 0, true), span(16, 37, true)];
    assert_eq!(
        cut(&biased, 8192),
        vec![vec![whole(0, 37)], vec![whole(1, 16)]]
    );
}

#[test]
fn large_matrices_are_cut_evenly_between_panels() {
    let pieces = cut(&[span(5000, 0, false)], 2048);
    let rows: Vec<(u32, u32)> = pieces.iter().map(|p| (p[0].row, p[0].rows)).collect();
    // 5000 rows in three pieces: 1667, rounded up to 1792.
    assert_eq!(rows, [(0, 1792), (1792, 1792), (3584, 1416)]);
}

#[test]
fn a_piece_ends_in_a_part_of_odd_length() {
    // 37 rows leave 91 of 128: five panels of the next part.
    let pieces = cut(&[span(37, 0, false), span(160, 37, false)], 128);
    let (row, rows) = (80, 80);
    assert_eq!(
        pieces,
        vec![
            vec![whole(0, 37), whole(1, 80)],
            vec![Cut { part: 1, row, rows }]
        ]
    );
}

#[test]
fn a_launch_takes_eight_parts() {
    let many: Vec<Span> = (0..9).map(|i| span(16, 16 * i, false)).collect();
    let lengths: Vec<usize> = cut(&many, 8192).iter().map(Vec::len).collect();
    assert_eq!(lengths, [8, 1]);
}

#[test]
fn nothing_to_cut() {
    assert!(cut(&[], 8192).is_empty());
    assert!(cut(&[span(0, 0, false)], 8192).is_empty());
    assert_eq!(cut(&[span(3, 0, false)], 0).len(), 1);
}

#[test]
fn shapes_fit_the_shared_memory_of_every_gpu() {
    // Q2_K and Q8_0 have the shortest and longest stages; 99 KiB is what a block gets on sm_86, sm_89 and sm_120.
    for slot in [1344, 4352] {
        for shared in [99 << 10, 163 << 10, 227 << 10] {
            for tokens in TOKENS {
                let shape = Shape::new(tokens, slot, shared);
                assert_eq!(shape.most(), tokens);
                assert!(
                    shape.shared(slot) <= shared,
                    "{shape:?} with {slot} in {shared}"
                );
            }
        }
    }
}
