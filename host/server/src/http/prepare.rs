//! From a valid request to a [`Job`]: encoding, rendering, planning, and what the context leaves for the answer.

use super::error::{from_guest, from_tokenizer};
use super::grammar::constraint;
use super::ids;
use super::job::{Job, JobChat, JobPrompt};
use super::state::Asked;
use super::trace::{Params, Trace};
use crate::blocking::blocking;
use crate::openai::{
    ApiError, MaxTokens, RawPrompt, Usage, ValidChat, ValidCompletion, ValidConversation,
    ValidEmbedding, ValidGenerate, ValidParams,
};
use crate::serving::{
    Chat, Conversation, GrammarSource, Planned, RequestScope, SamplerRequest, ServedModel,
};
use crate::text::{StopSet, TextParams};
use guesthouse_engine::{Constraint, TokenId};
use guesthouse_tokenizer::{AddSpecial, Segment, Tokenizer};
use std::sync::Arc;

/// Requests with so much text are encoded on a thread of their own, bytes. Digits take up to 50 µs each.
const LARGE_TEXT: usize = 4 << 10;

/// How long a rendered conversation may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// It must fit the context.
    Context,
    /// It is only counted.
    Any,
}

/// A conversation with its chat store.
pub(super) struct Rendered {
    pub(super) tokens: Vec<TokenId>,
    pub(super) conversation: Conversation,
    pub(super) chat: Box<dyn Chat>,
    pub(super) scope: RequestScope,
}

/// Runs small encodings at once, larger ones on a thread of their own as soon as there is a place.
async fn encoding<T: Send + 'static>(
    model: &Arc<ServedModel>,
    bytes: usize,
    work: impl FnOnce(&Tokenizer) -> T + Send + 'static,
) -> Result<T, ApiError> {
    if bytes < LARGE_TEXT {
        return Ok(work(&model.tokenizer));
    }
    let place = model.encoding.places().acquire_owned().await;
    let tokenizer = Arc::clone(&model.tokenizer);
    blocking(move || {
        let ids = work(&tokenizer);
        drop(place);
        ids
    })
    .await
}

/// Refuses what has more tokens than the context, however it is encoded, before that costs anything.
fn check_size(model: &ServedModel, bytes: usize, field: &'static str) -> Result<(), ApiError> {
    let (context, longest) = (model.max_model_len, model.encoding.longest_token());
    if bytes / longest <= context as usize {
        return Ok(());
    }
    Err(ApiError::ContextLength {
        param: field,
        message: format!(
            "This model's maximum context length is {context} tokens. However, the {field} has {bytes} bytes, and no \
             token has more than {longest}. Please reduce the length of the {field}."
        ),
    })
}

/// Ids of raw text, whatever their number.
pub(super) async fn encode_raw(
    model: &Arc<ServedModel>,
    text: &str,
    add: AddSpecial,
) -> Result<Vec<TokenId>, ApiError> {
    let (bytes, text) = (text.len(), text.to_owned());
    let ids = encoding(model, bytes, move |tokenizer| {
        tokenizer.encode_raw(&text, add)
    });
    ids.await?.map_err(|error| from_tokenizer(&error, "prompt"))
}

async fn encode_segments(
    model: &Arc<ServedModel>,
    segments: Vec<Segment>,
    length: Length,
) -> Result<Vec<TokenId>, ApiError> {
    let bytes = segments
        .iter()
        .map(|segment| match segment {
            Segment::Text(text) => text.len(),
            Segment::Control(_) => 1,
        })
        .sum();
    if length == Length::Context {
        check_size(model, bytes, "messages")?;
    }
    let ids = encoding(model, bytes, move |tokenizer| {
        tokenizer.encode_segments(&segments)
    });
    ids.await?
        .map_err(|error| from_tokenizer(&error, "messages"))
}

/// Renders a conversation and encodes it.
pub(super) async fn render(
    asked: &Asked,
    conversation: &ValidConversation,
    length: Length,
) -> Result<Rendered, ApiError> {
    let model = &asked.entry.model;
    let conversation = conversation.to_guest(ids::now());
    let scope = match length {
        Length::Context => scope(asked)?,
        Length::Any => RequestScope {
            request: Trace::current().id().shared(),
            tenant: Arc::clone(&asked.caller.tenant),
            pins: asked.pins.clone(),
            ..RequestScope::unrecorded(conversation.now)
        },
    };
    let opened = model.guests.open_chat(&scope);
    let mut chat = opened.await?;
    let segments = chat.render(&conversation).await;
    let segments = segments.map_err(|error| from_guest(error, Some("messages")))?;
    let tokens = encode_segments(model, segments, length).await?;
    Ok(Rendered {
        tokens,
        conversation,
        chat,
        scope,
    })
}

/// What the guest calls of a request share.
fn scope(asked: &Asked) -> Result<RequestScope, ApiError> {
    let guests = &asked.entry.model.guests;
    let scope = guests.scope(ids::now(), &asked.caller.tenant)?;
    Ok(RequestScope {
        request: Trace::current().id().shared(),
        pins: asked.pins.clone(),
        ..scope
    })
}

/// `field` is where the prompts came from.
async fn encode_prompts(
    model: &Arc<ServedModel>,
    field: &'static str,
    prompts: &[RawPrompt],
    add: AddSpecial,
) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let mut bytes = 0;
    for prompt in prompts {
        if let RawPrompt::Text(text) = prompt {
            check_size(model, text.len(), field)?;
            bytes += text.len();
        }
    }
    let prompts = prompts.to_vec();
    let encoded = encoding(model, bytes, move |tokenizer| {
        let ids = prompts.into_iter().map(|prompt| match prompt {
            RawPrompt::Text(text) => tokenizer.encode_raw(&text, add),
            RawPrompt::Ids(ids) => Ok(ids),
        });
        ids.collect::<Result<Vec<_>, _>>()
    });
    let encoded = encoded
        .await?
        .map_err(|error| from_tokenizer(&error, field))?;
    if encoded.iter().any(Vec::is_empty) {
        return Err(ApiError::invalid(
            field,
            format!("`{field}` is empty; it needs at least one token"),
        ));
    }
    Ok(encoded)
}

pub(super) async fn completion(asked: &Asked, request: &ValidCompletion) -> Result<Job, ApiError> {
    let model = &asked.entry.model;
    let prompts = encode_prompts(model, "prompt", request.prompts(), request.add_special()).await?;
    let scored = request.scored_prompt();
    build(
        asked,
        request.params(),
        Input {
            scope: scope(asked)?,
            field: "prompt",
            prompts,
            scored,
            stop_strings: Vec::new(),
            visible: Vec::new(),
            chat: None,
        },
    )
    .await
}

/// Prompts to embed. They may fill the context: nothing follows.
pub(super) async fn embedding(
    model: &Arc<ServedModel>,
    request: &ValidEmbedding,
) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let prompts = encode_prompts(model, "input", request.prompts(), request.add_special()).await?;
    let tokens = prompts.iter().map(Vec::len).sum::<usize>();
    Trace::current().note(|facts| {
        facts.model = Some(model.id.clone());
        facts.usage = Some(Usage::new(u32::try_from(tokens).unwrap_or(u32::MAX), 0, 0));
    });
    Ok(prompts)
}

pub(super) async fn generate(asked: &Asked, request: &ValidGenerate) -> Result<Job, ApiError> {
    let prompt = std::slice::from_ref(request.prompt());
    let prompts = encode_prompts(&asked.entry.model, "prompt", prompt, AddSpecial::Yes).await?;
    let input = Input {
        scope: scope(asked)?,
        field: "prompt",
        prompts,
        scored: None,
        stop_strings: Vec::new(),
        visible: Vec::new(),
        chat: None,
    };
    build(asked, request.params(), input).await
}

pub(super) async fn chat(asked: &Asked, request: &ValidChat) -> Result<Job, ApiError> {
    let Rendered {
        tokens,
        conversation,
        mut chat,
        scope,
    } = render(asked, request.conversation(), Length::Context).await?;
    if tokens.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "`messages` rendered to nothing; the template left no token",
        ));
    }
    let stop_strings = chat.stop_strings().await?;
    let visible = chat.visible_controls().await?;
    let mut parsers = Vec::new();
    for _ in 0..request.params().n() {
        let parser = chat.parser(&conversation);
        parsers.push(parser.await?);
    }
    let input = Input {
        scope,
        field: "messages",
        prompts: vec![tokens],
        scored: request.params().prompt_logprobs(),
        stop_strings,
        visible,
        chat: Some(JobChat { chat, parsers }),
    };
    build(asked, request.params(), input).await
}

struct Input {
    scope: RequestScope,
    field: &'static str,
    prompts: Vec<Vec<TokenId>>,
    scored: Option<u32>,
    /// The chat guest's; those that are control tokens' literals stand for the tokens.
    stop_strings: Vec<String>,
    /// Control tokens that the chat guest's parser needs to see.
    visible: Vec<TokenId>,
    chat: Option<JobChat>,
}

async fn build(asked: &Asked, params: &ValidParams, input: Input) -> Result<Job, ApiError> {
    let model = &asked.entry.model;
    let prompts = input
        .prompts
        .into_iter()
        .map(|tokens| {
            let max_tokens = room(model, params.max_tokens(), tokens.len(), input.field)?;
            Ok((tokens, max_tokens))
        })
        .collect::<Result<Vec<_>, ApiError>>()?;
    note(model, params);
    let stopping = params.stopping();
    let mut stop_strings = stopping.strings().to_vec();
    // What the guest names may be control tokens, which do not appear in the text.
    let mut ends = model.stop_tokens.clone();
    for stop in input.stop_strings {
        let token = model.tokenizer.token_to_id(&stop);
        match token.filter(|id| model.tokenizer.is_control(*id)) {
            Some(id) => ends.push(id),
            None => stop_strings.push(stop),
        }
    }
    let (prompts, seed) = plan(asked, params, &ends, &input.scope, prompts).await?;
    let mut told_stop_tokens = stopping.tokens().to_vec();
    told_stop_tokens.retain(|token| !ends.contains(token));
    Ok(Job {
        model: Arc::clone(model),
        field: input.field,
        prompts,
        n: params.n(),
        sequences: params.sequences(),
        cache_salt: asked.caller.salt(model.cache_salt, params.cache_salt()),
        priority: asked.caller.priority(),
        owner: asked.caller.owner(),
        seed: seed.or(params.seed()).unwrap_or_else(rand::random),
        text: Arc::new(TextParams {
            stops: Arc::new(StopSet::new(&stop_strings, stopping.text())),
            stop_tokens: stopping.all_tokens(&ends),
            min_tokens: params.min_tokens(),
            skip_special: params.skip_special(),
            visible: input.visible.into(),
        }),
        told_stop_tokens,
        top_logprobs: params.top_logprobs(),
        prompt_logprobs: input.scored,
        logprobs: model.generation.logprobs,
        drafts: model.generation.drafts,
        chat: input.chat,
    })
}

/// What the trace tells of the parameters.
fn note(model: &ServedModel, params: &ValidParams) {
    let told = Params {
        n: params.n(),
        max_tokens: match params.max_tokens() {
            MaxTokens::Exactly(tokens) | MaxTokens::AtMost(tokens) => Some(tokens),
            MaxTokens::Rest => None,
        },
        temperature: params.sampling("temperature"),
        top_p: params.sampling("top_p"),
    };
    Trace::current().note(|facts| {
        facts.model = Some(model.id.clone());
        facts.params = Some(told);
    });
}

/// Asks the sampler guest, off the threads that serve connections: it may use all of its time. A plan serves all prompts,
/// unless the guest also chooses: then each prompt has one of its own. The seed is the guest's, if it chose one.
async fn plan(
    asked: &Asked,
    params: &ValidParams,
    ends: &[TokenId],
    scope: &RequestScope,
    prompts: Vec<(Vec<TokenId>, u32)>,
) -> Result<(Vec<JobPrompt>, Option<u64>), ApiError> {
    let model = &asked.entry.model;
    let mut bad_words = Vec::new();
    for word in params.bad_words() {
        // A word may begin a text or follow a space.
        for spelled in [word.clone(), format!(" {}", word.trim_start())] {
            let ids = model.tokenizer.encode_raw(&spelled, AddSpecial::No);
            let ids = ids.map_err(|error| from_tokenizer(&error, "bad_words"))?;
            if !ids.is_empty() && !bad_words.contains(&ids) {
                bad_words.push(ids);
            }
        }
    }
    // Who ignores EOS goes on after it, which the grammar must know.
    let mut stops = params.stopping().all_tokens(&[]);
    stops.extend(ends);
    let ends = params.stopping().all_tokens(ends);
    let banned = |id| {
        bad_words.iter().any(|word| word.as_slice() == [id])
            || (params.min_tokens() > 0 && ends.contains(&id))
    };
    if !params.allows_any(banned) {
        return Err(ApiError::invalid(
            "allowed_token_ids",
            "`bad_words` and `min_tokens` leave none of `allowed_token_ids`; allow more tokens",
        ));
    }
    let (module, n) = (params.sampler_module().map(str::to_owned), params.n());
    let breakers: Vec<String> = params
        .sequence_breakers()
        .iter()
        .map(ToString::to_string)
        .collect();
    let params = params.clone();
    let model = Arc::clone(model);
    let scope = scope.clone();
    let turn = model.planning.of(scope.tenant.id.as_str()).await;
    let planned = blocking(move || {
        let _turn = turn;
        let breakers = model.breaking.of(&model.tokenizer, model.vocab, &breakers);
        let fields = params.sampler_request(&bad_words, &breakers);
        let ask = |prompt: &(Vec<TokenId>, u32)| {
            let request = SamplerRequest {
                scope: scope.clone(),
                module: module.clone(),
                fields: fields.clone(),
                prompt_len: u32::try_from(prompt.0.len()).unwrap_or(u32::MAX),
                max_tokens: prompt.1,
                n,
            };
            let planned = model.guests.plan(&request);
            planned.map_err(|error| from_guest(error, None))
        };
        let follow = |grammar: Option<&GrammarSource>| {
            constraint(&model, params.structured(), grammar, &stops)
        };
        per_prompt(prompts, ask, follow)
    });
    planned.await?
}

/// The prompts with their plans, and the seed that the guest chose.
fn per_prompt(
    prompts: Vec<(Vec<TokenId>, u32)>,
    ask: impl Fn(&(Vec<TokenId>, u32)) -> Result<Planned, ApiError>,
    follow: impl Fn(Option<&GrammarSource>) -> Result<Option<Box<dyn Constraint>>, ApiError>,
) -> Result<(Vec<JobPrompt>, Option<u64>), ApiError> {
    let mut planned = Vec::with_capacity(prompts.len());
    let (mut shared, mut seed) = (None, None);
    for prompt in prompts {
        let (plan, grammar, chooser) = match &shared {
            Some((plan, grammar)) => (Arc::clone(plan), Option::clone(grammar), None),
            None => {
                let Planned {
                    plan,
                    seed: chosen,
                    chooser,
                    grammar,
                } = ask(&prompt)?;
                let plan = Arc::new(plan);
                seed = seed.or(chosen);
                if chooser.is_none() {
                    shared = Some((Arc::clone(&plan), grammar.clone()));
                }
                (plan, grammar, chooser)
            }
        };
        let (tokens, max_tokens) = prompt;
        planned.push(JobPrompt {
            tokens,
            max_tokens,
            plan,
            chooser,
            constraint: follow(grammar.as_ref())?,
        });
    }
    Ok((planned, seed))
}

/// How long the answer may get.
fn room(
    model: &ServedModel,
    max_tokens: MaxTokens,
    prompt: usize,
    field: &'static str,
) -> Result<u32, ApiError> {
    let context = model.max_model_len;
    let asked = match max_tokens {
        MaxTokens::Exactly(asked) => asked,
        MaxTokens::AtMost(_) | MaxTokens::Rest => 1,
    };
    let rest = u32::try_from(prompt)
        .ok()
        .and_then(|prompt| context.checked_sub(prompt));
    match rest {
        Some(rest) if asked <= rest => Ok(match max_tokens {
            MaxTokens::Exactly(asked) => asked,
            MaxTokens::AtMost(most) => most.min(rest),
            MaxTokens::Rest => rest,
        }),
        _ => Err(ApiError::ContextLength {
            param: if rest.is_some_and(|rest| rest > 0) {
                "max_tokens"
            } else {
                field
            },
            message: format!(
                "This model's maximum context length is {context} tokens. However, you requested {} tokens ({prompt} \
                 in the {field}, {asked} in the completion). Please reduce the length of the {field} or completion.",
                prompt as u64 + u64::from(asked)
            ),
        }),
    }
}
