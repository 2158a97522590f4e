//! Stop strings in a stream of text.

use crate::openai::StopText;

/// The stop string that ended a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopMatch {
    /// Which of the strings, by its place in the list.
    pub index: usize,
}

/// Finds the first stop string to be complete, the longest of those that complete at the same byte, and keeps back
/// what may become one. What it gives out does not depend on how the text was cut.
///
/// Knuth-Morris-Pratt per string: each byte of text costs amortised constant work per string.
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    keep: StopText,
    /// Text not given out: the longest end of the text that begins a stop string.
    held: String,
    stopped: bool,
}

struct Pattern {
    bytes: Box<[u8]>,
    /// `failure[i]`: length of the longest proper border of `bytes[..=i]`.
    failure: Box<[usize]>,
    /// Bytes matched at the end of the text.
    matched: usize,
}

impl Pattern {
    fn new(string: &str) -> Self {
        let bytes = string.as_bytes();
        let mut failure = vec![0; bytes.len()];
        let mut border = 0;
        for i in 1..bytes.len() {
            while border > 0 && bytes[i] != bytes[border] {
                border = failure[border - 1];
            }
            if bytes[i] == bytes[border] {
                border += 1;
            }
            failure[i] = border;
        }
        Self { bytes: bytes.into(), failure: failure.into(), matched: 0 }
    }

    /// Whether the pattern is complete with this byte.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.failure[self.matched - 1];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

impl StopMatcher {
    /// A matcher before the first text. Empty strings are passed over.
    #[must_use]
    pub fn new(strings: &[String], keep: StopText) -> Self {
        // Empty ones would match everywhere; validation refuses them, a guest might send them.
        let patterns = strings.iter().map(|string| Pattern::new(string)).collect();
        Self { patterns, keep, held: String::new(), stopped: false }
    }

    /// Takes the next text, whole characters, and gives what can be shown. After a match nothing is taken any more.
    pub fn push(&mut self, text: &str) -> (String, Option<StopMatch>) {
        if self.stopped || text.is_empty() {
            return (String::new(), None);
        }
        if self.patterns.is_empty() {
            return (text.to_owned(), None);
        }
        for (at, byte) in text.bytes().enumerate() {
            if let Some(index) = self.step(byte) {
                self.stopped = true;
                let mut shown = std::mem::take(&mut self.held);
                // `at` is the last byte of a whole pattern, thus of a character.
                shown.push_str(text.get(..=at).unwrap_or(text));
                if self.keep == StopText::Cut {
                    shown.truncate(shown.len() - self.patterns[index].bytes.len());
                }
                return (shown, Some(StopMatch { index }));
            }
        }
        self.held.push_str(text);
        let kept = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        // A matched beginning starts with a character's first byte.
        let rest = self.held.split_off(self.held.len() - kept);
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// Text that no stop string may touch. What was held back is given out before it.
    pub fn pass(&mut self, text: &str) -> String {
        if self.stopped {
            return String::new();
        }
        for pattern in &mut self.patterns {
            pattern.matched = 0;
        }
        std::mem::take(&mut self.held) + text
    }

    /// The text is over: what was held back.
    pub fn finish(&mut self) -> String {
        if self.stopped { String::new() } else { std::mem::take(&mut self.held) }
    }

    fn step(&mut self, byte: u8) -> Option<usize> {
        let mut longest: Option<(usize, usize)> = None;
        for (index, pattern) in self.patterns.iter_mut().enumerate() {
            if !pattern.bytes.is_empty()
                && pattern.step(byte)
                && longest.is_none_or(|(_, length)| pattern.bytes.len() > length)
            {
                longest = Some((index, pattern.bytes.len()));
            }
        }
        longest.map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests;
