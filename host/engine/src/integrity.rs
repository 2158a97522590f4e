//! Proves that blocks, slots and sequences agree.

use crate::block_pool::BlockHandle;
use crate::sequence::{Phase, Sequence};
use crate::state::State;
use crate::stepping;
use crate::{EngineError, Slot};

/// # Errors
/// What disagrees.
pub(crate) fn check(state: &State) -> Result<(), EngineError> {
    let check = || {
        state.pool.check_integrity()?;
        check_references(state)?;
        check_slots(state)?;
        state
            .sequences
            .values()
            .try_for_each(|sequence| check_sequence(state, sequence))?;
        check_queues(state)?;
        stepping::check(state)
    };
    check().map_err(EngineError::Integrity)
}

/// Every reference to a block is in a table or held by a step in flight.
fn check_references(state: &State) -> Result<(), String> {
    for (group, _) in state.limits.layout().groups() {
        let mut references = vec![0u32; state.pool.references(group).len()];
        let tables = state
            .sequences
            .values()
            .filter_map(|sequence| sequence.place.as_ref());
        let blocks = tables.flat_map(|place| place.tables[group.0 as usize].blocks());
        blocks.for_each(|block: &BlockHandle| references[block.id().0 as usize] += 1);
        let counted = state.pool.references(group);
        let held: usize = state.in_flight.iter().map(|step| step.held.len()).sum();
        let excess: usize = counted
            .iter()
            .zip(&references)
            .map(|(all, own)| all.saturating_sub(*own) as usize)
            .sum();
        if excess > held || counted.iter().zip(&references).any(|(all, own)| all < own) {
            return Err(format!(
                "{excess} references of group {} are in no table, but {held} are held",
                group.0
            ));
        }
    }
    Ok(())
}

/// Every slot is free or belongs to one sequence.
fn check_slots(state: &State) -> Result<(), String> {
    let places = state
        .sequences
        .values()
        .filter_map(|sequence| sequence.place.as_ref());
    let mut slots: Vec<Slot> = places
        .flat_map(|place| place.reserved.iter().copied().chain([place.slot]))
        .collect();
    slots.extend(&state.free_slots);
    slots.sort_unstable();
    if slots
        .iter()
        .enumerate()
        .any(|(index, slot)| slot.0 as usize != index)
    {
        return Err(format!("slots {slots:?} are not each there once"));
    }
    Ok(())
}

fn check_sequence(state: &State, sequence: &Sequence) -> Result<(), String> {
    let id = sequence.id.0;
    let fault = |what: &str| Err(format!("sequence {id}: {what}"));
    let in_flight = state.in_flight.iter().map(|step| {
        step.rows
            .iter()
            .filter(|row| row.sequence == sequence.id)
            .count()
            + step
                .samples
                .iter()
                .filter(|&&sample| sample == sequence.id)
                .count()
    });
    if in_flight.sum::<usize>() != sequence.in_flight as usize {
        return fault("steps in flight are miscounted");
    }
    let speculation = sequence.speculation.as_ref();
    if sequence.in_flight == 0 && speculation.is_some_and(|own| own.is_in_flight()) {
        return fault("drafts of a step that is collected are left");
    }
    if sequence.in_flight == 0 && sequence.void > 0 {
        return fault("samples that do not count are left");
    }
    if sequence.computed > sequence.len() {
        return fault("more positions are computed than there are tokens");
    }
    let queued = state.waiting.get(&sequence.order) == Some(&sequence.id);
    let scheduled = state.running.get(&sequence.order) == Some(&sequence.id);
    if (queued, scheduled)
        != (
            sequence.phase == Phase::Waiting,
            sequence.phase == Phase::Running,
        )
    {
        return fault("its phase and the queues disagree");
    }
    if sequence.place.is_some() != (sequence.phase != Phase::Waiting)
        && sequence.phase != Phase::Ending
    {
        return fault("its phase and its place disagree");
    }
    let layout = state.limits.layout();
    for ((_, info), table) in layout
        .groups()
        .zip(sequence.place.iter().flat_map(|place| &place.tables))
    {
        if table.announced > table.len() || table.len() < layout.entries(info, sequence.computed) {
            return fault("a block table is too short");
        }
        let visible = layout
            .first_visible(info, sequence.computed)
            .min(table.len());
        if table.blocks().count() != table.held() || table.held() < table.len() - visible {
            return fault("a block it still sees is gone");
        }
    }
    Ok(())
}

fn check_queues(state: &State) -> Result<(), String> {
    let requeued = state
        .waiting
        .values()
        .filter(|id| state.sequences.get(id).is_some_and(|found| found.preempted));
    if requeued.count() != state.requeued {
        return Err("preempted sequences in the queue are miscounted".to_owned());
    }
    state.waiting.check()?;
    state.running.check()?;
    let tenants = state.requests.values().map(|active| active.tenant);
    state.shares.check(tenants)?;
    if state.waiting.len() + state.running.len() > state.sequences.len() {
        return Err("a queue names a sequence that is gone".to_owned());
    }
    let left = state.requests.values();
    let left = left.filter(|active| active.stepping.is_none()).count();
    if state.has_no_sequences() && (state.pool.used() > 0 || left > 0) {
        return Err(format!(
            "idle, but {} blocks and {left} requests are left",
            state.pool.used()
        ));
    }
    Ok(())
}
