//! SentencePiece's normalizer: character rules compiled into a double array, and its treatment of white space.

use super::proto::{NormalizerSpec, Rule};
use super::trie::Trie;
use crate::TokenizerError;

/// What a space becomes.
pub(super) const SPACE: &str = "▁";

/// The space that text begins or ends with of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dummy {
    None,
    Prefix,
    Suffix,
}

/// Turns text into what is segmented.
pub(super) struct Normalizer {
    rules: Option<CharsMap>,
    remove_extra_whitespaces: Rule,
    escape_whitespaces: Rule,
}

/// Rules from byte strings to byte strings.
struct CharsMap {
    /// Units of a double array as Darts-clone lays them out.
    units: Vec<u32>,
    /// Replacements, each ended by NUL.
    replacements: String,
}

impl Normalizer {
    pub(super) fn new(spec: &NormalizerSpec) -> Result<Self, TokenizerError> {
        let rules = if spec.charsmap.is_empty() {
            None
        } else {
            Some(CharsMap::parse(&spec.charsmap)?)
        };
        Ok(Self {
            rules,
            remove_extra_whitespaces: spec.remove_extra_whitespaces,
            escape_whitespaces: spec.escape_whitespaces,
        })
    }

    /// Normalises a text. Pieces of `user_defined` stay as they are.
    pub(super) fn normalize(&self, text: &str, user_defined: &Trie, dummy: Dummy) -> String {
        let trims = self.remove_extra_whitespaces == Rule::On;
        let mut input = text;
        while trims && !input.is_empty() {
            let (out, length) = self.next(input, user_defined);
            if out != " " {
                break;
            }
            input = &input[length..];
        }
        let mut normal = String::with_capacity(text.len() + text.len() / 2 + SPACE.len());
        if input.is_empty() {
            return normal;
        }
        let space = match self.escape_whitespaces {
            Rule::On => SPACE,
            Rule::Off => " ",
        };
        if dummy == Dummy::Prefix {
            normal.push_str(space);
        }
        let mut after_space = trims;
        while !input.is_empty() {
            let (mut out, length) = self.next(input, user_defined);
            if after_space {
                out = out.trim_start_matches(' ');
            }
            if !out.is_empty() {
                for c in out.chars() {
                    match c {
                        ' ' => normal.push_str(space),
                        c => normal.push(c),
                    }
                }
                after_space = trims && out.ends_with(' ');
            }
            input = &input[length..];
        }
        if trims {
            normal.truncate(normal.trim_end_matches(space).len());
        }
        if dummy == Dummy::Suffix {
            normal.push_str(space);
        }
        normal
    }

    /// What the beginning of a non-empty text becomes, and how many of its bytes that are.
    fn next<'a>(&'a self, input: &'a str, user_defined: &Trie) -> (&'a str, usize) {
        if let Some(length) = user_defined.longest(input) {
            return (&input[..length], length);
        }
        if let Some(found) = self.rules.as_ref().and_then(|rules| rules.longest(input)) {
            return found;
        }
        let length = input.chars().next().map_or(input.len(), char::len_utf8);
        (&input[..length], length)
    }
}

impl CharsMap {
    fn parse(blob: &[u8]) -> Result<Self, TokenizerError> {
        let error = |detail: &str| TokenizerError::SentencePiece {
            detail: format!("precompiled_charsmap: {detail}"),
        };
        let (size, rest) = blob
            .split_first_chunk::<4>()
            .ok_or_else(|| error("its length is missing"))?;
        let size = u32::from_le_bytes(*size) as usize;
        let (array, replacements) = rest
            .split_at_checked(size)
            .ok_or_else(|| error("its rules go beyond its end"))?;
        if size == 0 || !size.is_multiple_of(4) {
            return Err(error("its rules are not whole units of four bytes"));
        }
        Ok(Self {
            units: array
                .chunks_exact(4)
                .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            replacements: String::from_utf8(replacements.to_vec())
                .map_err(|_| error("its replacements are not UTF-8"))?,
        })
    }

    /// The longest rule that the text begins with: its replacement and its length. Units that lead outside end the search.
    fn longest(&self, text: &str) -> Option<(&str, usize)> {
        let mut at = 0usize;
        let mut unit = *self.units.first()?;
        let mut found = None;
        at ^= offset(unit);
        for (i, byte) in text.bytes().enumerate() {
            at ^= usize::from(byte);
            match self.units.get(at) {
                Some(next) if label(*next) == u32::from(byte) => unit = *next,
                _ => break,
            }
            at ^= offset(unit);
            if has_leaf(unit) && text.is_char_boundary(i + 1) {
                let value = self.units.get(at).map(|leaf| leaf & 0x7fff_ffff);
                found = value.map(|value| (value as usize, i + 1)).or(found);
            }
        }
        let (value, length) = found?;
        let replacement = self.replacements.get(value..)?;
        let end = replacement.find('\0').unwrap_or(replacement.len());
        Some((&replacement[..end], length))
    }
}

/// Where a unit's children are, to be combined with their byte.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize
}

/// The byte a unit stands for; more than a byte for leaves.
fn label(unit: u32) -> u32 {
    unit & (1 << 31 | 0xff)
}

fn has_leaf(unit: u32) -> bool {
    unit >> 8 & 1 == 1
}
