//! The OpenAPI document, generated from the types.

use super::routes;
use crate::openai::{
    ChatChunk, ChatFields, CompletionFields, ConversationFields, GenerateFields, SamplingFields,
    TokenizeFields,
};
use axum::Json;
use utoipa::openapi::schema::{AllOfBuilder, Schema};
use utoipa::openapi::{OpenApi as Document, Ref, RefOr};
use utoipa::{OpenApi, PartialSchema, ToSchema};

/// A request body that is read as several structs.
macro_rules! composed {
    ($(#[$doc:meta])* $name:ident = $($part:ident)+) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                AllOfBuilder::new()$(.item(Ref::from_schema_name($part::name())))+.into()
            }
        }

        impl ToSchema for $name {
            fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
                $(
                    schemas.push(($part::name().into_owned(), $part::schema()));
                    $part::schemas(schemas);
                )+
            }
        }
    };
}

composed!(
    /// Body of `/v1/completions`.
    CompletionRequest = CompletionFields SamplingFields
);
composed!(
    /// Body of `/v1/chat/completions`.
    ChatRequest = ConversationFields ChatFields SamplingFields
);
composed!(
    /// Body of `/generate`.
    GenerateRequest = GenerateFields SamplingFields
);
composed!(
    /// Body of `/tokenize`.
    TokenizeRequest = TokenizeFields ConversationFields
);

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Guesthouse",
        description = "OpenAI's API with vLLM's extensions. Unknown fields are passed over."
    ),
    paths(
        routes::create_chat_completion,
        routes::create_completion,
        routes::create_embedding,
        routes::list_models,
        routes::retrieve_model,
        routes::list_modules,
        routes::retrieve_module,
        routes::put_module,
        routes::delete_module,
        routes::module_history,
        routes::roll_back_module,
        routes::create_generation,
        routes::create_tokens,
        routes::create_text,
        routes::health,
        routes::metrics,
        routes::version
    ),
    components(schemas(ChatChunk))
)]
struct Api;

/// The document of the routes that [`super::router`] serves.
#[must_use]
pub fn document() -> Document {
    Api::openapi()
}

pub(super) async fn serve() -> Json<Document> {
    Json(document())
}
