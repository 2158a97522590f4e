//! Chat guests: one session, and one store, per request.

use std::sync::Arc;

use serde_json::{Value, json};
use wasmtime::Store;
use wasmtime::component::ResourceAny;

use crate::answer::guest_error;
use crate::bindings::chat::exports::guesthouse::chat::{parsing, template};
use crate::bindings::chat::{ChatGuest, ChatGuestPre};
use crate::block_on::block_on;
use crate::meter::metered;
use crate::record::{Recording, encode};
use crate::slots::Slot;
use crate::store::{self, AtTick, State, StoreSpec};
use crate::{CallContext, ComponentError, Module};

/// The interface of guests that know which models they are for.
const MATCHING: &str = "guesthouse:chat/matching@0.1.0";

/// A conversation as the client sent it; JSON stays JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// Array of OpenAI messages.
    pub messages: String,
    /// Array of tools.
    pub tools: Option<String>,
    /// "auto", "none", "required" (quoted) or a named function.
    pub tool_choice: Option<String>,
    /// Array of documents.
    pub documents: Option<String>,
    /// Ask the model to answer.
    pub add_generation_prompt: bool,
    /// Leave the last message open for the model to go on.
    pub continue_final_message: bool,
    /// Unix seconds.
    pub now: u64,
    /// Object of `chat_template_kwargs`.
    pub kwargs: Option<String>,
}

/// A piece of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A control token; one of those the session was opened with.
    Special(u32),
    /// Text; never a control token, whatever it contains.
    Text(String),
    /// Reserved: media of the request, by index.
    Media(u32),
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// For the reader.
    Content(String),
    /// The model's thoughts.
    Reasoning(String),
    /// Part of a tool call.
    ToolCall {
        /// Which call of the message.
        index: u32,
        /// With the first part.
        id: Option<String>,
        /// With the first part.
        name: Option<String>,
        /// Next characters of the JSON arguments.
        arguments: String,
    },
    /// Newer than this host.
    Custom {
        /// Kind.
        kind: String,
        /// Its JSON.
        json: String,
    },
}

/// A parser of a [`ChatSession`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParserId(usize);

/// A module as a chat guest.
#[derive(Clone)]
pub struct ChatModule {
    module: Arc<Module>,
    pre: ChatGuestPre<State>,
}

/// One request's chat guest: a template made from the model's files, and a parser per choice.
///
/// A call that fails or is cancelled (its future dropped) ends the session and frees its store; later calls answer
/// [`ComponentError::Ended`]. An error that the guest *answers* with does not.
pub struct ChatSession {
    module: Arc<Module>,
    /// Ids that `render` may return as control tokens, sorted.
    controls: Vec<u32>,
    /// Where calls are recorded.
    recording: Option<Recording>,
    /// Taken out while a call runs.
    live: Option<Box<Live>>,
}

struct Live {
    store: Store<State>,
    guest: ChatGuest,
    template: Option<ResourceAny>,
    parsers: Vec<Option<ResourceAny>>,
    // After the store: the place is free when the store is gone.
    _slot: Slot,
}

/// Runs one call of a live session and takes its failure apart. Evaluates to the answer, with the session put back, or
/// returns.
macro_rules! call {
    ($session:ident, $function:literal, |$live:ident, $store:ident| $call:expr) => {{
        let mut owned = $session.take($function)?;
        let answer = {
            let $live = &mut *owned;
            let _ticking = $session.module.runtime.ticker.enter();
            store::begin(&mut $live.store);
            let meter = Arc::clone(&$live.store.data().meter);
            let $store = &mut $live.store;
            metered(&meter, async { $call.await }).await
        };
        match answer {
            Ok(answer) => {
                $session.live = Some(owned);
                answer
            }
            Err(error) => return Err(owned.store.data_mut().failure($function, error)),
        }
    }};
}

impl ChatModule {
    pub(crate) fn new(module: Arc<Module>, pre: ChatGuestPre<State>) -> Self {
        Self { module, pre }
    }

    /// The `architectures` names of config.json that this guest is for, where a model ships no chat template; empty for one that
    /// does not say (it need not export `guesthouse:chat/matching`). Blocks the thread.
    ///
    /// # Errors
    /// A trap, limit or time-out of the guest.
    pub fn architectures(&self) -> Result<Vec<String>, ComponentError> {
        let runtime = &self.module.runtime;
        let _slot = block_on(runtime.chat.acquire(&"".into(), &self.module.name))?;
        let spec = StoreSpec {
            module: &self.module.name,
            limits: &runtime.config.chat,
            budget: &runtime.budget,
            context: CallContext::new("", 0),
            at_tick: AtTick::Yield,
            clock: runtime.config.clock,
        };
        let mut store = store::store(&runtime.engine, spec);
        let _ticking = runtime.ticker.enter();
        store::begin(&mut store);
        let meter = Arc::clone(&store.data().meter);
        let call = self.call_architectures(&mut store);
        let answer = block_on(metered(&meter, call));
        answer.map_err(|error| store.data_mut().failure("matching.architectures", error))
    }

    async fn call_architectures(&self, store: &mut Store<State>) -> wasmtime::Result<Vec<String>> {
        let instance = self
            .pre
            .instance_pre()
            .instantiate_async(&mut *store)
            .await?;
        let Some(interface) = instance.get_export_index(&mut *store, None, MATCHING) else {
            return Ok(Vec::new());
        };
        let function = instance
            .get_export_index(&mut *store, Some(&interface), "architectures")
            .ok_or_else(|| wasmtime::Error::msg("matching exports no architectures"))?;
        let function = instance.get_typed_func::<(), (Vec<String>,)>(&mut *store, function)?;
        let (names,) = function.call_async(&mut *store, ()).await?;
        Ok(names)
    }

    /// Makes a store, an instance and its template. `files` are (name, content); `controls` every control token of the
    /// tokenizer as (id, literal). Waits while all chat places are taken.
    ///
    /// # Errors
    /// The guest's own (bad files, unsupported template), or a trap, limit or time-out of it.
    pub async fn open(
        &self,
        files: Vec<(String, String)>,
        controls: Vec<(u32, String)>,
        context: CallContext,
    ) -> Result<ChatSession, ComponentError> {
        let runtime = &self.module.runtime;
        let slot = runtime
            .chat
            .acquire(&context.tenant, &self.module.name)
            .await?;
        let mut session = ChatSession {
            module: Arc::clone(&self.module),
            controls: Vec::new(),
            recording: None,
            live: None,
        };
        let live = self.instantiate(slot, context).await?;
        let state = live.store.data();
        session.recording = Recording::of(&state.context, &state.log, &self.module);
        session.live = Some(Box::new(live));
        let input = session.input(|| encode::open(&files, &controls));
        let made = session.create(files, controls).await;
        session.record("template.create", input, &made, |()| Value::Null);
        made.map(|()| session)
    }

    async fn instantiate(&self, slot: Slot, context: CallContext) -> Result<Live, ComponentError> {
        let runtime = &self.module.runtime;
        let spec = StoreSpec {
            module: &self.module.name,
            limits: &runtime.config.chat,
            budget: &runtime.budget,
            context,
            at_tick: AtTick::Yield,
            clock: runtime.config.clock,
        };
        let mut store = store::store(&runtime.engine, spec);
        let _ticking = runtime.ticker.enter();
        store::begin(&mut store);
        let meter = Arc::clone(&store.data().meter);
        match metered(&meter, self.pre.instantiate_async(&mut store)).await {
            Ok(guest) => Ok(Live {
                store,
                guest,
                template: None,
                parsers: Vec::new(),
                _slot: slot,
            }),
            Err(error) => Err(store.data_mut().failure("instantiate", error)),
        }
    }
}

impl ChatSession {
    /// What goes into a call, where calls are recorded.
    fn input(&self, encode: impl FnOnce() -> Value) -> Option<Value> {
        self.recording.as_ref().map(|_| encode())
    }

    fn record<T>(
        &self,
        function: &'static str,
        input: Option<Value>,
        answer: &Result<T, ComponentError>,
        encode: impl FnOnce(&T) -> Value,
    ) {
        if let (Some(recording), Some(input)) = (&self.recording, input) {
            recording.call(function, input, answer, encode);
        }
    }

    async fn create(
        &mut self,
        files: Vec<(String, String)>,
        controls: Vec<(u32, String)>,
    ) -> Result<(), ComponentError> {
        self.controls = controls.iter().map(|(id, _)| *id).collect();
        self.controls.sort_unstable();
        let files: Vec<_> = files
            .into_iter()
            .map(|(name, content)| template::File { name, content })
            .collect();
        let controls: Vec<_> = controls
            .into_iter()
            .map(|(id, literal)| template::ControlToken { id, literal })
            .collect();
        let made = call!(self, "template.create", |live, store| live
            .guest
            .guesthouse_chat_template()
            .template()
            .call_create(store, &files, &controls));
        let made =
            made.map_err(|error| guest_error(&self.module.name, "template.create", error))?;
        if let Some(live) = &mut self.live {
            live.template = Some(made);
        }
        Ok(())
    }

    fn take(&mut self, function: &'static str) -> Result<Box<Live>, ComponentError> {
        self.live.take().ok_or_else(|| ComponentError::Ended {
            module: self.module.name.to_string(),
            function,
        })
    }

    fn template(&self, function: &'static str) -> Result<ResourceAny, ComponentError> {
        let template = self.live.as_ref().and_then(|live| live.template);
        template.ok_or_else(|| ComponentError::Ended {
            module: self.module.name.to_string(),
            function,
        })
    }

    fn invalid(&self, function: &'static str, reason: String) -> ComponentError {
        ComponentError::InvalidAnswer {
            module: self.module.name.to_string(),
            function,
            reason,
        }
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// [`ComponentError::Guest`] for a conversation the template refuses; a trap, limit or time-out of the guest; a
    /// segment that is not of this tokenizer.
    pub async fn render(
        &mut self,
        conversation: Conversation,
    ) -> Result<Vec<Segment>, ComponentError> {
        let input = self.input(|| encode::conversation(&conversation));
        let answer = self.render_call(conversation).await;
        self.record("template.render", input, &answer, |segments| {
            encode::segments(segments)
        });
        answer
    }

    async fn render_call(
        &mut self,
        conversation: Conversation,
    ) -> Result<Vec<Segment>, ComponentError> {
        let template = self.template("template.render")?;
        let conversation = conversation.into();
        let answer = call!(self, "template.render", |live, store| live
            .guest
            .guesthouse_chat_template()
            .template()
            .call_render(store, template, &conversation));
        let segments =
            answer.map_err(|error| guest_error(&self.module.name, "template.render", error))?;
        segments
            .into_iter()
            .map(|segment| self.segment(segment))
            .collect()
    }

    fn segment(&self, segment: template::Segment) -> Result<Segment, ComponentError> {
        match segment {
            template::Segment::Text(text) => Ok(Segment::Text(text)),
            template::Segment::Special(id) if self.controls.binary_search(&id).is_ok() => {
                Ok(Segment::Special(id))
            }
            template::Segment::Special(id) => Err(self.invalid(
                "template.render",
                format!("token {id} is not a control token of the model"),
            )),
            template::Segment::Media(index) => Err(ComponentError::Unsupported {
                module: self.module.name.to_string(),
                function: "template.render",
                what: format!("media segment {index}"),
            }),
        }
    }

    /// Strings that end a generation, beside the model's own end tokens.
    ///
    /// # Errors
    /// A trap, limit or time-out of the guest.
    pub async fn stop_strings(&mut self) -> Result<Vec<String>, ComponentError> {
        let input = self.input(|| Value::Null);
        let answer = self.stop_strings_call().await;
        self.record("template.stop-strings", input, &answer, |strings| {
            json!(strings)
        });
        answer
    }

    async fn stop_strings_call(&mut self) -> Result<Vec<String>, ComponentError> {
        let template = self.template("template.stop-strings")?;
        Ok(call!(self, "template.stop-strings", |live, store| live
            .guest
            .guesthouse_chat_template()
            .template()
            .call_stop_strings(store, template)))
    }

    /// Control tokens that parsers need to see, as their literals in the text.
    ///
    /// # Errors
    /// A trap, limit or time-out of the guest.
    pub async fn visible_controls(&mut self) -> Result<Vec<u32>, ComponentError> {
        let input = self.input(|| Value::Null);
        let answer = self.visible_controls_call().await;
        self.record("template.visible-controls", input, &answer, |ids| {
            json!(ids)
        });
        answer
    }

    async fn visible_controls_call(&mut self) -> Result<Vec<u32>, ComponentError> {
        let template = self.template("template.visible-controls")?;
        Ok(call!(self, "template.visible-controls", |live, store| live
            .guest
            .guesthouse_chat_template()
            .template()
            .call_visible_controls(store, template)))
    }

    /// A parser for one choice of the answer to `conversation`.
    ///
    /// # Errors
    /// As [`ChatSession::render`].
    pub async fn parser(&mut self, conversation: Conversation) -> Result<ParserId, ComponentError> {
        let input = self.input(|| encode::conversation(&conversation));
        let answer = self.parser_call(conversation).await;
        self.record("template.parser", input, &answer, |parser| json!(parser.0));
        answer
    }

    async fn parser_call(
        &mut self,
        conversation: Conversation,
    ) -> Result<ParserId, ComponentError> {
        let template = self.template("template.parser")?;
        let conversation = conversation.into();
        let answer = call!(self, "template.parser", |live, store| live
            .guest
            .guesthouse_chat_template()
            .template()
            .call_parser(store, template, &conversation));
        let parser =
            answer.map_err(|error| guest_error(&self.module.name, "template.parser", error))?;
        let live = self.live.as_mut().ok_or_else(|| ComponentError::Ended {
            module: self.module.name.to_string(),
            function: "template.parser",
        })?;
        live.parsers.push(Some(parser));
        Ok(ParserId(live.parsers.len() - 1))
    }

    fn parser_handle(
        &self,
        function: &'static str,
        id: ParserId,
    ) -> Result<ResourceAny, ComponentError> {
        let handle = self
            .live
            .as_ref()
            .and_then(|live| live.parsers.get(id.0).copied().flatten());
        handle.ok_or_else(|| ComponentError::Ended {
            module: self.module.name.to_string(),
            function,
        })
    }

    /// Feeds a parser whole code points of the answer.
    ///
    /// # Errors
    /// A trap, limit or time-out of the guest; [`ComponentError::Ended`] after [`ChatSession::finish`].
    pub async fn push(
        &mut self,
        parser: ParserId,
        text: &str,
    ) -> Result<Vec<Delta>, ComponentError> {
        let input = self.input(|| json!({ "parser": parser.0, "text": text }));
        let answer = self.push_call(parser, text).await;
        self.record("parser.push", input, &answer, |deltas| {
            encode::deltas(deltas)
        });
        answer
    }

    async fn push_call(
        &mut self,
        parser: ParserId,
        text: &str,
    ) -> Result<Vec<Delta>, ComponentError> {
        let handle = self.parser_handle("parser.push", parser)?;
        let deltas = call!(self, "parser.push", |live, store| live
            .guest
            .guesthouse_chat_parsing()
            .parser()
            .call_push(store, handle, text));
        Ok(deltas.into_iter().map(Delta::from).collect())
    }

    /// Says that the text is over, and frees the parser.
    ///
    /// # Errors
    /// As [`ChatSession::push`].
    pub async fn finish(&mut self, parser: ParserId) -> Result<Vec<Delta>, ComponentError> {
        let input = self.input(|| json!({ "parser": parser.0 }));
        let answer = self.finish_call(parser).await;
        self.record("parser.finish", input, &answer, |deltas| {
            encode::deltas(deltas)
        });
        answer
    }

    async fn finish_call(&mut self, parser: ParserId) -> Result<Vec<Delta>, ComponentError> {
        let handle = self.parser_handle("parser.finish", parser)?;
        let deltas = call!(self, "parser.finish", |live, store| live
            .guest
            .guesthouse_chat_parsing()
            .parser()
            .call_finish(store, handle));
        if let Some(live) = &mut self.live {
            live.parsers[parser.0] = None;
        }
        call!(self, "parser.drop", |_live, store| handle
            .resource_drop_async(store));
        Ok(deltas.into_iter().map(Delta::from).collect())
    }
}

impl From<Conversation> for template::Conversation {
    fn from(from: Conversation) -> Self {
        Self {
            messages: from.messages,
            tools: from.tools,
            tool_choice: from.tool_choice,
            documents: from.documents,
            add_generation_prompt: from.add_generation_prompt,
            continue_final_message: from.continue_final_message,
            now: from.now,
            kwargs: from.kwargs,
        }
    }
}

impl From<parsing::Delta> for Delta {
    fn from(from: parsing::Delta) -> Self {
        match from {
            parsing::Delta::Content(text) => Self::Content(text),
            parsing::Delta::Reasoning(text) => Self::Reasoning(text),
            parsing::Delta::ToolCall(part) => Self::ToolCall {
                index: part.index,
                id: part.id,
                name: part.name,
                arguments: part.arguments,
            },
            parsing::Delta::Custom((kind, json)) => Self::Custom { kind, json },
        }
    }
}
