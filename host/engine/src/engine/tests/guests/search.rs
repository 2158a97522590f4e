//! Branches that fork.
