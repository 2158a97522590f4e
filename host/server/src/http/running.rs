//! A submitted request: events in, updates out. Dropping it cancels what still runs.

use super::error::{from_engine, from_submit};
use super::job::{Job, JobChat};
use super::limits::Hold;
use super::metrics::{Meter, Outcome, Presence, Timeline};
use super::trace::Trace;
use crate::openai::{ApiError, Usage};
use crate::serving::Delta;
use crate::text::{ChoiceText, Ending};
use guesthouse_engine::{
    Attachments, Disconnected, EngineHandle, Event, EventSink, FinishReason, GenerationParams,
    Request, RequestId, Sampled, Task, TokenId,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// What a client may be told next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Update {
    /// A prompt's own log-probabilities; its choices' pieces follow.
    Scores {
        /// Which prompt.
        prompt: usize,
        /// For its tokens from the second on.
        scored: Vec<Sampled>,
    },
    /// A choice goes on, or ends.
    Piece(Piece),
    /// Nothing happened for a while.
    Silence,
}

/// Next part of one choice.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    /// `prompt index × n + choice`.
    pub(super) index: u32,
    pub(super) deltas: Vec<Delta>,
    /// Of the tokens since the last piece.
    pub(super) tokens: Vec<Sampled>,
    /// In the last piece.
    pub(super) finish: Option<Finish>,
}

/// How a choice ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finish {
    /// `stop`, `length` or `tool_calls`.
    pub(super) reason: &'static str,
    /// vLLM's addition: the client's stop string or token.
    pub(super) stop_reason: Option<Value>,
}

struct Stamped {
    prompt: usize,
    at: Instant,
    event: Event,
}

struct Sink {
    prompt: usize,
    events: mpsc::UnboundedSender<Stamped>,
    /// By choice: what the engine still works on counts, whether or not its client is there.
    present: Vec<Option<Presence>>,
}

impl Sink {
    fn count(&mut self, event: &Event) {
        match event {
            Event::Started { .. } => self.present.iter_mut().flatten().for_each(Presence::start),
            Event::Finished { choice, .. } => {
                if let Some(present) = self.present.get_mut(*choice as usize) {
                    *present = None;
                }
            }
            Event::Failed { .. } => self.present.clear(),
            _ => {}
        }
    }
}

impl EventSink for Sink {
    fn send(&mut self, event: Event) -> Result<(), Disconnected> {
        self.count(&event);
        // At most `max_tokens` events of bounded size per choice: the channel needs no bound of its own. Where nobody
        // listens any more, the guard ends the request in its time.
        let _ = self.events.send(Stamped {
            prompt: self.prompt,
            at: Instant::now(),
            event,
        });
        Ok(())
    }
}

/// How long a request outlives its client. A fast device would otherwise be done with it before gauges, which are read at
/// intervals, could show that it was there at all.
const LINGER: Duration = Duration::from_millis(200);

/// Ends one prompt's request when dropped.
struct CancelGuard {
    engine: EngineHandle,
    id: RequestId,
    when: When,
    /// Given back when the engine is told.
    hold: Arc<Hold>,
}

/// When a request that nobody needs is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Its answer is complete.
    Now,
    /// Its client left; see [`LINGER`].
    Later,
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        let (engine, id) = (self.engine.clone(), self.id);
        match (self.when, tokio::runtime::Handle::try_current()) {
            (When::Later, Ok(runtime)) => {
                let hold = Arc::clone(&self.hold);
                runtime.spawn(async move {
                    tokio::time::sleep(LINGER).await;
                    engine.cancel(id);
                    drop(hold);
                });
            }
            _ => engine.cancel(id),
        }
    }
}

struct Prompt {
    /// Dropped as soon as no choice needs the engine any more.
    guard: Option<CancelGuard>,
    open: u32,
    length: u32,
    cached: u32,
    timeline: Timeline,
}

struct Choice {
    text: ChoiceText,
    unsent: Vec<Sampled>,
    called_tools: bool,
    timeline: Timeline,
    finished: bool,
}

/// A request that the engine works on.
pub(super) struct Running {
    events: mpsc::UnboundedReceiver<Stamped>,
    prompts: Vec<Prompt>,
    choices: Vec<Choice>,
    chat: Option<JobChat>,
    n: u32,
    wants_tokens: bool,
    told_stop_tokens: Vec<TokenId>,
    field: &'static str,
    retry_after: u32,
    silence: Option<Duration>,
    meter: Meter,
    hold: Arc<Hold>,
    trace: Arc<Trace>,
}

impl Running {
    /// Hands the job to the engine: all of its prompts or none.
    pub(super) fn submit(
        job: Job,
        hold: Hold,
        meter: Meter,
        retry_after: u32,
    ) -> Result<Self, ApiError> {
        let hold = Arc::new(hold);
        let (sender, events) = mpsc::unbounded_channel();
        let mut prompts = Vec::with_capacity(job.prompts.len());
        let mut choices = Vec::with_capacity(job.prompts.len() * job.n as usize);
        let engine = &job.model.engine;
        for (index, prompt) in job.prompts.into_iter().enumerate() {
            let length = u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX);
            let begun = Timeline::begin(length, prompt.max_tokens, job.n);
            for _ in 0..job.n {
                choices.push(Choice {
                    text: ChoiceText::new(&job.model.tokenizer, &job.text, &prompt.tokens),
                    unsent: Vec::new(),
                    called_tools: false,
                    timeline: begun,
                    finished: false,
                });
            }
            let id = engine.next_id();
            let request = Request {
                id,
                cache_salt: job.cache_salt,
                prompt: prompt.tokens,
                params: GenerationParams {
                    task: Task::Generate,
                    max_tokens: prompt.max_tokens,
                    n: job.n,
                    stop_tokens: job.text.stop_tokens.clone(),
                    top_logprobs: job.top_logprobs,
                    prompt_logprobs: job.prompt_logprobs,
                    logprobs: job.logprobs,
                    drafts: job.drafts,
                },
                sampling: prompt.plan,
                seed: job.seed,
                priority: job.priority,
                owner: job.owner,
            };
            let sink = Sink {
                prompt: index,
                events: sender.clone(),
                present: (0..job.n).map(|_| Some(meter.waiting())).collect(),
            };
            let attachments = Attachments {
                sink: Box::new(sink),
                constraint: prompt.constraint,
                chooser: prompt.chooser,
            };
            engine
                .submit(request, attachments)
                .map_err(|error| from_submit(&error, job.field, retry_after))?;
            let guard = Some(CancelGuard {
                engine: engine.clone(),
                id,
                when: When::Now,
                hold: Arc::clone(&hold),
            });
            prompts.push(Prompt {
                guard,
                open: job.n,
                length,
                cached: 0,
                timeline: begun,
            });
        }
        Ok(Self {
            events,
            prompts,
            choices,
            chat: job.chat,
            n: job.n,
            wants_tokens: job.top_logprobs.is_some(),
            told_stop_tokens: job.told_stop_tokens,
            field: job.field,
            retry_after,
            silence: None,
            meter,
            hold,
            trace: Trace::current(),
        })
    }

    /// Reports [`Update::Silence`] whenever nothing happened for so long.
    pub(super) fn with_silence(mut self, after: Duration) -> Self {
        self.silence = Some(after);
        self
    }

    /// Choices of all prompts.
    pub(super) fn choices(&self) -> u32 {
        number(self.choices.len())
    }

    /// Counts as far as the answer has come.
    pub(super) fn usage(&self) -> Usage {
        let sum = |counts: &mut dyn Iterator<Item = u32>| counts.fold(0, u32::saturating_add);
        Usage::new(
            sum(&mut self.prompts.iter().map(|prompt| prompt.length)),
            sum(&mut self.choices.iter().map(|choice| choice.text.tokens())),
            sum(&mut self.prompts.iter().map(|prompt| prompt.cached)),
        )
    }

    /// The next update; `None` after the last choice's end.
    pub(super) async fn next(&mut self) -> Result<Option<Update>, ApiError> {
        while self.prompts.iter().any(|prompt| prompt.open > 0) {
            let received = match self.silence {
                None => self.events.recv().await,
                Some(after) => match tokio::time::timeout(after, self.events.recv()).await {
                    Ok(received) => received,
                    Err(_) => return Ok(Some(Update::Silence)),
                },
            };
            let Some(stamped) = received else {
                return Err(ApiError::Unavailable {
                    message: "the engine ended before the answer was complete".to_owned(),
                });
            };
            if let Some(update) = self.take(stamped).await? {
                return Ok(Some(update));
            }
        }
        Ok(None)
    }

    async fn take(
        &mut self,
        Stamped { prompt, at, event }: Stamped,
    ) -> Result<Option<Update>, ApiError> {
        match event {
            Event::Started { cached_tokens, .. } => {
                let begun = &mut self.prompts[prompt];
                begun.cached = cached_tokens;
                begun.timeline.start(at);
                let started = begun.timeline;
                self.meter.started(begun.length, cached_tokens);
                self.hold.used_prompt(begun.length);
                for choice in self.choices_of(prompt) {
                    choice.timeline = started;
                }
                Ok(None)
            }
            Event::PromptLogprobs(scored) => Ok(Some(Update::Scores { prompt, scored })),
            // Comes to requests that embed alone.
            Event::Embedding(_) => Ok(None),
            Event::Token { choice, sampled } => {
                self.token(self.index(prompt, choice), at, sampled).await
            }
            Event::Finished { choice, reason } => {
                self.finished(self.index(prompt, choice), at, reason).await
            }
            Event::Failed { error, .. } => {
                for choice in self.choices_of(prompt) {
                    choice.finished = true;
                }
                self.meter
                    .ended(&self.prompts[prompt].timeline, Outcome::Error, 0, at);
                Err(from_engine(&error, self.field, self.retry_after))
            }
        }
    }

    fn index(&self, prompt: usize, choice: u32) -> usize {
        prompt * self.n as usize + choice as usize
    }

    fn choices_of(&mut self, prompt: usize) -> impl Iterator<Item = &mut Choice> {
        let n = self.n as usize;
        self.choices.iter_mut().skip(prompt * n).take(n)
    }

    async fn token(
        &mut self,
        index: usize,
        at: Instant,
        sampled: Sampled,
    ) -> Result<Option<Update>, ApiError> {
        let choice = &mut self.choices[index];
        if choice.finished {
            // Stopped by a string while others of the request go on.
            return Ok(None);
        }
        choice.timeline.token(at, &self.meter);
        self.hold.used_output();
        let (text, ending) = choice.text.push(sampled.token);
        if self.wants_tokens {
            choice.unsent.push(sampled);
        }
        if let Ending::StopString(string) = ending {
            let finish = Finish {
                reason: "stop",
                stop_reason: Some(json!(string)),
            };
            return self.end(index, at, text, finish).await.map(Some);
        }
        let deltas = self.parse(index, &text).await?;
        if deltas.is_empty() {
            return Ok(None);
        }
        let tokens = std::mem::take(&mut self.choices[index].unsent);
        Ok(Some(Update::Piece(Piece {
            index: number(index),
            deltas,
            tokens,
            finish: None,
        })))
    }

    async fn finished(
        &mut self,
        index: usize,
        at: Instant,
        reason: FinishReason,
    ) -> Result<Option<Update>, ApiError> {
        if self.choices[index].finished {
            return Ok(None);
        }
        let (text, ending) = self.choices[index].text.finish();
        let finish = match (ending, reason) {
            (Ending::StopString(string), _) => Finish {
                reason: "stop",
                stop_reason: Some(json!(string)),
            },
            (Ending::Open, FinishReason::Length) => Finish {
                reason: "length",
                stop_reason: None,
            },
            (Ending::Open, FinishReason::Stop { token }) => {
                let told = token.filter(|token| self.told_stop_tokens.contains(token));
                Finish {
                    reason: "stop",
                    stop_reason: told.map(|token| json!(token)),
                }
            }
        };
        self.end(index, at, text, finish).await.map(Some)
    }

    async fn end(
        &mut self,
        index: usize,
        at: Instant,
        text: String,
        mut finish: Finish,
    ) -> Result<Update, ApiError> {
        let choice = &mut self.choices[index];
        choice.finished = true;
        let outcome = if finish.reason == "length" {
            Outcome::Length
        } else {
            Outcome::Stop
        };
        self.meter
            .ended(&choice.timeline, outcome, choice.text.tokens(), at);
        let prompt = &mut self.prompts[index / self.n as usize];
        prompt.open -= 1;
        if prompt.open == 0 {
            prompt.guard = None;
        }
        let mut deltas = self.parse(index, &text).await?;
        if let Some(JobChat { chat, parsers }) = &mut self.chat {
            let last = chat.finish(parsers[index]);
            deltas.extend(last.await?);
            self.choices[index].called_tools |= calls_tools(&deltas);
        }
        if self.choices[index].called_tools && finish.reason == "stop" {
            finish.reason = "tool_calls";
        }
        let tokens = std::mem::take(&mut self.choices[index].unsent);
        Ok(Update::Piece(Piece {
            index: number(index),
            deltas,
            tokens,
            finish: Some(finish),
        }))
    }

    /// Text as the chat guest takes it apart; raw text stays whole.
    async fn parse(&mut self, index: usize, text: &str) -> Result<Vec<Delta>, ApiError> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let Some(JobChat { chat, parsers }) = &mut self.chat else {
            return Ok(vec![Delta::Content(text.to_owned())]);
        };
        let parsed = chat.push(parsers[index], text);
        let deltas = parsed.await?;
        self.choices[index].called_tools |= calls_tools(&deltas);
        Ok(deltas)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let now = Instant::now();
        // What was computed and nobody waited for counts as well.
        while let Ok(Stamped { prompt, event, .. }) = self.events.try_recv() {
            match event {
                Event::Started { .. } => self.hold.used_prompt(self.prompts[prompt].length),
                Event::Token { .. } => self.hold.used_output(),
                _ => {}
            }
        }
        for guard in self.prompts.iter_mut().filter_map(|p| p.guard.as_mut()) {
            guard.when = When::Later;
        }
        for choice in self.choices.iter().filter(|choice| !choice.finished) {
            self.meter
                .ended(&choice.timeline, Outcome::Abort, choice.text.tokens(), now);
        }
        let usage = self.usage();
        let times = Timeline::times(self.choices.iter().map(|choice| &choice.timeline));
        self.trace.note(|facts| {
            facts.usage = Some(usage);
            facts.times = times;
        });
    }
}

fn calls_tools(deltas: &[Delta]) -> bool {
    deltas
        .iter()
        .any(|delta| matches!(delta, Delta::ToolCall { .. }))
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
