//! Sets of characters.

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

/// A set of Unicode scalar values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chars(ClassUnicode);

impl Chars {
    pub(crate) fn empty() -> Self {
        Self(ClassUnicode::empty())
    }

    pub(crate) fn one(c: char) -> Self {
        Self::ranges([(c, c)])
    }

    pub(crate) fn any() -> Self {
        Self::ranges([('\0', char::MAX)])
    }

    /// Both ends belong to each range.
    pub(crate) fn ranges(ranges: impl IntoIterator<Item = (char, char)>) -> Self {
        let ranges = ranges.into_iter();
        Self(ClassUnicode::new(
            ranges.map(|(a, b)| ClassUnicodeRange::new(a, b)),
        ))
    }

    pub(crate) fn negated(mut self) -> Self {
        self.0.negate();
        self
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.0.union(&other.0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.ranges().is_empty()
    }

    pub(crate) fn meets(&self, other: &Self) -> bool {
        let (mut left, mut right) = (self.0.ranges(), other.0.ranges());
        while let ([a, a_rest @ ..], [b, b_rest @ ..]) = (left, right) {
            if a.end() < b.start() {
                left = a_rest;
            } else if b.end() < a.start() {
                right = b_rest;
            } else {
                return true;
            }
        }
        false
    }

    /// As a class of a regular expression between slashes.
    pub(crate) fn to_regex(&self) -> String {
        let mut class = String::from("[");
        for range in self.0.ranges() {
            let (start, end) = (u32::from(range.start()), u32::from(range.end()));
            class.push_str(&format!("\\x{{{start:x}}}"));
            if start < end {
                class.push_str(&format!("-\\x{{{end:x}}}"));
            }
        }
        class.push(']');
        class
    }

    /// The only character.
    pub(crate) fn single(&self) -> Option<char> {
        match self.0.ranges() {
            [range] if range.start() == range.end() => Some(range.start()),
            _ => None,
        }
    }
}
