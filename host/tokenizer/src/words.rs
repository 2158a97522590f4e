//! What encodes words in place of the `tokenizers` crate's model.

use tokenizers::Token;

/// Where a word stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the beginning of the sentence.
    First,
    /// After other text or an added token.
    Later,
}

/// A model of this crate.
pub(crate) trait WordModel: Send + Sync {
    /// The tokens of a word as the pre-tokenizer left it.
    fn encode(&self, word: &str, place: Place) -> Vec<Token>;

    /// What stands for text that the model does not know.
    fn unk(&self) -> Option<u32>;
}
