//! SentencePiece's unigram model: the segmentation whose pieces' scores have the largest sum (Kudo 2018,
//! <https://arxiv.org/abs/1804.10959>).

use super::proto::{Kind, PieceEntry};
use super::trie::Trie;

/// How much worse than the worst piece an unknown character is.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Finds the best segmentation by dynamic programming over byte positions.
pub(super) struct Unigram {
    /// Pieces that text can become, with their ids.
    pieces: Trie,
    /// By id. A piece defined by the user is worth more the longer it is, whatever its own score.
    worth: Vec<Worth>,
    unknown_score: f32,
    best_score: f32,
    unk: u32,
}

#[derive(Clone, Copy)]
enum Worth {
    Score(f32),
    UserDefined,
}

/// The best way that leads to a position.
#[derive(Clone, Copy)]
struct Best {
    score: f32,
    start: usize,
    id: u32,
}

impl Unigram {
    pub(super) fn new(entries: &[PieceEntry], unk: u32) -> Self {
        let normal = || entries.iter().filter(|p| p.kind == Kind::Normal);
        let worst = normal().map(|p| p.score).fold(f32::MAX, f32::min);
        // The reference starts its maximum at the smallest positive number, so scores below zero do not count.
        let best_score = normal().map(|p| p.score).fold(f32::MIN_POSITIVE, f32::max);
        let usable = (0u32..)
            .zip(entries)
            .filter(|(_, p)| matches!(p.kind, Kind::Normal | Kind::UserDefined))
            .map(|(id, p)| (p.text.as_str(), id));
        Self {
            pieces: Trie::new(usable),
            worth: entries
                .iter()
                .map(|p| match p.kind {
                    Kind::UserDefined => Worth::UserDefined,
                    _ => Worth::Score(p.score),
                })
                .collect(),
            unknown_score: worst - UNKNOWN_PENALTY,
            best_score,
            unk,
        }
    }

    /// The pieces of a normalised text: (id, where it ends).
    pub(super) fn segment(&self, text: &str) -> Vec<(u32, usize)> {
        let mut best: Vec<Option<Best>> = vec![None; text.len() + 1];
        for (start, c) in text.char_indices() {
            let so_far = best[start].map_or(0.0, |b| b.score);
            let mut single = false;
            for (length, id) in self.pieces.prefixes(&text.as_bytes()[start..]) {
                let score = self.score(id, length) + so_far;
                improve(&mut best[start + length], score, start, id);
                single |= length == c.len_utf8();
            }
            if !single {
                let score = self.unknown_score + so_far;
                improve(&mut best[start + c.len_utf8()], score, start, self.unk);
            }
        }
        let mut pieces = Vec::new();
        let mut end = text.len();
        while let Some(way) = best[end] {
            pieces.push((way.id, end));
            end = way.start;
        }
        pieces.reverse();
        pieces
    }

    #[allow(clippy::cast_precision_loss)] // pieces are short
    fn score(&self, id: u32, length: usize) -> f32 {
        match self.worth[id as usize] {
            Worth::Score(score) => score,
            Worth::UserDefined => length as f32 * self.best_score - 0.1,
        }
    }
}

/// Of equal sums the first that is found stays; sums are kept in f32, as in the reference, so that the same ones are equal.
fn improve(best: &mut Option<Best>, score: f32, start: usize, id: u32) {
    if best.is_none_or(|b| score > b.score) {
        *best = Some(Best { score, start, id });
    }
}
