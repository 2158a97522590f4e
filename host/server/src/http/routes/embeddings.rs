//! `/v1/embeddings`.

use super::super::access::Caller;
use super::super::body::JsonBytes;
use super::super::format::Heading;
use super::super::{AppState, embedding, prepare};
use crate::openai::{
    ApiError, EmbeddingData, EmbeddingFields, EmbeddingResponse, EmbeddingUsage, ErrorBody,
    ValidEmbedding, parse,
};
use axum::extract::State;
use axum::{Extension, Json};

/// Makes a vector of each prompt.
#[utoipa::path(
    post,
    path = "/v1/embeddings",
    tag = "embeddings",
    request_body = EmbeddingFields,
    responses(
        (status = 200, body = EmbeddingResponse),
        (status = 400, body = ErrorBody), (status = 401, body = ErrorBody, description = "A key is needed"), (status = 429, body = ErrorBody, description = "The tenant is over the limit that `param` names; `Retry-After` says for how long"), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)
    )
)]
pub(in crate::http) async fn create_embedding(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    JsonBytes(body): JsonBytes,
) -> Result<Json<EmbeddingResponse>, ApiError> {
    let fields: EmbeddingFields = parse(&body)?;
    drop(body);
    let (asked, facts) = state.embedding(&caller, fields.model.as_deref())?;
    let request = ValidEmbedding::new(fields, &state.facts(&asked.entry.model), &facts)?;
    let entry = &asked.entry;
    let places = state
        .limits()
        .places(&caller, request.prompts().len() as u64)?;
    let prompts = prepare::embedding(&entry.model, &request).await?;
    let tokens = prompts
        .iter()
        .fold(0u32, |sum, prompt| sum.saturating_add(prompt.len() as u32));
    let hold = state.limits().hold(places, tokens.into())?;
    let salt = caller.salt(entry.model.cache_salt, request.cache_salt());
    let vectors =
        embedding::embed(&asked, prompts, salt, &hold, state.config().retry_after).await?;
    let data = (0..).zip(vectors).map(|(index, vector)| EmbeddingData {
        index,
        object: "embedding",
        embedding: request.write(vector, &facts),
    });
    let heading = Heading::new("embd-", &entry.model);
    Ok(Json(EmbeddingResponse {
        id: heading.id,
        object: "list",
        created: heading.created,
        model: heading.model,
        data: data.collect(),
        usage: EmbeddingUsage {
            prompt_tokens: tokens,
            total_tokens: tokens,
        },
    }))
}
