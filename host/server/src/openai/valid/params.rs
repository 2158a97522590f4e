//! What all generating requests share, validated.

use super::super::{ApiError, SamplingFields, StreamOptions};
use super::module::ModuleChoice;
use super::range::count;
use super::sampler::sampler_request;
use super::stopping::{StopFields, ValidStopping};
use super::structured::{Structured, structured};
use crate::serving::{SamplingDefaults, ServedModel};
use guesthouse_tokenizer::SkipSpecial;
use serde_json::{Map, Number, Value, json};

/// Each is looked for in every step.
const MAX_BAD_WORDS: usize = 256;

/// As in llama.cpp and text-generation-webui.
const DEFAULT_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// What validation must know of the model and the server.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// Size of the vocabulary.
    pub vocab: u32,
    /// Longest sequence.
    pub max_model_len: u32,
    /// Most choices per prompt.
    pub max_n: u32,
    /// Most alternatives per log-probability.
    pub max_logprobs: u32,
    /// Most prompts per request.
    pub max_prompts: usize,
    /// Most sequences of all prompts together.
    pub max_choices: usize,
    /// Used where a request says nothing.
    pub defaults: SamplingDefaults,
}

impl ModelFacts {
    /// Those of a model, with the server's default limits.
    #[must_use]
    pub fn of(model: &ServedModel) -> Self {
        Self {
            vocab: model.vocab,
            max_model_len: model.max_model_len,
            max_n: 128,
            max_logprobs: 20,
            max_prompts: 1024,
            max_choices: 256,
            defaults: model.defaults.clone(),
        }
    }
}

/// How long an answer may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxTokens {
    /// So many tokens; with the prompt they must fit the context.
    Exactly(u32),
    /// So many, or what the context leaves if that is less.
    AtMost(u32),
    /// What the context leaves.
    Rest,
}

/// How the answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// At the end, whole.
    Whole,
    /// As it is made.
    Stream {
        /// When the usage is told.
        usage: StreamUsage,
    },
}

/// When a stream tells its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamUsage {
    /// Never.
    Never,
    /// In a last chunk of its own.
    Last,
    /// In every chunk, as far as it has come, and in a last chunk of its own.
    Every,
}

/// How log-probabilities name tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenNames {
    /// As text.
    Text,
    /// `token_id:N`.
    Ids,
}

/// Sampling and stopping, in range.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidParams {
    pub(super) n: u32,
    pub(super) max_tokens: MaxTokens,
    pub(super) min_tokens: u32,
    pub(super) stopping: ValidStopping,
    pub(super) skip_special: SkipSpecial,
    pub(super) top_logprobs: Option<u32>,
    pub(super) prompt_logprobs: Option<u32>,
    pub(super) token_names: TokenNames,
    pub(super) seed: Option<u64>,
    pub(super) delivery: Delivery,
    pub(super) bad_words: Vec<String>,
    cache_salt: Option<String>,
    module: Option<String>,
    breakers: Option<Vec<String>>,
    structured: Option<Structured>,
    sampler: Map<String, Value>,
}

/// What is called differently by different endpoints.
pub(super) struct Lengths {
    pub(super) max_tokens: MaxTokens,
    pub(super) top_logprobs: Option<u32>,
}

impl ValidParams {
    pub(super) fn new(
        fields: SamplingFields,
        lengths: &Lengths,
        facts: &ModelFacts,
    ) -> Result<Self, ApiError> {
        refuse_unsupported(&fields)?;
        let n = count("n", fields.n, 1, facts.max_n)?.unwrap_or(1);
        let choice = ModuleChoice::new(&fields, n, facts)?;
        let delivery = delivery(fields.stream, fields.stream_options)?;
        // -1 is vLLM's way to ask for none.
        let seed = fields
            .seed
            .as_ref()
            .filter(|seed| seed.as_i64() != Some(-1))
            .map(seed)
            .transpose()?;
        let min_tokens = count("min_tokens", fields.min_tokens, 0, u32::MAX)?.unwrap_or(0);
        if let MaxTokens::Exactly(max) = lengths.max_tokens
            && min_tokens > max
        {
            return Err(ApiError::invalid(
                "min_tokens",
                format!("`min_tokens` is {min_tokens}, above the most tokens of {max}"),
            ));
        }
        let prompt_logprobs = count(
            "prompt_logprobs",
            fields.prompt_logprobs,
            0,
            facts.max_logprobs,
        )?;
        if prompt_logprobs.is_some() && delivery != Delivery::Whole {
            return Err(ApiError::invalid(
                "prompt_logprobs",
                "`prompt_logprobs` cannot be streamed; leave out `stream`",
            ));
        }
        let mut sampler = sampler_request(&fields, min_tokens, seed, facts)?;
        choice.describe(&fields, n, &mut sampler);
        let structured = structured(&fields)?;
        if let Some(structured) = &structured {
            structured.add_to(&mut sampler);
        }
        let bad_words = fields.bad_words.unwrap_or_default();
        if bad_words.iter().any(String::is_empty) {
            return Err(ApiError::invalid(
                "bad_words",
                "`bad_words` has an empty string",
            ));
        }
        if bad_words.len() > MAX_BAD_WORDS {
            let found = bad_words.len();
            return Err(ApiError::invalid(
                "bad_words",
                format!("`bad_words` has {found} words, at most {MAX_BAD_WORDS} are allowed"),
            ));
        }
        if fields.cache_salt.as_deref() == Some("") {
            return Err(ApiError::invalid(
                "cache_salt",
                "`cache_salt` must not be empty; leave it out",
            ));
        }
        let stopping = ValidStopping::new(StopFields {
            stop: fields.stop,
            stop_token_ids: fields.stop_token_ids,
            include_stop: fields.include_stop_str_in_output,
            ignore_eos: fields.ignore_eos,
            vocab: facts.vocab,
        })?;
        Ok(Self {
            n,
            max_tokens: lengths.max_tokens,
            min_tokens,
            stopping,
            skip_special: if fields.skip_special_tokens == Some(false) {
                SkipSpecial::No
            } else {
                SkipSpecial::Yes
            },
            top_logprobs: lengths.top_logprobs,
            prompt_logprobs,
            token_names: if fields.return_tokens_as_token_ids == Some(true) {
                TokenNames::Ids
            } else {
                TokenNames::Text
            },
            seed,
            delivery,
            bad_words,
            cache_salt: fields.cache_salt,
            module: choice.module,
            breakers: fields.dry_sequence_breakers,
            structured,
            sampler,
        })
    }

    /// Choices per prompt, at least 1.
    #[must_use]
    pub fn n(&self) -> u32 {
        self.n
    }

    /// Answers made per prompt: choices, or the candidates of `best_of` where those are more.
    #[must_use]
    pub fn sequences(&self) -> u32 {
        let candidates = self.sampler.get("best_of").and_then(Value::as_u64);
        let candidates = candidates.and_then(|count| u32::try_from(count).ok());
        candidates.map_or(self.n, |count| count.max(self.n))
    }

    /// Refuses more answers than the server makes for one request.
    pub(super) fn check_sequences(
        &self,
        prompts: usize,
        facts: &ModelFacts,
    ) -> Result<(), ApiError> {
        let sequences = prompts.saturating_mul(self.sequences() as usize);
        let most = facts.max_choices;
        if sequences <= most {
            return Ok(());
        }
        Err(ApiError::invalid(
            "n",
            format!(
                "the prompts times `n` or `best_of` make {sequences} sequences, at most {most} are allowed per request"
            ),
        ))
    }

    /// How long an answer may get.
    #[must_use]
    pub fn max_tokens(&self) -> MaxTokens {
        self.max_tokens
    }

    /// No stop string counts within so many tokens.
    #[must_use]
    pub fn min_tokens(&self) -> u32 {
        self.min_tokens
    }

    /// Stop strings and tokens.
    #[must_use]
    pub fn stopping(&self) -> &ValidStopping {
        &self.stopping
    }

    /// Whether control tokens are left out of the text.
    #[must_use]
    pub fn skip_special(&self) -> SkipSpecial {
        self.skip_special
    }

    /// Alternatives per token of the answer; `None` for no log-probabilities.
    #[must_use]
    pub fn top_logprobs(&self) -> Option<u32> {
        self.top_logprobs
    }

    /// Alternatives per token of the prompt, as asked for by that name.
    #[must_use]
    pub fn prompt_logprobs(&self) -> Option<u32> {
        self.prompt_logprobs
    }

    /// How log-probabilities name tokens.
    #[must_use]
    pub fn token_names(&self) -> TokenNames {
        self.token_names
    }

    /// The client's seed.
    #[must_use]
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// How the answer is sent.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// Words that must not appear, to be encoded for [`Self::sampler_request`].
    #[must_use]
    pub fn bad_words(&self) -> &[String] {
        &self.bad_words
    }

    /// The sampler module that the request names or needs; `None` for the model's own.
    #[must_use]
    pub fn sampler_module(&self) -> Option<&str> {
        self.module.as_deref()
    }

    /// Strings over which no repetition reaches, to be turned into ids for [`Self::sampler_request`]; none where repetitions
    /// are not looked for.
    #[must_use]
    pub fn sequence_breakers(&self) -> Vec<&str> {
        let multiplier = self.sampler.get("dry_multiplier").and_then(Value::as_f64);
        match (&self.breakers, multiplier) {
            (_, None | Some(0.0)) => Vec::new(),
            (None, _) => DEFAULT_BREAKERS.to_vec(),
            (Some(breakers), _) => breakers.iter().map(String::as_str).collect(),
        }
    }

    /// Requests share cached prompts only with those that have the same.
    #[must_use]
    pub fn cache_salt(&self) -> Option<&str> {
        self.cache_salt.as_deref()
    }

    /// What the answer must follow.
    #[must_use]
    pub fn structured(&self) -> Option<&Structured> {
        self.structured.as_ref()
    }

    /// Whether `allowed_token_ids` allows a token that is not banned otherwise.
    #[must_use]
    pub fn allows_any(&self, banned: impl Fn(u32) -> bool) -> bool {
        let allowed = self
            .sampler
            .get("allowed_token_ids")
            .and_then(Value::as_array);
        allowed.is_none_or(|ids| {
            ids.iter()
                .filter_map(|id| u32::try_from(id.as_u64()?).ok())
                .any(|id| !banned(id))
        })
    }

    /// A number that the sampler guest is given, such as `temperature`.
    #[must_use]
    pub fn sampling(&self, name: &str) -> Option<f64> {
        self.sampler.get(name)?.as_f64()
    }

    /// The sampler guest's request: what [`crate::serving::Guests::plan`] describes.
    #[must_use]
    pub fn sampler_request(&self, bad_words: &[Vec<u32>], breakers: &[u32]) -> String {
        let mut request = self.sampler.clone();
        if !bad_words.is_empty() {
            request.insert("bad_words_token_ids".to_owned(), json!(bad_words));
        }
        if !breakers.is_empty() {
            request.insert("dry_breaker_token_ids".to_owned(), json!(breakers));
        }
        Value::Object(request).to_string()
    }
}

/// Fields that would be ignored, but change what the client relies on.
fn refuse_unsupported(fields: &SamplingFields) -> Result<(), ApiError> {
    if fields.truncate_prompt_tokens.is_some() {
        return Err(ApiError::invalid(
            "truncate_prompt_tokens",
            "`truncate_prompt_tokens` is not supported; send a shorter prompt",
        ));
    }
    Ok(())
}

fn delivery(stream: Option<bool>, options: Option<StreamOptions>) -> Result<Delivery, ApiError> {
    match (stream.unwrap_or(false), options) {
        (false, None) => Ok(Delivery::Whole),
        (false, Some(_)) => Err(ApiError::invalid(
            "stream_options",
            "`stream_options` is only allowed when `stream` is true",
        )),
        (true, options) => {
            let options = options.unwrap_or_default();
            let usage = match (
                options.include_usage == Some(true),
                options.continuous_usage_stats == Some(true),
            ) {
                (false, _) => StreamUsage::Never,
                (true, false) => StreamUsage::Last,
                (true, true) => StreamUsage::Every,
            };
            Ok(Delivery::Stream { usage })
        }
    }
}

/// Negative seeds are taken by their bits, as 64-bit clients expect.
fn seed(number: &Number) -> Result<u64, ApiError> {
    number
        .as_u64()
        .or_else(|| number.as_i64().map(i64::cast_unsigned))
        .ok_or_else(|| {
            ApiError::invalid(
                "seed",
                format!("`seed` must be a whole number of 64 bits, but is {number}"),
            )
        })
}
