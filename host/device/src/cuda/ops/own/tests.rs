#![allow(clippy::unwrap_used)]

use super::*;

/// What is kept on disk by number must come back as the same variant.
#[test]
fn numbers_name_variants() {
    let mut ways = vec![Way::Invariant];
    for stages in [4, 6, 8, 10, 12] {
        for split in [1, 4] {
            ways.push(Way::Gemv(gemv::Shape {
                chunk: 1024,
                stages,
                split,
            }));
        }
    }
    for tokens in [8, 16, 32, 64, 128, 256] {
        for groups in [1, 2] {
            for deal in [skinny::Deal::Tiles, skinny::Deal::Steps] {
                for resident in [1, 2] {
                    ways.push(Way::Skinny(skinny::Shape {
                        tokens,
                        groups,
                        boxes: 1,
                        deal,
                        resident,
                    }));
                }
            }
        }
    }
    let numbers: std::collections::HashSet<u32> = ways.iter().map(|w| w.number()).collect();
    assert_eq!(numbers.len(), ways.len());
    for way in ways {
        assert_eq!(Way::of(way.number()), Some(way));
    }
    assert_eq!(Way::of(u32::MAX), None);
}

/// A tile of the smallest kind that holds all tokens, so that few waste little; 256 beyond that.
#[test]
fn tiles_hold_their_tokens() {
    for (m, tile) in [(1, 8), (8, 8), (9, 16), (33, 64), (129, 256), (5000, 256)] {
        let shape = skinny::Shape::unsplit(m);
        assert_eq!((shape.tokens, shape.deal), (tile, skinny::Deal::Tiles));
    }
}

#[test]
fn gates_of_the_kernels() {
    use guesthouse_graph::Activation::{Relu, Silu};
    assert_eq!(Gating::of(Gate::Plain(Silu)), Some(Gating::Silu));
    assert_eq!(Gating::of(Gate::Plain(Relu)), None);
    let clamped = Gate::Clamped {
        alpha: 1.702,
        limit: 7.0,
    };
    assert_eq!(Gating::of(clamped), None);
}
