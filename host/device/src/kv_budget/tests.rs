use guesthouse_graph::CacheKind;

use super::{Uses, divide};

const USES: Uses = Uses {
    block_size: 16,
    max_step_tokens: 64,
    max_slots: 8,
    max_len: 320,
};

#[test]
fn groups_get_equal_numbers_and_what_others_cannot_use() {
    assert_eq!(divide(100, &[1, 1], &[100, 100]), [50, 50]);
    assert_eq!(divide(100, &[1, 1], &[20, 100]), [20, 80]);
    assert_eq!(divide(100, &[3, 1], &[100, 100]), [25, 25]);
}

/// A sequence uses 21 blocks of keys and values (320 / 16, and one), and one state.
#[test]
fn states_take_half_at_most_unless_the_rest_is_of_no_use() {
    let kinds = [CacheKind::Full, CacheKind::Recurrent { bytes: 100 }];
    let blocks = |bytes| USES.blocks(&kinds, bytes, &[10, 100]);
    // Half of 1,000 bytes is 5 states.
    assert_eq!(blocks(1000), [50, 5]);
    // The longest sequence needs 210 bytes beside its state: a second one would not fit beside them.
    assert_eq!(blocks(400), [30, 1]);
    assert_eq!(blocks(310), [21, 1]);
    // Never more states than sequences run, nor more blocks than they fill.
    assert_eq!(blocks(100_000), [8 * 21, 8]);
    // 8 sequences at their longest take 1,680.
    assert_eq!(blocks(2400), [160, 8]);
    // Too little for one of each.
    assert_eq!(blocks(60), [6, 0]);
}

#[test]
fn without_states_everything_is_divided() {
    let kinds = [CacheKind::Full, CacheKind::Window { window: 4 }];
    assert_eq!(USES.blocks(&kinds, 1000, &[10, 10]), [50, 50]);
}
