use super::conflict;

#[test]
fn copies_that_share_a_written_block_conflict() {
    // A chain, one target twice, a source that is overwritten; one source for two targets is fine.
    assert!(conflict([1, 2], [2, 3]));
    assert!(conflict([1, 2], [3, 2]));
    assert!(conflict([1, 2], [3, 1]));
    assert!(!conflict([1, 2], [1, 3]));
}
