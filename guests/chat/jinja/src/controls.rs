//! Control tokens and the code points that stand for them between template and output.
//!
//! Control token `i` of the tokenizer's list is U+F0000 + i while a template runs. Client strings with code points
//! from U+F0000 on are refused, so one in the output can only come from the template.

use std::collections::HashMap;

/// First code point used for a control token.
pub const FIRST_MARK: u32 = 0xF_0000;
/// Marks the end of the final message when the model is to continue it.
pub const CONTINUE_MARK: char = '\u{FFFFD}';
/// Put into client strings where a literal that the template assembles from pieces might be; removed from the output.
pub const BREAKER: char = '\u{10FFFD}';
/// Most control tokens that have a code point of their own.
const MAX_MARKS: usize = 0xFFF0;

/// All control tokens of a tokenizer, with fast search for their literals.
#[derive(Debug)]
pub struct Controls {
    ids: Vec<u32>,
    literals: Vec<String>,
    by_literal: HashMap<String, usize>,
    /// Distinct byte lengths of literals, longest first.
    lengths: Vec<usize>,
    /// By first byte: whether some literal starts with it.
    starts: [bool; 256],
}

/// A control token's place in [`Controls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Control(pub usize);

impl Controls {
    /// From pairs of id and literal. Empty literals, and those beyond the code points available, are left out.
    pub fn new(tokens: impl IntoIterator<Item = (u32, String)>) -> Self {
        let mut all = Self {
            ids: Vec::new(),
            literals: Vec::new(),
            by_literal: HashMap::new(),
            lengths: Vec::new(),
            starts: [false; 256],
        };
        for (id, literal) in tokens {
            if literal.is_empty()
                || all.ids.len() == MAX_MARKS
                || all.by_literal.contains_key(&literal)
            {
                continue;
            }
            all.starts[usize::from(literal.as_bytes()[0])] = true;
            all.by_literal.insert(literal.clone(), all.ids.len());
            if !all.lengths.contains(&literal.len()) {
                all.lengths.push(literal.len());
            }
            all.ids.push(id);
            all.literals.push(literal);
        }
        all.lengths.sort_unstable_by(|a, b| b.cmp(a));
        all
    }

    /// The token's id.
    pub fn id(&self, control: Control) -> u32 {
        self.ids[control.0]
    }

    /// The token's literal.
    pub fn literal(&self, control: Control) -> &str {
        &self.literals[control.0]
    }

    /// The code point that stands for it.
    pub fn mark(control: Control) -> char {
        u32::try_from(control.0)
            .ok()
            .and_then(|i| char::from_u32(FIRST_MARK + i))
            .unwrap_or(char::REPLACEMENT_CHARACTER)
    }

    /// The control token that `c` stands for.
    pub fn of_mark(&self, c: char) -> Option<Control> {
        let i = u32::from(c).checked_sub(FIRST_MARK)? as usize;
        (i < self.ids.len()).then_some(Control(i))
    }

    /// The control token spelled exactly so.
    pub fn of_literal(&self, literal: &str) -> Option<Control> {
        self.by_literal.get(literal).copied().map(Control)
    }

    /// The longest literal that starts at byte `at`, and its length.
    pub fn at(&self, text: &str, at: usize) -> Option<(Control, usize)> {
        let rest = &text.as_bytes()[at..];
        if !self.starts[usize::from(*rest.first()?)] {
            return None;
        }
        self.lengths
            .iter()
            .filter(|&&n| n <= rest.len())
            .find_map(|&n| {
                let candidate = std::str::from_utf8(&rest[..n]).ok()?;
                Some((self.of_literal(candidate)?, n))
            })
    }

    /// All literals in `text`, leftmost and longest first, not overlapping: (start, length, token).
    pub fn find_all(&self, text: &str) -> Vec<(usize, usize, Control)> {
        let mut found = Vec::new();
        let mut i = 0;
        while i < text.len() {
            match self.at(text, i) {
                Some((control, n)) => {
                    found.push((i, n, control));
                    i += n;
                }
                None => i += 1,
            }
        }
        found
    }

    /// Whether `text` ends with the beginning of a literal.
    pub fn ends_inside(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        let longest = self.lengths.first().copied().unwrap_or(0);
        let from = bytes.len().saturating_sub(longest.saturating_sub(1));
        (from..bytes.len())
            .filter(|&i| self.starts[usize::from(bytes[i])])
            .any(|i| {
                self.literals
                    .iter()
                    .any(|l| l.as_bytes().starts_with(&bytes[i..]))
            })
    }

    /// `text` with its literals replaced by their marks.
    pub fn mark_all(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut from = 0;
        for (start, n, control) in self.find_all(text) {
            out.push_str(&text[from..start]);
            out.push(Self::mark(control));
            from = start + n;
        }
        out.push_str(&text[from..]);
        out
    }

    /// `text` with marks replaced by their literals, for messages to people.
    pub fn spell(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match self.of_mark(c) {
                Some(control) => out.push_str(self.literal(control)),
                None => out.push(c),
            }
        }
        out
    }
}

/// Whether a client's string uses code points that are ours while a template runs (planes 15 and 16).
pub fn is_reserved(text: &str) -> bool {
    text.chars().any(|c| u32::from(c) >= FIRST_MARK)
}

#[cfg(test)]
mod tests;
