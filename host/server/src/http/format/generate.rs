//! `/generate`: prompt and answer of every choice; streams repeat all text so far, each object followed by a NUL.

use super::super::running::{Piece, Running, Update};
use super::ChunkWriter;
use crate::openai::{ApiError, GenerateResponse, Usage};
use crate::serving::Delta;
use bytes::Bytes;
use serde::Serialize;

fn take(texts: &mut [String], update: Update) -> bool {
    let Update::Piece(Piece { index, deltas, .. }) = update else {
        return false;
    };
    let Some(text) = texts.get_mut(index as usize) else {
        return false;
    };
    let before = text.len();
    for delta in deltas {
        if let Delta::Content(more) = delta {
            text.push_str(&more);
        }
    }
    text.len() > before
}

/// Runs the request to its end.
pub(in crate::http) async fn generate_whole(
    mut running: Running,
    prompt: &str,
) -> Result<GenerateResponse, ApiError> {
    let mut text = vec![prompt.to_owned(); running.choices() as usize];
    while let Some(update) = running.next().await? {
        take(&mut text, update);
    }
    Ok(GenerateResponse { text })
}

/// Writes objects.
pub(in crate::http) struct GenerateStream {
    answer: GenerateResponse,
}

impl GenerateStream {
    pub(in crate::http) fn new(prompt: &str, choices: u32) -> Self {
        Self {
            answer: GenerateResponse {
                text: vec![prompt.to_owned(); choices as usize],
            },
        }
    }
}

fn object(value: &impl Serialize) -> Vec<Bytes> {
    let mut bytes = serde_json::to_vec(value).unwrap_or_default();
    bytes.push(0);
    vec![bytes.into()]
}

impl ChunkWriter for GenerateStream {
    fn open(&mut self, _: Usage) -> Vec<Bytes> {
        Vec::new()
    }

    fn update(&mut self, update: Update, _: Usage) -> Vec<Bytes> {
        if take(&mut self.answer.text, update) {
            object(&self.answer)
        } else {
            Vec::new()
        }
    }

    fn close(&mut self, _: Usage) -> Vec<Bytes> {
        object(&self.answer)
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        object(&error.body())
    }
}
