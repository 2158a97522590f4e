//! From a valid request to a [`Job`]: encoding, rendering, planning, and what the context leaves for the answer.

use super::error::{from_guest, from_tokenizer};
use super::job::{Job, JobChat, JobPrompt};
use super::{Tenant, ids};
use crate::openai::{
    ApiError, MaxTokens, RawPrompt, ValidChat, ValidCompletion, ValidConversation, ValidGenerate,
    ValidParams,
};
use crate::serving::{Chat, Conversation, Planned, ServedModel};
use crate::text::{StopSet, TextParams};
use guesthouse_engine::TokenId;
use guesthouse_tokenizer::{AddSpecial, Segment};
use std::sync::Arc;

/// Texts from this size on are encoded on a thread of their own, bytes.
const LARGE_TEXT: usize = 32 << 10;

/// A conversation with its chat store.
pub(super) struct Rendered {
    pub(super) tokens: Vec<TokenId>,
    pub(super) conversation: Conversation,
    pub(super) chat: Box<dyn Chat>,
}

/// Runs work that takes longer than a poll should.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ApiError::Internal {
            message: format!("a worker thread failed: {error}"),
        })
}

/// Ids of raw text.
pub(super) async fn encode_raw(
    model: &Arc<ServedModel>,
    text: &str,
    add: AddSpecial,
) -> Result<Vec<TokenId>, ApiError> {
    let ids = if text.len() < LARGE_TEXT {
        model.tokenizer.encode_raw(text, add)
    } else {
        let (tokenizer, text) = (Arc::clone(&model.tokenizer), text.to_owned());
        blocking(move || tokenizer.encode_raw(&text, add)).await?
    };
    ids.map_err(|error| from_tokenizer(&error, "prompt"))
}

async fn encode_segments(
    model: &Arc<ServedModel>,
    segments: Vec<Segment>,
) -> Result<Vec<TokenId>, ApiError> {
    let size: usize = segments
        .iter()
        .map(|segment| {
            if let Segment::Text(text) = segment {
                text.len()
            } else {
                1
            }
        })
        .sum();
    let ids = if size < LARGE_TEXT {
        model.tokenizer.encode_segments(&segments)
    } else {
        let tokenizer = Arc::clone(&model.tokenizer);
        blocking(move || tokenizer.encode_segments(&segments)).await?
    };
    ids.map_err(|error| from_tokenizer(&error, "messages"))
}

/// Renders a conversation and encodes it.
pub(super) async fn render(
    model: &Arc<ServedModel>,
    conversation: &ValidConversation,
) -> Result<Rendered, ApiError> {
    let conversation = conversation.to_guest(ids::now());
    let mut chat = model.guests.open_chat(conversation.now).await?;
    let segments = chat.render(&conversation).await;
    let segments = segments.map_err(|error| from_guest(error, Some("messages")))?;
    let tokens = encode_segments(model, segments).await?;
    Ok(Rendered {
        tokens,
        conversation,
        chat,
    })
}

async fn encode_prompt(
    model: &Arc<ServedModel>,
    prompt: &RawPrompt,
    add: AddSpecial,
) -> Result<Vec<TokenId>, ApiError> {
    let tokens = match prompt {
        RawPrompt::Text(text) => encode_raw(model, text, add).await?,
        RawPrompt::Ids(ids) => ids.clone(),
    };
    if tokens.is_empty() {
        return Err(ApiError::invalid(
            "prompt",
            "`prompt` is empty; it needs at least one token",
        ));
    }
    Ok(tokens)
}

pub(super) async fn completion(
    model: &Arc<ServedModel>,
    tenant: Tenant,
    request: &ValidCompletion,
) -> Result<Job, ApiError> {
    let mut prompts = Vec::with_capacity(request.prompts().len());
    for prompt in request.prompts() {
        prompts.push(encode_prompt(model, prompt, request.add_special()).await?);
    }
    let scored = request.scored_prompt();
    build(
        model,
        request.params(),
        Input {
            tenant,
            field: "prompt",
            prompts,
            scored,
            stop_strings: Vec::new(),
            chat: None,
        },
    )
    .await
}

pub(super) async fn generate(
    model: &Arc<ServedModel>,
    tenant: Tenant,
    request: &ValidGenerate,
) -> Result<Job, ApiError> {
    let prompts = vec![encode_prompt(model, request.prompt(), AddSpecial::Yes).await?];
    let input = Input {
        tenant,
        field: "prompt",
        prompts,
        scored: None,
        stop_strings: Vec::new(),
        chat: None,
    };
    build(model, request.params(), input).await
}

pub(super) async fn chat(
    model: &Arc<ServedModel>,
    tenant: Tenant,
    request: &ValidChat,
) -> Result<Job, ApiError> {
    let Rendered {
        tokens,
        conversation,
        mut chat,
    } = render(model, request.conversation()).await?;
    if tokens.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "`messages` rendered to nothing; the template left no token",
        ));
    }
    let stop_strings = chat.stop_strings().await?;
    let mut parsers = Vec::new();
    for _ in 0..request.params().n() {
        parsers.push(chat.parser(&conversation).await?);
    }
    let input = Input {
        tenant,
        field: "messages",
        prompts: vec![tokens],
        scored: request.params().prompt_logprobs(),
        stop_strings,
        chat: Some(JobChat { chat, parsers }),
    };
    build(model, request.params(), input).await
}

struct Input {
    tenant: Tenant,
    field: &'static str,
    prompts: Vec<Vec<TokenId>>,
    scored: Option<u32>,
    /// The chat guest's.
    stop_strings: Vec<String>,
    chat: Option<JobChat>,
}

async fn build(
    model: &Arc<ServedModel>,
    params: &ValidParams,
    input: Input,
) -> Result<Job, ApiError> {
    let prompts = input
        .prompts
        .into_iter()
        .map(|tokens| {
            let max_tokens = room(model, params.max_tokens(), tokens.len(), input.field)?;
            Ok(JobPrompt { tokens, max_tokens })
        })
        .collect::<Result<Vec<_>, ApiError>>()?;
    let planned = plan(model, params).await?;
    let stopping = params.stopping();
    let mut told_stop_tokens = stopping.tokens().to_vec();
    told_stop_tokens.retain(|token| !model.stop_tokens.contains(token));
    let mut stop_strings = stopping.strings().to_vec();
    stop_strings.extend(input.stop_strings);
    Ok(Job {
        model: Arc::clone(model),
        field: input.field,
        prompts,
        n: params.n(),
        cache_salt: input.tenant.salt(model.cache_salt, params.cache_salt()),
        plan: Arc::new(planned.plan),
        seed: planned.seed.or(params.seed()).unwrap_or_else(rand::random),
        text: Arc::new(TextParams {
            stops: Arc::new(StopSet::new(&stop_strings, stopping.text())),
            stop_tokens: stopping.all_tokens(&model.stop_tokens),
            min_tokens: params.min_tokens(),
            skip_special: params.skip_special(),
        }),
        told_stop_tokens,
        top_logprobs: params.top_logprobs(),
        prompt_logprobs: input.scored,
        chat: input.chat,
    })
}

/// Asks the sampler guest, off the threads that serve connections: it may use all of its time.
async fn plan(model: &Arc<ServedModel>, params: &ValidParams) -> Result<Planned, ApiError> {
    let mut bad_words = Vec::new();
    for word in params.bad_words() {
        // A word may begin a text or follow a space.
        for spelled in [word.clone(), format!(" {}", word.trim_start())] {
            let ids = model.tokenizer.encode_raw(&spelled, AddSpecial::No);
            let ids = ids.map_err(|error| from_tokenizer(&error, "bad_words"))?;
            if !ids.is_empty() && !bad_words.contains(&ids) {
                bad_words.push(ids);
            }
        }
    }
    let request = params.sampler_request(&bad_words);
    let guests = Arc::clone(&model.guests);
    Ok(blocking(move || guests.plan(&request)).await??)
}

/// How long the answer may get.
fn room(
    model: &ServedModel,
    max_tokens: MaxTokens,
    prompt: usize,
    field: &'static str,
) -> Result<u32, ApiError> {
    let context = model.max_model_len;
    let asked = match max_tokens {
        MaxTokens::Exactly(asked) => asked,
        MaxTokens::AtMost(_) | MaxTokens::Rest => 1,
    };
    let rest = u32::try_from(prompt)
        .ok()
        .and_then(|prompt| context.checked_sub(prompt));
    match rest {
        Some(rest) if asked <= rest => Ok(match max_tokens {
            MaxTokens::Exactly(asked) => asked,
            MaxTokens::AtMost(most) => most.min(rest),
            MaxTokens::Rest => rest,
        }),
        _ => Err(ApiError::ContextLength {
            param: if rest.is_some_and(|rest| rest > 0) {
                "max_tokens"
            } else {
                field
            },
            message: format!(
                "This model's maximum context length is {context} tokens. However, you requested {} tokens ({prompt} \
                 in the {field}, {asked} in the completion). Please reduce the length of the {field} or completion.",
                prompt as u64 + u64::from(asked)
            ),
        }),
    }
}
