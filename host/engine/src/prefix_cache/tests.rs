#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::{GroupId, MockExecutor};

/// Window 6, blocks of 4: what follows block b sees 5 positions before it, in the two blocks before.
fn info() -> ExecutorInfo {
    ExecutorInfo {
        groups: vec![
            GroupInfo {
                kind: GroupKind::Full,
                blocks: 16,
            },
            GroupInfo {
                kind: GroupKind::Window { window: 6 },
                blocks: 16,
            },
        ],
        ..MockExecutor::small_info()
    }
}

fn keys(tokens: &[TokenId]) -> Vec<PrefixKey> {
    let mut keys = Vec::new();
    extend_keys(&mut keys, &CacheSalt([3; 32]), tokens, 4, usize::MAX);
    keys
}

/// Publishes blocks with these keys and forgets the handles.
fn publish(pool: &BlockPool, group: u32, keys: &[PrefixKey]) {
    for key in keys {
        pool.allocate(GroupId(group)).unwrap().publish(*key);
    }
}

#[test]
fn keys_are_a_chain_from_the_salt() {
    let keys = keys(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    // sha256(32 × 03 ‖ 1, 2, 3, 4 as u32 LE), and sha256(that ‖ 5, 6, 7, 8), by Python's hashlib.
    let hex = |key: &PrefixKey| {
        key.0
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    assert_eq!(keys.len(), 2);
    assert_eq!(
        hex(&keys[0]),
        "3cf2fee8e3806a10fd790d2725f2d2c576c2febe9a2ff6662bce65eedfdb16bd"
    );
    assert_eq!(
        hex(&keys[1]),
        "7a4807a064497f8b0003bd99ef308d03c63031eae44f0e48875b484d5fbfa492"
    );
}

#[test]
fn a_hit_needs_all_full_blocks_and_the_windows_last() {
    let info = info();
    let (layout, pool) = (Layout::new(&info), BlockPool::new(&info));
    let cache = PrefixCache::new(&info, &EngineConfig::default());
    let keys = keys(&(0..20).collect::<Vec<_>>());
    let lookup = |len| cache.lookup(&layout, &pool, &keys, len);
    let hit = |len| lookup(len).tokens;
    publish(&pool, 0, &keys[..4]);
    assert_eq!(hit(20), 0, "the window group has nothing");
    publish(&pool, 1, &keys[2..4]);
    assert_eq!(hit(20), 16);
    assert_eq!(hit(17), 16);
    assert_eq!(
        hit(16),
        0,
        "12 tokens need the window's block 1, and 16 would leave nothing to compute"
    );
    let found = lookup(20);
    let present = |group: usize| {
        found.tables[group]
            .range(0, 9)
            .map(|(index, _)| index)
            .collect::<Vec<_>>()
    };
    assert_eq!((found.tables[0].len(), present(0)), (4, vec![0, 1, 2, 3]));
    assert_eq!((found.tables[1].len(), present(1)), (4, vec![2, 3]));
    publish(&pool, 1, &keys[1..2]);
    assert_eq!(hit(16), 12);
    assert_eq!(hit(1), 0);
    drop(found);
    assert_eq!(pool.used(), 0);
}

#[test]
fn a_gap_in_a_full_group_ends_the_hit() {
    let info = MockExecutor::small_info();
    let (layout, pool) = (Layout::new(&info), BlockPool::new(&info));
    let cache = PrefixCache::new(&info, &EngineConfig::default());
    let keys = keys(&(0..20).collect::<Vec<_>>());
    publish(&pool, 0, &keys[..2]);
    publish(&pool, 0, &keys[3..]);
    assert_eq!(cache.lookup(&layout, &pool, &keys, 20).tokens, 8);
}

#[test]
fn recurrent_state_whole_prompts_and_the_switch_disable_it() {
    let enabled =
        |info: &ExecutorInfo, config: &EngineConfig| PrefixCache::new(info, config).is_enabled();
    let on = EngineConfig::default();
    let small = MockExecutor::small_info();
    assert!(enabled(&small, &on));
    assert!(!enabled(
        &small,
        &EngineConfig {
            prefix_cache: PrefixCaching::Off,
            ..on
        }
    ));
    assert!(!enabled(
        &ExecutorInfo {
            whole_prompt: true,
            ..small.clone()
        },
        &on
    ));
    let recurrent = GroupInfo {
        kind: GroupKind::Recurrent,
        blocks: 4,
    };
    assert!(!enabled(
        &ExecutorInfo {
            groups: vec![small.groups[0], recurrent],
            ..small
        },
        &on
    ));
}
