//! `/v1/embeddings`.

use super::super::body::JsonBytes;
use super::super::format::Heading;
use super::super::{AppState, Tenant, embedding, prepare};
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
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)
    )
)]
pub(in crate::http) async fn create_embedding(
    State(state): State<AppState>,
    Extension(tenant): Extension<Tenant>,
    JsonBytes(body): JsonBytes,
) -> Result<Json<EmbeddingResponse>, ApiError> {
    let fields: EmbeddingFields = parse(&body)?;
    drop(body);
    let (entry, facts) = state.embedding(fields.model.as_deref())?;
    let request = ValidEmbedding::new(fields, &state.facts(&entry.model), &facts)?;
    let prompts = prepare::embedding(&entry.model, &request).await?;
    let tokens = prompts
        .iter()
        .fold(0u32, |sum, prompt| sum.saturating_add(prompt.len() as u32));
    let salt = tenant.salt(entry.model.cache_salt, request.cache_salt());
    let vectors = embedding::embed(&entry, prompts, salt, state.config().retry_after).await?;
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
