//! Sequences in order, findable by tenant.

use crate::SequenceId;
use crate::sequence::Order;
use std::collections::BTreeMap;

/// Every sequence is in `all` and in one of `tenants`, none of which is empty.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    all: BTreeMap<Order, SequenceId>,
    tenants: BTreeMap<u64, BTreeMap<Order, SequenceId>>,
}

impl Queue {
    pub(crate) fn insert(&mut self, order: Order, id: SequenceId) {
        self.all.insert(order, id);
        self.tenants
            .entry(order.tenant)
            .or_default()
            .insert(order, id);
    }

    pub(crate) fn remove(&mut self, order: &Order) -> Option<SequenceId> {
        let id = self.all.remove(order)?;
        if let Some(own) = self.tenants.get_mut(&order.tenant) {
            own.remove(order);
            if own.is_empty() {
                self.tenants.remove(&order.tenant);
            }
        }
        Some(id)
    }

    pub(crate) fn get(&self, order: &Order) -> Option<&SequenceId> {
        self.all.get(order)
    }

    pub(crate) fn contains_key(&self, order: &Order) -> bool {
        self.all.contains_key(order)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn values(&self) -> impl DoubleEndedIterator<Item = &SequenceId> + '_ {
        self.all.values()
    }

    pub(crate) fn first_key_value(&self) -> Option<(&Order, &SequenceId)> {
        self.all.first_key_value()
    }

    pub(crate) fn last_key_value(&self) -> Option<(&Order, &SequenceId)> {
        self.all.last_key_value()
    }

    /// Those before this, in order.
    pub(crate) fn before(&self, end: Order) -> impl Iterator<Item = (&Order, &SequenceId)> + '_ {
        self.all.range(..end)
    }

    /// A tenant's sequences, in order.
    pub(crate) fn of(
        &self,
        tenant: u64,
    ) -> impl DoubleEndedIterator<Item = (&Order, &SequenceId)> + '_ {
        self.tenants.get(&tenant).into_iter().flatten()
    }

    /// How many of a tenant.
    pub(crate) fn count(&self, tenant: u64) -> usize {
        self.tenants.get(&tenant).map_or(0, BTreeMap::len)
    }

    /// Each tenant's first.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = (&Order, &SequenceId)> + '_ {
        self.tenants.values().filter_map(BTreeMap::first_key_value)
    }

    /// Tenants that have any, with how many.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.tenants
            .iter()
            .map(|(tenant, own)| (*tenant, own.len()))
    }

    /// # Errors
    /// When the two views differ.
    pub(crate) fn check(&self) -> Result<(), String> {
        let indexed = self.tenants.iter().flat_map(|(tenant, own)| {
            own.iter()
                .filter(|(order, id)| order.tenant == *tenant && self.all.get(order) == Some(id))
        });
        if indexed.count() != self.all.len() || self.tenants.values().any(BTreeMap::is_empty) {
            return Err("a queue and its index by tenant disagree".to_owned());
        }
        Ok(())
    }
}
