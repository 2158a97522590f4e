//! Stop strings in a stream of text.

use crate::openai::StopText;
use std::sync::Arc;

/// Stop strings of a request, prepared once and shared by its choices.
#[derive(Debug)]
pub struct StopSet {
    patterns: Box<[Pattern]>,
    text: StopText,
}

#[derive(Debug)]
struct Pattern {
    string: Box<str>,
    /// `failure[i]`: length of the longest proper border of the first `i + 1` bytes.
    failure: Box<[u32]>,
}

impl Pattern {
    fn new(string: &str) -> Self {
        let bytes = string.as_bytes();
        let mut failure = vec![0u32; bytes.len()];
        let mut border = 0;
        for i in 1..bytes.len() {
            while border > 0 && bytes[i] != bytes[border] {
                border = failure[border - 1] as usize;
            }
            if bytes[i] == bytes[border] {
                border += 1;
            }
            failure[i] = border as u32;
        }
        Self {
            string: string.into(),
            failure: failure.into(),
        }
    }

    /// Bytes matched at the end of the text after one more byte, from those matched before it.
    fn step(&self, mut matched: usize, byte: u8) -> usize {
        let bytes = self.string.as_bytes();
        while matched > 0 && bytes[matched] != byte {
            matched = self.failure[matched - 1] as usize;
        }
        matched + usize::from(bytes[matched] == byte)
    }
}

impl StopSet {
    /// `text` says what becomes of the string that matched. Empty strings never match: they would everywhere.
    #[must_use]
    pub fn new(strings: &[String], text: StopText) -> Self {
        let strings = strings.iter().filter(|string| !string.is_empty());
        Self {
            patterns: strings.map(|string| Pattern::new(string)).collect(),
            text,
        }
    }

    /// What becomes of a match.
    #[must_use]
    pub fn text(&self) -> StopText {
        self.text
    }
}

/// Finds the first stop string to be complete, the longest of those that complete at the same byte, and keeps back
/// what may become one. What it gives out does not depend on how the text was cut.
///
/// Knuth-Morris-Pratt per string: each byte of text costs amortised constant work per string.
pub struct StopMatcher {
    set: Arc<StopSet>,
    /// Per pattern: bytes matched at the end of the text.
    matched: Box<[usize]>,
    /// Text not given out: the longest end of the text that begins a stop string.
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// A matcher before the first text.
    #[must_use]
    pub fn new(set: &Arc<StopSet>) -> Self {
        Self {
            set: Arc::clone(set),
            matched: vec![0; set.patterns.len()].into(),
            held: String::new(),
            stopped: false,
        }
    }

    /// Takes the next text, whole characters, and gives what can be shown and the string that matched. After a match
    /// nothing is taken any more.
    pub fn push(&mut self, text: &str) -> (String, Option<String>) {
        if self.stopped || text.is_empty() {
            return (String::new(), None);
        }
        if self.matched.is_empty() {
            return (text.to_owned(), None);
        }
        for (at, byte) in text.bytes().enumerate() {
            if let Some(index) = self.step(byte) {
                let stop = &self.set.patterns[index].string;
                self.stopped = true;
                let mut shown = std::mem::take(&mut self.held);
                // `at` is the last byte of a whole pattern, thus of a character.
                shown.push_str(text.get(..=at).unwrap_or(text));
                if self.set.text == StopText::Cut {
                    shown.truncate(shown.len() - stop.len());
                }
                return (shown, Some(stop.to_string()));
            }
        }
        self.held.push_str(text);
        let kept = self.matched.iter().copied().max().unwrap_or(0);
        // A matched beginning starts with a character's first byte.
        let rest = self.held.split_off(self.held.len() - kept);
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// Text that no stop string may touch. What was held back is given out before it.
    pub fn pass(&mut self, text: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.matched.fill(0);
        std::mem::take(&mut self.held) + text
    }

    /// The text is over: what was held back.
    pub fn finish(&mut self) -> String {
        if self.stopped {
            String::new()
        } else {
            std::mem::take(&mut self.held)
        }
    }

    /// The longest pattern that this byte completes.
    fn step(&mut self, byte: u8) -> Option<usize> {
        let mut longest: Option<(usize, usize)> = None;
        for (index, pattern) in self.set.patterns.iter().enumerate() {
            let matched = pattern.step(self.matched[index], byte);
            self.matched[index] = matched;
            if matched == pattern.string.len() && longest.is_none_or(|(_, length)| matched > length)
            {
                longest = Some((index, matched));
            }
        }
        longest.map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests;
