//! What each tenant has used, so that those who want the machine get parts of it by weight.
//!
//! A tenant's *service* is the tokens computed for it, divided by its weight (the virtual token counter of Sheng et al. 2024,
//! "Fairness in Serving Large Language Models"). Nothing is guessed: an answer costs what was computed, when it was. Who
//! comes back from being away starts where the least served of those present is: time away saves nothing up.

use crate::{Owner, Request};
use std::collections::BTreeMap;

/// Service of one token at weight 1. At a million tokens per second a counter overflows after nine years.
const TOKEN: u64 = 1 << 16;

/// Tokens by which the order of a tenant's sequence is later for each that it runs already: about a request's.
const RANK: u64 = 1024;

/// Service that a tenant can be behind another at most, so that who used what nobody wanted does not have to wait for all of it
/// to be made up for.
const LAG: u64 = 16 * RANK * TOKEN;

/// Steps for which a tenant without requests still counts as present.
const LINGER: u64 = 256;

/// A tenant's part in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantShare {
    /// As in [`Owner`].
    pub tenant: u64,
    /// Its sequences in a slot.
    pub running: usize,
    /// Its sequences that wait.
    pub waiting: usize,
    /// Counter: tokens computed for it since it was last forgotten, which happens some time after its last request.
    pub tokens: u64,
}

/// See the module. Bounded by the tenants that are present, or ahead of those that are.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    accounts: BTreeMap<u64, Account>,
    /// What each has at least, whatever it was given.
    floor: u64,
}

/// One tenant's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    /// Of its latest request.
    pub(crate) owner: Owner,
    /// Requests that are not complete.
    requests: usize,
    /// At least [`Shares::floor`], whatever stands here.
    service: u64,
    tokens: u64,
    /// Latest start of its sequences; 0 when it comes back.
    started: u64,
    /// The step before which its last request ended.
    left: u64,
    /// Number after that of the last step in which any of its sequences advanced.
    pub(crate) advanced: u64,
    /// Tokens that were computed of the prompt that began last.
    pub(crate) prompt: u32,
}

impl Account {
    pub(crate) fn weight(&self) -> u64 {
        u64::from(self.owner.weight).clamp(1, TOKEN)
    }

    /// What so many tokens add to its service.
    pub(crate) fn cost(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(TOKEN) / self.weight()
    }

    /// Whether it has requests, or had some a moment before `step`.
    pub(crate) fn is_present(&self, step: u64) -> bool {
        self.requests > 0 || step < self.left.saturating_add(LINGER)
    }
}

impl Shares {
    /// A request comes before step `step`.
    pub(crate) fn join(&mut self, request: &Request, step: u64) {
        let owner = request.owner;
        if self
            .accounts
            .get(&owner.tenant)
            .is_none_or(|account| account.requests == 0)
        {
            self.settle(step);
        }
        let floor = self.floor;
        let account = self.accounts.entry(owner.tenant).or_insert(Account {
            owner,
            requests: 0,
            service: floor,
            tokens: 0,
            started: 0,
            left: 0,
            advanced: step,
            prompt: request.prompt.len() as u32,
        });
        account.owner = owner;
        if account.requests == 0 {
            account.service = account.service.max(floor);
            account.started = 0;
        }
        account.requests += 1;
    }

    /// Raises the floor, and forgets who is away and not ahead of it.
    fn settle(&mut self, step: u64) {
        let least = |active: bool| {
            self.accounts
                .values()
                .filter(move |account| (account.requests > 0) == active)
                .map(|account| account.service)
        };
        // Where nobody wants the machine, nobody has had too much of it.
        let floor = least(true).min().or(least(false).max());
        self.floor = self.floor.max(floor.unwrap_or(0));
        let floor = self.floor;
        self.accounts
            .retain(|_, account| account.is_present(step) || account.service > floor);
    }

    /// A request is complete, or gone.
    pub(crate) fn leave(&mut self, tenant: u64, step: u64) {
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.requests = account.requests.saturating_sub(1);
            account.left = step;
        }
    }

    /// Tokens are computed for a tenant in a step.
    pub(crate) fn charge(&mut self, tenant: u64, tokens: u32, step: u64) {
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.tokens += u64::from(tokens);
            account.advanced = step + 1;
            let service = account.service.max(self.floor);
            account.service = service.saturating_add(account.cost(u64::from(tokens)));
            self.floor = self.floor.max(account.service.saturating_sub(LAG));
        }
    }

    /// Where in the order a tenant's next sequence begins, if it runs so many. Never before one that it began earlier.
    pub(crate) fn start(&self, tenant: u64, running: usize) -> u64 {
        self.accounts.get(&tenant).map_or(0, |account| {
            let ahead = account.cost(RANK.saturating_mul(running as u64));
            let service = account.service.max(self.floor);
            service.saturating_add(ahead).max(account.started)
        })
    }

    /// A sequence begins there.
    pub(crate) fn begin(&mut self, tenant: u64, start: u64) {
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.started = account.started.max(start);
        }
    }

    /// So many tokens of a prompt are to be computed.
    pub(crate) fn prefills(&mut self, tenant: u64, tokens: u32) {
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.prompt = tokens.max(1);
        }
    }

    pub(crate) fn get(&self, tenant: u64) -> Option<&Account> {
        self.accounts.get(&tenant)
    }

    /// What a tenant was given, by weight.
    pub(crate) fn service(&self, tenant: u64) -> u64 {
        self.get(tenant)
            .map_or(self.floor, |account| account.service.max(self.floor))
    }

    pub(crate) fn weight(&self, tenant: u64) -> u64 {
        self.get(tenant).map_or(1, Account::weight)
    }

    /// Tenants that are present at a step.
    pub(crate) fn present(&self, step: u64) -> impl Iterator<Item = (u64, &Account)> + '_ {
        self.accounts
            .iter()
            .filter(move |(_, account)| account.is_present(step))
            .map(|(tenant, account)| (*tenant, account))
    }

    /// Whether more than one tenant is present at a step.
    pub(crate) fn are_contended(&self, step: u64) -> bool {
        self.accounts.len() > 1 && self.present(step).nth(1).is_some()
    }

    pub(crate) fn tokens(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.accounts
            .iter()
            .map(|(tenant, account)| (*tenant, account.tokens))
    }

    /// # Errors
    /// When it does not count these requests.
    pub(crate) fn check(&self, tenants: impl Iterator<Item = u64>) -> Result<(), String> {
        let mut requests: BTreeMap<u64, usize> = BTreeMap::new();
        for tenant in tenants {
            *requests.entry(tenant).or_default() += 1;
        }
        for (tenant, account) in &self.accounts {
            let found = requests.remove(tenant).unwrap_or(0);
            if found != account.requests {
                return Err(format!(
                    "tenant {tenant} has {found} requests, but {} are counted",
                    account.requests
                ));
            }
        }
        match requests.first_key_value() {
            Some((tenant, _)) => Err(format!("tenant {tenant} has no account")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
