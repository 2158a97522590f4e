//! Chat and sampler guests behind [`crate::serving`]'s traits.

use crate::model::ModuleStore;
use crate::model::Modules;
use crate::model::store::Chosen;
use crate::serving::{
    Chat, Conversation, Delta, GrammarSource, GuestError, Guests, ParserId, Planned, RequestScope,
    SamplerRequest,
};
use futures::future::{BoxFuture, FutureExt};
use guesthouse_component::{
    CallContext, ChatSession, ComponentError, GuestErrorKind, ModelFacts, Role,
    Segment as GuestSegment,
};
use guesthouse_tenants::Tenant;
use guesthouse_tokenizer::{Segment, Tokenizer};
use std::collections::HashMap;
use std::sync::Arc;

/// A model's guests with what they are told of it.
pub struct ModelGuests {
    chat: Arc<Chosen>,
    sampler: Arc<Chosen>,
    /// For modules that requests name.
    store: Arc<ModuleStore>,
    files: Vec<(String, String)>,
    controls: Vec<(u32, String)>,
    facts: ModelFacts,
}

impl ModelGuests {
    /// `files` are those a chat guest may read.
    #[must_use]
    pub fn new(
        modules: &Modules,
        store: &Arc<ModuleStore>,
        files: Vec<(String, String)>,
        tokenizer: &Tokenizer,
        facts: ModelFacts,
    ) -> Self {
        Self {
            chat: modules.chat.clone(),
            sampler: modules.sampler.clone(),
            store: Arc::clone(store),
            files,
            controls: tokenizer.control_tokens(),
            facts,
        }
    }
}

impl Guests for ModelGuests {
    fn scope(&self, now: u64, tenant: &Arc<Tenant>) -> Result<RequestScope, GuestError> {
        let record = self.store.record(&CallContext::new("", now));
        let record = record.map_err(|error| {
            GuestError::Failed(format!("the request cannot be recorded: {error}"))
        })?;
        Ok(RequestScope {
            now,
            tenant: Arc::clone(tenant),
            record,
        })
    }

    fn open_chat(
        &self,
        scope: &RequestScope,
    ) -> BoxFuture<'static, Result<Box<dyn Chat>, GuestError>> {
        let context = context(scope);
        let (module, files, controls) = (
            self.chat.current(),
            self.files.clone(),
            self.controls.clone(),
        );
        async move {
            let session = module
                .chat()
                .map_err(guest_error)?
                .open(files, controls, context)
                .await
                .map_err(guest_error)?;
            Ok(Box::new(Session {
                session,
                parsers: HashMap::new(),
            }) as Box<dyn Chat>)
        }
        .boxed()
    }

    fn plan(&self, request: &SamplerRequest) -> Result<Planned, GuestError> {
        let module = match &request.module {
            None => self.sampler.current(),
            Some(name) => self
                .store
                .named_for(&request.scope.tenant, Role::Sampler, name)
                .map_err(|error| GuestError::Failed(error.to_string()))?
                .ok_or_else(|| GuestError::UnknownModule {
                    name: name.clone(),
                    known: self.store.names_for(&request.scope.tenant, Role::Sampler),
                })?,
        };
        let facts = ModelFacts {
            prompt_len: request.prompt_len,
            max_tokens: request.max_tokens,
            choices: request.n,
            ..self.facts.clone()
        };
        let (planned, stepping) = module
            .sampler()
            .map_err(guest_error)?
            .begin(&request.fields, &facts, context(&request.scope))
            .map_err(guest_error)?;
        Ok(Planned {
            plan: planned.plan,
            seed: planned.seed,
            grammar: planned.grammar.map(|grammar| GrammarSource {
                syntax: grammar.syntax,
                source: grammar.source,
            }),
            chooser: stepping.map(|stepping| self.store.samplers().chooser(stepping)),
        })
    }
}

fn context(scope: &RequestScope) -> CallContext {
    CallContext {
        recorder: scope.record.clone(),
        tenant: match scope.tenant.number {
            // Nobody in particular pays.
            0 => "".into(),
            _ => scope.tenant.id.as_str().into(),
        },
        ..CallContext::new("", scope.now)
    }
}

struct Session {
    session: ChatSession,
    parsers: HashMap<ParserId, guesthouse_component::ParserId>,
}

impl Session {
    fn known(&self, parser: ParserId) -> Result<guesthouse_component::ParserId, GuestError> {
        let unknown = || GuestError::Failed("the chat guest has no such parser".into());
        self.parsers.get(&parser).copied().ok_or_else(unknown)
    }
}

impl Chat for Session {
    fn render<'a>(
        &'a mut self,
        conversation: &'a Conversation,
    ) -> BoxFuture<'a, Result<Vec<Segment>, GuestError>> {
        async move {
            let segments = self
                .session
                .render(convert(conversation))
                .await
                .map_err(guest_error)?;
            segments.into_iter().map(segment).collect()
        }
        .boxed()
    }

    fn stop_strings(&mut self) -> BoxFuture<'_, Result<Vec<String>, GuestError>> {
        async move { self.session.stop_strings().await.map_err(guest_error) }.boxed()
    }

    fn visible_controls(&mut self) -> BoxFuture<'_, Result<Vec<u32>, GuestError>> {
        async move { self.session.visible_controls().await.map_err(guest_error) }.boxed()
    }

    fn parser<'a>(
        &'a mut self,
        conversation: &'a Conversation,
    ) -> BoxFuture<'a, Result<ParserId, GuestError>> {
        async move {
            let inner = self
                .session
                .parser(convert(conversation))
                .await
                .map_err(guest_error)?;
            let id = ParserId(u32::try_from(self.parsers.len()).unwrap_or(u32::MAX));
            self.parsers.insert(id, inner);
            Ok(id)
        }
        .boxed()
    }

    fn push<'a>(
        &'a mut self,
        parser: ParserId,
        text: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Delta>, GuestError>> {
        async move {
            let inner = self.known(parser)?;
            let deltas = self.session.push(inner, text).await.map_err(guest_error)?;
            Ok(deltas.into_iter().filter_map(delta).collect())
        }
        .boxed()
    }

    fn finish(&mut self, parser: ParserId) -> BoxFuture<'_, Result<Vec<Delta>, GuestError>> {
        async move {
            let inner = self.known(parser)?;
            let deltas = self.session.finish(inner).await.map_err(guest_error)?;
            Ok(deltas.into_iter().filter_map(delta).collect())
        }
        .boxed()
    }
}

fn convert(c: &Conversation) -> guesthouse_component::Conversation {
    guesthouse_component::Conversation {
        messages: c.messages.clone(),
        tools: c.tools.clone(),
        tool_choice: c.tool_choice.clone(),
        documents: c.documents.clone(),
        add_generation_prompt: c.add_generation_prompt,
        continue_final_message: c.continue_final_message,
        now: c.now,
        kwargs: c.kwargs.clone(),
    }
}

fn segment(s: GuestSegment) -> Result<Segment, GuestError> {
    match s {
        GuestSegment::Special(id) => Ok(Segment::Control(id)),
        GuestSegment::Text(text) => Ok(Segment::Text(text)),
        GuestSegment::Media(_) => Err(GuestError::Unsupported(
            "this server takes text only, but the chat guest asked for media".into(),
        )),
    }
}

/// Deltas newer than this host are dropped: clients could not read them.
fn delta(d: guesthouse_component::Delta) -> Option<Delta> {
    use guesthouse_component::Delta as D;
    match d {
        D::Content(text) => Some(Delta::Content(text)),
        D::Reasoning(text) => Some(Delta::Reasoning(text)),
        D::ToolCall {
            index,
            id,
            name,
            arguments,
        } => Some(Delta::ToolCall {
            index,
            id,
            name,
            arguments,
        }),
        D::Custom { .. } => None,
    }
}

fn guest_error(error: ComponentError) -> GuestError {
    let text = error.to_string();
    match error {
        ComponentError::Guest {
            kind: GuestErrorKind::InvalidRequest,
            message,
            ..
        } => GuestError::InvalidRequest(message),
        ComponentError::Guest {
            kind: GuestErrorKind::Unsupported,
            message,
            ..
        } => GuestError::Unsupported(message),
        ComponentError::Unsupported { .. } => GuestError::Unsupported(text),
        ComponentError::Busy { .. } => GuestError::Busy(text),
        _ => GuestError::Failed(text),
    }
}
