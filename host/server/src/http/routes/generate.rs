//! `/generate`.

use super::super::access::Caller;
use super::super::body::JsonBytes;
use super::super::format::{GenerateStream, generate_whole, stream};
use super::super::running::Running;
use super::super::{AppState, defaults, prepare, sse};
use super::completions::decode;
use crate::openai::{
    ApiError, Delivery, ErrorBody, GenerateFields, GenerateResponse, RawPrompt, SamplingFields,
    ValidGenerate, parse,
};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

/// Continues a prompt, as vLLM's early endpoint did.
#[utoipa::path(
    post,
    path = "/generate",
    tag = "generation",
    request_body = super::super::openapi::GenerateRequest,
    responses(
        (status = 200, body = GenerateResponse, description = "Prompt and answers; with `stream` one object after another, each with all text so far and followed by a NUL byte"),
        (status = 400, body = ErrorBody), (status = 401, body = ErrorBody, description = "A key is needed"), (status = 429, body = ErrorBody, description = "The tenant is over the limit that `param` names; `Retry-After` says for how long"), (status = 503, body = ErrorBody)
    )
)]
pub(in crate::http) async fn create_generation(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    JsonBytes(body): JsonBytes,
) -> Result<Response, ApiError> {
    let body = defaults::fill(body, &caller.tenant)?;
    let sampling: SamplingFields = parse(&body)?;
    let fields: GenerateFields = parse(&body)?;
    drop(body);
    let asked = state.generating(&caller, sampling.model.as_deref())?;
    let request = ValidGenerate::new(sampling, fields, &state.facts(&asked.entry.model))?;
    let entry = &asked.entry;
    let places = state
        .limits()
        .places(&caller, u64::from(request.params().sequences()))?;
    let job = prepare::generate(&asked, &request).await?;
    let prompt = match request.prompt() {
        RawPrompt::Text(text) => text.clone(),
        RawPrompt::Ids(ids) => decode(&entry.model, ids)?,
    };
    let hold = state.limits().hold(places, job.most_tokens())?;
    let meter = entry.metrics.meter(&caller.tenant);
    let running = Running::submit(job, hold, meter, state.config().retry_after)?;
    match request.params().delivery() {
        Delivery::Whole => Ok(Json(generate_whole(running, &prompt).await?).into_response()),
        Delivery::Stream { .. } => {
            let writer = GenerateStream::new(&prompt, running.choices());
            Ok(sse::response(
                "text/plain; charset=utf-8",
                stream(running, writer),
            ))
        }
    }
}
