//! An embedding request that may be answered.

use super::super::{ApiError, EmbeddingFields, EmbeddingVector, RawPrompt};
use super::ModelFacts;
use super::completion::prompts;
use super::range::count;
use crate::serving::EmbeddingFacts;
use guesthouse_tokenizer::AddSpecial;

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodingFormat {
    /// As numbers.
    Float,
    /// Their bytes.
    Base64,
}

/// A validated `/v1/embeddings` request.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidEmbedding {
    prompts: Vec<RawPrompt>,
    format: EncodingFormat,
    dimensions: Option<u32>,
    add_special: AddSpecial,
    cache_salt: Option<String>,
}

impl ValidEmbedding {
    /// Checks everything that can be checked before the prompts are encoded.
    ///
    /// # Errors
    /// With the field at fault.
    pub fn new(
        fields: EmbeddingFields,
        facts: &ModelFacts,
        embedding: &EmbeddingFacts,
    ) -> Result<Self, ApiError> {
        let format = match fields.encoding_format.as_deref() {
            None | Some("float") => EncodingFormat::Float,
            Some("base64") => EncodingFormat::Base64,
            Some(other) => {
                return Err(ApiError::invalid(
                    "encoding_format",
                    format!("`encoding_format` must be float or base64, but is {other:?}"),
                ));
            }
        };
        let add_special = if fields.add_special_tokens == Some(false) {
            AddSpecial::No
        } else {
            AddSpecial::Yes
        };
        Ok(Self {
            prompts: prompts("input", fields.input, facts)?,
            format,
            dimensions: count("dimensions", fields.dimensions, 1, embedding.width)?,
            add_special,
            cache_salt: fields.cache_salt,
        })
    }

    /// At least one; none is the empty list, ids are in the vocabulary.
    #[must_use]
    pub fn prompts(&self) -> &[RawPrompt] {
        &self.prompts
    }

    /// Whether the tokenizer adds its own tokens around texts.
    #[must_use]
    pub fn add_special(&self) -> AddSpecial {
        self.add_special
    }

    /// What the client keeps its cache entries apart by.
    #[must_use]
    pub fn cache_salt(&self) -> Option<&str> {
        self.cache_salt.as_deref()
    }

    /// A vector as it was asked for: cut to the first dimensions (Matryoshka representation learning, Kusupati et al.
    /// 2022) and, where the model's vectors have length 1, scaled to it again.
    #[must_use]
    pub fn write(&self, mut vector: Vec<f32>, embedding: &EmbeddingFacts) -> EmbeddingVector {
        if let Some(keep) = self.dimensions {
            vector.truncate(keep as usize);
            if embedding.normalized {
                let length = vector
                    .iter()
                    .map(|x| f64::from(*x).powi(2))
                    .sum::<f64>()
                    .sqrt();
                if length > 0.0 {
                    vector
                        .iter_mut()
                        .for_each(|x| *x = (f64::from(*x) / length) as f32);
                }
            }
        }
        match self.format {
            EncodingFormat::Float => EmbeddingVector::Float(vector),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                EmbeddingVector::Base64(base64(&bytes))
            }
        }
    }
}

/// RFC 4648, with padding.
pub(super) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..4 {
            if i <= chunk.len() {
                out.push(char::from(ALPHABET[(bits >> (18 - 6 * i) & 63) as usize]));
            } else {
                out.push('=');
            }
        }
    }
    out
}
