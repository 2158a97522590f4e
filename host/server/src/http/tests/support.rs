//! A device that recites, guests that speak ChatML, and a client.

use crate::http::{AppState, Directory, HttpConfig, router};
use crate::serving::{
    Chat, Conversation, Delta, EmbeddingFacts, GenerationOptions, GrammarSource, GuestError,
    Guests, ParserId, Planned, RequestScope, SamplerRequest, SamplingDefaults, ServedModel,
    planning_turns,
};
use crate::text::{BreakingTokens, EncodingLimits};
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use guesthouse_engine::{
    Admission, CacheSalt, Engine, EngineConfig, EngineThread, Executor, ExecutorError,
    ExecutorInfo, GroupInfo, GroupKind, LengthRules, Masks, PromptLogprobs, Row, SampleOutcome,
    Sampled, SamplingPlan, Slot, StepOutput, StepPlan, Task, Ticket, TokenId,
};
use guesthouse_grammar::{GrammarCompiler, Limits};
use guesthouse_tenants::{Policy, Registry, Tenant, TenantId};
use guesthouse_tokenizer::{AddSpecial, GgufVocab, Segment, Tokenizer};
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tower::ServiceExt as _;

pub(super) const START: TokenId = 256;
pub(super) const END: TokenId = 257;
pub(super) const VOCAB: u32 = 258;
pub(super) const CONTEXT: u32 = 256;

/// Token `b` is the byte `b`; two control tokens follow.
pub(super) fn tokenizer() -> Arc<Tokenizer> {
    let shifted = |byte: u8| matches!(byte, 0..=0x20 | 0x7f..=0xa0 | 0xad);
    let mut next = 0x100;
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|byte| {
            if !shifted(byte) {
                return char::from(byte).to_string();
            }
            next += 1;
            char::from_u32(next - 1).unwrap().to_string()
        })
        .collect();
    tokens.extend(["<|im_start|>".to_owned(), "<|im_end|>".to_owned()]);
    let mut token_types = vec![1; 256];
    token_types.extend([3, 3]);
    let vocab = GgufVocab {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        token_types: Some(token_types),
        merges: Some(Vec::new()),
        eos: Some(END),
        ..GgufVocab::default()
    };
    Arc::new(Tokenizer::from_gguf(vocab).unwrap())
}

/// Opens for so many steps.
#[derive(Clone, Default)]
pub(super) struct Gate(Arc<(Mutex<u64>, Condvar)>);

impl Gate {
    pub(super) fn open(&self, steps: u64) {
        *self.0.0.lock().unwrap() += steps;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let mut steps = self
            .0
            .1
            .wait_while(self.0.0.lock().unwrap(), |steps| *steps == 0)
            .unwrap();
        *steps = steps.saturating_sub(1);
    }
}

/// Choice `c` of any request says script `c` (modulo their number), then dots. The token at each place has
/// log-probability -0.5, the token one above it -1.5 and so on; a prompt's own tokens have -0.25.
struct Reciter {
    info: ExecutorInfo,
    scripts: Vec<Vec<TokenId>>,
    gate: Gate,
    slots: HashMap<Slot, Admission>,
    steps: VecDeque<StepOutput>,
}

fn scored(token: TokenId, logprob: f32, top: u32) -> Sampled {
    let best = (0..top)
        .map(|i| ((token + i) % VOCAB, logprob - i as f32))
        .collect();
    Sampled {
        token,
        logprob,
        rank: 1,
        processed_logprob: logprob,
        mu: None,
        top: best,
    }
}

impl Reciter {
    fn prompt_scores(&self, index: usize, row: &Row) -> Option<PromptLogprobs> {
        let top = row.prompt_logprobs?;
        let admission = &self.slots[&row.slot];
        let entries = (row.start..(row.start + row.len).min(admission.prompt_len - 1))
            .map(|position| scored(admission.tokens[position as usize + 1], -0.25, top))
            .collect();
        Some(PromptLogprobs {
            row: index as u32,
            entries,
        })
    }
}

impl Executor for Reciter {
    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn launch(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        for admission in &plan.admitted {
            self.slots.insert(admission.slot, admission.clone());
        }
        let samples = plan
            .samples
            .iter()
            .map(|task| {
                if self.info.task == Task::Embed {
                    return SampleOutcome::Embedding(vector(&self.slots[&task.slot].tokens));
                }
                let row = &plan.rows[task.row as usize];
                let admission = &self.slots[&task.slot];
                let script = &self.scripts[admission.random.lineage as usize % self.scripts.len()];
                let at = (row.start + row.len - admission.prompt_len) as usize;
                let token = script.get(at).copied().unwrap_or(u32::from(b'.'));
                SampleOutcome::Token(scored(token, -0.5, task.top_logprobs))
            })
            .collect();
        let prompt_logprobs = plan
            .rows
            .iter()
            .enumerate()
            .filter_map(|(i, row)| self.prompt_scores(i, row))
            .collect();
        self.steps.push_back(StepOutput {
            ticket: plan.ticket,
            samples,
            prompt_logprobs,
            exposed: Duration::from_micros(40),
            took: std::time::Duration::ZERO,
        });
        Ok(plan.ticket)
    }

    fn sample(&mut self, _: Ticket, _: Masks) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn collect(&mut self, _: Ticket) -> Result<StepOutput, ExecutorError> {
        self.gate.pass();
        self.steps.pop_front().ok_or(ExecutorError {
            during: "collect",
            message: "nothing was launched".into(),
        })
    }
}

/// What the device makes of a prompt: its length and its first and last token, and a fourth number; of length 1.
pub(super) fn vector(tokens: &[TokenId]) -> Vec<f32> {
    let numbers = [tokens.len() as u32, tokens[0], tokens[tokens.len() - 1], 7];
    let length = numbers.iter().map(|x| (x * x) as f32).sum::<f32>().sqrt();
    numbers.iter().map(|&x| x as f32 / length).collect()
}

/// What guests are to do, and what they were asked.
#[derive(Default)]
pub(super) struct GuestScript {
    pub(super) fail_render: Option<GuestError>,
    pub(super) fail_push: Option<GuestError>,
    pub(super) fail_plan: Option<GuestError>,
    pub(super) panic_in_plan: bool,
    pub(super) ignores_grammars: bool,
    pub(super) stop_strings: Vec<String>,
    pub(super) visible_controls: Vec<u32>,
    pub(super) planned: Mutex<Vec<String>>,
    pub(super) rendered: Mutex<Vec<Conversation>>,
    /// Of all calls.
    pub(super) scopes: Mutex<Vec<RequestScope>>,
}

struct FakeGuests(Arc<GuestScript>);

impl Guests for FakeGuests {
    fn scope(&self, now: u64, tenant: &Arc<Tenant>) -> Result<RequestScope, GuestError> {
        Ok(RequestScope {
            tenant: Arc::clone(tenant),
            ..RequestScope::unrecorded(now)
        })
    }

    fn open_chat(
        &self,
        scope: &RequestScope,
    ) -> BoxFuture<'static, Result<Box<dyn Chat>, GuestError>> {
        self.0.scopes.lock().unwrap().push(scope.clone());
        let chat: Box<dyn Chat> = Box::new(FakeChat {
            script: Arc::clone(&self.0),
            parsers: Vec::new(),
        });
        ready(Ok(chat)).boxed()
    }

    fn plan(&self, request: &SamplerRequest) -> Result<Planned, GuestError> {
        assert!(!self.0.panic_in_plan, "the sampler panics");
        self.0.planned.lock().unwrap().push(request.fields.clone());
        self.0.scopes.lock().unwrap().push(request.scope.clone());
        if let Some(name) = &request.module {
            return Err(GuestError::UnknownModule {
                name: name.clone(),
                known: vec!["standard".to_owned()],
            });
        }
        let fields: Value = serde_json::from_str(&request.fields).unwrap();
        let grammar = fields.get("grammar").map(|grammar| GrammarSource {
            syntax: grammar["syntax"].as_str().unwrap().to_owned(),
            source: grammar["source"].as_str().unwrap().to_owned(),
        });
        match self.0.fail_plan.clone() {
            Some(error) => Err(error),
            None => Ok(Planned {
                plan: SamplingPlan::greedy(),
                seed: None,
                grammar: grammar.filter(|_| !self.0.ignores_grammars),
                chooser: None,
            }),
        }
    }
}

#[derive(Clone, Copy)]
enum Mode {
    Content,
    Reasoning,
    Name,
    Arguments,
}

struct FakeChat {
    script: Arc<GuestScript>,
    /// Mode and calls begun.
    parsers: Vec<(Mode, u32)>,
}

impl FakeChat {
    /// `~` begins and ends a thought; `@name|arguments@` is a call.
    fn parse(&mut self, ParserId(id): ParserId, text: &str) -> Vec<Delta> {
        let (mode, calls) = &mut self.parsers[id as usize];
        let mut deltas = Vec::new();
        for c in text.chars() {
            let call = |index: u32, name: Option<String>, arguments: String| Delta::ToolCall {
                index,
                id: None,
                name,
                arguments,
            };
            match (*mode, c) {
                (Mode::Content, '~') => *mode = Mode::Reasoning,
                (Mode::Reasoning, '~') | (Mode::Arguments, '@') => *mode = Mode::Content,
                (Mode::Content, '@') => {
                    *mode = Mode::Name;
                    *calls += 1;
                }
                (Mode::Name, '|') => *mode = Mode::Arguments,
                (Mode::Content, c) => deltas.push(Delta::Content(c.to_string())),
                (Mode::Reasoning, c) => deltas.push(Delta::Reasoning(c.to_string())),
                (Mode::Name, c) => {
                    deltas.push(call(*calls - 1, Some(c.to_string()), String::new()));
                }
                (Mode::Arguments, c) => deltas.push(call(*calls - 1, None, c.to_string())),
            }
        }
        deltas
    }
}

impl Chat for FakeChat {
    fn render<'a>(
        &'a mut self,
        conversation: &'a Conversation,
    ) -> BoxFuture<'a, Result<Vec<Segment>, GuestError>> {
        self.script
            .rendered
            .lock()
            .unwrap()
            .push(conversation.clone());
        if let Some(error) = self.script.fail_render.clone() {
            return ready(Err(error)).boxed();
        }
        let messages: Vec<Value> = serde_json::from_str(&conversation.messages).unwrap();
        let mut segments = Vec::new();
        for message in messages {
            let content = match &message["content"] {
                Value::Array(parts) => parts
                    .iter()
                    .filter_map(|part| part["text"].as_str())
                    .collect(),
                text => text.as_str().unwrap_or_default().to_owned(),
            };
            segments.push(Segment::Control(START));
            segments.push(Segment::Text(format!(
                "{}\n{content}",
                message["role"].as_str().unwrap()
            )));
            segments.push(Segment::Control(END));
        }
        if conversation.add_generation_prompt {
            segments.push(Segment::Control(START));
        }
        ready(Ok(segments)).boxed()
    }

    fn stop_strings(&mut self) -> BoxFuture<'_, Result<Vec<String>, GuestError>> {
        ready(Ok(self.script.stop_strings.clone())).boxed()
    }

    fn visible_controls(&mut self) -> BoxFuture<'_, Result<Vec<u32>, GuestError>> {
        ready(Ok(self.script.visible_controls.clone())).boxed()
    }

    fn parser<'a>(
        &'a mut self,
        _: &'a Conversation,
    ) -> BoxFuture<'a, Result<ParserId, GuestError>> {
        self.parsers.push((Mode::Content, 0));
        ready(Ok(ParserId(self.parsers.len() as u32 - 1))).boxed()
    }

    fn push<'a>(
        &'a mut self,
        parser: ParserId,
        text: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Delta>, GuestError>> {
        let answer = match self.script.fail_push.clone() {
            Some(error) => Err(error),
            None => Ok(self.parse(parser, text)),
        };
        ready(answer).boxed()
    }

    fn finish(&mut self, _: ParserId) -> BoxFuture<'_, Result<Vec<Delta>, GuestError>> {
        ready(Ok(Vec::new())).boxed()
    }
}

/// A server to be.
pub(super) struct Setup {
    pub(super) scripts: Vec<&'static str>,
    pub(super) guests: GuestScript,
    pub(super) config: HttpConfig,
    pub(super) engine: EngineConfig,
    pub(super) gate: Gate,
    pub(super) defaults: SamplingDefaults,
    pub(super) embedding: Option<EmbeddingFacts>,
}

impl Setup {
    /// Makes a [`vector`] of each prompt.
    pub(super) fn embedding() -> Self {
        Self {
            embedding: Some(EmbeddingFacts {
                width: 4,
                normalized: true,
            }),
            ..Self::saying(&["a"])
        }
    }

    /// Says these, one per choice, without waiting.
    pub(super) fn saying(scripts: &[&'static str]) -> Self {
        let gate = Gate::default();
        gate.open(u64::MAX / 2);
        Self {
            scripts: scripts.to_vec(),
            guests: GuestScript::default(),
            config: HttpConfig::default(),
            engine: EngineConfig::default(),
            gate,
            defaults: SamplingDefaults::default(),
            embedding: None,
        }
    }

    /// Likewise, but each step waits for the gate.
    pub(super) fn gated(scripts: &[&'static str]) -> (Self, Gate) {
        let gate = Gate::default();
        (
            Self {
                gate: gate.clone(),
                ..Self::saying(scripts)
            },
            gate,
        )
    }

    /// Likewise, for these tenants, each with a key.
    pub(super) fn of_tenants(mut self, policies: &[(&str, Policy)]) -> (Self, House) {
        let registry = Arc::new(Registry::in_memory().unwrap());
        let keys = policies.iter().map(|(id, policy)| {
            let (_, key) = registry.add(&TenantId::parse(id).unwrap(), policy).unwrap();
            key.reveal().to_owned()
        });
        let keys = keys.collect();
        self.config.directory = Some(Arc::clone(&registry) as Arc<dyn Directory>);
        (self, House { registry, keys })
    }

    pub(super) fn start(self) -> Server {
        let tokenizer = tokenizer();
        let info = ExecutorInfo {
            block_size: 4,
            groups: vec![GroupInfo {
                kind: GroupKind::Full,
                blocks: 512,
            }],
            slots: 8,
            max_step_tokens: 64,
            step_overhead: 0,
            max_len: CONTEXT,
            vocab: VOCAB,
            whole_prompt: false,
            lengths: LengthRules::default(),
            task: match self.embedding {
                Some(_) => Task::Embed,
                None => Task::Generate,
            },
        };
        let scripts = self
            .scripts
            .iter()
            .map(|text| tokenizer.encode_raw(text, AddSpecial::No).unwrap())
            .collect();
        let reciter = Reciter {
            info,
            scripts,
            gate: self.gate,
            slots: HashMap::new(),
            steps: VecDeque::new(),
        };
        let guests = Arc::new(self.guests);
        let model = Arc::new(ServedModel {
            id: "org/tiny".into(),
            aliases: vec!["tiny".into()],
            created: 1_700_000_000,
            max_model_len: CONTEXT,
            vocab: VOCAB,
            encoding: EncodingLimits::of(&tokenizer),
            breaking: BreakingTokens::default(),
            planning: planning_turns(),
            grammars: GrammarCompiler::new(
                Arc::clone(&tokenizer),
                VOCAB as usize,
                Limits::default(),
            ),
            tokenizer,
            engine: EngineThread::spawn(Engine::new(reciter, self.engine)).unwrap(),
            guests: Arc::new(FakeGuests(Arc::clone(&guests))),
            graph: "scripted".into(),
            stop_tokens: vec![END],
            cache_salt: CacheSalt::default(),
            defaults: self.defaults,
            generation: GenerationOptions::default(),
            embedding: self.embedding,
        });
        Server {
            state: AppState::new(vec![Arc::clone(&model)], self.config),
            model,
            guests,
        }
    }
}

/// Tenants and their keys, in one order.
pub(super) struct House {
    pub(super) registry: Arc<Registry>,
    pub(super) keys: Vec<String>,
}

/// A server without a socket.
pub(super) struct Server {
    pub(super) state: AppState,
    pub(super) model: Arc<ServedModel>,
    pub(super) guests: Arc<GuestScript>,
}

pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Payloads of all events, `[DONE]` included.
    pub(super) fn events(&self) -> Vec<&str> {
        let frames = self
            .body
            .split_terminator("\n\n")
            .filter(|frame| !frame.starts_with(':'));
        frames
            .map(|frame| frame.strip_prefix("data: ").unwrap())
            .collect()
    }

    /// Payloads without what differs from run to run.
    pub(super) fn golden(&self) -> Vec<String> {
        let mut events = self.events();
        assert_eq!(events.pop(), Some("[DONE]"));
        events
            .into_iter()
            .map(|event| timeless(serde_json::from_str(event).unwrap()))
            .collect()
    }
}

/// JSON with a fixed id and time; the id is the same for one kind of answer.
pub(super) fn timeless(mut value: Value) -> String {
    let id = value["id"].as_str().unwrap();
    let (prefix, rest) = id.split_once('-').unwrap();
    assert!(
        rest.len() == 32 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{id}"
    );
    value["id"] = format!("{prefix}-ID").into();
    assert!(value["created"].as_u64().unwrap() > 1_700_000_000);
    value["created"] = 0.into();
    value.to_string()
}

impl Server {
    pub(super) async fn send(&self, request: Request<Body>) -> Answer {
        let response = router(self.state.clone()).oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap())
            .await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, body.to_string()).await
    }

    pub(super) async fn post_text(&self, path: &str, body: String) -> Answer {
        let request = Request::post(path).header("content-type", "application/json");
        self.send(request.body(Body::from(body)).unwrap()).await
    }

    /// A get with a key.
    pub(super) async fn get_as(&self, key: &str, path: &str) -> Answer {
        let request = Request::get(path).header("authorization", format!("Bearer {key}"));
        self.send(request.body(Body::empty()).unwrap()).await
    }

    /// A post with a key.
    pub(super) async fn post_as(&self, key: &str, path: &str, body: &Value) -> Answer {
        let request = Request::post(path).header("x-api-key", key);
        let body = Body::from(body.to_string());
        self.send(request.body(body).unwrap()).await
    }

    /// A post that must succeed.
    pub(super) async fn ask(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        answer.json()
    }

    pub(super) fn stats(&self) -> guesthouse_engine::Stats {
        self.model.engine.stats()
    }
}

/// Waits for the engine's thread; fails after a time that is never needed.
pub(super) async fn until(what: impl Fn() -> bool) {
    for _ in 0..3000 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not happen");
}
