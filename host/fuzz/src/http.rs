//! Bodies of requests, up to what alone leads to the engine.

use guesthouse_server::openai::{
    ApiError, ChatFields, CompletionFields, ConversationFields, EmbeddingFields, GenerateFields,
    ModelFacts, SamplingFields, TokenizeFields, ValidChat, ValidCompletion, ValidEmbedding,
    ValidGenerate, ValidTokenize, parse,
};
use guesthouse_server::serving::{EmbeddingFacts, SamplingDefaults};

/// The first byte says which endpoint, the rest is the body.
pub fn http_body(data: &[u8]) {
    let Some((&endpoint, body)) = data.split_first() else {
        return;
    };
    let read = match endpoint % 5 {
        0 => completion(body),
        1 => chat(body),
        2 => generation(body),
        3 => tokens(body),
        _ => embedding(body),
    };
    if let Err(error) = read {
        // What clients are told must be well formed too.
        assert!((400..500).contains(&error.status()), "{error}");
        assert!(!error.to_string().is_empty());
    }
}

fn facts() -> ModelFacts {
    ModelFacts {
        vocab: 1000,
        max_model_len: 256,
        max_n: 8,
        max_logprobs: 20,
        max_prompts: 16,
        max_choices: 64,
        defaults: SamplingDefaults::default(),
    }
}

fn completion(body: &[u8]) -> Result<(), ApiError> {
    let sampling: SamplingFields = parse(body)?;
    let fields: CompletionFields = parse(body)?;
    let valid = ValidCompletion::new(sampling, fields, &facts())?;
    let _ = valid.params().sampler_request(&[], &[]);
    Ok(())
}

fn chat(body: &[u8]) -> Result<(), ApiError> {
    let sampling: SamplingFields = parse(body)?;
    let chat: ChatFields = parse(body)?;
    let conversation: ConversationFields = parse(body)?;
    let valid = ValidChat::new(sampling, &chat, conversation, &facts())?;
    let _ = valid.conversation().to_guest(0);
    let _ = valid.params().sampler_request(&[], &[]);
    Ok(())
}

fn generation(body: &[u8]) -> Result<(), ApiError> {
    let sampling: SamplingFields = parse(body)?;
    let fields: GenerateFields = parse(body)?;
    ValidGenerate::new(sampling, fields, &facts())?;
    Ok(())
}

fn tokens(body: &[u8]) -> Result<(), ApiError> {
    let fields: TokenizeFields = parse(body)?;
    let conversation: ConversationFields = parse(body)?;
    ValidTokenize::new(fields, conversation)?;
    Ok(())
}

fn embedding(body: &[u8]) -> Result<(), ApiError> {
    let fields: EmbeddingFields = parse(body)?;
    let vectors = EmbeddingFacts {
        width: 4,
        normalized: true,
    };
    ValidEmbedding::new(fields, &facts(), &vectors)?;
    Ok(())
}
