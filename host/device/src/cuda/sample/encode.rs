//! Draws as the kernel reads them: `Draw` and `Op` of `kernels/sample/draw.cu`.

use bytemuck::{Pod, Zeroable};
use guesthouse_engine::{Draw as DrawKind, Hidden, LogprobsMode, Stage, TokenId};

use crate::cpu::sample::mirostat::Mirostat;
use crate::cpu::sample::refusal::{TWO_MIROSTATS, refusal};
use crate::cpu::sample::watermark::Green;
use crate::cpu::sample::{
    MOST_CANDIDATES, NO_HIDDEN, TOO_MANY_ROWS, guest_uniform, position_of, stage_name, xtc_applies,
};
use crate::device::{Draw, Score};

#[cfg(test)]
mod tests;

/// `Kind` of the kernel.
mod kind {
    pub(super) const GREEDY: u32 = 0;
    pub(super) const SAMPLE: u32 = 1;
    pub(super) const TARGET: u32 = 2;
    pub(super) const CANDIDATES: u32 = 3;
    pub(super) const ROW: u32 = 4;
}

/// `Report` of the kernel.
mod report {
    pub(super) const RAW: u32 = 0;
    pub(super) const PROCESSED: u32 = 1;
}

/// Most whole rows of one step: each takes two vocabularies of page-locked memory, in every step under way.
const MOST_ROWS: u32 = 64;

/// `Code` of the kernel.
mod code {
    pub(super) const ALLOW: u32 = 0;
    pub(super) const BAN: u32 = 1;
    pub(super) const BIAS: u32 = 2;
    pub(super) const PENALTIES: u32 = 3;
    pub(super) const TEMPERATURE: u32 = 4;
    pub(super) const TOP_K: u32 = 5;
    pub(super) const TOP_P: u32 = 6;
    pub(super) const MIN_P: u32 = 7;
    pub(super) const TYPICAL_P: u32 = 8;
    pub(super) const DYNAMIC: u32 = 9;
    pub(super) const SIGMA: u32 = 10;
    pub(super) const EPSILON: u32 = 11;
    pub(super) const ETA: u32 = 12;
    pub(super) const TAIL_FREE: u32 = 13;
    pub(super) const XTC: u32 = 14;
    pub(super) const MIROSTAT1: u32 = 15;
    pub(super) const MIROSTAT2: u32 = 16;
    pub(super) const WATERMARK: u32 = 17;
}

/// `Draw` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub(super) struct DrawWords {
    /// Row of the logits.
    pub row: i32,
    pub kind: u32,
    pub seed_low: u32,
    pub seed_high: u32,
    pub lineage: u32,
    pub position: u32,
    /// Offset in words.
    pub ops: u32,
    pub op_count: u32,
    /// Offset in words; -1 is none.
    pub mask: i32,
    pub top: u32,
    /// First pair.
    pub top_at: u32,
    pub target: i32,
    pub unused: [u32; 4],
    pub report: u32,
    pub candidates: u32,
    /// First candidate.
    pub list_at: u32,
    /// Offsets in floats.
    pub row_at: u32,
    pub raw_at: u32,
    /// -1 is none.
    pub hidden_at: i32,
    pub hidden_row: i32,
    pub padding: u32,
}

/// What a guest is handed, and where the kernel leaves it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Hand {
    /// Nothing: a token is drawn.
    Token,
    /// Candidates from this one on.
    Candidates { list_at: u32, about: About },
    /// Offsets of the row, and of the raw one where it may differ.
    Row {
        row_at: u32,
        raw_at: Option<u32>,
        about: About,
    },
}

/// What comes with candidates and rows alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct About {
    pub uniform: f32,
    pub hidden_at: Option<u32>,
}

/// The rows that draws are made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Widths {
    /// Elements of a row of logits.
    pub vocab: u32,
    /// Elements of a hidden state; 0 where the model has none.
    pub hidden: u32,
}

/// What the host keeps of a draw until its result is there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Note {
    /// Best tokens to report, at most the vocabulary.
    pub top: u32,
    pub top_at: u32,
    /// Its stages' names: a range of [`Notes::stages`].
    pub stages: (u32, u32),
    /// The first temperature that is not usable.
    pub bad_temperature: f32,
    /// Why a stage, and all after it, were left out: an index into [`Notes::refusals`].
    pub refused: Option<u32>,
    /// State of its mirostat stage before the token.
    pub mirostat: Option<Mirostat>,
    pub hand: Hand,
}

impl Note {
    /// Whether its result is a list or a row.
    pub(super) fn is_list(&self) -> bool {
        !matches!(self.hand, Hand::Token)
    }
}

/// Notes of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Notes {
    pub draws: Vec<Note>,
    pub stages: Vec<&'static str>,
    pub refusals: Vec<String>,
    /// Pairs of best tokens over all draws.
    pub tops: u32,
}

/// One step's draws. Kept from step to step, so that nothing is allocated.
#[derive(Default)]
pub(super) struct Encoder {
    pub draws: Vec<DrawWords>,
    /// Ops, lists and masks.
    pub pool: Vec<u32>,
    pub notes: Notes,
    /// Pairs of best tokens over all draws.
    pub tops: u32,
    /// Candidates over all draws.
    pub listed: u32,
    /// Floats of rows and hidden states over all draws.
    pub floats: u32,
    rows: u32,
    ops: Vec<[u32; 4]>,
    sorted: Vec<TokenId>,
    pairs: Vec<(TokenId, f32)>,
    widths: Widths,
}

/// What one draw's stages leave for its note.
struct Told {
    bad_temperature: f32,
    refused: Option<String>,
    mirostat: Option<Mirostat>,
    /// XTC stages and dynamic temperatures so far.
    xtc: u32,
    heats: u32,
}

/// `HEATS` of the kernel: dynamic temperatures that it remembers for a mirostat stage behind them.
const HEATS: u32 = 16;

impl Encoder {
    /// Begins a step.
    pub(super) fn begin(&mut self, widths: Widths) {
        self.draws.clear();
        self.pool.clear();
        self.notes.draws.clear();
        self.notes.stages.clear();
        self.notes.refusals.clear();
        self.notes.tops = 0;
        (self.tops, self.listed, self.floats, self.rows) = (0, 0, 0, 0);
        self.widths = widths;
    }

    /// Appends a prompt token to be scored by row `row`.
    pub(super) fn score(&mut self, row: usize, score: &Score) {
        let words = DrawWords {
            kind: kind::TARGET,
            target: score.target as i32,
            ..self.blank(row, score.top)
        };
        self.push(words, 0);
    }

    /// Appends a draw, whose hidden state is in row `hidden_row`.
    pub(super) fn draw(&mut self, draw: &Draw<'_>, hidden_row: usize) {
        self.ops.clear();
        let first_stage = self.notes.stages.len() as u32;
        let mut told = Told {
            bad_temperature: f32::NAN,
            refused: None,
            mirostat: None,
            xtc: 0,
            heats: 0,
        };
        for stage in &draw.plan.stages {
            self.notes.stages.push(stage_name(stage));
            if told.refused.is_none() {
                told.refused = refusal(stage);
            }
            if told.refused.is_none() {
                self.stage(stage, draw, &mut told);
            }
        }
        let mask = draw.mask.map_or(-1, |mask| {
            let at = self.pool.len();
            let words = self.widths.vocab.div_ceil(32) as usize;
            let given = mask.len().min(words);
            self.pool.extend_from_slice(&mask[..given]);
            self.pool.resize(at + words, 0);
            at as i32
        });
        self.pool.resize(self.pool.len().next_multiple_of(4), 0);
        let ops = self.pool.len() as u32;
        self.pool.extend_from_slice(self.ops.as_flattened());
        let words = DrawWords {
            kind: match draw.plan.draw {
                DrawKind::Greedy => kind::GREEDY,
                DrawKind::Sample => kind::SAMPLE,
                DrawKind::Candidates(_) => kind::CANDIDATES,
                DrawKind::Row(_) => kind::ROW,
            },
            report: match draw.logprobs {
                LogprobsMode::Raw => report::RAW,
                LogprobsMode::Processed => report::PROCESSED,
            },
            seed_low: draw.random.seed as u32,
            seed_high: (draw.random.seed >> 32) as u32,
            lineage: draw.random.lineage,
            position: position_of(draw.history),
            ops,
            op_count: self.ops.len() as u32,
            mask,
            ..self.blank(draw.logits, draw.top)
        };
        let (words, hand) = self.hand(words, draw, hidden_row).unwrap_or_else(|why| {
            told.refused.get_or_insert_with(|| why.to_owned());
            let kind = kind::GREEDY;
            (DrawWords { kind, ..words }, Hand::Token)
        });
        self.push(words, first_stage);
        if let Some(last) = self.notes.draws.last_mut() {
            last.hand = hand;
            last.bad_temperature = told.bad_temperature;
            last.mirostat = told.mirostat;
            if let Some(reason) = told.refused {
                last.refused = Some(self.notes.refusals.len() as u32);
                self.notes.refusals.push(reason);
            }
        }
    }

    /// Room for what a guest is handed, or why it cannot be.
    fn hand(
        &mut self,
        mut words: DrawWords,
        draw: &Draw<'_>,
        hidden_row: usize,
    ) -> Result<(DrawWords, Hand), &'static str> {
        let Some(asked) = draw.plan.draw.asked() else {
            return Ok((words, Hand::Token));
        };
        let shown = asked.hidden == Hidden::Shown;
        self.rows += u32::from(words.kind == kind::ROW);
        if shown && self.widths.hidden == 0 {
            return Err(NO_HIDDEN);
        }
        if self.rows > MOST_ROWS {
            return Err(TOO_MANY_ROWS);
        }
        let hidden_at = shown.then(|| self.take_floats(self.widths.hidden));
        (words.hidden_at, words.hidden_row) = match hidden_at {
            Some(at) => (at as i32, hidden_row as i32),
            None => (-1, 0),
        };
        let about = About {
            uniform: guest_uniform(draw),
            hidden_at,
        };
        let hand = if words.kind == kind::ROW {
            words.row_at = self.take_floats(self.widths.vocab);
            let raw_at = (words.op_count > 0).then(|| self.take_floats(self.widths.vocab));
            words.raw_at = raw_at.unwrap_or_default();
            Hand::Row {
                row_at: words.row_at,
                raw_at,
                about,
            }
        } else {
            words.candidates = asked.candidates.min(MOST_CANDIDATES).min(self.widths.vocab);
            words.list_at = self.listed;
            self.listed += words.candidates;
            Hand::Candidates {
                list_at: words.list_at,
                about,
            }
        };
        Ok((words, hand))
    }

    /// Begins at a multiple of 16 bytes.
    fn take_floats(&mut self, count: u32) -> u32 {
        let at = self.floats;
        self.floats += count.next_multiple_of(4);
        at
    }

    fn blank(&self, row: usize, top: u32) -> DrawWords {
        DrawWords {
            row: row as i32,
            mask: -1,
            top: top.min(self.widths.vocab),
            top_at: self.tops,
            hidden_at: -1,
            ..DrawWords::zeroed()
        }
    }

    fn push(&mut self, words: DrawWords, first_stage: u32) {
        self.draws.push(words);
        self.tops += words.top;
        self.notes.draws.push(Note {
            top: words.top,
            top_at: words.top_at,
            stages: (first_stage, self.notes.stages.len() as u32),
            bad_temperature: f32::NAN,
            refused: None,
            mirostat: None,
            hand: Hand::Token,
        });
    }

    fn op(&mut self, code: u32, a: u32, b: u32) {
        self.ops.push([code, a, b, 0]);
    }

    /// An op with an f64.
    fn op_f64(&mut self, code: u32, x: f64) {
        let bits = x.to_bits();
        self.op(code, bits as u32, (bits >> 32) as u32);
    }

    /// An op with a list of ids.
    fn list(&mut self, code: u32, ids: impl Iterator<Item = TokenId>) {
        let at = self.pool.len();
        self.pool.extend(ids);
        let count = self.pool.len() - at;
        self.op(code, at as u32, count as u32);
    }

    fn stage(&mut self, stage: &Stage, draw: &Draw<'_>, told: &mut Told) {
        let history = draw.history;
        match stage {
            Stage::AllowedTokens(allowed) => {
                let mut sorted = std::mem::take(&mut self.sorted);
                sorted.clear();
                sorted.extend_from_slice(allowed);
                if !sorted.is_sorted() {
                    sorted.sort_unstable();
                }
                sorted.dedup();
                self.list(code::ALLOW, sorted.iter().copied());
                self.sorted = sorted;
            }
            Stage::BannedTokens(banned) => self.list(code::BAN, banned.iter().copied()),
            Stage::BadWords(words) => {
                let ended = words.iter().filter_map(|word| {
                    let (&last, before) = word.split_last()?;
                    history.tokens().ends_with(before).then_some(last)
                });
                self.list(code::BAN, ended);
            }
            Stage::LogitBias(bias) => {
                // The kernel adds equal ids one after the other.
                let mut pairs = std::mem::take(&mut self.pairs);
                pairs.clear();
                pairs.extend_from_slice(bias);
                if !pairs.is_sorted_by_key(|p| p.0) {
                    pairs.sort_by_key(|p| p.0);
                }
                let at = self.pool.len();
                self.pool
                    .extend(pairs.iter().flat_map(|&(t, by)| [t, by.to_bits()]));
                self.op(code::BIAS, at as u32, pairs.len() as u32);
                self.pairs = pairs;
            }
            Stage::MinTokens { count, banned } => {
                if history.outputs() < *count as usize {
                    self.list(code::BAN, banned.iter().copied());
                }
            }
            Stage::Penalties {
                repetition,
                presence,
                frequency,
            } => {
                let at = self.pool.len();
                self.pool
                    .extend([repetition, presence, frequency].map(|x| x.to_bits()));
                let counts = history.counts();
                self.pool.reserve(2 * counts.len());
                for (t, n) in counts {
                    self.pool.extend_from_slice(&[t, n.output]);
                }
                let count = (self.pool.len() - at - 3) / 2;
                self.op(code::PENALTIES, at as u32, count as u32);
            }
            Stage::Temperature(t) => {
                if told.bad_temperature.is_nan() && !(t.is_finite() && *t > 0.0) {
                    told.bad_temperature = *t;
                }
                self.op(code::TEMPERATURE, t.to_bits(), 0);
            }
            Stage::TopK(k) => self.op(code::TOP_K, *k, 0),
            Stage::TopP(p) => self.op(code::TOP_P, p.to_bits(), 0),
            Stage::MinP(p) => self.op_f64(code::MIN_P, f64::from(*p).ln()),
            Stage::TypicalP(p) => self.op(code::TYPICAL_P, p.to_bits(), 0),
            Stage::NoRepeatNgram(n) => {
                let mut banned = std::mem::take(&mut self.sorted);
                banned.clear();
                history.repeating(*n, &mut banned);
                self.list(code::BAN, banned.iter().copied());
                self.sorted = banned;
            }
            Stage::Dry(dry) => {
                let mut pairs = std::mem::take(&mut self.pairs);
                pairs.clear();
                history.dry_penalties(dry, &mut pairs);
                let at = self.pool.len();
                self.pool
                    .extend(pairs.iter().flat_map(|&(t, by)| [t, (-by).to_bits()]));
                self.op(code::BIAS, at as u32, pairs.len() as u32);
                self.pairs = pairs;
            }
            Stage::DynamicTemperature { min, max, exponent } => {
                told.heats += 1;
                if told.heats > HEATS {
                    told.refused = Some(format!(
                        "more than {HEATS} dynamic temperature stages in one plan"
                    ));
                    return;
                }
                let [a, b, c] = [min, max, exponent].map(|x| x.to_bits());
                self.ops.push([code::DYNAMIC, a, b, c]);
            }
            Stage::TopNSigma(n) => self.op(code::SIGMA, n.to_bits(), 0),
            Stage::EpsilonCutoff(epsilon) => self.op_f64(code::EPSILON, f64::from(*epsilon).ln()),
            Stage::EtaCutoff(epsilon) => self.op_f64(code::ETA, f64::from(*epsilon).ln()),
            Stage::TailFree(z) => self.op(code::TAIL_FREE, z.to_bits(), 0),
            Stage::Xtc {
                probability,
                threshold,
            } => {
                let position = position_of(history);
                if xtc_applies(draw.random, position, told.xtc, *probability) {
                    self.op_f64(code::XTC, f64::from(*threshold).ln());
                }
                told.xtc += 1;
            }
            Stage::Mirostat1 { .. } | Stage::Mirostat2 { .. } => {
                if told.mirostat.is_some() {
                    told.refused = Some(TWO_MIROSTATS.to_owned());
                    return;
                }
                told.mirostat = Mirostat::of(stage, draw.mu);
                match (stage, told.mirostat) {
                    (Stage::Mirostat1 { .. }, Some(state)) => {
                        self.op(code::MIROSTAT1, state.mu.to_bits(), 0);
                    }
                    (_, Some(state)) => self.op_f64(code::MIROSTAT2, state.log_bar()),
                    (_, None) => {}
                }
            }
            Stage::Watermark(watermark) => {
                let green = Green::new(watermark, history.tokens());
                let at = self.pool.len();
                self.pool.extend(green.key);
                self.pool.extend(green.digest);
                self.pool.extend([green.bar, watermark.delta.to_bits()]);
                self.op(code::WATERMARK, at as u32, 7);
            }
            _ => {
                told.refused = Some(format!(
                    "this device does not know the sampling stage {stage:?}; update the server"
                ));
            }
        }
    }
}
