//! Records run again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

use super::compare::{Difference, first_difference};
use super::decode::{self, Fields};
use super::read::{RecordError, RecordedCall, RecordedRun};
use super::{Recorder, role_name};
use crate::block_on::block_on;
use crate::{
    CallContext, ChatSession, Clock, Module, Origin, ParserId, PoolSizes, Role, Runtime,
    RuntimeConfig, Stepping, builtin,
};

/// What running a record again showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayReport {
    /// Calls that were run again.
    pub calls: u64,
    /// Calls of modules of another role than the one that was given, whose bytes are not at hand.
    pub skipped: u64,
    /// Hex of the engine's compatibility hash now; another one than recorded may explain a difference.
    pub engine: String,
    /// Nothing: all calls did what they had done.
    pub difference: Option<Difference>,
}

impl RecordedRun {
    /// Runs the guests again, without model or device, until one does something else than recorded. Modules are those built
    /// into this program, found by digest; `module` (name, bytes) stands in for the recorded one of its role. Blocks the thread,
    /// whose stack must have 2 MiB or more.
    ///
    /// # Errors
    /// A line that makes no sense, a module that is not at hand or cannot be loaded.
    pub fn replay(&self, module: Option<(&str, &[u8])>) -> Result<ReplayReport, RecordError> {
        let runtime = Runtime::new(RuntimeConfig {
            pool: PoolSizes {
                graph: 1,
                chat: 1,
                sampler: 1,
                step: 1,
            },
            chat: self.chat.clone(),
            sampler: self.sampler.clone(),
            step: self.step.clone(),
            clock: Clock::Fuel,
            ..RuntimeConfig::default()
        })?;
        let given = module
            .map(|(name, bytes)| runtime.load(name, bytes, Origin::File))
            .transpose()?;
        let recorder = Recorder::in_memory();
        let context = CallContext {
            request: self.request.as_str().into(),
            now: self.now,
            seed: self.seed,
            recorder: Some(recorder.clone()),
            ..CallContext::new("", 0)
        };
        let mut player = Player {
            runtime: Arc::clone(&runtime),
            given,
            loaded: HashMap::new(),
            context,
            chat: None,
            parsers: Vec::new(),
            stepping: None,
        };
        let mut report = ReplayReport {
            calls: 0,
            skipped: 0,
            engine: runtime.compatibility(),
            difference: None,
        };
        // What was done, by calls that do more than one at once.
        let mut done: HashMap<&str, VecDeque<Value>> = HashMap::new();
        for recorded in &self.calls {
            let done = done.entry(&recorded.role).or_default();
            if done.is_empty() {
                let Some(module) = player.module(recorded)? else {
                    report.skipped += 1;
                    continue;
                };
                player.run(&module, recorded)?;
                done.extend(recorder.take());
            }
            report.calls += 1;
            let (function, output, log) = parts(done.pop_front());
            report.difference = first_difference(recorded, &function, &output, &log);
            if report.difference.is_some() {
                break;
            }
        }
        Ok(report)
    }
}

/// Function, output and log of a call that was recorded in memory; or of none.
fn parts(call: Option<Value>) -> (String, Value, Vec<String>) {
    let Some(call) = call else {
        return ("(no call)".to_owned(), Value::Null, Vec::new());
    };
    let function = call["function"].as_str().unwrap_or_default().to_owned();
    let output = match call.get("ok") {
        Some(ok) => json!({ "ok": ok }),
        None => json!({ "error": call["error"] }),
    };
    let lines = call["log"].as_array().map_or(&[][..], Vec::as_slice);
    let log = lines
        .iter()
        .filter_map(|line| line.as_str().map(str::to_owned));
    (function, output, log.collect())
}

struct Player {
    runtime: Arc<Runtime>,
    given: Option<Arc<Module>>,
    /// By digest, in hex.
    loaded: HashMap<String, Arc<Module>>,
    context: CallContext,
    chat: Option<ChatSession>,
    parsers: Vec<ParserId>,
    stepping: Option<Stepping>,
}

impl Player {
    /// The module that stands for the recorded one; nothing for one of another role that is not at hand.
    fn module(&mut self, recorded: &RecordedCall) -> Result<Option<Arc<Module>>, RecordError> {
        if let Some(given) = &self.given
            && role_name(given.role()) == recorded.role
        {
            return Ok(Some(Arc::clone(given)));
        }
        if let Some(module) = self.loaded.get(&recorded.digest) {
            return Ok(Some(Arc::clone(module)));
        }
        let role = [Role::Chat, Role::Sampler]
            .into_iter()
            .find(|role| role_name(*role) == recorded.role);
        let Some(role) = role else {
            let reason = format!("role {:?}, expected chat or sampler", recorded.role);
            return Err(RecordError::line(recorded.line, reason));
        };
        for guest in builtin::ALL.iter().filter(|guest| guest.role == role) {
            if builtin::digest(guest).to_string() == recorded.digest {
                let module = self
                    .runtime
                    .load(guest.name, guest.bytes, Origin::Embedded)?;
                self.loaded
                    .insert(recorded.digest.clone(), Arc::clone(&module));
                return Ok(Some(module));
            }
        }
        if self.given.is_some() {
            return Ok(None);
        }
        Err(RecordError::ModuleMissing {
            line: recorded.line,
            role: recorded.role.clone(),
            module: recorded.module.clone(),
            digest: recorded.digest.clone(),
        })
    }

    /// Makes the call; what comes out goes to the recorder.
    fn run(&mut self, module: &Arc<Module>, recorded: &RecordedCall) -> Result<(), RecordError> {
        let wrong = |reason: String| RecordError::line(recorded.line, reason);
        let input = &recorded.input;
        match &*recorded.function {
            "sampler.create" => {
                let (request, facts) = decode::create(input).map_err(wrong)?;
                let begun = module
                    .sampler()?
                    .begin(&request, &facts, self.context.clone());
                self.stepping = begun.ok().and_then(|(_, stepping)| stepping);
            }
            "stepping.step" | "stepping.step-logits" => {
                let rows = decode::rows(input).map_err(wrong)?;
                if let Some(stepping) = &mut self.stepping {
                    // The recorder has the outcome, here and below.
                    drop(stepping.step(rows));
                }
            }
            "stepping.select" => {
                let finished = decode::finished(input).map_err(wrong)?;
                if let Some(stepping) = &mut self.stepping {
                    drop(stepping.select(finished));
                }
            }
            "template.create" => {
                let (files, controls) = decode::open(input).map_err(wrong)?;
                let chat = module.chat()?;
                self.chat = block_on(chat.open(files, controls, self.context.clone())).ok();
                self.parsers.clear();
            }
            _ => self.chat_call(recorded).map_err(wrong)?,
        }
        Ok(())
    }

    fn chat_call(&mut self, recorded: &RecordedCall) -> Result<(), String> {
        let input = &recorded.input;
        let fields = Fields::of(input);
        let Some(chat) = &mut self.chat else {
            return Ok(());
        };
        let parser = || -> Result<ParserId, String> {
            let number = fields.whole("parser")?;
            let parser = usize::try_from(number)
                .ok()
                .and_then(|n| self.parsers.get(n));
            parser
                .copied()
                .ok_or_else(|| format!("parser: there is no parser {number}"))
        };
        match &*recorded.function {
            "template.render" => {
                let conversation = decode::conversation(input)?;
                drop(block_on(chat.render(conversation)));
            }
            "template.stop-strings" => drop(block_on(chat.stop_strings())),
            "template.visible-controls" => drop(block_on(chat.visible_controls())),
            "template.parser" => {
                let conversation = decode::conversation(input)?;
                if let Ok(parser) = block_on(chat.parser(conversation)) {
                    self.parsers.push(parser);
                }
            }
            "parser.push" => {
                let parser = parser()?;
                drop(block_on(chat.push(parser, fields.text("text")?)));
            }
            "parser.finish" => {
                let parser = parser()?;
                drop(block_on(chat.finish(parser)));
            }
            other => {
                return Err(format!(
                    "function {other:?}, which this program does not know"
                ));
            }
        }
        Ok(())
    }
}
