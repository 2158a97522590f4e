//! Prompts through an embedding model.

use super::error::{from_engine, from_submit};
use super::limits::Hold;
use super::metrics::{Meter, Outcome, Presence, Timeline};
use super::state::Asked;
use crate::openai::ApiError;
use guesthouse_engine::{
    CacheSalt, Disconnected, EngineHandle, Event, EventSink, GenerationParams, Request, RequestId,
    SamplingPlan, Task, TokenId,
};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// The request's field that prompts come from.
const FIELD: &str = "input";

struct Sink {
    prompt: usize,
    events: mpsc::UnboundedSender<(usize, Event)>,
}

impl EventSink for Sink {
    fn send(&mut self, event: Event) -> Result<(), Disconnected> {
        self.events
            .send((self.prompt, event))
            .map_err(|_| Disconnected)
    }
}

/// A prompt in the engine; dropping it cancels what still runs.
struct Waiting {
    engine: EngineHandle,
    id: RequestId,
    timeline: Timeline,
    meter: Meter,
    length: u32,
    /// Until it ends.
    presence: Option<Presence>,
}

impl Waiting {
    fn end(&mut self, outcome: Outcome) {
        if self.presence.take().is_some() {
            self.meter.ended(&self.timeline, outcome, 0, Instant::now());
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.presence.is_some() {
            self.engine.cancel(self.id);
        }
        self.end(Outcome::Abort);
    }
}

/// The vector of each prompt, in their order.
///
/// # Errors
/// When the engine refuses one, or fails.
pub(super) async fn embed(
    asked: &Asked,
    prompts: Vec<Vec<TokenId>>,
    cache_salt: CacheSalt,
    hold: &Hold,
    retry_after: u32,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let entry = &asked.entry;
    let engine = &entry.model.engine;
    let meter = entry.metrics.meter(&asked.caller.tenant);
    let plan = Arc::new(SamplingPlan::greedy());
    let (sender, mut events) = mpsc::unbounded_channel();
    let mut vectors = vec![Vec::new(); prompts.len()];
    let mut waiting = Vec::with_capacity(prompts.len());
    for (prompt, tokens) in prompts.into_iter().enumerate() {
        let length = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let timeline = Timeline::begin(length, 0, 1);
        let id = engine.next_id();
        let request = Request {
            id,
            cache_salt,
            prompt: tokens,
            params: GenerationParams {
                task: Task::Embed,
                max_tokens: 0,
                ..GenerationParams::default()
            },
            sampling: Arc::clone(&plan),
            seed: 0,
            priority: asked.caller.priority(),
            owner: asked.caller.owner(),
        };
        let events = sender.clone();
        engine
            .submit(request, Box::new(Sink { prompt, events }))
            .map_err(|error| from_submit(&error, FIELD, retry_after))?;
        waiting.push(Waiting {
            engine: engine.clone(),
            id,
            timeline,
            length,
            presence: Some(meter.waiting()),
            meter: meter.clone(),
        });
    }
    drop(sender);
    let mut open = waiting.len();
    while open > 0 {
        let Some((prompt, event)) = events.recv().await else {
            return Err(ApiError::Unavailable {
                message: "the engine ended before the answer was complete".to_owned(),
            });
        };
        match event {
            Event::Started { cached_tokens, .. } => {
                let begun = &mut waiting[prompt];
                begun.timeline.start(Instant::now());
                begun.meter.started(begun.length, cached_tokens);
                hold.used_prompt(begun.length);
                if let Some(presence) = &mut begun.presence {
                    presence.start();
                }
            }
            Event::Embedding(vector) => vectors[prompt] = vector,
            Event::Finished { .. } => {
                waiting[prompt].end(Outcome::Stop);
                open -= 1;
            }
            Event::Failed { error, .. } => {
                waiting[prompt].end(Outcome::Error);
                return Err(from_engine(&error, FIELD, retry_after));
            }
            Event::PromptLogprobs(_) | Event::Token { .. } => {}
        }
    }
    Ok(vectors)
}
