//! `/generate`.

use super::super::body::JsonBytes;
use super::super::format::{GenerateStream, generate_whole, stream};
use super::super::running::Running;
use super::super::{AppState, Tenant, prepare, sse};
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
        (status = 400, body = ErrorBody), (status = 503, body = ErrorBody)
    )
)]
pub(in crate::http) async fn create_generation(
    State(state): State<AppState>,
    Extension(tenant): Extension<Tenant>,
    JsonBytes(body): JsonBytes,
) -> Result<Response, ApiError> {
    let sampling: SamplingFields = parse(&body)?;
    let fields: GenerateFields = parse(&body)?;
    drop(body);
    let entry = state.generating(sampling.model.as_deref())?;
    let request = ValidGenerate::new(sampling, fields, &state.facts(&entry.model))?;
    let job = prepare::generate(&entry.model, tenant, &request).await?;
    let prompt = match request.prompt() {
        RawPrompt::Text(text) => text.clone(),
        RawPrompt::Ids(ids) => decode(&entry.model, ids)?,
    };
    let running = Running::submit(job, &entry.metrics, state.config().retry_after)?;
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
