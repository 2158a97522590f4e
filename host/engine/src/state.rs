//! Everything the engine knows, and the ways a sequence changes its phase.

use crate::block_pool::{BlockHandle, BlockPool};
use crate::constrain::Grammar;
use crate::limits::Limits;
use crate::prefix_cache::{PrefixCache, by_length};
use crate::queue::Queue;
use crate::sequence::{Order, Phase, PromptScores, Sequence};
use crate::shares::Shares;
use crate::speculate::Speculation;
use crate::speculate::lookup::Lengths;
use crate::stepping::{Branch, Guests, Stepping, SystemClock};
use crate::{
    Attachments, EngineConfig, EngineError, Event, EventSink, ExecutorInfo, FinishReason,
    RandomKey, Request, RequestId, SequenceId, Slot, Stats, SubmitError, Task, Ticket, TokenId,
    fair,
};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) limits: Limits,
    pub(crate) pool: BlockPool,
    pub(crate) cache: PrefixCache,
    pub(crate) sequences: FxHashMap<SequenceId, Sequence>,
    /// Those in [`Phase::Running`].
    pub(crate) running: Queue,
    /// Those in [`Phase::Waiting`].
    pub(crate) waiting: Queue,
    /// Of [`State::waiting`]: those that ran before.
    pub(crate) requeued: usize,
    pub(crate) shares: Shares,
    pub(crate) requests: FxHashMap<RequestId, Active>,
    pub(crate) free_slots: Vec<Slot>,
    /// Slots the executor must be told of.
    pub(crate) released: Vec<Slot>,
    /// Uncollected steps, oldest first.
    pub(crate) in_flight: VecDeque<InFlight>,
    pub(crate) next_ticket: Ticket,
    pub(crate) stats: Stats,
    /// N-grams that drafts are looked up by.
    lookup: Lengths,
    pub(crate) guests: Guests,
    next_sequence: SequenceId,
    next_arrival: u64,
    /// Requests whose listener is gone, to be cancelled.
    gone: Vec<RequestId>,
}

/// A request that is not complete.
pub(crate) struct Active {
    pub(crate) tenant: u64,
    pub(crate) sink: Box<dyn EventSink>,
    pub(crate) stop_tokens: Vec<TokenId>,
    pub(crate) sequences: Vec<SequenceId>,
    /// Choices that have not ended.
    pub(crate) open: u32,
    pub(crate) started: bool,
    pub(crate) listens: bool,
    /// Where a guest chooses its tokens.
    pub(crate) stepping: Option<Box<Stepping>>,
}

impl std::fmt::Debug for Active {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Active")
            .field("sequences", &self.sequences)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

/// What is to be done when a step is collected.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) ticket: Ticket,
    pub(crate) rows: Vec<RowRecord>,
    /// One entry per sample task: whose token it is.
    pub(crate) samples: Vec<SequenceId>,
    /// Blocks nobody holds any more, but that this step touches.
    pub(crate) held: Vec<BlockHandle>,
}

/// A row of an uncollected step.
#[derive(Debug)]
pub(crate) struct RowRecord {
    pub(crate) sequence: SequenceId,
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) scores_prompt: bool,
}

impl State {
    pub(crate) fn new(info: &ExecutorInfo, config: &EngineConfig) -> Self {
        let pool = BlockPool::new(info);
        let stats = Stats {
            blocks_total: pool.total(),
            ..Stats::default()
        };
        Self {
            limits: Limits::new(info, config),
            pool,
            cache: PrefixCache::new(info, config),
            sequences: FxHashMap::default(),
            running: Queue::default(),
            waiting: Queue::default(),
            requeued: 0,
            shares: Shares::default(),
            requests: FxHashMap::default(),
            free_slots: (0..info.slots).rev().map(Slot).collect(),
            released: Vec::new(),
            in_flight: VecDeque::new(),
            next_ticket: Ticket(0),
            stats,
            lookup: Lengths {
                min: config.lookup_min,
                max: config.lookup_max,
            },
            guests: Guests::new(Arc::new(SystemClock::default())),
            next_sequence: SequenceId(0),
            next_arrival: 0,
            gone: Vec::new(),
        }
    }

    pub(crate) fn next_sequence_id(&mut self) -> SequenceId {
        let id = self.next_sequence;
        self.next_sequence.0 += 1;
        id
    }

    /// Whether steps in flight keep blocks or slots that nobody needs any more.
    pub(crate) fn is_settling(&self) -> bool {
        self.sequences.len() > self.running.len() + self.waiting.len()
            || self.in_flight.iter().any(|step| !step.held.is_empty())
    }

    /// Nothing is left, except perhaps requests whose guests select.
    pub(crate) fn has_no_sequences(&self) -> bool {
        self.sequences.is_empty() && self.in_flight.is_empty()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.has_no_sequences() && self.requests.is_empty()
    }

    /// Waiting sequences that never ran: those that the queue's limit counts.
    pub(crate) fn queued(&self) -> usize {
        self.waiting.len() - self.requeued
    }

    /// Why a request cannot be queued, if it cannot.
    pub(crate) fn admissible(&self, request: &Request) -> Result<(), SubmitError> {
        self.limits.check(request)?;
        if self.requests.contains_key(&request.id) {
            return Err(SubmitError::DuplicateId(request.id));
        }
        let waiting = self.queued();
        let max_waiting = self.limits.max_waiting();
        let prefills = request
            .branches()
            .div_ceil(self.limits.choices_per_prefill(request));
        if fair::displaced(self, request.owner, prefills as usize).is_none() {
            return Err(SubmitError::QueueFull {
                waiting,
                max_waiting,
            });
        }
        Ok(())
    }

    /// Refuses the requests of others to whose places in the queue a new one of so many prefills has more right.
    fn displace(&mut self, request: &Request, prefills: u32) {
        let full = SubmitError::QueueFull {
            waiting: self.queued(),
            max_waiting: self.limits.max_waiting(),
        };
        for gone in fair::displaced(self, request.owner, prefills as usize).unwrap_or_default() {
            self.fail(gone, None, EngineError::Refused(full.clone()));
        }
    }

    /// Queues a request: one sequence per prefill that its choices need.
    pub(crate) fn enqueue(
        &mut self,
        request: Request,
        attachments: Attachments,
    ) -> Result<(), SubmitError> {
        self.admissible(&request)?;
        self.shares.join(&request, self.next_ticket.0);
        let tenant = request.owner.tenant;
        let choices_per_prefill = self.limits.choices_per_prefill(&request);
        self.displace(&request, request.branches().div_ceil(choices_per_prefill));
        let stepping = self.guests.stepping(&request, attachments.chooser);
        let branches = request.branches();
        let params = &request.params;
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        let prompt_len = request.prompt.len() as u32;
        let by_prompt = self.limits.lengths().by_prompt_above;
        let salt = if by_prompt.is_some_and(|above| prompt_len > above) {
            by_length(&request.cache_salt, prompt_len)
        } else {
            request.cache_salt
        };
        let grammar = attachments
            .constraint
            .map(|constraint| Grammar::new(constraint, &request));
        let mut sequences = Vec::new();
        for choice in (0..branches).step_by(choices_per_prefill as usize) {
            let id = self.next_sequence_id();
            let order = Order {
                priority: request.priority,
                start: Order::FRESH,
                arrival,
                choice,
                tenant,
            };
            let scores = match params.prompt_logprobs {
                Some(top) if choice == 0 => PromptScores::Gathering {
                    top,
                    found: Vec::new(),
                },
                _ => PromptScores::Done,
            };
            let sequence = Sequence {
                id,
                request: request.id,
                order,
                forks: choice + 1..choice.saturating_add(choices_per_prefill).min(branches),
                tokens: request.prompt.clone(),
                prompt_len,
                limit: match params.task {
                    Task::Generate => prompt_len + params.max_tokens,
                    // As if the vector were a token.
                    Task::Embed => prompt_len + 1,
                },
                salt,
                passed: 0,
                keys: Vec::new(),
                published: 0,
                sampling: Arc::clone(&request.sampling),
                random: RandomKey {
                    seed: request.seed,
                    lineage: choice,
                },
                top_logprobs: params.top_logprobs.unwrap_or(0),
                logprobs: params.logprobs,
                mu: None,
                scores,
                grammar: grammar.as_ref().map(Grammar::fork),
                speculation: if grammar.is_none() {
                    Speculation::of(&request, &self.limits, self.lookup).map(Box::new)
                } else {
                    None
                },
                computed: 0,
                unknown: 0,
                void: 0,
                last_sample: None,
                advanced: 0,
                in_flight: 0,
                phase: Phase::Waiting,
                preempted: false,
                place: None,
                branch: stepping.as_ref().map(|_| Branch::new(choice)),
            };
            self.sequences.insert(id, sequence);
            self.waiting.insert(order, id);
            sequences.push(id);
        }
        let (id, open, stop_tokens) = (request.id, params.n, request.params.stop_tokens);
        let active = Active {
            tenant,
            sink: attachments.sink,
            stop_tokens,
            sequences,
            open,
            started: false,
            listens: true,
            stepping,
        };
        self.requests.insert(id, active);
        Ok(())
    }

    /// Sends an event; a listener that is gone cancels its request at the end of the step.
    pub(crate) fn emit(&mut self, request: RequestId, event: Event) {
        if let Some(active) = self.requests.get_mut(&request)
            && active.listens
            && active.sink.send(event).is_err()
        {
            active.listens = false;
            self.gone.push(request);
        }
    }

    /// Cancels the requests nobody listens to.
    pub(crate) fn cancel_gone(&mut self) {
        for request in std::mem::take(&mut self.gone) {
            self.cancel(request);
        }
    }

    pub(crate) fn cancel(&mut self, request: RequestId) {
        if self.end_request(request) {
            self.stats.cancelled += 1;
        }
    }

    /// Ends a request with an error.
    pub(crate) fn fail(&mut self, request: RequestId, choice: Option<u32>, error: EngineError) {
        self.emit(request, Event::Failed { choice, error });
        if self.end_request(request) {
            self.stats.failed += 1;
        }
    }

    fn end_request(&mut self, request: RequestId) -> bool {
        let Some(active) = self.requests.remove(&request) else {
            return false;
        };
        self.shares.leave(active.tenant, self.next_ticket.0);
        for id in active.sequences {
            self.leave(id, Phase::Ending);
        }
        true
    }

    /// Ends one choice, its sequence's last.
    pub(crate) fn finish(&mut self, id: SequenceId, reason: FinishReason) {
        if let Some(sequence) = self.sequences.get(&id) {
            let (request, choice) = (sequence.request, sequence.order.choice);
            self.finish_choice(request, choice, reason);
            self.leave(id, Phase::Ending);
        }
    }

    pub(crate) fn finish_choice(&mut self, request: RequestId, choice: u32, reason: FinishReason) {
        self.emit(request, Event::Finished { choice, reason });
        self.stats.finished += 1;
        if let Some(active) = self.requests.get_mut(&request) {
            active.open -= 1;
            if active.open == 0 {
                self.shares.leave(active.tenant, self.next_ticket.0);
                self.requests.remove(&request);
            }
        }
    }

    /// Takes a sequence out of the schedule. Its slot and blocks become free when no step in flight uses them.
    pub(crate) fn leave(&mut self, id: SequenceId, phase: Phase) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        self.running.remove(&sequence.order);
        if self.waiting.remove(&sequence.order).is_some() && sequence.preempted {
            self.requeued -= 1;
        }
        sequence.phase = phase;
        self.vacate_if_settled(id);
    }

    /// Frees the place of a sequence that leaves, if no step in flight touches it.
    pub(crate) fn vacate_if_settled(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        if sequence.in_flight > 0 || !matches!(sequence.phase, Phase::Yielding | Phase::Ending) {
            return;
        }
        if let Some(place) = sequence.place.take() {
            if place.history.is_some() {
                self.released.push(place.slot);
            }
            self.free_slots.push(place.slot);
            self.free_slots.extend(place.reserved.iter().copied());
        }
        if sequence.phase == Phase::Ending {
            self.sequences.remove(&id);
            return;
        }
        sequence.await_place();
        self.waiting.insert(sequence.order, id);
        self.requeued += 1;
    }

    /// Keeps blocks until the steps in flight are collected.
    pub(crate) fn hold(&mut self, blocks: Vec<BlockHandle>) {
        if let Some(step) = self.in_flight.back_mut() {
            step.held.extend(blocks);
        }
    }

    /// Ends everything with an error; steps in flight are forgotten.
    pub(crate) fn abandon(&mut self, error: &EngineError) {
        self.in_flight.clear();
        for sequence in self.sequences.values_mut() {
            sequence.in_flight = 0;
        }
        let mut requests: Vec<_> = self.requests.keys().copied().collect();
        requests.sort_unstable();
        for request in requests {
            self.fail(request, None, error.clone());
        }
        let leaving: Vec<_> = self.sequences.keys().copied().collect();
        for id in leaving {
            self.leave(id, Phase::Ending);
        }
    }
}
