//! Which sequences may advance in a step where several tenants are present, and by how much.
//!
//! A step takes about as long as its tokens and [`ExecutorInfo::step_overhead`](crate::ExecutorInfo::step_overhead) more. Where
//! some tenants want much less than others by their weights, they are *light*, and the others *heavy*: the heavy ones'
//! tokens, decodes and prefills alike, may make a step that light ones take part in longer by [`STRETCH`], and one that they
//! may have to wait for as long as [`WAIT`] of their first step. Heavy sequences that sit out are those that advanced last,
//! so each has its turn. Tenants that want about as much as each other share prefills by weight, and decode together.

use crate::SequenceId;
use crate::sequence::{Order, Sequence};
use crate::shares::Account;
use crate::state::State;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A tenant is light if the heaviest wants this many times as much, by weight.
const HEAVY: u64 = 4;

/// Parts of a token in which allowances are counted.
const PART: u64 = 100;

/// By how much heavy tenants may lengthen a light one's step, in parts of it: a quarter, of the three tenths that are promised,
/// as no device's steps are quite as long as their tokens say.
const STRETCH: u64 = 25;

/// How long their steps may be while a light tenant may come back, in parts of its first step. A newcomer waits for one and a
/// half on average, and its own is stretched: 1.5 × 0.3 + 1.25 of what it takes alone; 1.9 where a token of a long context takes
/// half as long again as one of a prompt.
const WAIT: u64 = 30;

/// Steps after which a heavy tenant goes on even if others were served less.
const PATIENCE: u64 = 8;

/// A sequence that may advance by at most so many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) id: SequenceId,
    pub(crate) most: u32,
}

/// In order.
#[derive(Debug, Default)]
pub(crate) struct Lineup {
    pub(crate) decodes: Vec<Turn>,
    pub(crate) prefills: Vec<Turn>,
    /// How many sit out.
    pub(crate) absent: usize,
}

/// What heavy tenants have left of what they were allowed.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    /// In [`PART`]s of a token. Less than nothing after branches that can only go together.
    parts: i64,
}

/// Who has something to compute; `first`, if it has, is not kept waiting.
pub(crate) fn lineup(state: &State, allowance: &mut Allowance, first: Option<Order>) -> Lineup {
    if !state.shares.are_contended(state.next_ticket.0) {
        return everyone(state);
    }
    let classes = Classes::of(state);
    let mut lineup = if classes.light.is_empty() {
        everyone(state)
    } else {
        let heavy = classes.chosen(state, allowance, first);
        line_up(state, |sequence| {
            if classes.light.contains(&sequence.order.tenant) {
                Some(u32::MAX)
            } else {
                heavy.get(&sequence.id).copied()
            }
        })
    };
    if !state.limits.whole_prompt() {
        share_prefills(state, &mut lineup);
    }
    lineup
}

/// All that have something to compute.
pub(crate) fn everyone(state: &State) -> Lineup {
    line_up(state, |_| Some(u32::MAX))
}

fn line_up(state: &State, most: impl Fn(&Sequence) -> Option<u32>) -> Lineup {
    let sequences = state
        .running
        .values()
        .filter_map(|id| state.sequences.get(id))
        .filter(|sequence| sequence.remaining() > 0);
    let mut lineup = Lineup::default();
    for sequence in sequences {
        let Some(most) = most(sequence) else {
            lineup.absent += 1;
            continue;
        };
        let turn = Turn {
            id: sequence.id,
            most,
        };
        if sequence.decodes() {
            lineup.decodes.push(turn);
        } else {
            lineup.prefills.push(turn);
        }
    }
    lineup
}

/// The tenants that are present.
struct Classes {
    light: BTreeSet<u64>,
    /// Sums of their weights.
    light_weight: u64,
    heavy_weight: u64,
}

impl Classes {
    fn of(state: &State) -> Self {
        let step = state.next_ticket.0;
        // One that may come back wants a sequence.
        let wants = |tenant: u64, account: &Account| {
            let sequences = state.running.count(tenant) + state.waiting.count(tenant);
            account.cost(sequences.max(1) as u64)
        };
        let present = || state.shares.present(step);
        let most = present()
            .map(|(tenant, account)| wants(tenant, account))
            .max()
            .unwrap_or(0);
        let mut classes = Self {
            light: BTreeSet::new(),
            light_weight: 0,
            heavy_weight: 0,
        };
        for (tenant, account) in present() {
            if wants(tenant, account).saturating_mul(HEAVY) <= most {
                classes.light.insert(tenant);
                classes.light_weight += account.weight();
            } else {
                classes.heavy_weight += account.weight();
            }
        }
        classes
    }

    /// Parts of tokens that heavy tenants may compute in the next step.
    fn allowed(&self, state: &State) -> u64 {
        let overhead = u64::from(state.limits.step_overhead());
        let stretched = |tokens: u64| {
            let parts = (overhead + tokens) * STRETCH;
            // Where the heavy ones have the greater weight, they get that part.
            parts.max(parts / self.light_weight.max(1) * self.heavy_weight)
        };
        let most = u64::from(state.limits.max_step_tokens());
        let light = self.light.iter();
        let running = light
            .clone()
            .flat_map(|&tenant| state.running.of(tenant))
            .filter_map(|(_, id)| state.sequences.get(id));
        // Those whose guests choose take part in most steps.
        let tokens: u64 = running.map(|own| u64::from(own.remaining().max(1))).sum();
        if tokens > 0 {
            return stretched(tokens.min(most));
        }
        let first = light
            .filter_map(|&tenant| state.shares.get(tenant))
            .map(|account| {
                let first = overhead + u64::from(account.prompt).min(most);
                (first * WAIT).saturating_sub(overhead * PART)
            });
        first.min().unwrap_or(u64::MAX).max(stretched(1))
    }

    /// Who of the heavy tenants advances, by at most so many tokens.
    fn chosen(
        &self,
        state: &State,
        allowance: &mut Allowance,
        first: Option<Order>,
    ) -> HashMap<SequenceId, u32> {
        let allowed = i64::try_from(self.allowed(state)).unwrap_or(i64::MAX);
        let token = PART as i64;
        // What was not used is kept only up to one token: steps are not to be of uneven length.
        allowance.parts = allowance
            .parts
            .saturating_add(allowed)
            .min(allowed.max(token));
        if state.in_flight.is_empty() && !self.light_advances(state) {
            allowance.parts = allowance.parts.max(token);
        }
        let mut units = Units::of(state, &self.light, first);
        let mut chosen = HashMap::new();
        while let Some(unit) = units.next(allowance.parts >= token) {
            let left = u32::try_from(allowance.parts / token).unwrap_or(0).max(1);
            for &(id, remaining) in &unit {
                let most = if state.limits.whole_prompt() {
                    remaining
                } else {
                    remaining.min(left)
                };
                allowance.parts -= i64::from(most) * token;
                chosen.insert(id, most);
            }
        }
        chosen
    }

    fn light_advances(&self, state: &State) -> bool {
        self.light
            .iter()
            .flat_map(|&tenant| state.running.of(tenant))
            .filter_map(|(_, id)| state.sequences.get(id))
            .any(|own| own.remaining() > 0)
    }
}

/// Sequences that advance together, each with what it has to compute.
type Unit = Vec<(SequenceId, u32)>;

/// What heavy tenants have to compute.
struct Units {
    step: u64,
    first: Option<Unit>,
    tenants: Vec<Tenant>,
}

struct Tenant {
    /// With what it was given in this step.
    service: u64,
    /// Of a token.
    cost: u64,
    /// As [`Account::advanced`].
    advanced: u64,
    /// Those that advanced last come first, so that the next one is the last.
    units: Vec<Unit>,
}

impl Units {
    fn of(state: &State, light: &BTreeSet<u64>, first: Option<Order>) -> Self {
        let heavy = state.running.tenants().map(|(tenant, _)| tenant);
        let mut found = Self {
            step: state.next_ticket.0,
            first: None,
            tenants: Vec::new(),
        };
        for tenant in heavy.filter(|tenant| !light.contains(tenant)) {
            let Some(account) = state.shares.get(tenant) else {
                continue;
            };
            // Branches of one request that a guest chooses for are one unit.
            let mut groups: BTreeMap<_, Unit> = BTreeMap::new();
            for (order, id) in state.running.of(tenant) {
                let Some(own) = state.sequences.get(id).filter(|own| own.remaining() > 0) else {
                    continue;
                };
                let choice = if own.asks() { 0 } else { order.choice };
                let key = Order { choice, ..*order };
                let unit = groups.entry(key).or_default();
                unit.push((*id, own.remaining()));
            }
            let first = first.and_then(|first| {
                let holds = |unit: &Unit| {
                    let mut orders = unit.iter().filter_map(|(id, _)| state.sequences.get(id));
                    orders.any(|own| own.order == first)
                };
                let key = groups
                    .iter()
                    .find(|(_, unit)| holds(unit))
                    .map(|(key, _)| *key);
                groups.remove(&key?)
            });
            found.first = found.first.or(first);
            let mut units: Vec<_> = groups.into_iter().collect();
            units.sort_by_cached_key(|(order, unit)| {
                let advanced = unit
                    .iter()
                    .filter_map(|(id, _)| state.sequences.get(id))
                    .map(|own| own.advanced)
                    .max();
                std::cmp::Reverse((advanced, *order))
            });
            found.tenants.push(Tenant {
                service: state.shares.service(tenant),
                cost: account.cost(1),
                advanced: account.advanced,
                units: units.into_iter().map(|(_, unit)| unit).collect(),
            });
        }
        found
    }

    /// Of the tenant that was served least, or has been passed over for long, what has waited longest; without an allowance, only who must not wait.
    fn next(&mut self, is_allowed: bool) -> Option<Unit> {
        if self.first.is_some() {
            return self.first.take();
        }
        if !is_allowed {
            return None;
        }
        let step = self.step;
        let rank = |tenant: &&mut Tenant| {
            let is_late = step.saturating_sub(tenant.advanced) >= PATIENCE;
            let late = if is_late { tenant.advanced } else { u64::MAX };
            (late, tenant.service)
        };
        let tenants = self.tenants.iter_mut();
        let tenant = tenants
            .filter(|tenant| !tenant.units.is_empty())
            .min_by_key(rank)?;
        tenant.advanced = step;
        let unit = tenant.units.pop()?;
        let tokens: u64 = unit
            .iter()
            .map(|(_, remaining)| u64::from(*remaining))
            .sum();
        tenant.service = tenant
            .service
            .saturating_add(tenant.cost.saturating_mul(tokens));
        Some(unit)
    }
}

/// Divides the tokens that decodes leave among the tenants with prefills.
fn share_prefills(state: &State, lineup: &mut Lineup) {
    let remaining = |turn: &Turn| {
        let sequence = state.sequences.get(&turn.id);
        sequence.map_or(0, |own| own.remaining().min(turn.most))
    };
    let tenant = |turn: &Turn| state.sequences.get(&turn.id).map(|own| own.order.tenant);
    let mut demands: BTreeMap<Option<u64>, u64> = BTreeMap::new();
    for turn in &lineup.prefills {
        *demands.entry(tenant(turn)).or_default() += u64::from(remaining(turn));
    }
    if demands.len() < 2 {
        return;
    }
    let decodes = lineup.decodes.len() as u64;
    let budget = u64::from(state.limits.max_step_tokens()).saturating_sub(decodes);
    let claims: Vec<_> = demands
        .iter()
        .map(|(tenant, demand)| Claim {
            weight: tenant.map_or(1, |tenant| state.shares.weight(tenant)),
            demand: *demand,
            service: tenant.map_or(0, |tenant| state.shares.service(tenant)),
        })
        .collect();
    let mut left: BTreeMap<_, _> = demands.into_keys().zip(divide(budget, &claims)).collect();
    for turn in &mut lineup.prefills {
        let wanted = remaining(turn);
        let left = left.entry(tenant(turn)).or_default();
        turn.most = u32::try_from(*left).unwrap_or(u32::MAX).min(wanted);
        *left -= u64::from(turn.most);
    }
    let all = lineup.prefills.len();
    lineup.prefills.retain(|turn| turn.most > 0);
    lineup.absent += all - lineup.prefills.len();
}

/// What one tenant wants of a budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) weight: u64,
    pub(crate) demand: u64,
    /// Who has less gets what cannot be divided.
    pub(crate) service: u64,
}

/// Divides a budget by weight; what some do not want goes to the others (max-min fairness). Nobody gets more than it wants,
/// and nothing is left while anyone wants more.
pub(crate) fn divide(budget: u64, claims: &[Claim]) -> Vec<u64> {
    let mut parts = vec![0; claims.len()];
    // By demand per weight: once a share covers one, it covers all before.
    let mut order: Vec<usize> = (0..claims.len()).collect();
    order.sort_by(|&a, &b| {
        let (a, b) = (&claims[a], &claims[b]);
        let per_weight =
            |own: &Claim, other: &Claim| u128::from(own.demand) * u128::from(other.weight);
        per_weight(a, b).cmp(&per_weight(b, a))
    });
    let mut weights: u64 = claims.iter().map(|claim| claim.weight).sum();
    let mut left = budget;
    let share = |left: u64, weight: u64, weights: u64| {
        let share = u128::from(left) * u128::from(weight) / u128::from(weights.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    };
    let covered = order.iter().take_while(|&&index| {
        let claim = &claims[index];
        let is_covered = claim.demand <= share(left, claim.weight, weights);
        if is_covered {
            parts[index] = claim.demand;
            left -= claim.demand;
            weights -= claim.weight;
        }
        is_covered
    });
    let covered = covered.count();
    let mut others = order.split_off(covered);
    let divided = left;
    for &index in &others {
        parts[index] = share(divided, claims[index].weight, weights);
        left -= parts[index];
    }
    // Fewer than there are others: each wants more than its share.
    others.sort_by_key(|&index| claims[index].service);
    for &index in others.iter().take(left as usize) {
        parts[index] += 1;
    }
    parts
}

#[cfg(test)]
mod tests;
