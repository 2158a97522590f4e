//! Drafts: tokens guessed from a sequence's own n-grams and verified in one step.
//!
//! A row computes the last known token and the drafts after it, and samples at each of their positions. A draw depends on
//! the sequence, the position and the tokens before it alone: so what is sampled at a position counts as long as every draft
//! before it is what was sampled there, and what is generated is what would be generated without drafts. (For a draft that
//! is one certain token, this is the rejection sampling of Leviathan et al. 2023.)

pub(crate) mod lookup;

use crate::collect::{self, Standing};
use crate::constrain::is_mirostat;
use crate::limits::Limits;
use crate::sequence::{Phase, Sequence};
use crate::state::State;
use crate::{GroupKind, Request, SequenceId, TokenId};
use lookup::{Index, Lengths};
use std::collections::VecDeque;

/// Rows in a row without an accepted draft after which a sequence rests.
const PATIENCE: u32 = 4;

/// Tokens that a sequence then generates without looking for drafts.
const REST: u32 = 16;

/// Whether a sequence's last token is waited for before its next row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// No: its steps are two deep, and what is known of it, all but one token, is looked up.
    Watching,
    /// Yes: something was found, or drafts were accepted.
    Drafting,
}

/// What a sequence that may draft remembers.
#[derive(Debug)]
pub(crate) struct Speculation {
    /// Most drafts of a row.
    most: u32,
    lengths: Lengths,
    index: Index,
    mode: Mode,
    /// Rows in a row without an accepted draft.
    misses: u32,
    /// Length from which it looks for drafts.
    rests_until: u32,
    /// Drafts of its next row.
    guess: Vec<TokenId>,
    /// How many its last row had.
    drafted: u32,
    /// Drafts of its row in flight whose samples are not collected yet.
    flight: Option<VecDeque<TokenId>>,
}

impl Speculation {
    /// None where a request wants no drafts or they cannot be taken back: recurrent state and mirostat's bound are those after
    /// all tokens, and a grammar or a guest that chooses goes token by token.
    pub(crate) fn of(request: &Request, limits: &Limits, lengths: Lengths) -> Option<Self> {
        let recurrent = |kind| kind == GroupKind::Recurrent;
        let plan = &request.sampling;
        let is_fit = request.params.drafts > 0
            && plan.draw.asked().is_none()
            && !plan.stages.iter().any(is_mirostat)
            && !limits
                .layout()
                .groups()
                .any(|(_, info)| recurrent(info.kind));
        is_fit.then(|| Self::new(request.params.drafts, lengths))
    }

    fn new(most: u32, lengths: Lengths) -> Self {
        Self {
            most,
            lengths,
            index: Index::new(lengths),
            mode: Mode::Watching,
            misses: 0,
            rests_until: 0,
            guess: Vec::new(),
            drafted: 0,
            flight: None,
        }
    }

    /// For another sequence of the request.
    pub(crate) fn fork(&self) -> Self {
        Self::new(self.most, self.lengths)
    }

    /// Whether drafts are in flight.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.flight.is_some()
    }

    /// None of a row's drafts was accepted.
    fn missed(&mut self, len: u32) {
        self.mode = Mode::Watching;
        self.misses += 1;
        if self.misses >= PATIENCE {
            // One more miss after the rest is enough.
            self.misses = PATIENCE - 1;
            self.rests_until = len + REST;
        }
    }
}

/// Whether the steps in flight sample tokens that must be known before the next step is scheduled.
pub(crate) fn is_due(state: &State) -> bool {
    let drafts = |sequence: &Sequence| {
        let speculation = sequence.speculation.as_ref();
        sequence.is_live() && speculation.is_some_and(|own| own.mode == Mode::Drafting)
    };
    let samples = state.in_flight.iter().flat_map(|step| &step.samples);
    samples.filter_map(|id| state.sequences.get(id)).any(drafts)
}

/// Guesses what follows a running sequence, at most `room` tokens; how many it found. Its blocks are not reserved yet.
pub(crate) fn guess(state: &mut State, id: SequenceId, room: u32) -> u32 {
    let rules = state.limits.lengths();
    let Some(sequence) = state.sequences.get_mut(&id) else {
        return 0;
    };
    let ready = sequence.phase == Phase::Running && sequence.decodes() && sequence.remaining() == 1;
    let (len, limit) = (sequence.len(), sequence.limit);
    let Some(speculation) = &mut sequence.speculation else {
        return 0;
    };
    speculation.guess.clear();
    if !ready || len < speculation.rests_until {
        return 0;
    }
    if sequence.unknown > 0 {
        if !speculation.index.guess(&sequence.tokens, 1).is_empty() {
            speculation.mode = Mode::Drafting;
        }
        return 0;
    }
    // A token must be left to sample, and no row may reach over a length at which all values change.
    let below = rules.anew_above.get(sequence.passed);
    let most = speculation
        .most
        .min(room)
        .min(limit.saturating_sub(len + 1))
        .min(below.map_or(u32::MAX, |below| below.saturating_sub(len)));
    speculation.guess = speculation.index.guess(&sequence.tokens, most as usize);
    speculation.mode = if speculation.guess.is_empty() {
        Mode::Watching
    } else {
        Mode::Drafting
    };
    speculation.guess.len() as u32
}

/// The drafts of a row of `len` tokens that is launched now: those that fit behind the tokens that are known.
pub(crate) fn launch(sequence: &mut Sequence, len: u32) -> Vec<TokenId> {
    let drafts = (sequence.computed + len).saturating_sub(sequence.len());
    let Some(speculation) = sequence.speculation.as_mut().filter(|_| drafts > 0) else {
        return Vec::new();
    };
    let mut guess = std::mem::take(&mut speculation.guess);
    guess.truncate(drafts as usize);
    speculation.drafted = guess.len() as u32;
    speculation.flight = Some(guess.iter().copied().collect());
    guess
}

/// Compares what was sampled at a position, and appended, with the draft for it. From the first difference on, or when the
/// sequence ended, the samples that are left are void.
pub(crate) fn verify(state: &mut State, id: SequenceId, token: TokenId, standing: Standing) {
    let Some(sequence) = state.sequences.get_mut(&id) else {
        return;
    };
    let len = sequence.tokens.len() as u32;
    let Some(speculation) = &mut sequence.speculation else {
        return;
    };
    let Some(flight) = &mut speculation.flight else {
        return;
    };
    let draft = flight.pop_front();
    let is_accepted = draft == Some(token);
    if is_accepted {
        state.stats.accepted_tokens += 1;
        speculation.misses = 0;
    }
    if is_accepted && standing == Standing::Runs {
        // The row computed the draft's position too.
        collect::publish(state, id, len);
        return;
    }
    let left = flight.len() as u32 + u32::from(draft.is_some());
    speculation.flight = None;
    if left == speculation.drafted {
        speculation.missed(len);
    }
    sequence.unknown -= left;
    sequence.void += left;
    sequence.computed = len - 1;
    if let Some(place) = &mut sequence.place {
        place.history = place.history.min(Some(len - 1));
    }
}
