//! `/v1/completions`.

use super::super::running::{Finish, Piece, Running, Update};
use super::super::sse;
use super::{ChunkWriter, Heading, chunk_usage};
use crate::openai::{
    ApiError, CompletionChoice, CompletionLogprobs, CompletionResponse, StreamUsage, Usage,
};
use crate::serving::Delta;
use crate::text::TokenSpeller;
use bytes::Bytes;
use guesthouse_engine::{Sampled, TokenId};

/// A prompt as `echo` shows it.
#[derive(Clone)]
pub(in crate::http) struct Echoed {
    /// As the client wrote it, or decoded.
    pub(in crate::http) text: String,
    /// Of its tokens.
    pub(in crate::http) first: TokenId,
}

/// How answers of one request are written.
pub(in crate::http) struct CompletionFormat {
    pub(in crate::http) heading: Heading,
    pub(in crate::http) n: u32,
    pub(in crate::http) speller: TokenSpeller,
    pub(in crate::http) top_logprobs: Option<u32>,
    pub(in crate::http) prompt_logprobs: Option<u32>,
    /// One per prompt; empty without `echo`.
    pub(in crate::http) echoed: Vec<Echoed>,
}

impl CompletionFormat {
    fn response(
        &self,
        choices: Vec<CompletionChoice>,
        usage: Option<Option<Usage>>,
    ) -> CompletionResponse {
        CompletionResponse {
            id: self.heading.id.clone(),
            object: "text_completion",
            created: self.heading.created,
            model: self.heading.model.clone(),
            choices,
            usage,
        }
    }

    fn logprobs(&self, tokens: &[Sampled], offset: &mut u32) -> Option<CompletionLogprobs> {
        let top = self.top_logprobs?;
        (!tokens.is_empty()).then(|| self.speller.completion(tokens, top, offset))
    }

    /// The echoed prompt of a choice, with its log-probabilities if both were asked for.
    fn echo(
        &self,
        prompt: usize,
        scored: &[Sampled],
        offset: &mut u32,
    ) -> Option<(String, Option<CompletionLogprobs>)> {
        let echoed = self.echoed.get(prompt)?;
        let logprobs = self
            .top_logprobs
            .map(|top| self.speller.prompt(echoed.first, scored, top, offset));
        Some((echoed.text.clone(), logprobs))
    }
}

fn text_of(deltas: Vec<Delta>) -> String {
    deltas
        .into_iter()
        .map(|delta| {
            if let Delta::Content(text) = delta {
                text
            } else {
                String::new()
            }
        })
        .collect()
}

fn choice(
    index: u32,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish: Option<Finish>,
) -> CompletionChoice {
    let (finish_reason, stop_reason) = match finish {
        Some(finish) => (Some(finish.reason), finish.stop_reason),
        None => (None, None),
    };
    CompletionChoice {
        index,
        text,
        logprobs,
        finish_reason,
        stop_reason,
        prompt_logprobs: None,
    }
}

fn append(to: &mut Option<CompletionLogprobs>, more: CompletionLogprobs) {
    let Some(lists) = to else {
        *to = Some(more);
        return;
    };
    lists.tokens.extend(more.tokens);
    lists.token_logprobs.extend(more.token_logprobs);
    lists.top_logprobs.extend(more.top_logprobs);
    lists.text_offset.extend(more.text_offset);
}

/// Runs the request to its end and writes the whole answer.
pub(in crate::http) async fn completion_whole(
    mut running: Running,
    format: CompletionFormat,
) -> Result<CompletionResponse, ApiError> {
    let count = running.choices();
    let n = format.n as usize;
    let mut choices: Vec<_> = (0..count)
        .map(|index| {
            let text = format
                .echoed
                .get(index as usize / n)
                .map_or_else(String::new, |echoed| echoed.text.clone());
            let logprobs = format.top_logprobs.map(|_| CompletionLogprobs::default());
            choice(index, text, logprobs, None)
        })
        .collect();
    let mut offsets = vec![0; count as usize];
    while let Some(update) = running.next().await? {
        match update {
            Update::Silence => {}
            Update::Scores { prompt, scored } => {
                for (choice, offset) in choices
                    .iter_mut()
                    .zip(&mut offsets)
                    .skip(prompt * n)
                    .take(n)
                {
                    if let Some((_, Some(logprobs))) = format.echo(prompt, &scored, offset) {
                        append(&mut choice.logprobs, logprobs);
                    }
                    choice.prompt_logprobs = format
                        .prompt_logprobs
                        .map(|top| format.speller.prompt_maps(&scored, top));
                }
            }
            Update::Piece(Piece {
                index,
                deltas,
                tokens,
                finish,
            }) => {
                let at = index as usize;
                choices[at].text.push_str(&text_of(deltas));
                if let Some(logprobs) = format.logprobs(&tokens, &mut offsets[at]) {
                    append(&mut choices[at].logprobs, logprobs);
                }
                if let Some(finish) = finish {
                    choices[at].finish_reason = Some(finish.reason);
                    choices[at].stop_reason = finish.stop_reason;
                }
            }
        }
    }
    Ok(format.response(choices, Some(Some(running.usage()))))
}

/// Writes chunks.
pub(in crate::http) struct CompletionStream {
    pub(in crate::http) format: CompletionFormat,
    pub(in crate::http) usage: StreamUsage,
    /// Per choice: where its next token begins.
    pub(in crate::http) offsets: Vec<u32>,
}

impl CompletionStream {
    pub(in crate::http) fn new(format: CompletionFormat, usage: StreamUsage, choices: u32) -> Self {
        Self {
            format,
            usage,
            offsets: vec![0; choices as usize],
        }
    }

    fn chunk(&self, choice: CompletionChoice, usage: Usage) -> Bytes {
        sse::data(
            &self
                .format
                .response(vec![choice], chunk_usage(self.usage, usage)),
        )
    }

    fn echo(&mut self, prompt: usize, scored: &[Sampled], usage: Usage) -> Vec<Bytes> {
        let n = self.format.n as usize;
        let mut chunks = Vec::new();
        for index in prompt * n..(prompt + 1) * n {
            if let Some((text, logprobs)) =
                self.format.echo(prompt, scored, &mut self.offsets[index])
            {
                chunks.push(self.chunk(
                    choice(
                        u32::try_from(index).unwrap_or(u32::MAX),
                        text,
                        logprobs,
                        None,
                    ),
                    usage,
                ));
            }
        }
        chunks
    }
}

impl ChunkWriter for CompletionStream {
    fn open(&mut self, usage: Usage) -> Vec<Bytes> {
        // With log-probabilities the prompt is shown once they are there.
        if self.format.top_logprobs.is_some() {
            return Vec::new();
        }
        (0..self.format.echoed.len())
            .flat_map(|prompt| self.echo(prompt, &[], usage))
            .collect()
    }

    fn update(&mut self, update: Update, usage: Usage) -> Vec<Bytes> {
        match update {
            Update::Silence => Vec::new(),
            Update::Scores { prompt, scored } => self.echo(prompt, &scored, usage),
            Update::Piece(Piece {
                index,
                deltas,
                tokens,
                finish,
            }) => {
                let logprobs = self
                    .format
                    .logprobs(&tokens, &mut self.offsets[index as usize]);
                vec![self.chunk(choice(index, text_of(deltas), logprobs, finish), usage)]
            }
        }
    }

    fn close(&mut self, usage: Usage) -> Vec<Bytes> {
        let last = (self.usage != StreamUsage::Never)
            .then(|| sse::data(&self.format.response(Vec::new(), Some(Some(usage)))));
        last.into_iter().chain([sse::done()]).collect()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![sse::data(&error.body()), sse::done()]
    }
}
