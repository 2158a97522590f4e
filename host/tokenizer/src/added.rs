//! Finding added tokens in text, with the rules of Hugging Face's `AddedVocabulary`.

use std::collections::HashMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use fancy_regex::Regex;
use tokenizers::{AddedToken, NormalizedString, Normalizer, NormalizerWrapper};

use crate::TokenizerError;

/// Whether control tokens' literals in the text count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Literals {
    /// Every added token is recognised.
    All,
    /// Added tokens with `special: false` are recognised, control tokens are plain text.
    NoControl,
}

/// A control token whose place in the sentence is already known.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    /// Where its literal stands, in bytes of the sentence.
    pub(crate) range: Range<usize>,
    /// Its id.
    pub(crate) id: u32,
}

/// One piece of a sentence. The pieces of a sentence cover it in order; a token's range may overlap its predecessor's where
/// both swallow the same white space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Bytes of the sentence.
    pub(crate) range: Range<usize>,
    /// The added token found there, or none for text still to be encoded.
    pub(crate) id: Option<u32>,
}

/// The added tokens of one tokenizer.
pub(crate) struct AddedTokens {
    by_id: HashMap<u32, AddedToken>,
    /// Tokens matched before normalisation.
    raw: Matcher,
    /// Tokens matched after it, by their normalised content.
    normalized: Matcher,
    /// The class `\w`, which decides what `single_word` means.
    word: Regex,
}

struct Matcher {
    automaton: AhoCorasick,
    /// What is searched and the token it stands for, by pattern number.
    patterns: Vec<(String, u32)>,
}

impl Matcher {
    fn new(patterns: Vec<(String, u32)>) -> Result<Self, TokenizerError> {
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(patterns.iter().map(|(pattern, _)| pattern))
            .map_err(|e| TokenizerError::Build {
                part: "added tokens",
                detail: e.to_string(),
            })?;
        Ok(Self {
            automaton,
            patterns,
        })
    }
}

impl AddedTokens {
    /// Indexes the tokens. `normalizer` is the tokenizer's own: tokens with `normalized` are searched in its output.
    pub(crate) fn new(
        by_id: HashMap<u32, AddedToken>,
        normalizer: Option<&NormalizerWrapper>,
    ) -> Result<Self, TokenizerError> {
        let mut ordered: Vec<(&u32, &AddedToken)> = by_id
            .iter()
            .filter(|(_, token)| !token.content.is_empty())
            .collect();
        // Equal contents: the control token is found first, then the smaller id.
        ordered.sort_unstable_by_key(|(id, token)| (!token.special, **id));
        let mut raw = Vec::new();
        let mut normalized = Vec::new();
        for (&id, token) in ordered {
            if !token.normalized {
                raw.push((token.content.clone(), id));
                continue;
            }
            let mut content = NormalizedString::from(token.content.as_str());
            if let Some(normalizer) = normalizer {
                normalizer
                    .normalize(&mut content)
                    .map_err(|e| TokenizerError::Build {
                        part: "added tokens",
                        detail: e.to_string(),
                    })?;
            }
            if !content.get().is_empty() {
                normalized.push((content.get().to_owned(), id));
            }
        }
        Ok(Self {
            raw: Matcher::new(raw)?,
            normalized: Matcher::new(normalized)?,
            word: Regex::new(r"^\w$").map_err(|e| TokenizerError::Build {
                part: "added tokens",
                detail: e.to_string(),
            })?,
            by_id,
        })
    }

    pub(crate) fn get(&self, id: u32) -> Option<&AddedToken> {
        self.by_id.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &AddedToken)> {
        self.by_id.iter().map(|(id, token)| (*id, token))
    }

    /// The tokens that are matched in normalised text, as they stand there.
    pub(crate) fn normalized_contents(&self) -> impl Iterator<Item = (u32, &str)> {
        let patterns = self.normalized.patterns.iter();
        patterns.map(|(content, id)| (*id, content.as_str()))
    }

    /// Cuts a sentence before normalisation. `placed` is ordered and disjoint; no literal is searched across one.
    pub(crate) fn cut_raw(
        &self,
        sentence: &str,
        placed: &[Placed],
        literals: Literals,
    ) -> Vec<Piece> {
        let mut found = Vec::new();
        let mut at = 0;
        for control in placed {
            self.search(
                &self.raw,
                sentence,
                at..control.range.start,
                literals,
                &mut found,
            );
            found.push((control.range.clone(), control.id));
            at = control.range.end;
        }
        self.search(
            &self.raw,
            sentence,
            at..sentence.len(),
            literals,
            &mut found,
        );
        self.pieces(sentence, &found)
    }

    /// Cuts a normalised piece at the tokens that are matched after normalisation.
    pub(crate) fn cut_normalized(&self, sentence: &str, literals: Literals) -> Vec<Piece> {
        let mut found = Vec::new();
        self.search(
            &self.normalized,
            sentence,
            0..sentence.len(),
            literals,
            &mut found,
        );
        self.pieces(sentence, &found)
    }

    fn search(
        &self,
        matcher: &Matcher,
        sentence: &str,
        within: Range<usize>,
        literals: Literals,
        found: &mut Vec<(Range<usize>, u32)>,
    ) {
        let Some(text) = sentence.get(within.clone()) else {
            return;
        };
        for hit in matcher.automaton.find_iter(text) {
            let id = matcher.patterns[hit.pattern().as_usize()].1;
            let Some(token) = self.by_id.get(&id) else {
                continue;
            };
            if literals == Literals::NoControl && token.special {
                continue;
            }
            let range = within.start + hit.start()..within.start + hit.end();
            if token.single_word {
                let joined_left = sentence[..range.start]
                    .chars()
                    .next_back()
                    .is_some_and(|c| self.is_word(c));
                let joined_right = sentence[range.end..]
                    .chars()
                    .next()
                    .is_some_and(|c| self.is_word(c));
                if joined_left || joined_right {
                    continue;
                }
            }
            found.push((range, id));
        }
    }

    fn is_word(&self, c: char) -> bool {
        self.word
            .is_match(c.encode_utf8(&mut [0; 4]))
            .unwrap_or(false)
    }

    /// Applies `lstrip` and `rstrip` and fills the gaps with text.
    fn pieces(&self, sentence: &str, found: &[(Range<usize>, u32)]) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(2 * found.len() + 1);
        let mut covered = 0;
        for (range, id) in found {
            let (mut start, mut end) = (range.start, range.end);
            if let Some(token) = self.by_id.get(id) {
                if token.lstrip {
                    start = sentence[..start].trim_end().len().max(covered).min(start);
                }
                if token.rstrip {
                    end = sentence.len() - sentence[end..].trim_start().len();
                }
            }
            if covered < start {
                pieces.push(Piece {
                    range: covered..start,
                    id: None,
                });
            }
            pieces.push(Piece {
                range: start..end,
                id: Some(*id),
            });
            covered = end;
        }
        if covered < sentence.len() {
            pieces.push(Piece {
                range: covered..sentence.len(),
                id: None,
            });
        }
        pieces
    }
}

#[cfg(test)]
mod tests;
