//! Compiling in a process of its own.
//!
//! Cranelift cannot be cancelled, and a few megabytes of the right code take it minutes and gigabytes. So it runs in a
//! child with one thread, the lowest priority, an empty environment, and limits on memory, processor time, files and
//! output; a child that takes too long is killed with all that it started. The module goes in by standard input,
//! already validated; serialized code comes back by standard output.
//!
//! - [`ChildCompiler`], [`CompileLimits`]: the parent's side; `pipes`: what goes through the pipes;
//! - [`compile_module`]: the child's side.

mod child;
mod pipes;

use std::ffi::OsString;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, prlimit};

use crate::{Clock, CompileFailure, ComponentError};
pub use child::compile_module;

/// Exit status of a child that found the module wrong; standard error says how.
const REFUSED: u8 = 2;
/// Exit status of a child that made more code than it may hand over.
const TOO_MUCH_CODE: u8 = 3;
/// Of standard error, bytes that are read.
const WORDS: usize = 16 << 10;
/// Time between two looks at a child that has closed its pipes.
const LOOK: Duration = Duration::from_millis(2);

/// What one compilation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileLimits {
    /// Address space of the child, bytes.
    pub memory: u64,
    /// Processor time, whole seconds; at least 1.
    pub cpu: Duration,
    /// Time in all; the child has the lowest priority, so a busy machine makes it wait.
    pub wall: Duration,
    /// Serialized code, bytes.
    pub output: u64,
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self {
            memory: 4 << 30,
            cpu: Duration::from_secs(120),
            wall: Duration::from_secs(600),
            output: 256 << 20,
        }
    }
}

/// Where modules are compiled that are not part of this binary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Compiler {
    /// In this process, without limits: for programs that trust the modules they load.
    #[default]
    InProcess,
    /// In a child.
    Child(ChildCompiler),
}

/// A program that calls [`compile_module`], and what it may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildCompiler {
    /// The program.
    pub program: PathBuf,
    /// Its first arguments; those for [`compile_module`] follow.
    pub arguments: Vec<OsString>,
    /// Per compilation.
    pub limits: CompileLimits,
    /// Compilations at once; at least 1.
    pub at_once: usize,
}

impl ChildCompiler {
    /// With the limits of a server, two compilations at once.
    #[must_use]
    pub fn new(program: PathBuf, arguments: Vec<OsString>) -> Self {
        Self {
            program,
            arguments,
            limits: CompileLimits::default(),
            at_once: 2,
        }
    }
}

/// What is to be compiled.
pub(crate) struct Job<'a> {
    pub(crate) module: &'a str,
    pub(crate) bytes: &'a [u8],
    pub(crate) clock: Clock,
    /// Hex of the engine's compatibility hash.
    pub(crate) engine: &'a str,
}

/// Compilations under way.
#[derive(Default)]
pub(crate) struct Gate {
    running: Mutex<usize>,
    freed: Condvar,
}

struct Passed<'a>(&'a Gate);

impl Gate {
    /// Blocks until fewer than `most` are under way.
    fn pass(&self, most: usize) -> Passed<'_> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running = self
            .freed
            .wait_while(running, |running| *running >= most.max(1))
            .unwrap_or_else(PoisonError::into_inner);
        *running += 1;
        Passed(self)
    }
}

impl Drop for Passed<'_> {
    fn drop(&mut self) {
        let mut running = self
            .0
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *running -= 1;
        drop(running);
        self.0.freed.notify_one();
    }
}

impl ChildCompiler {
    /// Serialized code of a module. Blocks.
    pub(crate) fn compile(&self, gate: &Gate, job: &Job<'_>) -> Result<Vec<u8>, ComponentError> {
        let _passed = gate.pass(self.at_once);
        let failed = |failure| ComponentError::CompileChild {
            module: job.module.into(),
            failure,
        };
        let began = Instant::now();
        let mut child = self
            .spawn(job)
            .map_err(|error| failed(CompileFailure::Start(error.to_string())))?;
        let answer = self.converse(&mut child.0, job.bytes, began);
        let outcome = match answer {
            Ok((said, status)) => self.judge(said, status),
            Err(failure) => Err(failure),
        };
        drop(child);
        match outcome {
            Ok(code) => {
                let (ms, bytes) = (began.elapsed().as_millis(), code.len());
                tracing::info!(module = job.module, ms, bytes, "compiled");
                Ok(code)
            }
            Err(Judged::Module(reason)) => Err(ComponentError::Compile {
                module: job.module.into(),
                reason,
            }),
            Err(Judged::Failure(failure)) => Err(failed(failure)),
        }
    }

    fn spawn(&self, job: &Job<'_>) -> std::io::Result<Group> {
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .args(child::arguments(job, &self.limits))
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let child = Group(child);
        // The child sets these itself, first thing; this holds for a program that does not.
        for (resource, limit) in limits(&self.limits) {
            prlimit(Pid::from_child(&child.0).into(), resource, limit)?;
        }
        Ok(child)
    }

    fn converse(
        &self,
        child: &mut Child,
        bytes: &[u8],
        began: Instant,
    ) -> Result<(pipes::Said, ExitStatus), Judged> {
        let end = began + self.limits.wall;
        let late = || {
            Judged::Failure(CompileFailure::Wall {
                limit: self.limits.wall,
            })
        };
        let broken =
            |error: std::io::Error| Judged::Failure(CompileFailure::Start(error.to_string()));
        let said = pipes::converse(child, bytes, self.limits.output, end).map_err(broken)?;
        match &said {
            pipes::Said::All { .. } => {}
            pipes::Said::Late => return Err(late()),
            pipes::Said::TooMuch => return Err(Judged::Failure(self.too_much())),
        }
        loop {
            if let Some(status) = child.try_wait().map_err(broken)? {
                return Ok((said, status));
            }
            if Instant::now() >= end {
                return Err(late());
            }
            std::thread::sleep(LOOK);
        }
    }

    fn too_much(&self) -> CompileFailure {
        CompileFailure::Output {
            limit: self.limits.output,
        }
    }

    /// What the child's end means.
    fn judge(&self, said: pipes::Said, status: ExitStatus) -> Result<Vec<u8>, Judged> {
        let pipes::Said::All { code, words } = said else {
            return Err(Judged::Failure(CompileFailure::Ended {
                status: status.to_string(),
                words: String::new(),
            }));
        };
        if status.success() {
            return Ok(code);
        }
        let refused = |known| status.code() == Some(i32::from(known));
        if refused(REFUSED) {
            return Err(Judged::Module(words));
        }
        let memory = CompileFailure::Memory {
            limit: self.limits.memory,
        };
        Err(Judged::Failure(match status.signal() {
            _ if refused(TOO_MUCH_CODE) => self.too_much(),
            Some(signal) if signal == Signal::XCPU.as_raw() || signal == Signal::KILL.as_raw() => {
                CompileFailure::Cpu {
                    limit: self.limits.cpu,
                }
            }
            // How Rust ends when its allocator is refused memory.
            Some(signal)
                if signal == Signal::ABORT.as_raw() && words.contains("memory allocation") =>
            {
                memory
            }
            _ if words.contains("Cannot allocate memory") => memory,
            _ => CompileFailure::Ended {
                status: status.to_string(),
                words,
            },
        }))
    }
}

/// Whose fault it is.
enum Judged {
    /// Cranelift refused the module.
    Module(String),
    /// The compilation went over a limit, or broke.
    Failure(CompileFailure),
}

/// A child that leads a process group. Dropping it ends all of the group.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // Once it was waited for, its number may be another's.
        if let Ok(None) = self.0.try_wait() {
            // It may have ended this very moment.
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            drop(self.0.wait());
        }
    }
}

/// What the child is held to.
fn limits(limits: &CompileLimits) -> [(Resource, Rlimit); 5] {
    let exactly = |n: u64| Rlimit {
        current: Some(n),
        maximum: Some(n),
    };
    let seconds = limits.cpu.as_secs().max(1);
    let cpu = Rlimit {
        current: Some(seconds),
        // One that holds SIGXCPU off is killed.
        maximum: Some(seconds + 1),
    };
    [
        (Resource::Core, exactly(0)),
        (Resource::Fsize, exactly(0)),
        // Standard streams, and what a thread pool or the clock may open.
        (Resource::Nofile, exactly(16)),
        (Resource::Cpu, cpu),
        (Resource::As, exactly(limits.memory)),
    ]
}

#[cfg(test)]
mod tests;
