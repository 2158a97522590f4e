//! Outputs that must follow a grammar.

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// SplitMix64's finaliser.
fn mix(a: u64, b: u64) -> u64 {
    let mut z = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const VOCAB: u32 = 97;
/// Ends an output where the grammar lets it.
const STOP: TokenId = 96;

/// An automaton whose states are hashes of the tokens that led there.
#[derive(Clone, Debug)]
pub(super) struct Automaton {
    state: u64,
    ended: bool,
    /// One state of so many lets an output end.
    ends: u64,
    /// One state of so many begins a run of tokens without alternatives.
    forces: u64,
    /// Tokens left of such a run.
    run: u32,
    /// Masks it made, its forks' included.
    masks: Arc<AtomicU32>,
    /// State before which a mask is too hard to make.
    hard: Option<u64>,
}

impl Automaton {
    fn new(salt: u64) -> Self {
        Self {
            state: mix(salt, 7),
            ended: false,
            ends: 8,
            forces: u64::MAX,
            run: 0,
            masks: Arc::default(),
            hard: None,
        }
    }

    fn endless(salt: u64) -> Self {
        Self {
            ends: u64::MAX,
            ..Self::new(salt)
        }
    }

    /// With runs of five tokens that have no alternative.
    pub(super) fn forcing(salt: u64) -> Self {
        Self {
            forces: 3,
            ..Self::new(salt)
        }
    }

    /// About a third of the tokens; few, and `STOP` among them, where an output may end.
    pub(super) fn allowed(&self) -> Vec<TokenId> {
        if self.ended {
            return vec![STOP];
        }
        if self.run > 0 {
            return vec![(self.state % u64::from(VOCAB)) as TokenId];
        }
        let may_end = self.state.is_multiple_of(self.ends);
        let share = if may_end { 60 } else { 3 };
        (0..STOP)
            .filter(|&token| mix(self.state, u64::from(token)).is_multiple_of(share))
            .chain(may_end.then_some(STOP))
            .collect()
    }

    fn next(&mut self, token: TokenId) {
        self.ended = token == STOP;
        self.state = mix(self.state, u64::from(token) + 1000);
        self.run = match self.run {
            0 if self.state % self.forces == 1 => 5,
            run => run.saturating_sub(1),
        };
    }
}

impl Constraint for Automaton {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintError> {
        self.masks.fetch_add(1, Ordering::SeqCst);
        if self.hard == Some(self.state) {
            return Err(ConstraintError("too many items".to_owned()));
        }
        words.fill(0);
        for token in self.allowed() {
            words[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        if !self.allowed().contains(&token) {
            return Err(ConstraintError(format!("token {token} cannot follow")));
        }
        self.next(token);
        Ok(())
    }

    fn forced(&mut self) -> Vec<TokenId> {
        let mut ahead = self.clone();
        let mut tokens = Vec::new();
        while self.forces < u64::MAX
            && !ahead.ended
            && let [only] = ahead.allowed()[..]
        {
            tokens.push(only);
            ahead.next(only);
        }
        tokens
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

pub(super) fn submit_constrained(
    engine: &mut Engine<MockExecutor>,
    request: Request,
    grammar: impl Constraint + 'static,
) -> Receiver<Event> {
    let (sender, receiver) = channel();
    let attachments = Attachments {
        constraint: Some(Box::new(grammar)),
        ..Attachments::from(Box::new(sender))
    };
    engine.submit(request, attachments).unwrap();
    receiver
}

/// A request that stops at `STOP`.
pub(super) fn stopping(
    id: u64,
    prompt: Vec<TokenId>,
    n: u32,
    max_tokens: u32,
    draw: Draw,
) -> Request {
    let params = GenerationParams {
        max_tokens,
        n,
        stop_tokens: vec![STOP],
        ..GenerationParams::default()
    };
    Request {
        sampling: Arc::new(SamplingPlan {
            stages: Vec::new(),
            draw,
        }),
        ..with_params(id, prompt, params)
    }
}

pub(super) fn ids(sampled: &[Sampled]) -> Vec<TokenId> {
    sampled.iter().map(|sampled| sampled.token).collect()
}

/// One choice, token by token: each is the only output of a request of its own, whose plan allows what the automaton does.
pub(super) fn by_hand(request: &Request, choice: u32, mut automaton: Automaton) -> Vec<Sampled> {
    let mut found: Vec<Sampled> = Vec::new();
    while (found.len() as u32) < request.params.max_tokens {
        let mut prompt = request.prompt.clone();
        prompt.extend(found.iter().map(|sampled| sampled.token));
        let sampling = SamplingPlan {
            stages: vec![Stage::AllowedTokens(automaton.allowed())],
            draw: request.sampling.draw,
        };
        let step = Request {
            prompt,
            sampling: Arc::new(sampling),
            params: GenerationParams {
                max_tokens: 1,
                n: choice + 1,
                stop_tokens: Vec::new(),
                ..request.params.clone()
            },
            ..request.clone()
        };
        let sampled = alone(&MockExecutor::small_info(), &step).tokens[choice as usize][0].clone();
        automaton.next(sampled.token);
        found.push(sampled);
        if found.last().unwrap().token == STOP {
            break;
        }
    }
    found
}

#[test]
fn outputs_follow_their_grammars() {
    let mut stopped = 0;
    for seed in 0..12u64 {
        let draw = [Draw::Greedy, Draw::Sample][seed as usize % 2];
        let request = stopping(seed, vec![5, 6, 7, seed as u32], 2, 24, draw);
        let mut engine = small();
        let events = submit_constrained(&mut engine, request.clone(), Automaton::new(seed));
        run(&mut engine);
        let outcome = Outcome::of(2, &events);
        assert_eq!(outcome.error, None);
        for choice in 0..2 {
            let expected = by_hand(&request, choice, Automaton::new(seed));
            assert_eq!(outcome.tokens[choice as usize], expected, "seed {seed}");
            let at_stop = expected.last().unwrap().token == STOP;
            stopped += u32::from(at_stop);
            let reason = match at_stop {
                true => FinishReason::Stop { token: Some(STOP) },
                false => FinishReason::Length,
            };
            assert_eq!(outcome.reasons[choice as usize], Some(reason));
        }
    }
    assert!(stopped > 4, "{stopped} outputs ended by their grammar");
}

#[test]
fn the_others_of_a_batch_get_what_they_get_alone() {
    let mut engine = small();
    let free: Vec<Request> = (0..4)
        .map(|id| request(id, vec![3, id as u32], 20))
        .collect();
    let bound = stopping(9, vec![3, 1, 4], 3, 20, Draw::Sample);
    let others: Vec<_> = free[..2]
        .iter()
        .map(|request| submit(&mut engine, request.clone()))
        .collect();
    let events = submit_constrained(&mut engine, bound.clone(), Automaton::new(3));
    let late: Vec<_> = free[2..]
        .iter()
        .map(|request| submit(&mut engine, request.clone()))
        .collect();
    run(&mut engine);
    for (request, events) in free.iter().zip(others.iter().chain(&late)) {
        let outcome = Outcome::of(1, events).timeless();
        assert_eq!(outcome, alone(&MockExecutor::small_info(), request));
    }
    let outcome = Outcome::of(3, &events);
    for choice in 0..3 {
        let expected = by_hand(&bound, choice, Automaton::new(3));
        assert_eq!(outcome.tokens[choice as usize], expected);
    }
}

#[test]
fn masks_cost_no_steps_and_the_device_does_not_wait() {
    let latency = MockLatency {
        step: 1000,
        token: 0,
        ..MockLatency::default()
    };
    let times = [false, true].map(|constrained| {
        let mock = MockExecutor::new(MockExecutor::small_info()).with_latency(latency);
        let clock = mock.clock();
        let mut engine = Engine::new(mock, EngineConfig::default());
        let ask = request(1, vec![1, 2, 3], 30);
        let events = match constrained {
            true => submit_constrained(&mut engine, ask, Automaton::endless(1)),
            false => submit(&mut engine, ask),
        };
        run(&mut engine);
        assert_eq!(Outcome::of(1, &events).ids(0).len(), 30);
        assert_eq!(engine.executor().most_in_flight(), 2);
        (clock.now(), engine.stats().steps)
    });
    assert_eq!(times[0], (30_000, 30));
    assert_eq!(times[1], times[0]);
}

#[test]
fn a_grammar_outlives_preemption() {
    let mut engine = engine(tiny(18));
    let requests: Vec<_> = (0..5)
        .map(|id| stopping(id, vec![id as u32; 6], 1, 20, Draw::Sample))
        .collect();
    let events: Vec<_> = requests
        .iter()
        .map(|request| submit_constrained(&mut engine, request.clone(), Automaton::endless(40)))
        .collect();
    run(&mut engine);
    assert!(engine.stats().preemptions > 0);
    for (request, events) in requests.iter().zip(&events) {
        let expected = by_hand(request, 0, Automaton::endless(40));
        assert_eq!(Outcome::of(1, events).tokens[0], expected);
    }
}

#[test]
fn a_mask_is_made_per_sampled_token() {
    let mut engine = small();
    let grammar = Automaton::endless(1);
    let masks = Arc::clone(&grammar.masks);
    let events = submit_constrained(&mut engine, request(1, vec![1, 2, 3], 30), grammar);
    run(&mut engine);
    let outcome = Outcome::of(1, &events);
    assert_eq!(outcome.ids(0).len(), 30);
    assert_eq!(masks.load(Ordering::SeqCst), 30);
}

#[test]
fn a_grammar_too_hard_ends_its_request_alone() {
    let ask = stopping(1, vec![5, 6, 7], 2, 24, Draw::Sample);
    let path = by_hand(&ask, 1, Automaton::new(2));
    let mut grammar = Automaton::new(2);
    for sampled in &path[..4] {
        grammar.next(sampled.token);
    }
    let hard = Automaton {
        hard: Some(grammar.state),
        ..Automaton::new(2)
    };
    let mut engine = small();
    let other = request(2, vec![8, 8], 20);
    let events = submit_constrained(&mut engine, ask, hard);
    let others = submit(&mut engine, other.clone());
    run(&mut engine);
    let outcome = Outcome::of(2, &events);
    assert_eq!(outcome.tokens[1], path[..4]);
    assert_eq!(
        outcome.error,
        Some(EngineError::Constraint {
            choice: 1,
            message: "too many items".to_owned()
        })
    );
    assert_eq!(engine.stats().failed, 1);
    let outcome = Outcome::of(1, &others).timeless();
    assert_eq!(outcome, alone(&MockExecutor::small_info(), &other));
}

/// Allows one thing and accepts another.
struct Fickle;

impl Constraint for Fickle {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintError> {
        words.fill(0);
        words[0] = 1 << 5;
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        Err(ConstraintError(format!("token {token} cannot follow")))
    }

    fn forced(&mut self) -> Vec<TokenId> {
        Vec::new()
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Self)
    }
}

#[test]
fn a_token_that_a_grammar_refuses_is_not_sent() {
    let mut engine = small();
    let events = submit_constrained(&mut engine, request(1, vec![5, 6], 9), Fickle);
    run(&mut engine);
    let outcome = Outcome::of(1, &events);
    assert_eq!(outcome.tokens, [Vec::new()]);
    let error = outcome.error.unwrap();
    assert_eq!(error.label(), "constraint");
    assert_eq!(
        error.to_string(),
        "the output of choice 0 cannot follow its grammar: token 5 cannot follow"
    );
}

#[test]
fn forced_tokens_are_what_would_have_been_sampled() {
    let (mut forced, mut inside) = (0, 0);
    for seed in 0..24u64 {
        let draw = [Draw::Greedy, Draw::Sample][seed as usize % 2];
        let max_tokens = 5 + seed as u32;
        let ask = stopping(seed, vec![5, 6, 7, seed as u32], 2, max_tokens, draw);
        // Runs that do not fit a step are computed in several.
        let info = ExecutorInfo {
            max_step_tokens: if seed % 3 == 0 { 3 } else { 64 },
            ..MockExecutor::small_info()
        };
        let mut engine = engine(info);
        let events = submit_constrained(&mut engine, ask.clone(), Automaton::forcing(seed));
        run(&mut engine);
        let outcome = Outcome::of(2, &events);
        assert_eq!(outcome.error, None);
        let mut total = 0;
        for choice in 0..2 {
            let expected = by_hand(&ask, choice, Automaton::forcing(seed));
            assert_eq!(outcome.ids(choice as usize), ids(&expected), "seed {seed}");
            for (found, expected) in outcome.tokens[choice as usize].iter().zip(&expected) {
                let certain = found.logprob == 0.0 && found.rank == 1;
                assert!(certain || found == expected);
            }
            total += expected.len() as u64;
            let last = outcome.tokens[choice as usize].last().unwrap();
            inside += u32::from(last.logprob == 0.0);
        }
        assert_eq!(engine.stats().generation_tokens, total);
        forced += engine.stats().forced_tokens;
    }
    assert!(forced > 200, "{forced} tokens were forced");
    assert!(inside > 3, "{inside} outputs ended in a run");
}

#[test]
fn forced_tokens_cost_one_step_a_run() {
    let mut ask = stopping(1, vec![1, 2, 3], 1, 60, Draw::Sample);
    ask.params.stop_tokens.clear();
    let automaton = Automaton {
        ends: u64::MAX,
        ..Automaton::forcing(5)
    };
    let mut before = automaton.clone();
    let (mut runs, mut forced) = (0, 0);
    for sampled in by_hand(&ask, 0, automaton.clone()) {
        runs += u64::from(before.run == 5);
        forced += u64::from(before.run > 0);
        before.next(sampled.token);
    }
    assert!(runs > 3 && forced > 4 * runs - 1);

    let mut engine = small();
    let events = submit_constrained(&mut engine, ask.clone(), automaton.clone());
    run(&mut engine);
    assert_eq!(Outcome::of(1, &events).ids(0).len(), 60);
    assert_eq!(engine.stats().forced_tokens, forced);
    assert_eq!(engine.stats().steps, 60 - forced + runs);

    // Whoever asks for log-probabilities gets those of every token.
    ask.params.top_logprobs = Some(0);
    let mut engine = small();
    let events = submit_constrained(&mut engine, ask.clone(), automaton.clone());
    run(&mut engine);
    assert_eq!(
        Outcome::of(1, &events).tokens[0],
        by_hand(&ask, 0, automaton)
    );
    assert_eq!(engine.stats().forced_tokens, 0);
    assert_eq!(engine.stats().steps, 60);
}

#[test]
fn forced_tokens_outlive_preemption_and_are_found_in_the_prefix_cache() {
    let (mut preemptions, mut hits) = (0, 0);
    for seed in 0..6u64 {
        let mut engine = engine(tiny(16));
        let requests: Vec<_> = (0..7)
            .map(|id| {
                stopping(
                    id,
                    vec![id as u32 % 3; 6],
                    1 + (id as u32) % 2,
                    24,
                    Draw::Sample,
                )
            })
            .collect();
        let events: Vec<_> = requests
            .iter()
            .map(|request| {
                submit_constrained(&mut engine, request.clone(), Automaton::forcing(seed))
            })
            .collect();
        run(&mut engine);
        for (request, events) in requests.iter().zip(&events) {
            let outcome = Outcome::of(request.params.n, events);
            for choice in 0..request.params.n {
                let expected = by_hand(request, choice, Automaton::forcing(seed));
                assert_eq!(outcome.ids(choice as usize), ids(&expected));
            }
        }
        preemptions += engine.stats().preemptions;
        // Known tokens and what they led to, again.
        let path = by_hand(&requests[0], 0, Automaton::forcing(seed));
        let prompt: Vec<_> = [0; 6].into_iter().chain(ids(&path)).collect();
        let again = request(99, prompt, 8);
        let outcome = finish(&mut engine, again.clone());
        hits += outcome.started.unwrap().1;
        assert_eq!(
            outcome.timeless(),
            alone(&MockExecutor::small_info(), &again)
        );
    }
    assert!(preemptions > 5, "{preemptions} preemptions");
    assert!(hits > 10, "{hits} hit tokens");
}
