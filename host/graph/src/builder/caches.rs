//! Cache declarations, and who writes and reads each cache.

use super::GraphBuilder;
use crate::{CacheId, CacheSpec, GraphError, Op, rules};

/// Uses of one cache so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheUse {
    Unused,
    Written,
}

impl GraphBuilder {
    /// Declares one layer's cache.
    ///
    /// # Errors
    /// [`GraphError::Parameter`] for a spec that makes no sense, [`GraphError::Limit`] for one cache too many.
    pub fn declare_cache(&mut self, spec: CacheSpec) -> Result<CacheId, GraphError> {
        let max = self.limits.max_caches;
        if self.caches.len() >= max {
            return Err(self.limit("declare-cache", "the number of caches".to_owned(), max));
        }
        rules::check_cache(&spec, &self.at("declare-cache"))?;
        self.caches.push(spec);
        self.cache_use.push(CacheUse::Unused);
        Ok(CacheId(self.caches.len() as u32 - 1))
    }

    /// Each cache is written by one op per step, and read by others only after that.
    pub(super) fn use_cache(&mut self, op: &Op, inputs: usize) -> Result<(), GraphError> {
        let Some(access) = rules::cache_access(op, inputs) else {
            return Ok(());
        };
        let at = || self.at(op.name());
        let Some(state) = self.cache_use.get(access.cache.index()) else {
            return Ok(()); // the rules have refused this id already
        };
        rules::check_access(access, *state == CacheUse::Written, at)?;
        self.cache_use[access.cache.index()] = CacheUse::Written;
        Ok(())
    }
}
