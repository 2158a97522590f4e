//! What can go wrong with a grammar before anything is generated.

use std::fmt;

/// Where in a grammar's source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The source as a whole.
    Whole,
    /// In a text; both count from 1, columns in characters.
    Line {
        /// Which line.
        line: usize,
        /// Which character of it.
        column: usize,
    },
    /// In a JSON document, as RFC 6901 writes it; empty is the root.
    Pointer(String),
}

impl Place {
    /// The place of a byte of a text; one beyond its end is its end.
    #[must_use]
    pub(crate) fn of_byte(text: &str, byte: usize) -> Self {
        let mut end = byte.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &text[..end];
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        Self::Line {
            line: before.bytes().filter(|b| *b == b'\n').count() + 1,
            column: before[start..].chars().count() + 1,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => Ok(()),
            Self::Line { line, column } => write!(f, "line {line}, column {column}: "),
            Self::Pointer(pointer) if pointer.is_empty() => f.write_str("at the root: "),
            Self::Pointer(pointer) => write!(f, "at {pointer}: "),
        }
    }
}

/// Why a grammar cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The `syntax` of a grammar stage names none of ours.
    #[error("unknown syntax `{}`; known are {known}", clip(.found))]
    Syntax {
        /// What it was.
        found: String,
        /// All syntaxes.
        known: String,
    },
    /// The source is not what its syntax says, asks for something that is not supported, or cannot be fulfilled.
    #[error("{place}{cause}")]
    Invalid {
        /// Where.
        place: Place,
        /// What is wrong, and what was expected.
        cause: String,
    },
    /// A limit.
    #[error("{place}{what} is {found}; at most {limit} is allowed")]
    TooLarge {
        /// Where.
        place: Place,
        /// What was counted.
        what: &'static str,
        /// How many.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// Compiling did not end in time.
    #[error("the grammar did not compile within {millis} ms; make it smaller")]
    Slow {
        /// The limit.
        millis: u128,
    },
    /// The model's tokenizer does not tell the bytes of its tokens.
    #[error("grammars are not available for this model: {0}")]
    Vocabulary(String),
}

impl GrammarError {
    /// Stable name for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Syntax { .. } => "syntax",
            Self::Invalid { .. } => "invalid",
            Self::TooLarge { .. } => "too_large",
            Self::Slow { .. } => "slow",
            Self::Vocabulary(_) => "vocabulary",
        }
    }

    /// Where in the source it is.
    #[must_use]
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Invalid { place, .. } | Self::TooLarge { place, .. } => Some(place),
            _ => None,
        }
    }

    pub(crate) fn whole(cause: impl Into<String>) -> Self {
        Self::Invalid {
            place: Place::Whole,
            cause: cause.into(),
        }
    }

    pub(crate) fn at(pointer: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::Invalid {
            place: Place::Pointer(pointer.into()),
            cause: cause.into(),
        }
    }
}

/// At most 80 characters of a client's text.
pub(crate) fn clip(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
