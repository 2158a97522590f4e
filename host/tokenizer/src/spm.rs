//! SentencePiece's byte-pair encoding: the adjacent pair whose union has the highest score is merged first, the leftmost of
//! equals; what stays unknown is written as bytes.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::ops::Range;

use tokenizers::Token;

use crate::sentencepiece::Trie;
use crate::words::{Place, WordModel};

/// Merges pieces by score.
pub(crate) struct SpmMerger {
    /// Pieces that text can become: neither control tokens nor the unknown token nor bytes.
    pieces: HashMap<Box<str>, (u32, f32)>,
    /// Pieces that are only a step to longer ones, and are taken apart again where they remain.
    unused: HashSet<u32>,
    /// Pieces that are found first and never merged.
    frozen: Trie,
}

/// A merger for vocabularies whose unknown text is written as bytes.
pub(crate) struct ByteFallback {
    pub(crate) merger: SpmMerger,
    pub(crate) bytes: Box<[Option<u32>; 256]>,
    pub(crate) unk: Option<u32>,
}

/// A merger for byte-level vocabularies: a word that is a piece becomes it, even where merging would not lead there.
pub(crate) struct WholeWords(pub(crate) SpmMerger);

/// A run of the text; merged runs are linked over.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    /// Bytes; 0 once it has been merged into its left neighbour.
    len: usize,
    prev: Option<usize>,
    next: Option<usize>,
    frozen: bool,
}

/// How each unused piece that could arise was put together last: its two halves.
type Halves<'a> = HashMap<&'a str, (Range<usize>, Range<usize>)>;

/// A possible merge of two neighbours.
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both when the candidate was made; it is stale once they differ.
    len: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score
            .total_cmp(&other.score)
            .then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

impl SpmMerger {
    /// `pieces`: what text can become, with ids and scores; higher scores are merged first.
    pub(crate) fn new(pieces: HashMap<Box<str>, (u32, f32)>) -> Self {
        Self {
            pieces: pieces
                .into_iter()
                // Both zeros are equal.
                .map(|(piece, (id, score))| (piece, (id, score + 0.0)))
                .collect(),
            unused: HashSet::new(),
            frozen: Trie::new([]),
        }
    }

    /// With unused pieces, and pieces that are never merged.
    pub(crate) fn with(self, unused: HashSet<u32>, frozen: Trie) -> Self {
        Self {
            unused,
            frozen,
            ..self
        }
    }

    /// The pieces of a text in which spaces are already `▁`; none for a character that is no piece.
    pub(crate) fn segment(&self, text: &str) -> Vec<(Option<u32>, Range<usize>)> {
        let (symbols, halves) = self.merge(text);
        let mut out = Vec::new();
        let mut at = (!symbols.is_empty()).then_some(0);
        while let Some(symbol) = at.map(|i| symbols[i]) {
            at = symbol.next;
            let mut open = Vec::new();
            let mut next = Some(symbol.start..symbol.start + symbol.len);
            while let Some(range) = next {
                let piece = &text[range.clone()];
                let id = self.pieces.get(piece).map(|(id, _)| *id);
                match halves.get(piece) {
                    // Halves are shorter than the whole, so this ends.
                    Some((left, right)) if id.is_some_and(|id| self.unused.contains(&id)) => {
                        open.push(right.clone());
                        next = Some(left.clone());
                    }
                    _ => {
                        out.push((id, range));
                        next = open.pop();
                    }
                }
            }
        }
        out
    }

    fn symbols(&self, text: &str) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        let mut start = 0;
        while let Some(c) = text[start..].chars().next() {
            let whole = self.frozen.longest(&text[start..]);
            let (at, len) = (symbols.len(), whole.unwrap_or(c.len_utf8()));
            symbols.push(Symbol {
                start,
                len,
                prev: at.checked_sub(1),
                next: (start + len < text.len()).then_some(at + 1),
                frozen: whole.is_some(),
            });
            start += len;
        }
        symbols
    }

    fn merge<'a>(&self, text: &'a str) -> (Vec<Symbol>, Halves<'a>) {
        let mut symbols = self.symbols(text);
        let mut halves = Halves::new();
        let mut queue = BinaryHeap::new();
        for right in 1..symbols.len() {
            let (left, right) = (Some(right - 1), Some(right));
            queue.extend(self.candidate(text, &symbols, (left, right), &mut halves));
        }
        while let Some(Candidate {
            left, right, len, ..
        }) = queue.pop()
        {
            let (l, r) = (symbols[left], symbols[right]);
            if l.len == 0 || r.len == 0 || l.len + r.len != len {
                continue;
            }
            symbols[left].len = len;
            symbols[left].next = r.next;
            symbols[right].len = 0;
            if let Some(next) = r.next {
                symbols[next].prev = Some(left);
            }
            for pair in [(l.prev, Some(left)), (Some(left), r.next)] {
                queue.extend(self.candidate(text, &symbols, pair, &mut halves));
            }
        }
        (symbols, halves)
    }

    fn candidate<'a>(
        &self,
        text: &'a str,
        symbols: &[Symbol],
        (left, right): (Option<usize>, Option<usize>),
        halves: &mut Halves<'a>,
    ) -> Option<Candidate> {
        let (left, right) = (left?, right?);
        let (l, r) = (symbols[left], symbols[right]);
        if l.frozen || r.frozen {
            return None;
        }
        let len = l.len + r.len;
        let piece = &text[l.start..l.start + len];
        let (id, score) = self.pieces.get(piece)?;
        if self.unused.contains(id) {
            halves.insert(piece, (l.start..r.start, r.start..r.start + r.len));
        }
        Some(Candidate {
            score: *score,
            left,
            right,
            len,
        })
    }
}

impl WordModel for ByteFallback {
    /// Bytes without a token of their own become the unknown token, or nothing.
    fn encode(&self, word: &str, _: Place) -> Vec<Token> {
        let mut tokens = Vec::new();
        for (id, range) in self.merger.segment(word) {
            let piece = &word[range.clone()];
            let mut push =
                |id| tokens.push(Token::new(id, piece.to_owned(), (range.start, range.end)));
            match id {
                Some(id) => push(id),
                None => {
                    for byte in piece.bytes() {
                        if let Some(id) = self.bytes[usize::from(byte)].or(self.unk) {
                            push(id);
                        }
                    }
                }
            }
        }
        tokens
    }

    fn unk(&self) -> Option<u32> {
        self.unk
    }
}

impl WordModel for WholeWords {
    /// A byte-level vocabulary has every byte; one that is missing becomes nothing.
    fn encode(&self, word: &str, _: Place) -> Vec<Token> {
        let token = |id, range: Range<usize>| {
            Token::new(id, word[range.clone()].to_owned(), (range.start, range.end))
        };
        if let Some((id, _)) = self.0.pieces.get(word) {
            return vec![token(*id, 0..word.len())];
        }
        let pieces = self.0.segment(word).into_iter();
        pieces
            .filter_map(|(id, range)| Some(token(id?, range)))
            .collect()
    }

    fn unk(&self) -> Option<u32> {
        None
    }
}

#[cfg(test)]
mod tests;
