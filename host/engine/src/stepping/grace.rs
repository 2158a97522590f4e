//! Who is waited for, and how long.

use std::collections::HashMap;
use std::time::Duration;

/// Misses in a row after which a module is not waited for.
const MISSES: u32 = 2;

/// Least grace.
const LEAST: Duration = Duration::from_micros(100);

/// Part of a step that may be spent on waiting.
const SHARE: u32 = 20;

/// How long guests may take without missing the next step.
pub(super) fn grace(last_step: Duration) -> Duration {
    LEAST.max(last_step / SHARE)
}

/// Modules that are remembered; beyond that all get grace anew.
const MODULES: usize = 1024;

/// Punctuality of modules, by name.
#[derive(Debug, Default)]
pub(super) struct Punctuality {
    /// Misses in a row; absent is 0.
    misses: HashMap<String, u32>,
}

impl Punctuality {
    /// Whether the engine waits for this module.
    pub(super) fn has_grace(&self, module: &str) -> bool {
        self.misses
            .get(module)
            .is_none_or(|misses| *misses < MISSES)
    }

    pub(super) fn missed(&mut self, module: &str) {
        if self.misses.len() >= MODULES && !self.misses.contains_key(module) {
            self.misses.clear();
        }
        *self.misses.entry(module.to_owned()).or_default() += 1;
    }

    pub(super) fn on_time(&mut self, module: &str) {
        if !self.misses.is_empty() {
            self.misses.remove(module);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_is_a_twentieth_of_a_step_and_at_least_100_microseconds() {
        assert_eq!(grace(Duration::ZERO), Duration::from_micros(100));
        assert_eq!(grace(Duration::from_millis(2)), Duration::from_micros(100));
        assert_eq!(grace(Duration::from_millis(10)), Duration::from_micros(500));
    }

    #[test]
    fn two_misses_in_a_row_cost_a_module_its_grace() {
        let mut modules = Punctuality::default();
        modules.missed("a");
        modules.on_time("a");
        modules.missed("a");
        assert!(modules.has_grace("a"));
        modules.missed("a");
        assert!(!modules.has_grace("a") && modules.has_grace("b"));
        modules.on_time("a");
        assert!(modules.has_grace("a"));
    }
}
