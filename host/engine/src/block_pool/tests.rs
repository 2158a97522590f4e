#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::{GroupInfo, GroupKind, MockExecutor};
use proptest::prelude::*;

const GROUP: GroupId = GroupId(0);

fn pool(blocks: u32) -> BlockPool {
    let groups = vec![GroupInfo {
        kind: GroupKind::Full,
        blocks,
    }];
    BlockPool::new(&ExecutorInfo {
        groups,
        ..MockExecutor::small_info()
    })
}

fn key(number: u8) -> PrefixKey {
    PrefixKey([number; 32])
}

#[test]
fn a_block_is_free_when_its_last_handle_is_dropped() {
    let pool = pool(2);
    let first = pool.allocate(GROUP).unwrap();
    let shared = first.clone();
    let second = pool.allocate(GROUP).unwrap();
    assert_ne!(first.id(), second.id());
    assert!(pool.allocate(GROUP).is_none());
    assert!(!first.is_exclusive() && second.is_exclusive());
    drop(first);
    assert_eq!((pool.used(), pool.available(GROUP)), (2, 0));
    drop(shared);
    assert_eq!((pool.used(), pool.available(GROUP)), (1, 1));
    pool.check_integrity().unwrap();
}

#[test]
fn cached_blocks_are_taken_least_recently_used_first() {
    let pool = pool(3);
    let blocks: Vec<_> = (0..3).map(|_| pool.allocate(GROUP).unwrap()).collect();
    for (number, block) in blocks.iter().enumerate() {
        block.publish(key(number as u8));
        assert!(
            !block.is_exclusive(),
            "a block that can be found must not be written"
        );
    }
    drop(blocks);
    assert_eq!((pool.used(), pool.available(GROUP)), (0, 3));
    // Used again, block 0 is now the most recent.
    drop(pool.lookup(GROUP, &key(0)).unwrap());
    let _taken = (pool.allocate(GROUP).unwrap(), pool.allocate(GROUP).unwrap());
    assert!(pool.contains(GROUP, &key(0)));
    assert!(pool.lookup(GROUP, &key(1)).is_none() && pool.lookup(GROUP, &key(2)).is_none());
    pool.check_integrity().unwrap();
}

#[test]
fn the_first_block_with_given_contents_stays() {
    let pool = pool(2);
    let (first, second) = (pool.allocate(GROUP).unwrap(), pool.allocate(GROUP).unwrap());
    first.publish(key(7));
    second.publish(key(7));
    assert_eq!(pool.lookup(GROUP, &key(7)).unwrap().id(), first.id());
    assert!(second.is_exclusive());
    pool.check_integrity().unwrap();
}

#[derive(Clone, Debug)]
enum Action {
    Allocate,
    Lookup(u8),
    Fork(usize),
    Drop(usize),
    Publish(usize, u8),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => Just(Action::Allocate),
        2 => (0u8..12).prop_map(Action::Lookup),
        2 => (0usize..64).prop_map(Action::Fork),
        4 => (0usize..64).prop_map(Action::Drop),
        2 => (0usize..64, 0u8..12).prop_map(|(at, key)| Action::Publish(at, key)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a model: the references that exist, and the keys that were published.
    #[test]
    fn blocks_are_never_lost_or_shared_by_accident(
        blocks in 1u32..10,
        actions in proptest::collection::vec(action(), 0..200),
    ) {
        let pool = pool(blocks);
        let mut handles: Vec<BlockHandle> = Vec::new();
        let mut contents: HashMap<BlockId, u8> = HashMap::new();
        for action in actions {
            match action {
                Action::Allocate => {
                    let taken: std::collections::HashSet<_> = handles.iter().map(BlockHandle::id).collect();
                    let block = pool.allocate(GROUP);
                    prop_assert_eq!(block.is_none(), taken.len() == blocks as usize);
                    if let Some(block) = block {
                        prop_assert!(!taken.contains(&block.id()));
                        contents.remove(&block.id());
                        handles.push(block);
                    }
                }
                Action::Lookup(number) => {
                    if let Some(block) = pool.lookup(GROUP, &key(number)) {
                        prop_assert_eq!(contents.get(&block.id()), Some(&number));
                        handles.push(block);
                    } else {
                        prop_assert!(!contents.values().any(|&found| found == number));
                    }
                }
                Action::Fork(at) if !handles.is_empty() => handles.push(handles[at % handles.len()].clone()),
                Action::Drop(at) if !handles.is_empty() => drop(handles.swap_remove(at % handles.len())),
                Action::Publish(at, number) if !handles.is_empty() => {
                    let block = &handles[at % handles.len()];
                    let is_new = !contents.contains_key(&block.id()) && !contents.values().any(|&n| n == number);
                    block.publish(key(number));
                    if is_new {
                        contents.insert(block.id(), number);
                    }
                }
                _ => {}
            }
            pool.check_integrity().unwrap();
            let mut expected = vec![0; blocks as usize];
            handles.iter().for_each(|handle| expected[handle.id().0 as usize] += 1);
            prop_assert_eq!(pool.references(GROUP), expected);
        }
        handles.clear();
        prop_assert_eq!(pool.used(), 0);
    }
}
