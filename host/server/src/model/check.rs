//! Calling a module once, as a server would, before it serves.

use crate::model::store::ModuleError;
use guesthouse_component::{CallContext, ComponentError, Conversation, ModelFacts, Module, Role};
use std::sync::Arc;

/// What a module's check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Architectures that a graph module builds, or that a chat module says it is for.
    pub builds: Vec<String>,
    /// In words.
    pub summary: String,
}

/// Calls the module as its role demands, for whom `context` is. Blocks, and must not be called where futures are polled.
///
/// # Errors
/// When it traps, goes over a limit or answers nonsense. A refusal in good order is an answer: the guest may be made for
/// other models than the sample.
pub fn call(module: &Arc<Module>, context: &CallContext) -> Result<Checked, ModuleError> {
    let fail = |what: String| ModuleError::Check {
        name: module.name().to_owned(),
        what,
    };
    let builds = match module.role() {
        Role::Graph => {
            let builds = module.graph()?.architectures()?;
            if builds.is_empty() || builds.iter().any(String::is_empty) {
                return Err(fail(
                    "architectures() must name at least one, as config.json does".to_owned(),
                ));
            }
            builds
        }
        Role::Chat => module.chat()?.architectures()?,
        Role::Sampler => Vec::new(),
    };
    let answer = match module.role() {
        Role::Graph => Ok(format!("builds {}", builds.join(", "))),
        Role::Sampler => sampler(module, context.clone()),
        Role::Chat => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| fail(error.to_string()))?
            .block_on(chat(module, context.clone())),
    };
    let summary = match answer {
        Ok(summary) => summary,
        Err(ComponentError::Guest { message, .. }) => {
            format!("refuses the sample in good order: {message}")
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Checked { builds, summary })
}

fn sampler(module: &Arc<Module>, context: CallContext) -> Result<String, ComponentError> {
    let facts = ModelFacts {
        vocab_size: 1000,
        stop_tokens: vec![0],
        max_len: 1024,
        prompt_len: 4,
        max_tokens: 16,
        choices: 1,
    };
    let request = r#"{"temperature":0.7,"top_p":0.9}"#;
    let plan = module.sampler()?.plan(request, &facts, context)?.plan;
    Ok(format!(
        "{} stages, then {:?}",
        plan.stages.len(),
        plan.draw
    ))
}

async fn chat(module: &Arc<Module>, context: CallContext) -> Result<String, ComponentError> {
    let files = vec![("tokenizer_config.json".to_owned(), TEMPLATE.to_owned())];
    let controls = vec![(1, "<|start|>".into()), (2, "<|end|>".into())];
    let chat = module.chat()?;
    let mut session = chat.open(files, controls, context).await?;
    let conversation = Conversation {
        messages: r#"[{"role":"user","content":"Hello"}]"#.to_owned(),
        add_generation_prompt: true,
        ..Conversation::default()
    };
    let segments = session.render(conversation).await?;
    Ok(format!("one message became {} segments", segments.len()))
}

const TEMPLATE: &str = r#"{"chat_template":"{% for m in messages %}<|start|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}<|start|>"}"#;
