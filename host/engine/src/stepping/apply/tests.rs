use super::*;
use std::collections::BTreeSet;

#[test]
fn lineages_of_forks_differ() {
    let mut seen = BTreeSet::new();
    for parent in 0..32 {
        for position in 0..32 {
            for child in 1..8 {
                seen.insert(lineage(parent, position, child));
            }
        }
    }
    // Of 7168 values of 32 bits, 0.006 pairs are equal on average.
    assert_eq!(seen.len(), 32 * 32 * 7);
    assert!(
        seen.iter().all(|&lineage| lineage >= 64),
        "apart from the choices' own"
    );
}
