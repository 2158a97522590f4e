//! The fields that all generating requests share.

use serde::Deserialize;
use serde_json::{Map, Number, Value};
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
    /// So many answers are made and the `n` likeliest given; with `use_beam_search` the number of beams.
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
    /// N-grams of this size do not repeat; 0 is off.
    pub no_repeat_ngram_size: Option<i64>,
    /// "Don't repeat yourself": the penalty of a repetition of `dry_allowed_length` tokens; 0 is off.
    pub dry_multiplier: Option<f64>,
    /// How the penalty grows with each token more, at least 1; 1.75 by default.
    pub dry_base: Option<f64>,
    /// Shorter repetitions are free; 2 by default.
    pub dry_allowed_length: Option<i64>,
    /// Tokens that are looked at for repetitions; 0 is all.
    pub dry_range: Option<i64>,
    /// Strings that no repetition reaches over; newline, colon, quotation mark and asterisk by default.
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// Temperature by entropy: the least.
    pub dynatemp_min: Option<f64>,
    /// Temperature by entropy: the most.
    pub dynatemp_max: Option<f64>,
    /// Temperature by entropy: how it grows; 1 by default.
    pub dynatemp_exponent: Option<f64>,
    /// Keep logits within so many standard deviations of the largest; 0 is off.
    pub top_n_sigma: Option<f64>,
    /// Keep probabilities of at least this; 0 is off.
    pub epsilon_cutoff: Option<f64>,
    /// Like `epsilon_cutoff`, lower where entropy is high; 0 is off.
    pub eta_cutoff: Option<f64>,
    /// Tail-free sampling's z, above 0; 1 is off.
    pub tfs: Option<f64>,
    /// Chance that the likeliest tokens are left out; 0 is off.
    pub xtc_probability: Option<f64>,
    /// Probability from which on tokens count as likeliest.
    pub xtc_threshold: Option<f64>,
    /// 0 is off, 1 and 2 are the two algorithms.
    pub mirostat_mode: Option<i64>,
    /// Mirostat's target surprise, bits; 5 by default.
    pub mirostat_tau: Option<f64>,
    /// Mirostat's learning rate; 0.1 by default.
    pub mirostat_eta: Option<f64>,
    /// `{"key", "gamma", "delta", "context"}`: marks the text so that whoever knows the key can tell.
    pub watermark: Option<Value>,
    /// The sampler module that chooses tokens, by name.
    pub sampler: Option<String>,
    /// What the sampler module is told beside the fields of this request: an object.
    pub sampler_args: Option<Map<String, Value>>,
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
    /// What the answer must be: `{"type": "text"}`, `{"type": "json_object"}`, `{"type": "json_schema", "json_schema":
    /// {"schema": …}}`, or vLLM's `{"type": "structural_tag", "structures": […], "triggers": […]}`.
    pub response_format: Option<Value>,
    /// Requests share cached prompts only with those that have the same.
    pub cache_salt: Option<String>,
    /// Who asks; not used.
    pub user: Option<String>,
    /// Beam search with `best_of` beams (`n` if absent), of which the best `n` are given.
    pub use_beam_search: Option<bool>,
    /// Beam search: log-probabilities are divided by length to this power; 1 by default.
    pub length_penalty: Option<f64>,
    /// Beam search: `true` ends with as many finished beams as there are, `false` when better ones are unlikely, `"never"` when
    /// there can be none.
    pub early_stopping: Option<Value>,
    /// What the answer must be, as vLLM writes it: an object with one of `json` (a JSON schema), `regex`, `choice` (a list of
    /// strings), `grammar` (Lark or GBNF), `json_object` (`true`), `structural_tag`.
    pub structured_outputs: Option<Value>,
    /// Older name of `structured_outputs.json`.
    pub guided_json: Option<Value>,
    /// Older name of `structured_outputs.regex`.
    pub guided_regex: Option<Value>,
    /// Older name of `structured_outputs.choice`.
    pub guided_choice: Option<Value>,
    /// Older name of `structured_outputs.grammar`.
    pub guided_grammar: Option<Value>,
    /// Not supported.
    pub truncate_prompt_tokens: Option<i64>,
}
