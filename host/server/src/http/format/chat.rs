//! `/v1/chat/completions`.

use super::super::ids;
use super::super::running::{Piece, Running, Update};
use super::super::sse;
use super::{ChunkWriter, Heading, chunk_usage};
use crate::openai::{
    ApiError, ChatChoice, ChatChunk, ChatChunkChoice, ChatDelta, ChatLogprobs, ChatMessage,
    ChatResponse, FunctionCall, StreamUsage, ToolCall, Usage,
};
use crate::serving::Delta;
use crate::text::TokenSpeller;
use bytes::Bytes;
use guesthouse_engine::Sampled;
use serde_json::Value;
use std::collections::HashSet;

const ROLE: &str = "assistant";

/// How answers of one request are written.
pub(in crate::http) struct ChatFormat {
    pub(in crate::http) heading: Heading,
    pub(in crate::http) speller: TokenSpeller,
    pub(in crate::http) top_logprobs: Option<u32>,
    pub(in crate::http) prompt_logprobs: Option<u32>,
    /// Stands before each answer.
    pub(in crate::http) echo: String,
}

impl ChatFormat {
    fn logprobs(&self, tokens: &[Sampled]) -> Option<ChatLogprobs> {
        let top = self.top_logprobs?;
        let content: Vec<_> = tokens
            .iter()
            .map(|sampled| self.speller.chat(sampled, top))
            .collect();
        (!content.is_empty()).then_some(ChatLogprobs { content })
    }
}

/// One answer while it grows.
struct Growing {
    content: String,
    reasoning: String,
    calls: Vec<ToolCall>,
    logprobs: Option<ChatLogprobs>,
    reason: &'static str,
    stop_reason: Option<Value>,
}

impl Growing {
    fn take(&mut self, delta: Delta) {
        match delta {
            Delta::Content(text) => self.content.push_str(&text),
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::ToolCall {
                index,
                id,
                name,
                arguments,
            } => {
                let known = self.calls.iter().position(|call| call.index == Some(index));
                let at = known.unwrap_or_else(|| {
                    self.calls.push(ToolCall {
                        index: Some(index),
                        id: Some(id.unwrap_or_else(|| ids::random("call_"))),
                        kind: Some("function"),
                        function: FunctionCall {
                            name: Some(String::new()),
                            arguments: String::new(),
                        },
                    });
                    self.calls.len() - 1
                });
                let function = &mut self.calls[at].function;
                if let (Some(so_far), Some(more)) = (&mut function.name, name) {
                    so_far.push_str(&more);
                }
                function.arguments.push_str(&arguments);
            }
        }
    }

    fn into_choice(self, index: u32) -> ChatChoice {
        let mut tool_calls = self.calls;
        for call in &mut tool_calls {
            call.index = None;
        }
        let silent = self.content.is_empty() && !tool_calls.is_empty();
        ChatChoice {
            index,
            message: ChatMessage {
                role: ROLE,
                content: (!silent).then_some(self.content),
                reasoning_content: (!self.reasoning.is_empty()).then_some(self.reasoning),
                tool_calls,
            },
            logprobs: self.logprobs,
            finish_reason: self.reason,
            stop_reason: self.stop_reason,
        }
    }
}

/// Runs the request to its end and writes the whole answer.
pub(in crate::http) async fn chat_whole(
    mut running: Running,
    format: ChatFormat,
) -> Result<ChatResponse, ApiError> {
    let mut choices: Vec<_> = (0..running.choices())
        .map(|_| Growing {
            content: format.echo.clone(),
            reasoning: String::new(),
            calls: Vec::new(),
            logprobs: format.top_logprobs.map(|_| ChatLogprobs::default()),
            reason: "length",
            stop_reason: None,
        })
        .collect();
    let mut prompt_logprobs = None;
    while let Some(update) = running.next().await? {
        match update {
            Update::Silence => {}
            Update::Scores { scored, .. } => {
                prompt_logprobs = format
                    .prompt_logprobs
                    .map(|top| format.speller.prompt_maps(&scored, top));
            }
            Update::Piece(Piece {
                index,
                deltas,
                tokens,
                finish,
            }) => {
                let growing = &mut choices[index as usize];
                deltas.into_iter().for_each(|delta| growing.take(delta));
                if let (Some(all), Some(more)) = (&mut growing.logprobs, format.logprobs(&tokens)) {
                    all.content.extend(more.content);
                }
                if let Some(finish) = finish {
                    growing.reason = finish.reason;
                    growing.stop_reason = finish.stop_reason;
                }
            }
        }
    }
    Ok(ChatResponse {
        id: format.heading.id,
        object: "chat.completion",
        created: format.heading.created,
        model: format.heading.model,
        choices: (0u32..)
            .zip(choices)
            .map(|(index, growing)| growing.into_choice(index))
            .collect(),
        usage: running.usage(),
        prompt_logprobs,
    })
}

/// Writes chunks.
pub(in crate::http) struct ChatStream {
    format: ChatFormat,
    usage: StreamUsage,
    choices: u32,
    /// Calls whose first part was sent, as (choice, call).
    named: HashSet<(u32, u32)>,
}

impl ChatStream {
    pub(in crate::http) fn new(format: ChatFormat, usage: StreamUsage, choices: u32) -> Self {
        Self {
            format,
            usage,
            choices,
            named: HashSet::new(),
        }
    }

    fn chunk(&self, choices: Vec<ChatChunkChoice>, usage: Option<Option<Usage>>) -> Bytes {
        sse::data(&ChatChunk {
            id: self.format.heading.id.clone(),
            object: "chat.completion.chunk",
            created: self.format.heading.created,
            model: self.format.heading.model.clone(),
            choices,
            usage,
        })
    }

    fn call(&mut self, choice: u32, delta: Delta) -> Option<ToolCall> {
        let Delta::ToolCall {
            index,
            id,
            name,
            arguments,
        } = delta
        else {
            return None;
        };
        let first = self.named.insert((choice, index));
        Some(ToolCall {
            index: Some(index),
            id: first.then(|| id.unwrap_or_else(|| ids::random("call_"))),
            kind: first.then_some("function"),
            function: FunctionCall { name, arguments },
        })
    }

    /// Neighbouring deltas of one kind go into one chunk, in order.
    fn deltas(&mut self, choice: u32, deltas: Vec<Delta>) -> Vec<ChatDelta> {
        let mut chunks: Vec<ChatDelta> = Vec::new();
        for delta in deltas {
            let next = match delta {
                Delta::Content(text) => ChatDelta {
                    content: Some(text),
                    ..ChatDelta::default()
                },
                Delta::Reasoning(text) => ChatDelta {
                    reasoning_content: Some(text),
                    ..ChatDelta::default()
                },
                call @ Delta::ToolCall { .. } => ChatDelta {
                    tool_calls: self.call(choice, call).into_iter().collect(),
                    ..ChatDelta::default()
                },
            };
            match chunks.last_mut() {
                Some(ChatDelta {
                    content: Some(text),
                    ..
                }) if next.content.is_some() => {
                    text.push_str(next.content.as_deref().unwrap_or_default());
                }
                Some(ChatDelta {
                    reasoning_content: Some(text),
                    ..
                }) if next.reasoning_content.is_some() => {
                    text.push_str(next.reasoning_content.as_deref().unwrap_or_default());
                }
                Some(ChatDelta { tool_calls, .. })
                    if !tool_calls.is_empty() && !next.tool_calls.is_empty() =>
                {
                    tool_calls.extend(next.tool_calls);
                }
                _ => chunks.push(next),
            }
        }
        chunks
    }
}

impl ChunkWriter for ChatStream {
    fn open(&mut self, usage: Usage) -> Vec<Bytes> {
        let usage = chunk_usage(self.usage, usage);
        let mut chunks = Vec::new();
        for index in 0..self.choices {
            let part = |delta| ChatChunkChoice {
                index,
                delta,
                logprobs: None,
                finish_reason: None,
                stop_reason: None,
            };
            let role = ChatDelta {
                role: Some(ROLE),
                content: Some(String::new()),
                ..ChatDelta::default()
            };
            chunks.push(self.chunk(vec![part(role)], usage));
            if !self.format.echo.is_empty() {
                let echo = ChatDelta {
                    content: Some(self.format.echo.clone()),
                    ..ChatDelta::default()
                };
                chunks.push(self.chunk(vec![part(echo)], usage));
            }
        }
        chunks
    }

    fn update(&mut self, update: Update, usage: Usage) -> Vec<Bytes> {
        let Update::Piece(Piece {
            index,
            deltas,
            tokens,
            mut finish,
        }) = update
        else {
            return Vec::new();
        };
        let mut logprobs = self.format.logprobs(&tokens);
        let mut deltas = self.deltas(index, deltas);
        if deltas.is_empty() || finish.is_some() {
            deltas.push(ChatDelta::default());
        }
        let last = deltas.len() - 1;
        let usage = chunk_usage(self.usage, usage);
        let mut chunks = Vec::new();
        for (i, delta) in deltas.into_iter().enumerate() {
            let finish = if i == last { finish.take() } else { None };
            let choice = ChatChunkChoice {
                index,
                delta,
                logprobs: logprobs.take(),
                finish_reason: finish.as_ref().map(|finish| finish.reason),
                stop_reason: finish.and_then(|finish| finish.stop_reason),
            };
            chunks.push(self.chunk(vec![choice], usage));
        }
        chunks
    }

    fn close(&mut self, usage: Usage) -> Vec<Bytes> {
        let last =
            (self.usage != StreamUsage::Never).then(|| self.chunk(Vec::new(), Some(Some(usage))));
        last.into_iter().chain([sse::done()]).collect()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![sse::data(&error.body()), sse::done()]
    }
}
