//! SentencePiece's byte-pair encoding: the adjacent pair whose union has the highest score is merged first, the leftmost of
//! equals; what stays unknown is written as bytes.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use tokenizers::Token;

/// Merges pieces by score.
pub(crate) struct SpmMerger {
    /// Pieces that text can become: neither control tokens nor the unknown token nor bytes.
    pieces: HashMap<Box<str>, (u32, f32)>,
    bytes: Box<[Option<u32>; 256]>,
    unk: Option<u32>,
}

/// A run of the text; merged runs are linked over.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    /// Bytes; 0 once it has been merged into its left neighbour.
    len: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

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
    pub(crate) fn new(
        pieces: HashMap<Box<str>, (u32, f32)>,
        bytes: Box<[Option<u32>; 256]>,
        unk: Option<u32>,
    ) -> Self {
        Self { pieces, bytes, unk }
    }

    pub(crate) fn unk(&self) -> Option<u32> {
        self.unk
    }

    /// Encodes a text whose spaces are already `▁`. Bytes without a token of their own become the unknown token, or nothing.
    pub(crate) fn encode(&self, text: &str) -> Vec<Token> {
        let symbols = self.merge(text);
        let mut tokens = Vec::new();
        let mut at = (!symbols.is_empty()).then_some(0);
        while let Some(symbol) = at.map(|i| symbols[i]) {
            at = symbol.next;
            let span = (symbol.start, symbol.start + symbol.len);
            let piece = &text[span.0..span.1];
            if let Some((id, _)) = self.pieces.get(piece) {
                tokens.push(Token::new(*id, piece.to_owned(), span));
                continue;
            }
            for byte in piece.bytes() {
                if let Some(id) = self.bytes[usize::from(byte)].or(self.unk) {
                    tokens.push(Token::new(id, piece.to_owned(), span));
                }
            }
        }
        tokens
    }

    fn merge(&self, text: &str) -> Vec<Symbol> {
        let count = text.chars().count();
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                prev: i.checked_sub(1),
                next: (i + 1 < count).then_some(i + 1),
            })
            .collect();
        let mut queue = BinaryHeap::new();
        for right in 1..count {
            queue.extend(self.candidate(text, &symbols, Some(right - 1), Some(right)));
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
            queue.extend(self.candidate(text, &symbols, l.prev, Some(left)));
            queue.extend(self.candidate(text, &symbols, Some(left), r.next));
        }
        symbols
    }

    fn candidate(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: Option<usize>,
        right: Option<usize>,
    ) -> Option<Candidate> {
        let (left, right) = (left?, right?);
        let start = symbols[left].start;
        let len = symbols[left].len + symbols[right].len;
        let (_, score) = self.pieces.get(&text[start..start + len])?;
        Some(Candidate {
            score: *score,
            left,
            right,
            len,
        })
    }
}

#[cfg(test)]
mod tests;
