//! `/v1/chat/completions`: request fields beside [`super::SamplingFields`], and answers.

use super::Usage;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Fields of a conversation; `/tokenize` takes them too.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct ConversationFields {
    /// The conversation so far, oldest first: objects with `role` and `content` (a string, or a list of text parts).
    #[schema(value_type = Vec<Object>)]
    pub messages: Option<Vec<Value>>,
    /// Functions that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// `none`, `auto`, `required` or a named function. The template is told; the model is not forced.
    pub tool_choice: Option<Value>,
    /// Documents, for templates that take them.
    #[schema(value_type = Option<Vec<Object>>)]
    pub documents: Option<Vec<Value>>,
    /// Ends the prompt where the assistant's answer begins; on by default.
    pub add_generation_prompt: Option<bool>,
    /// Leaves the last message open, for the model to go on.
    pub continue_final_message: Option<bool>,
    /// More variables for the template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Refused: templates come from the model alone.
    pub chat_template: Option<Value>,
}

/// Fields of a chat request alone.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct ChatFields {
    /// Whether to return log-probabilities.
    pub logprobs: Option<bool>,
    /// And of how many best tokens, 0 to 20.
    pub top_logprobs: Option<i64>,
    /// Most tokens of the answer; 0 or absent is what the context leaves.
    pub max_completion_tokens: Option<i64>,
    /// Puts the last message before the answer if it is the assistant's.
    pub echo: Option<bool>,
    /// Whether several calls may be made in one answer. Not enforced.
    pub parallel_tool_calls: Option<bool>,
    /// Deprecated by OpenAI; refused in favour of `tools`.
    pub functions: Option<Value>,
    /// Deprecated by OpenAI; refused in favour of `tool_choice`.
    pub function_call: Option<Value>,
}

/// A called function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct FunctionCall {
    /// Its name; in chunks with the first part alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// JSON, or its next characters.
    pub arguments: String,
}

/// One tool call, or a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ToolCall {
    /// Which call a part belongs to. Absent in whole answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// In chunks with the first part alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`; in chunks with the first part alone.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// The function.
    pub function: FunctionCall,
}

/// The answer's message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ChatMessage {
    /// `assistant`
    pub role: &'static str,
    /// The text; `null` if there are tool calls alone.
    pub content: Option<String>,
    /// What the model thought before, for models that mark it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls, if any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// What a chunk adds to the message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ChatDelta {
    /// In a choice's first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Next text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Next thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Parts of calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// One token's log-probability.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct TokenLogprob {
    /// The token as text; U+FFFD where it is not whole characters.
    pub token: String,
    /// Natural logarithm; -9999 stands for what JSON cannot write.
    pub logprob: f32,
    /// Its bytes, exactly.
    pub bytes: Vec<u8>,
}

/// A chosen token and the best ones at its place.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatTokenLogprob {
    /// The token as text; U+FFFD where it is not whole characters.
    pub token: String,
    /// Natural logarithm; -9999 stands for what JSON cannot write.
    pub logprob: f32,
    /// Its bytes, exactly.
    pub bytes: Vec<u8>,
    /// The best tokens, best first.
    pub top_logprobs: Vec<TokenLogprob>,
}

/// Log-probabilities of an answer's tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry per token.
    pub content: Vec<ChatTokenLogprob>,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatChoice {
    /// 0 to `n` - 1.
    pub index: u32,
    /// The message.
    pub message: ChatMessage,
    /// If asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
    /// The stop string or token id that ended it; `null` for the model's own end token.
    #[schema(value_type = Option<String>)]
    pub stop_reason: Option<Value>,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatResponse {
    /// `chatcmpl-…`
    pub id: String,
    /// `chat.completion`
    pub object: &'static str,
    /// Unix seconds.
    pub created: u64,
    /// The model's id.
    pub model: String,
    /// The answers.
    pub choices: Vec<ChatChoice>,
    /// Token counts.
    pub usage: Usage,
    /// If asked for: per prompt token a map from token id to its entry, `null` for the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub prompt_logprobs: Option<Vec<Option<Map<String, Value>>>>,
}

/// One choice's part of a chunk.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatChunkChoice {
    /// 0 to `n` - 1.
    pub index: u32,
    /// What is new.
    pub delta: ChatDelta,
    /// If asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// In a choice's last chunk: `stop`, `length` or `tool_calls`.
    pub finish_reason: Option<&'static str>,
    /// In the last chunk: the stop string or token id that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub stop_reason: Option<Value>,
}

/// A part of a streamed answer.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatChunk {
    /// `chatcmpl-…`
    pub id: String,
    /// `chat.completion.chunk`
    pub object: &'static str,
    /// Unix seconds.
    pub created: u64,
    /// The model's id.
    pub model: String,
    /// Empty in the chunk with the usage.
    pub choices: Vec<ChatChunkChoice>,
    /// Present only if asked for, and `null` but in the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}
