//! Requests whose tokens a guest chooses (tiers 2 and 3).
//!
//! A row whose [`Draw`](crate::Draw) asks a guest yields no token, so its sequence has nothing to compute until the answer
//! brings one: no further rule keeps it out of the schedule. When all branches of a request have their outcomes
//! ([`gather`]), its [`Chooser`] is asked, once for all of them ([`ask`]); [`hear`] takes the answers.
//!
//! *Grace*: a step with rows of guests that are on time is collected before the next one is scheduled, and the answers get a
//! twentieth of a step. Whoever has answered by then is in the next step, whoever has not sits out until it has; others wait
//! no longer than that, and not at all for a module that missed it twice in a row.
//!
//! The branches of a request are a *group* (`group.rs`): they go on together, so they are preempted together.

mod answers;
mod apply;
mod grace;
pub(crate) mod group;
mod hear;
mod integrity;
mod rows;
mod search;
mod validate;

pub use answers::{AnswerQueue, Clock, SystemClock};
pub(crate) use hear::{hear, pause};
pub(crate) use integrity::check;

use crate::sequence::Sequence;
use crate::state::State;
use crate::{
    Branching, Chooser, Draw, Finished, Reply, Request, RequestId, SampleOutcome, SequenceId,
};
use grace::{Punctuality, grace};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What all requests with choosers share.
pub(crate) struct Guests {
    clock: Arc<dyn Clock>,
    answers: Arc<AnswerQueue>,
    /// One reference per request with a chooser, and this one.
    alive: Arc<()>,
    /// Who was asked and has not answered; may name requests that are gone.
    asked: BTreeMap<RequestId, Question>,
    /// Those of [`Guests::asked`] that the engine waits for, by when they are due.
    granted: BTreeSet<(Duration, RequestId)>,
    modules: Punctuality,
    /// Duration of the last step.
    last_step: Duration,
}

/// A question to a guest.
#[derive(Debug)]
struct Question {
    /// An answer until then is on time.
    due: Duration,
    wait: Wait,
}

/// Whether the engine waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Until it is due.
    Granted,
    /// No: the module is known to be late.
    Refused,
    /// No longer.
    Missed,
}

/// A request's guest, and how far they are.
pub(crate) struct Stepping {
    chooser: Box<dyn Chooser>,
    branching: Branching,
    /// Choices that the client wants.
    wanted: u32,
    /// Branches that go on, those not made yet included.
    live: u32,
    turn: Turn,
    /// Of a search.
    finished: Vec<search::Complete>,
    /// Number of the next fork.
    next_branch: u32,
    _alive: Arc<()>,
}

/// Whose turn it is.
#[derive(Debug)]
enum Turn {
    /// The device's.
    Compute,
    /// The guest's: it chooses for these branches, in the order of its rows.
    Choose(Vec<SequenceId>),
    /// The guest's: it picks from [`Stepping::finished`].
    Select,
}

/// What a sequence is to its request's guest.
#[derive(Debug)]
pub(crate) struct Branch {
    /// Unique within the request; the choice it continues, except in a search.
    number: u32,
    /// Index in the answer before of the choice that it continues; its number before the first answer.
    from: u32,
    row: BranchRow,
    /// What a search has chosen on the way here.
    history: Option<search::History>,
}

/// What the guest chooses a branch's next token from.
#[derive(Debug)]
enum BranchRow {
    /// Must be computed.
    Wanted,
    /// In a step in flight.
    Launched,
    /// Here. It stays until the answer, even if the sequence loses its place meanwhile.
    Here(SampleOutcome),
}

impl Branch {
    /// At the beginning of a request's choice.
    pub(crate) fn new(number: u32) -> Self {
        Self {
            number,
            from: number,
            row: BranchRow::Wanted,
            history: None,
        }
    }

    /// Whether a row is to be sampled for the guest.
    pub(crate) fn wants_row(&self) -> bool {
        matches!(self.row, BranchRow::Wanted)
    }

    pub(crate) fn launched(&mut self) {
        self.row = BranchRow::Launched;
    }
}

impl Guests {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            answers: Arc::new(AnswerQueue::new(Arc::clone(&clock))),
            clock,
            alive: Arc::default(),
            asked: BTreeMap::new(),
            granted: BTreeSet::new(),
            modules: Punctuality::default(),
            last_step: Duration::ZERO,
        }
    }

    fn put(&mut self, request: RequestId, question: Question) {
        self.answered(request);
        if question.wait == Wait::Granted {
            self.granted.insert((question.due, request));
        }
        self.asked.insert(request, question);
    }

    fn answered(&mut self, request: RequestId) -> Option<Question> {
        let question = self.asked.remove(&request)?;
        self.granted.remove(&(question.due, request));
        Some(question)
    }

    fn none(&self) -> bool {
        Arc::strong_count(&self.alive) == 1
    }

    /// For a request that generates something.
    pub(crate) fn stepping(
        &self,
        request: &Request,
        chooser: Option<Box<dyn Chooser>>,
    ) -> Option<Box<Stepping>> {
        let asked = request.sampling.draw.asked()?;
        let wanted = request.params.n;
        let live = request.branches();
        (request.params.max_tokens > 0).then_some(())?;
        Some(Box::new(Stepping {
            chooser: chooser?,
            branching: asked.branching,
            wanted,
            live,
            turn: Turn::Compute,
            finished: Vec::new(),
            next_branch: live,
            _alive: Arc::clone(&self.alive),
        }))
    }

    pub(crate) fn step_took(&mut self, took: Duration) {
        self.last_step = took;
    }
}

impl Request {
    /// Branches at its beginning.
    pub(crate) fn branches(&self) -> u32 {
        match self.sampling.draw.asked() {
            Some(asked) if asked.branching == Branching::Search && self.params.max_tokens > 0 => 1,
            _ => self.params.n,
        }
    }
}

impl std::fmt::Debug for Guests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guests")
            .field("asked", &self.asked)
            .field("modules", &self.modules)
            .finish_non_exhaustive()
    }
}

fn stepping(state: &State, request: RequestId) -> Option<&Stepping> {
    state.requests.get(&request)?.stepping.as_deref()
}

fn stepping_mut(state: &mut State, request: RequestId) -> Option<&mut Stepping> {
    state.requests.get_mut(&request)?.stepping.as_deref_mut()
}

/// Whether the oldest step in flight is to be collected before another is scheduled: the newest has rows of guests that the
/// engine waits for.
pub(crate) fn is_due(state: &State) -> bool {
    let guests = &state.guests;
    if guests.none() {
        return false;
    }
    let Some(newest) = state.in_flight.back() else {
        return false;
    };
    newest.samples.iter().any(|id| {
        state
            .sequences
            .get(id)
            .filter(|sequence| sequence.branch.is_some())
            .and_then(|sequence| stepping(state, sequence.request))
            .is_some_and(|stepping| guests.modules.has_grace(stepping.chooser.module()))
    })
}

/// Whether a sample's outcome is of the kind and shape that its sequence wants.
pub(crate) fn check_outcome(
    sequence: &Sequence,
    outcome: &SampleOutcome,
    vocab: u32,
) -> Result<(), String> {
    let expected = match (sequence.asks(), sequence.sampling.draw) {
        (true, Draw::Candidates(asked)) => Some(asked.candidates),
        (true, Draw::Row(_)) => None,
        _ => {
            return match outcome {
                SampleOutcome::Candidates(_) | SampleOutcome::Row(_) => {
                    Err("something to choose from where nobody chooses".to_owned())
                }
                _ => Ok(()),
            };
        }
    };
    match (outcome, expected) {
        (SampleOutcome::Refused(_) | SampleOutcome::Failed(_), _) => Ok(()),
        (SampleOutcome::Candidates(found), Some(most)) => {
            rows::check_candidates(found, most, vocab)
        }
        (SampleOutcome::Row(found), None) => rows::check_row(found, vocab),
        _ => Err("not what its guest chooses from".to_owned()),
    }
}

/// Keeps the outcome of a branch's row.
pub(crate) fn gather(state: &mut State, id: SequenceId, outcome: SampleOutcome) {
    if let Some(branch) = state
        .sequences
        .get_mut(&id)
        .and_then(|sequence| sequence.branch.as_mut())
    {
        branch.row = BranchRow::Here(outcome);
    }
}

/// Asks the guests of those requests of these samples all of whose branches have their rows.
pub(crate) fn ask(state: &mut State, samples: &[SequenceId]) {
    if state.guests.none() {
        return;
    }
    let of = |id| state.sequences.get(id).filter(|found| found.asks());
    let mut requests: Vec<RequestId> = samples.iter().filter_map(of).map(|s| s.request).collect();
    // Branches of a request are sampled one after the other, but for those that wait for blocks.
    requests.sort_unstable();
    requests.dedup();
    let ready: Vec<Ready<'_>> = requests
        .iter()
        .filter_map(|request| ready(state, *request))
        .collect();
    let rows = rows::all(&ready, state.limits.vocab());
    let asked = ready.into_iter().map(|ready| (ready.request, ready.ids));
    let questions: Vec<_> = asked.zip(rows).collect();
    for ((request, ids), rows) in questions {
        put_question(state, request, Turn::Choose(ids), |chooser, reply| {
            chooser.choose(rows, reply);
        });
    }
}

/// A request whose guest can be asked.
struct Ready<'a> {
    request: RequestId,
    /// In the order of its rows.
    ids: Vec<SequenceId>,
    rows: Vec<rows::Row<'a>>,
    /// Candidates of a row.
    candidates: u32,
}

/// A request all of whose branches have their rows, if it is the device's turn.
fn ready(state: &State, request: RequestId) -> Option<Ready<'_>> {
    let active = state.requests.get(&request)?;
    let stepping = active.stepping.as_ref()?;
    let mut found: Vec<&Sequence> = active
        .sequences
        .iter()
        .filter_map(|id| state.sequences.get(id))
        .filter(|sequence| sequence.is_live() && rows::outcome(sequence).is_some())
        .collect();
    if found.len() != stepping.live as usize || !matches!(stepping.turn, Turn::Compute) {
        return None;
    }
    found.sort_by_key(|sequence| sequence.branch.as_ref().map(|branch| branch.from));
    let asked = found.first()?.sampling.draw.asked();
    Some(Ready {
        request,
        ids: found.iter().map(|sequence| sequence.id).collect(),
        rows: found.into_iter().filter_map(rows::Row::of).collect(),
        candidates: asked.map_or(1, |asked| asked.candidates),
    })
}

fn ask_to_select(state: &mut State, request: RequestId, finished: Finished) {
    put_question(state, request, Turn::Select, |chooser, reply| {
        chooser.select(finished, reply);
    });
}

fn put_question(
    state: &mut State,
    request: RequestId,
    turn: Turn,
    put: impl FnOnce(&mut dyn Chooser, Reply),
) {
    let State {
        requests, guests, ..
    } = state;
    let Some(stepping) = requests
        .get_mut(&request)
        .and_then(|active| active.stepping.as_deref_mut())
    else {
        return;
    };
    stepping.turn = turn;
    let question = Question {
        due: guests.clock.now() + grace(guests.last_step),
        wait: if guests.modules.has_grace(stepping.chooser.module()) {
            Wait::Granted
        } else {
            Wait::Refused
        },
    };
    guests.put(request, question);
    state.stats.guest_calls += 1;
    let answers: Arc<AnswerQueue> = Arc::clone(&guests.answers);
    put(stepping.chooser.as_mut(), Reply::new(request, answers));
}
