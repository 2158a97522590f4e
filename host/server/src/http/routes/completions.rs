//! `/v1/completions`.

use super::super::access::Caller;
use super::super::body::JsonBytes;
use super::super::format::{
    CompletionFormat, CompletionStream, Echoed, Heading, completion_whole, stream,
};
use super::super::running::Running;
use super::super::{AppState, defaults, prepare, sse};
use crate::openai::{
    ApiError, CompletionFields, CompletionResponse, Delivery, Echo, ErrorBody, RawPrompt,
    SamplingFields, ValidCompletion, parse,
};
use crate::serving::ServedModel;
use crate::text::TokenSpeller;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use guesthouse_engine::TokenId;
use guesthouse_tokenizer::SkipSpecial;

/// Continues raw prompts.
#[utoipa::path(
    post,
    path = "/v1/completions",
    tag = "generation",
    request_body = super::super::openapi::CompletionRequest,
    responses(
        (status = 200, body = CompletionResponse, description = "The answer; with `stream` server-sent events of the same type, then `[DONE]`"),
        (status = 400, body = ErrorBody), (status = 401, body = ErrorBody, description = "A key is needed"), (status = 429, body = ErrorBody, description = "The tenant is over the limit that `param` names; `Retry-After` says for how long"), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)
    )
)]
pub(in crate::http) async fn create_completion(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    JsonBytes(body): JsonBytes,
) -> Result<Response, ApiError> {
    let body = defaults::fill(body, &caller.tenant)?;
    let sampling: SamplingFields = parse(&body)?;
    let fields: CompletionFields = parse(&body)?;
    drop(body);
    let asked = state.generating(&caller, sampling.model.as_deref())?;
    let request = ValidCompletion::new(sampling, fields, &state.facts(&asked.entry.model))?;
    let entry = &asked.entry;
    let places = state.limits().places(&caller, request.sequences())?;
    let job = prepare::completion(&asked, &request).await?;
    let params = request.params();
    let mut echoed = Vec::new();
    if request.echo() == Echo::Prompt {
        for (raw, prompt) in request.prompts().iter().zip(&job.prompts) {
            echoed.push(echo(&entry.model, raw, &prompt.tokens)?);
        }
    }
    let format = CompletionFormat {
        heading: Heading::new("cmpl-", &entry.model),
        n: params.n(),
        speller: TokenSpeller::new(
            &entry.model.tokenizer,
            params.token_names(),
            params.skip_special(),
        ),
        top_logprobs: params.top_logprobs(),
        prompt_logprobs: params.prompt_logprobs(),
        echoed,
    };
    let hold = state.limits().hold(places, job.most_tokens())?;
    let meter = entry.metrics.meter(&caller.tenant);
    let running = Running::submit(job, hold, meter, state.config().retry_after)?;
    match params.delivery() {
        Delivery::Whole => Ok(Json(completion_whole(running, format).await?).into_response()),
        Delivery::Stream { usage } => {
            let writer = CompletionStream::new(format, usage, running.choices());
            let running = running.with_silence(state.config().keep_alive);
            Ok(sse::response(
                "text/event-stream; charset=utf-8",
                stream(running, writer),
            ))
        }
    }
}

fn echo(model: &ServedModel, raw: &RawPrompt, tokens: &[TokenId]) -> Result<Echoed, ApiError> {
    let text = match raw {
        RawPrompt::Text(text) => text.clone(),
        RawPrompt::Ids(ids) => decode(model, ids)?,
    };
    Ok(Echoed {
        text,
        first: tokens.first().copied().unwrap_or_default(),
    })
}

/// The text of ids, control tokens included.
pub(super) fn decode(model: &ServedModel, ids: &[TokenId]) -> Result<String, ApiError> {
    let text = model.tokenizer.decode(ids, SkipSpecial::No);
    text.map_err(|error| ApiError::Internal {
        message: error.to_string(),
    })
}
