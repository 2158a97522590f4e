//! `/tokenize` and `/detokenize`.

use super::super::access::Caller;
use super::super::body::JsonBytes;
use super::super::{AppState, prepare};
use super::completions::decode;
use crate::openai::{
    ApiError, ConversationFields, DetokenizeFields, DetokenizeResponse, ErrorBody, TokenStrings,
    TokenizeFields, TokenizeInput, TokenizeResponse, ValidTokenize, parse,
};
use axum::extract::State;
use axum::{Extension, Json};

/// Encodes a text or a conversation.
#[utoipa::path(
    post,
    path = "/tokenize",
    tag = "tokens",
    request_body = super::super::openapi::TokenizeRequest,
    responses((status = 200, body = TokenizeResponse), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody, description = "A key is needed"), (status = 429, body = ErrorBody, description = "The tenant is over the limit that `param` names; `Retry-After` says for how long"))
)]
pub(in crate::http) async fn create_tokens(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    JsonBytes(body): JsonBytes,
) -> Result<Json<TokenizeResponse>, ApiError> {
    let fields: TokenizeFields = parse(&body)?;
    let conversation: ConversationFields = parse(&body)?;
    drop(body);
    let asked = state.model(&caller, fields.model.as_deref())?;
    let model = &asked.entry.model;
    let request = ValidTokenize::new(fields, conversation)?;
    let tokens = match request.input() {
        TokenizeInput::Prompt { text, add_special } => {
            prepare::encode_raw(model, text, *add_special).await?
        }
        TokenizeInput::Chat(conversation) => {
            prepare::render(&asked, conversation, prepare::Length::Any)
                .await?
                .tokens
        }
    };
    let strings = |ids: &[u32]| {
        ids.iter()
            .map(|&id| {
                model
                    .tokenizer
                    .id_to_token(id)
                    .unwrap_or_default()
                    .to_owned()
            })
            .collect()
    };
    let token_strs = (request.strings() == TokenStrings::Wanted).then(|| strings(&tokens));
    Ok(Json(TokenizeResponse {
        count: tokens.len(),
        max_model_len: model.max_model_len,
        tokens,
        token_strs,
    }))
}

/// Decodes token ids.
#[utoipa::path(
    post,
    path = "/detokenize",
    tag = "tokens",
    request_body = DetokenizeFields,
    responses((status = 200, body = DetokenizeResponse), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody, description = "A key is needed"), (status = 429, body = ErrorBody, description = "The tenant is over the limit that `param` names; `Retry-After` says for how long"))
)]
pub(in crate::http) async fn create_text(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    JsonBytes(body): JsonBytes,
) -> Result<Json<DetokenizeResponse>, ApiError> {
    let fields: DetokenizeFields = parse(&body)?;
    drop(body);
    let asked = state.model(&caller, fields.model.as_deref())?;
    let model = &asked.entry.model;
    if let Some(bad) = fields.tokens.iter().find(|&&id| id >= model.vocab) {
        let vocab = model.vocab;
        return Err(ApiError::invalid(
            "tokens",
            format!("`tokens` has {bad}, which is outside the vocabulary of {vocab} tokens"),
        ));
    }
    let prompt = if fields.tokens.is_empty() {
        String::new()
    } else {
        decode(model, &fields.tokens)?
    };
    Ok(Json(DetokenizeResponse { prompt }))
}
