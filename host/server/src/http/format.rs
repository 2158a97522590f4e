//! Updates as clients see them: one writer per endpoint, for whole answers and for chunks.

mod chat;
mod completion;
mod generate;

pub(super) use chat::{ChatFormat, ChatStream, chat_whole};
pub(super) use completion::{CompletionFormat, CompletionStream, Echoed, completion_whole};
pub(super) use generate::{GenerateStream, generate_whole};

use super::running::{Running, Update};
use super::sse;
use crate::openai::{ApiError, StreamUsage, Usage};
use crate::serving::ServedModel;
use bytes::Bytes;
use futures::Stream;
use std::collections::VecDeque;

/// Name, time and model: the same in all chunks of an answer.
#[derive(Clone)]
pub(super) struct Heading {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

impl Heading {
    pub(super) fn new(prefix: &str, model: &ServedModel) -> Self {
        Self {
            id: super::ids::random(prefix),
            created: super::ids::now(),
            model: model.id.clone(),
        }
    }
}

/// Writes one stream.
pub(super) trait ChunkWriter: Send + 'static {
    /// Before the first update.
    fn open(&mut self, usage: Usage) -> Vec<Bytes>;
    /// For one update.
    fn update(&mut self, update: Update, usage: Usage) -> Vec<Bytes>;
    /// After the last update.
    fn close(&mut self, usage: Usage) -> Vec<Bytes>;
    /// Instead of the rest.
    fn fail(&mut self, error: &ApiError) -> Vec<Bytes>;
}

enum Stage {
    Open,
    Updates,
    Over,
}

/// Runs a request and writes it while it runs. Dropping the stream drops the request.
pub(super) fn stream<W: ChunkWriter>(
    running: Running,
    writer: W,
) -> impl Stream<Item = Bytes> + Send + 'static {
    struct State<W> {
        running: Running,
        writer: W,
        stage: Stage,
        ready: VecDeque<Bytes>,
    }
    let state = State {
        running,
        writer,
        stage: Stage::Open,
        ready: VecDeque::new(),
    };
    futures::stream::unfold(state, |mut state| async move {
        loop {
            if let Some(bytes) = state.ready.pop_front() {
                return Some((bytes, state));
            }
            let running = &mut state.running;
            let bytes = match state.stage {
                Stage::Over => return None,
                Stage::Open => {
                    state.stage = Stage::Updates;
                    state.writer.open(running.usage())
                }
                Stage::Updates => match running.next().await {
                    Ok(Some(Update::Silence)) => vec![sse::comment()],
                    Ok(Some(update)) => state.writer.update(update, running.usage()),
                    Ok(None) => {
                        state.stage = Stage::Over;
                        state.writer.close(running.usage())
                    }
                    Err(error) => {
                        tell(&error);
                        state.stage = Stage::Over;
                        state.writer.fail(&error)
                    }
                },
            };
            state.ready.extend(bytes);
        }
    })
}

/// A client's own mistakes may quote what it sent.
fn tell(error: &ApiError) {
    if error.status() >= 500 {
        tracing::warn!(label = error.label(), %error, "a streamed request failed");
    } else {
        tracing::debug!(label = error.label(), "a streamed request was refused");
    }
}

/// The `usage` of a chunk that is not the last.
fn chunk_usage(when: StreamUsage, usage: Usage) -> Option<Option<Usage>> {
    match when {
        StreamUsage::Never => None,
        StreamUsage::Last => Some(None),
        StreamUsage::Every => Some(Some(usage)),
    }
}
