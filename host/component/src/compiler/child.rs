//! The child's side.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{nice, setrlimit};

use super::{CompileLimits, Job, REFUSED, TOO_MUCH_CODE, limits};
use crate::{Clock, cache, engine};

/// What the parent says on the command line.
struct Options {
    clock: Clock,
    engine: String,
    limits: CompileLimits,
}

/// The arguments of a child for this job, in this order: clock, engine, bytes of memory, seconds, bytes of output.
pub(super) fn arguments(job: &Job<'_>, limits: &CompileLimits) -> Vec<OsString> {
    let clock = match job.clock {
        Clock::Time => "time",
        Clock::Fuel => "fuel",
    };
    vec![
        clock.into(),
        job.engine.into(),
        limits.memory.to_string().into(),
        limits.cpu.as_secs().to_string().into(),
        limits.output.to_string().into(),
    ]
}

fn parse(arguments: &[OsString]) -> Option<Options> {
    let [clock, engine, memory, cpu, output] = arguments else {
        return None;
    };
    let number = |text: &OsString| text.to_str()?.parse::<u64>().ok();
    let clock = match clock.to_str()? {
        "time" => Clock::Time,
        "fuel" => Clock::Fuel,
        _ => return None,
    };
    Some(Options {
        clock,
        engine: engine.to_str()?.to_owned(),
        limits: CompileLimits {
            memory: number(memory)?,
            cpu: Duration::from_secs(number(cpu)?),
            wall: Duration::MAX,
            output: number(output)?,
        },
    })
}

/// Compiles the component on standard input; serialized code goes to standard output. For programs that
/// [`ChildCompiler`](super::ChildCompiler) names, with the arguments that it passes; they should do nothing before.
#[must_use]
pub fn compile_module(arguments: &[OsString]) -> ExitCode {
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err((status, reason)) => {
            // Whoever does not listen learns the status.
            let _ = write!(io::stderr(), "{reason}");
            ExitCode::from(status)
        }
    }
}

fn run(arguments: &[OsString]) -> Result<(), (u8, String)> {
    let broken = |what: &str, error: &dyn std::fmt::Display| (1, format!("{what}: {error}"));
    let options = parse(arguments).ok_or_else(|| {
        let usage = "expected CLOCK ENGINE MEMORY-BYTES CPU-SECONDS OUTPUT-BYTES; servers start this by themselves";
        (1, usage.to_owned())
    })?;
    // Before anything of the module is read.
    for (resource, limit) in limits(&options.limits) {
        setrlimit(resource, limit).map_err(|error| broken("a limit cannot be set", &error))?;
    }
    nice(19).map_err(|error| broken("the priority cannot be lowered", &error))?;
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .map_err(|error| broken("standard input cannot be read", &error))?;
    let engine = engine::compiler(options.clock).map_err(|error| (1, error.to_string()))?;
    if cache::compatibility(&engine) != options.engine {
        let found = cache::compatibility(&engine);
        let reason = format!(
            "this compiler makes code for engine {found}, expected {}; both must be the same build",
            options.engine
        );
        return Err((1, reason));
    }
    let code = engine
        .precompile_component(&bytes)
        .map_err(|error| (REFUSED, format!("{error:#}")))?;
    if code.len() as u64 > options.limits.output {
        return Err((TOO_MUCH_CODE, format!("{} bytes of code", code.len())));
    }
    let mut output = io::stdout().lock();
    output
        .write_all(&code)
        .and_then(|()| output.flush())
        .map_err(|error| broken("standard output cannot be written", &error))
}
