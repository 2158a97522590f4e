//! The fields that all generating requests share.

use serde::Deserialize;
use serde_json::{Number, Value};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// One string or several.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl OneOrMany {
    /// All of them.
    #[must_use]
    pub fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// How a stream is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// A last chunk with the usage and no choices.
    pub include_usage: Option<bool>,
    /// The usage so far in every chunk.
    pub continuous_usage_stats: Option<bool>,
}

/// What decides how tokens are chosen and when to stop: OpenAI's fields, and vLLM's beside them.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct SamplingFields {
    /// The model's id, as `/v1/models` lists it. May be left out.
    pub model: Option<String>,
    /// Choices per prompt, at least 1.
    pub n: Option<i64>,
    /// Accepted only when equal to `n`.
    pub best_of: Option<i64>,
    /// 0 is greedy; above 0 logits are divided by it.
    pub temperature: Option<f64>,
    /// Nucleus, 0 to 1; 0 keeps the best token alone.
    pub top_p: Option<f64>,
    /// Keep the best k tokens; 0 or -1 keeps all.
    pub top_k: Option<i64>,
    /// Keep tokens at least this fraction as likely as the best, 0 to 1.
    pub min_p: Option<f64>,
    /// Locally typical sampling, above 0 to 1.
    pub typical_p: Option<f64>,
    /// -2 to 2, times the count of a token in the output.
    pub frequency_penalty: Option<f64>,
    /// -2 to 2, once per token of the output.
    pub presence_penalty: Option<f64>,
    /// Above 0; over prompt and output.
    pub repetition_penalty: Option<f64>,
    /// Token id to a bias of -100 to 100.
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// Only these token ids.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Strings that must not appear.
    pub bad_words: Option<Vec<String>>,
    /// Whether to draw at all; `false` is greedy.
    pub do_sample: Option<bool>,
    /// Draws repeat for equal seeds. Drawn at random if absent.
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Number>,
    /// Strings that end the answer; they are not part of it.
    pub stop: Option<OneOrMany>,
    /// Token ids that end the answer.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Leaves the stop string in the answer.
    pub include_stop_str_in_output: Option<bool>,
    /// Leaves control tokens out of the text; on by default.
    pub skip_special_tokens: Option<bool>,
    /// Goes on past the model's end token.
    pub ignore_eos: Option<bool>,
    /// No end before so many tokens.
    pub min_tokens: Option<i64>,
    /// Most tokens of the answer.
    pub max_tokens: Option<i64>,
    /// Log-probabilities of the prompt's tokens, with so many alternatives.
    pub prompt_logprobs: Option<i64>,
    /// Writes tokens in log-probabilities as `token_id:N`.
    pub return_tokens_as_token_ids: Option<bool>,
    /// Sends the answer while it is made.
    pub stream: Option<bool>,
    /// How.
    pub stream_options: Option<StreamOptions>,
    /// `{"type": "text"}`; structured output is not supported yet.
    pub response_format: Option<Value>,
    /// Requests share cached prompts only with those that have the same.
    pub cache_salt: Option<String>,
    /// Who asks; not used.
    pub user: Option<String>,
    /// Not supported.
    pub use_beam_search: Option<bool>,
    /// Not supported yet.
    pub structured_outputs: Option<Value>,
    /// Not supported yet.
    pub guided_json: Option<Value>,
    /// Not supported yet.
    pub guided_regex: Option<Value>,
    /// Not supported yet.
    pub guided_choice: Option<Value>,
    /// Not supported yet.
    pub guided_grammar: Option<Value>,
    /// Not supported.
    pub truncate_prompt_tokens: Option<i64>,
}
