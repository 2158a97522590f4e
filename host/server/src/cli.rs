//! The command line: `guesthouse serve smollm2` and the rest. Flags carry vLLM's names where it has them.

mod bench;
mod books;
mod chat;
mod doctor;
mod generate;
mod graph;
mod module;
mod oci;
mod options;
mod replay;
mod sample;
mod serve;
mod state;
mod tenant;
#[cfg(test)]
mod tests;
mod tls;

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Serves large language models; what is particular to a model or a tenant runs in sandboxed WebAssembly guests.
#[derive(Debug, Parser)]
#[command(name = "guesthouse", version, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    logs: options::Logs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model over an OpenAI-compatible HTTP API.
    Serve(serve::Serve),
    /// Generate offline: prompts or JSON lines in, JSON lines out.
    Generate(generate::Generate),
    /// Continue one prompt with a sampler, and tell what it saw and chose.
    Sample(sample::Sample),
    /// Run a recorded request's guests again, and say where they first do something else.
    Replay(replay::Replay),
    /// Chat in the terminal.
    Chat(chat::Chat),
    /// Measure latency, throughput, or a running server.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Print a model's graph as its guest builds it and as the device runs it.
    Graph(graph::GraphCommand),
    /// Look at guest modules, or start one of your own.
    #[command(subcommand)]
    Module(module::ModuleCommand),
    /// Compile a component from standard input; servers start this themselves.
    #[command(hide = true)]
    CompileModule(CompileModule),
    /// Add, change and remove tenants, and make their keys.
    #[command(subcommand)]
    Tenant(tenant::TenantCommand),
    /// Check this machine: processor, memory, guests, folders.
    Doctor(doctor::Doctor),
}

/// Arguments as the server passes them.
#[derive(Debug, clap::Args)]
struct CompileModule {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Runs the command line; the exit code is 0, 1 for a failure, 2 for wrong usage.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Command::CompileModule(c) = &cli.command {
        // Nothing else first: it limits itself, and its standard error is its parent's.
        return guesthouse_component::compile_module(&c.arguments);
    }
    crate::process::use_ring();
    logging(&cli.logs);
    let result = match cli.command {
        Command::Serve(c) => c.run(),
        Command::Generate(c) => c.run(),
        Command::Sample(c) => c.run(),
        Command::CompileModule(_) => return ExitCode::FAILURE,
        Command::Replay(c) => return c.run(),
        Command::Chat(c) => c.run(),
        Command::Bench(c) => c.run(),
        Command::Graph(c) => c.run(),
        Command::Module(c) => c.run(),
        Command::Tenant(c) => c.run(),
        Command::Doctor(c) => c.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", told(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes, each once: some errors write their cause out themselves.
fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Logs go to standard error, so that standard output is a command's result alone.
fn logging(options: &options::Logs) {
    let filter = EnvFilter::try_new(&options.log_level).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    match options.log_format {
        options::LogFormat::Text => builder.init(),
        options::LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .init(),
    }
}
