//! Checkpoints of one architecture differ in a leading `transformer.` or `model.`, depending on the class that saved them.

const OPTIONAL: [&str; 2] = ["transformer.", "model."];

/// What `get` has under `name`, else under `name` without such a prefix, else with one added.
pub(crate) fn find<T>(name: &str, get: impl Fn(&str) -> Option<T>) -> Option<T> {
    get(name)
        .or_else(|| {
            OPTIONAL
                .iter()
                .find_map(|prefix| get(name.strip_prefix(prefix)?))
        })
        .or_else(|| {
            OPTIONAL
                .iter()
                .find_map(|prefix| get(&format!("{prefix}{name}")))
        })
}
