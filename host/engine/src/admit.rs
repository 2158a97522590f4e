//! Gives places to waiting sequences, in order.

use crate::fair;
use crate::prefix_cache::{Hit, by_length, extend_keys};
use crate::sequence::{Order, Phase, Place, PromptScores, Sequence, Table};
use crate::state::State;
use crate::stepping::group::{self, Share};
use crate::{Event, GroupInfo, GroupKind, SequenceId, preempt, quota};

/// Who may be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Everyone,
    /// The rest of groups that run in part, before this in order: nobody else can go on before they do.
    PartsBefore(Order),
}

/// Admits from the head of the queue while slots and blocks suffice.
///
/// A sequence is admitted when the blocks of its known tokens are available beyond those that running sequences still
/// need for theirs; or unconditionally when nothing else runs. Branches of a group are admitted together.
pub(crate) fn admit(state: &mut State, admission: Admission) {
    quota::settle(state);
    let next = |state: &State| match admission {
        Admission::Everyone => fair::head(state),
        Admission::PartsBefore(end) => fair::part_before(state, end),
    };
    while let Some((order, id)) = next(state) {
        match find_room(state, id) {
            Room::There(hit) => {
                fair::begin(state, id);
                place(state, id, hit);
            }
            Room::Later => return,
            Room::Lacking => {
                let victim =
                    group::makes_room(state, id, order).or_else(|| fair::yields(state, order));
                if let Some(victim) = victim {
                    preempt::preempt(state, victim);
                }
                return;
            }
        }
    }
}

/// Whether a sequence can be admitted.
enum Room {
    /// With these blocks, and room for the rest.
    There(Hit),
    /// Slots or blocks are missing.
    Lacking,
    /// When others of its group are further.
    Later,
}

fn find_room(state: &mut State, id: SequenceId) -> Room {
    if group::is_settling(state, id) {
        return Room::Later;
    }
    if !has_slots(state, id) {
        return Room::Lacking;
    }
    let Some(hit) = find_hit(state, id) else {
        return Room::Lacking;
    };
    let hit = match group::share(state, id, hit.tokens) {
        Share::None => hit,
        Share::Later => return Room::Later,
        Share::Now(shared) => shared,
    };
    if group::is_alone(state, id) || has_blocks(state, id, &hit) {
        Room::There(hit)
    } else {
        Room::Lacking
    }
}

/// Whether one sequence more may run at once.
pub(crate) fn has_free_place(state: &State) -> bool {
    has_free_places(state, 1)
}

fn has_free_places(state: &State, wanted: usize) -> bool {
    let reserved: usize = places(state).map(|(_, place)| place.reserved.len()).sum();
    wanted <= state.free_slots.len()
        && state.running.len() + reserved + wanted <= state.limits.max_running() as usize
}

/// For all of a group that wait.
fn has_slots(state: &State, id: SequenceId) -> bool {
    has_free_places(
        state,
        slots_of_group(state, id) + fair::kept_free(state, id),
    )
}

/// For a sequence that waits and all of its group that do.
pub(crate) fn slots_of_group(state: &State, id: SequenceId) -> usize {
    let waiting = group::waiting(state, id);
    waiting.into_iter().map(slots_wanted).sum()
}

/// Its own, and one per fork (none fork where nothing is generated).
fn slots_wanted(sequence: &Sequence) -> usize {
    if sequence.limit == sequence.prompt_len {
        1
    } else {
        1 + sequence.forks.len()
    }
}

fn find_hit(state: &mut State, id: SequenceId) -> Option<Hit> {
    let sequence = state.sequences.get_mut(&id)?;
    let layout = state.limits.layout();
    let rules = state.limits.lengths();
    let passed = rules.passed(sequence.tokens.len() as u32);
    for above in rules.anew_above[..passed].iter().skip(sequence.passed) {
        sequence.salt = by_length(&sequence.salt, *above);
        sequence.keys.clear();
    }
    sequence.passed = passed;
    if state.cache.is_enabled() {
        extend_keys(
            &mut sequence.keys,
            &sequence.salt,
            &sequence.tokens,
            layout.block_size(),
            usize::MAX,
        );
    }
    // Log-probabilities of prompt tokens exist only where they are computed.
    let keys = match sequence.scores {
        PromptScores::Done => sequence.keys.as_slice(),
        PromptScores::Gathering { .. } => &[],
    };
    Some(
        state
            .cache
            .lookup(layout, &state.pool, keys, sequence.tokens.len() as u32),
    )
}

fn has_blocks(state: &State, id: SequenceId, hit: &Hit) -> bool {
    state.limits.layout().groups().all(|(group, info)| {
        let owned = |tables: &[Table]| tables.get(group.0 as usize).map_or(0, Table::held);
        let promised: usize = places(state)
            .map(|(sequence, place)| {
                blocks_wanted(state, sequence, info).saturating_sub(owned(&place.tables))
            })
            .sum();
        // The first of a group brings the others.
        let all: usize = group::arriving(state, id)
            .into_iter()
            .map(|(sequence, shared)| {
                let shared = match info.kind {
                    GroupKind::Full => state.limits.layout().complete(info, shared),
                    GroupKind::Window { .. } | GroupKind::Recurrent => 0,
                };
                blocks_wanted(state, sequence, info).saturating_sub(shared)
            })
            .sum();
        let wanted = all.saturating_sub(owned(&hit.tables));
        promised + wanted <= state.pool.available(group) as usize
    })
}

/// Blocks of one group that a sequence holds when its known tokens and the next are computed.
pub(crate) fn blocks_wanted(state: &State, sequence: &Sequence, info: GroupInfo) -> usize {
    let chunk = state.limits.max_step_tokens();
    state
        .limits
        .layout()
        .least_blocks(info, sequence.len() + 1, chunk) as usize
}

fn places(state: &State) -> impl Iterator<Item = (&Sequence, &Place)> {
    let running = state
        .running
        .values()
        .filter_map(|id| state.sequences.get(id));
    running.filter_map(|sequence| sequence.place.as_ref().map(|place| (sequence, place)))
}

fn place(state: &mut State, id: SequenceId, hit: Hit) {
    let Some(sequence) = state.sequences.get_mut(&id) else {
        return;
    };
    let wanted = slots_wanted(sequence);
    let mut slots = state.free_slots.split_off(state.free_slots.len() - wanted);
    let Some(slot) = slots.pop() else { return };
    state.waiting.remove(&sequence.order);
    if sequence.preempted {
        state.requeued -= 1;
    }
    state.running.insert(sequence.order, id);
    sequence.phase = Phase::Running;
    sequence.advanced = state.next_ticket.0;
    sequence.computed = hit.tokens;
    sequence.published = (hit.tokens / state.limits.layout().block_size()) as usize;
    sequence.place = Some(Place {
        slot,
        reserved: slots,
        tables: hit.tables,
        history: None,
    });
    let (request, prompt_tokens) = (sequence.request, sequence.prompt_len);
    let tenant = sequence.order.tenant;
    let looked_up = state.cache.is_enabled() && matches!(sequence.scores, PromptScores::Done);
    if let Some(active) = state.requests.get_mut(&request)
        && !active.started
    {
        active.started = true;
        let fresh = prompt_tokens.saturating_sub(hit.tokens);
        state.shares.prefills(tenant, fresh);
        state.stats.prompt_tokens += u64::from(prompt_tokens);
        if looked_up {
            state.stats.prefix_cache_queries += u64::from(prompt_tokens);
            state.stats.prefix_cache_hits += u64::from(hit.tokens);
        }
        state.emit(
            request,
            Event::Started {
                prompt_tokens,
                cached_tokens: hit.tokens,
            },
        );
    }
}
