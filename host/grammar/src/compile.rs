//! From a source to a grammar that sequences follow, within limits, each grammar once.

use crate::cache::{Cache, Digest};
use crate::follow::Follower;
use crate::guard::{Cancel, Gate, caught};
use crate::syntax::Syntax;
use crate::vocabulary::Vocabulary;
use crate::{GrammarError, Limits, schema};
use guesthouse_engine::{Constraint, TokenId};
use guesthouse_tokenizer::Tokenizer;
use llguidance::api::{ParserLimits, StopReason, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::{ParserFactory, TokenParser};
use sha2::{Digest as _, Sha256};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use toktrie::{InferenceCapabilities, TokEnv};

/// A grammar at its beginning; sequences start from copies.
pub(crate) struct Compiled {
    parser: Mutex<TokenParser>,
    /// By estimate.
    pub(crate) bytes: usize,
}

impl Compiled {
    fn start(&self, stops: Arc<[TokenId]>) -> Follower {
        let parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner);
        Follower::new(&parser, stops)
    }
}

/// Compiles grammars for one model and keeps them. Shared between threads. The first compilation also reads the whole
/// vocabulary, which takes time and memory in proportion to it; later ones may block for the compile time of the [`Limits`].
pub struct GrammarCompiler {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    factory: OnceLock<Result<Arc<ParserFactory>, GrammarError>>,
    limits: Arc<Limits>,
    gate: Arc<Gate>,
    cache: Mutex<Cache>,
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler")
            .field("limits", &self.limits)
            .field("kept", &self.kept())
            .finish_non_exhaustive()
    }
}

impl GrammarCompiler {
    /// `vocab_size` is the width of the model's logits; ids that the tokenizer does not know are never allowed.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize, limits: Limits) -> Self {
        Self {
            tokenizer,
            vocab_size,
            factory: OnceLock::new(),
            gate: Gate::new(limits.compiling),
            cache: Mutex::new(Cache::new(limits.cache_bytes)),
            limits: Arc::new(limits),
        }
    }

    fn factory(&self) -> Result<Arc<ParserFactory>, GrammarError> {
        let made = self.factory.get_or_init(|| {
            let vocabulary = Vocabulary::new(Arc::clone(&self.tokenizer), self.vocab_size)?;
            let env: TokEnv = Arc::new(vocabulary);
            factory(&env, &self.limits).map(Arc::new)
        });
        made.clone()
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many grammars are kept, and their bytes by estimate.
    #[must_use]
    pub fn kept(&self) -> (usize, usize) {
        self.cache().size()
    }

    /// A sequence at the beginning of its grammar. `stops` are the request's stop tokens, allowed where the grammar may end.
    ///
    /// # Errors
    /// What is wrong with the grammar, and where; [`GrammarError::Vocabulary`] where the model's tokens have no bytes of their
    /// own.
    pub fn compile(
        &self,
        syntax: &str,
        source: &str,
        stops: &[TokenId],
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        let syntax: Syntax = syntax.parse()?;
        self.limits.check_source(source)?;
        let digest: Digest = Sha256::new()
            .chain_update(syntax.name())
            .chain_update([0])
            .chain_update(source)
            .finalize()
            .into();
        let kept = self.cache().get(&digest);
        let compiled = match kept {
            Some(compiled) => compiled,
            None => {
                let compiled = Arc::new(self.build(syntax, source)?);
                self.cache().put(digest, Arc::clone(&compiled));
                compiled
            }
        };
        Ok(Box::new(compiled.start(stops.into())))
    }

    fn build(&self, syntax: Syntax, source: &str) -> Result<Compiled, GrammarError> {
        let (factory, limits) = (self.factory()?, Arc::clone(&self.limits));
        let source = source.to_owned();
        self.gate.run(self.limits.compile_time, move |cancel| {
            let read = syntax.read(&source, &limits)?;
            let built = build(&factory, read.grammar, cancel);
            let (parser, bytes) = built.map_err(|cause| match &read.schema {
                Some(schema) => {
                    let compiles = |part: &serde_json::Value| {
                        let part = TopLevelGrammar::from_json_schema(part.clone());
                        build(&factory, part, cancel).map(|_| ())
                    };
                    schema::blame(schema, cause, compiles)
                }
                None => syntax.located(&cause),
            })?;
            Ok(Compiled {
                parser: Mutex::new(parser),
                bytes: bytes + 4 * source.len(),
            })
        })
    }
}

fn factory(env: &TokEnv, limits: &Limits) -> Result<ParserFactory, GrammarError> {
    let capabilities = InferenceCapabilities {
        ff_tokens: true,
        ..InferenceCapabilities::default()
    };
    let slices = SlicedBiasComputer::general_slices();
    let mut factory = caught(|| ParserFactory::new(env, capabilities, &slices))
        .map_err(GrammarError::Vocabulary)?;
    factory.quiet();
    *factory.limits_mut() = ParserLimits {
        max_items_in_row: limits.items.0,
        step_max_items: limits.items.1,
        initial_lexer_fuel: limits.lexer_fuel.0,
        step_lexer_fuel: limits.lexer_fuel.1,
        max_lexer_states: limits.lexer_states,
        max_grammar_size: limits.grammar_size,
        verbose_errors: false,
        ..ParserLimits::default()
    };
    Ok(factory)
}

/// A parser with its first mask computed, so that what cannot even begin is told now, and its bytes.
fn build(
    factory: &ParserFactory,
    grammar: TopLevelGrammar,
    cancel: &Cancel,
) -> Result<(TokenParser, usize), String> {
    caught(|| {
        let mut parser = factory.create_parser(grammar)?;
        parser.start_without_prompt();
        let may_be_empty = parser.is_accepting();
        let mut probe = parser.clone();
        cancel.adopt(&mut probe);
        match probe.compute_mask() {
            Ok(_) => {}
            Err(_) if probe.stop_reason() == StopReason::NoExtensionBias => {
                anyhow::ensure!(
                    may_be_empty,
                    "no token of the vocabulary can begin an output"
                );
            }
            Err(error) => return Err(error),
        }
        let bytes = BASE_BYTES + parser.parser.lexer_stats().num_bytes;
        Ok((parser, bytes))
    })
}

/// Of a parser beside its lexer.
const BASE_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests;
