//! `/v1/chat/completions`.

use super::super::access::Caller;
use super::super::body::JsonBytes;
use super::super::format::{ChatFormat, ChatStream, Heading, chat_whole, stream};
use super::super::running::Running;
use super::super::{AppState, defaults, prepare, sse};
use crate::openai::{
    ApiError, ChatFields, ChatResponse, ConversationFields, Delivery, ErrorBody, SamplingFields,
    ValidChat, parse,
};
use crate::text::TokenSpeller;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

/// Answers a conversation.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    tag = "generation",
    request_body = super::super::openapi::ChatRequest,
    responses(
        (status = 200, body = ChatResponse, description = "The answer; with `stream` server-sent events of type ChatChunk, then `[DONE]`"),
        (status = 400, body = ErrorBody), (status = 401, body = ErrorBody, description = "A key is needed"), (status = 429, body = ErrorBody, description = "The tenant is over the limit that `param` names; `Retry-After` says for how long"), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)
    )
)]
pub(in crate::http) async fn create_chat_completion(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    JsonBytes(body): JsonBytes,
) -> Result<Response, ApiError> {
    let body = defaults::fill(body, &caller.tenant)?;
    let sampling: SamplingFields = parse(&body)?;
    let chat: ChatFields = parse(&body)?;
    let conversation: ConversationFields = parse(&body)?;
    drop(body);
    let asked = state.generating(&caller, sampling.model.as_deref())?;
    let request = ValidChat::new(
        sampling,
        &chat,
        conversation,
        &state.facts(&asked.entry.model),
    )?;
    let entry = &asked.entry;
    let places = state
        .limits()
        .places(&caller, u64::from(request.params().sequences()))?;
    let job = prepare::chat(&asked, &request).await?;
    let params = request.params();
    let format = ChatFormat {
        heading: Heading::new("chatcmpl-", &entry.model),
        speller: TokenSpeller::new(
            &entry.model.tokenizer,
            params.token_names(),
            params.skip_special(),
        ),
        top_logprobs: params.top_logprobs(),
        prompt_logprobs: params.prompt_logprobs(),
        echo: request.echo().to_owned(),
    };
    let hold = state.limits().hold(places, job.most_tokens())?;
    let meter = entry.metrics.meter(&caller.tenant);
    let running = Running::submit(job, hold, meter, state.config().retry_after)?;
    match params.delivery() {
        Delivery::Whole => Ok(Json(chat_whole(running, format).await?).into_response()),
        Delivery::Stream { usage } => {
            let writer = ChatStream::new(format, usage, running.choices());
            let running = running.with_silence(state.config().keep_alive);
            Ok(sse::response(
                "text/event-stream; charset=utf-8",
                stream(running, writer),
            ))
        }
    }
}
