//! Chat and sampler guests behind [`crate::serving`]'s traits.

use crate::model::ModuleStore;
use crate::model::Modules;
use crate::model::store::Chosen;
use crate::printable::printable;
use crate::serving::{
    Chat, Conversation, Delta, GrammarSource, GuestError, Guests, ParserId, Planned, RequestScope,
    SamplerRequest,
};
use futures::future::{BoxFuture, FutureExt};
use guesthouse_component::{
    CallContext, ChatSession, ComponentError, GuestErrorKind, ModelFacts, Module, Origin, Role,
    Runtime, Segment as GuestSegment,
};
use guesthouse_tenants::{Pins, Tenant};
use guesthouse_tokenizer::{Segment, Tokenizer};
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

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

impl ModelGuests {
    /// The module that serves a request: the one that it names, else the one that its tenant pinned, else the model's.
    fn module(
        &self,
        scope: &RequestScope,
        role: Role,
        asked: Option<&str>,
    ) -> Result<Arc<Module>, GuestError> {
        let (pinned, own) = match role {
            Role::Chat => (&scope.pins.chat, &self.chat),
            Role::Sampler | Role::Graph => (&scope.pins.sampler, &self.sampler),
        };
        match (asked, pinned) {
            (Some(name), _) => {
                let found = self.named(&scope.tenant, role, name)?;
                found.ok_or_else(|| GuestError::UnknownModule {
                    name: name.to_owned(),
                    known: self.store.names_for(&scope.tenant, role),
                })
            }
            (None, Some(name)) => {
                let found = self.named(&scope.tenant, role, name)?;
                found.ok_or_else(|| GuestError::NoPinned {
                    name: name.clone(),
                    role: role.to_string(),
                })
            }
            (None, None) => Ok(own.current()),
        }
    }

    /// What a name means for a tenant: its own module, else a live one of the server's, else a built-in one.
    fn named(
        &self,
        tenant: &Tenant,
        role: Role,
        name: &str,
    ) -> Result<Option<Arc<Module>>, GuestError> {
        let found = self.store.named_for(tenant, role, name);
        found.map_err(|error| GuestError::Failed(printable(&error.to_string())))
    }
}

impl Guests for ModelGuests {
    fn scope(&self, now: u64, tenant: &Arc<Tenant>) -> Result<RequestScope, GuestError> {
        let record = self.store.record(&CallContext::new("", now));
        // A full disk costs the record, not the request.
        let record = record.unwrap_or_else(|error| {
            tracing::error!(%error, "a request is not recorded");
            None
        });
        Ok(RequestScope {
            now,
            request: Arc::from(""),
            tenant: Arc::clone(tenant),
            pins: Pins::default(),
            record,
        })
    }

    fn open_chat(
        &self,
        scope: &RequestScope,
    ) -> BoxFuture<'static, Result<Box<dyn Chat>, GuestError>> {
        let context = context(scope);
        let module = self.module(scope, Role::Chat, None);
        let (files, controls) = (self.files.clone(), self.controls.clone());
        let runtime = Arc::clone(self.store.runtime());
        async move {
            let module = module?;
            let on = Threads::of(&module, &context, runtime);
            let chat = module.chat().map_err(guest_error)?;
            let opened = on.run(async move { chat.open(files, controls, context).await });
            let session = opened.await?.map_err(guest_error)?;
            Ok(Box::new(Session {
                session: Some(session),
                on,
                parsers: HashMap::new(),
            }) as Box<dyn Chat>)
        }
        .boxed()
    }

    fn plan(&self, request: &SamplerRequest) -> Result<Planned, GuestError> {
        let module = self.module(&request.scope, Role::Sampler, request.module.as_deref())?;
        let facts = ModelFacts {
            prompt_len: request.prompt_len,
            max_tokens: request.max_tokens,
            choices: request.n,
            ..self.facts.clone()
        };
        let context = context(&request.scope);
        let on = Threads::of(&module, &context, Arc::clone(self.store.runtime()));
        let sampler = module.sampler().map_err(guest_error)?;
        let fields = request.fields.clone();
        let begun = on.run_blocking(move || sampler.begin(&fields, &facts, context))?;
        let (planned, stepping) = begun.map_err(guest_error)?;
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

/// Most memory of its guests, where its policy says it.
pub(super) fn memory_of(tenant: &Tenant) -> Option<usize> {
    let bytes = tenant.policy.quotas.guest_memory_bytes?;
    Some(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The account of its guests.
fn account(tenant: &Tenant) -> &str {
    match tenant.number {
        // Nobody in particular pays.
        0 => "",
        _ => tenant.id.as_str(),
    }
}

/// CPU time of a tenant's guests so far. Of those that no tenant is charged for: nothing.
pub(crate) fn guest_time(runtime: &Runtime, tenant: &Tenant) -> Duration {
    match account(tenant) {
        "" => Duration::ZERO,
        account => runtime.guest_time(account),
    }
}

fn context(scope: &RequestScope) -> CallContext {
    CallContext {
        request: Arc::clone(&scope.request),
        recorder: scope.record.clone(),
        tenant: account(&scope.tenant).into(),
        memory: memory_of(&scope.tenant),
        ..CallContext::new("", scope.now)
    }
}

/// Where a guest's calls run.
enum Threads {
    /// On the caller's.
    Here,
    /// A tenant brought the module.
    Apart {
        runtime: Arc<Runtime>,
        tenant: Arc<str>,
    },
}

impl Threads {
    fn of(module: &Module, context: &CallContext, runtime: Arc<Runtime>) -> Self {
        match module.origin() {
            Origin::Tenant => Self::Apart {
                runtime,
                tenant: Arc::clone(&context.tenant),
            },
            Origin::Embedded | Origin::File => Self::Here,
        }
    }

    async fn run<F>(&self, call: F) -> Result<F::Output, GuestError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        match self {
            Self::Here => Ok(call.await),
            Self::Apart { runtime, tenant } => {
                let threads = runtime.tenant_threads().map_err(guest_error)?;
                threads.run(tenant, call).await.map_err(guest_error)
            }
        }
    }

    fn run_blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, GuestError> {
        match self {
            Self::Here => Ok(call()),
            Self::Apart { runtime, tenant } => {
                let threads = runtime.tenant_threads().map_err(guest_error)?;
                threads.run_blocking(tenant, call).map_err(guest_error)
            }
        }
    }
}

struct Session {
    /// Away while a call runs, and after one whose caller left.
    session: Option<ChatSession>,
    on: Threads,
    parsers: HashMap<ParserId, guesthouse_component::ParserId>,
}

impl Session {
    fn known(&self, parser: ParserId) -> Result<guesthouse_component::ParserId, GuestError> {
        let unknown = || GuestError::Failed("the chat guest has no such parser".into());
        self.parsers.get(&parser).copied().ok_or_else(unknown)
    }

    async fn call<T: Send + 'static>(&mut self, call: impl AsyncCall<T>) -> Result<T, GuestError> {
        let ended = || GuestError::Failed("an earlier call ended the chat guest".into());
        let mut session = self.session.take().ok_or_else(ended)?;
        let made = self.on.run(async move {
            let answer = call(&mut session).await;
            (session, answer)
        });
        let (session, answer) = made.await?;
        self.session = Some(session);
        answer.map_err(guest_error)
    }
}

/// One call of a session.
trait AsyncCall<T>:
    for<'s> FnOnce(&'s mut ChatSession) -> BoxFuture<'s, Result<T, ComponentError>> + Send + 'static
{
}

impl<T, F> AsyncCall<T> for F where
    F: for<'s> FnOnce(&'s mut ChatSession) -> BoxFuture<'s, Result<T, ComponentError>>
        + Send
        + 'static
{
}

impl Chat for Session {
    fn render<'a>(
        &'a mut self,
        conversation: &'a Conversation,
    ) -> BoxFuture<'a, Result<Vec<Segment>, GuestError>> {
        let conversation = convert(conversation);
        async move {
            let call = self.call(|session| session.render(conversation).boxed());
            call.await?.into_iter().map(segment).collect()
        }
        .boxed()
    }

    fn stop_strings(&mut self) -> BoxFuture<'_, Result<Vec<String>, GuestError>> {
        self.call(|session| session.stop_strings().boxed()).boxed()
    }

    fn visible_controls(&mut self) -> BoxFuture<'_, Result<Vec<u32>, GuestError>> {
        self.call(|session| session.visible_controls().boxed())
            .boxed()
    }

    fn parser<'a>(
        &'a mut self,
        conversation: &'a Conversation,
    ) -> BoxFuture<'a, Result<ParserId, GuestError>> {
        let conversation = convert(conversation);
        async move {
            let call = self.call(|session| session.parser(conversation).boxed());
            let inner = call.await?;
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
        let text = text.to_owned();
        async move {
            let inner = self.known(parser)?;
            let call =
                self.call(move |session| async move { session.push(inner, &text).await }.boxed());
            Ok(call.await?.into_iter().filter_map(delta).collect())
        }
        .boxed()
    }

    fn finish(&mut self, parser: ParserId) -> BoxFuture<'_, Result<Vec<Delta>, GuestError>> {
        async move {
            let inner = self.known(parser)?;
            let call = self.call(move |session| session.finish(inner).boxed());
            Ok(call.await?.into_iter().filter_map(delta).collect())
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
    let text = printable(&error.to_string());
    match error {
        ComponentError::Guest {
            kind: GuestErrorKind::InvalidRequest,
            message,
            ..
        } => GuestError::InvalidRequest(printable(&message)),
        ComponentError::Guest {
            kind: GuestErrorKind::Unsupported,
            message,
            ..
        } => GuestError::Unsupported(printable(&message)),
        ComponentError::Unsupported { .. } => GuestError::Unsupported(text),
        ComponentError::Busy { .. } => GuestError::Busy(text),
        _ => GuestError::Failed(text),
    }
}
