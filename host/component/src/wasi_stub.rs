//! The parts of WASI 0.2 that every program links, denying all: for sampler guests made for wasm32-wasip2.
//!
//! Environment and standard input are empty, standard output and error become log lines, exiting traps, the seed of
//! hash maps is constant. No clocks, files, sockets or polling. Registered as 0.2.0, which serves every 0.2.

use wasmtime::component::{Linker, LinkerInstance, Resource, ResourceType};
use wasmtime::{Result, StoreContextMut};
use wasmtime_wasi::p2::IoError;
use wasmtime_wasi::p2::bindings::io::streams::StreamError;

use crate::guest_log::LogLevel;
use crate::store::State;

struct InputStream;
struct OutputStream;
struct Pollable;
struct TerminalInput;
struct TerminalOutput;

type Answer<T> = Result<(std::result::Result<T, StreamError>,)>;

/// Bytes that one write may carry.
const WRITE_BYTES: u64 = 4096;
/// Representations of the two output streams.
const STDOUT: u32 = 1;
const STDERR: u32 = 2;

/// Adds the stub.
pub(crate) fn link(linker: &mut Linker<State>) -> Result<()> {
    resource::<IoError>(&mut linker.instance("wasi:io/error@0.2.0")?, "error")?;
    let mut poll = linker.instance("wasi:io/poll@0.2.0")?;
    resource::<Pollable>(&mut poll, "pollable")?;
    // All that can be waited for is an output stream, which is always ready.
    poll.func_wrap(
        "[method]pollable.block",
        |_, (_,): (Resource<Pollable>,)| Ok(()),
    )?;
    poll.func_wrap(
        "[method]pollable.ready",
        |_, (_,): (Resource<Pollable>,)| Ok((true,)),
    )?;
    streams(&mut linker.instance("wasi:io/streams@0.2.0")?)?;
    command_line(linker)?;
    linker
        .instance("wasi:random/insecure-seed@0.2.0")?
        .func_wrap("insecure-seed", |_, ()| {
            Ok(((0x9e37_79b9_7f4a_7c15_u64, 0xbf58_476d_1ce4_e5b9_u64),))
        })
}

fn resource<T: 'static>(instance: &mut LinkerInstance<'_, State>, name: &str) -> Result<()> {
    instance.resource(name, ResourceType::host::<T>(), |_, _| Ok(()))
}

fn streams(streams: &mut LinkerInstance<'_, State>) -> Result<()> {
    resource::<OutputStream>(streams, "output-stream")?;
    resource::<InputStream>(streams, "input-stream")?;
    type Output = Resource<OutputStream>;
    type Input = Resource<InputStream>;
    streams.func_wrap(
        "[method]output-stream.check-write",
        |_, (_,): (Output,)| -> Answer<u64> { Ok((Ok(WRITE_BYTES),)) },
    )?;
    for name in ["write", "blocking-write-and-flush"] {
        streams.func_wrap(
            &format!("[method]output-stream.{name}"),
            |mut store: StoreContextMut<'_, State>,
             (stream, bytes): (Output, Vec<u8>)|
             -> Answer<()> {
                let level = if stream.rep() == STDERR {
                    LogLevel::Error
                } else {
                    LogLevel::Info
                };
                store.data_mut().log.write_bytes(level, &bytes);
                Ok((Ok(()),))
            },
        )?;
    }
    for name in ["flush", "blocking-flush"] {
        streams.func_wrap(
            &format!("[method]output-stream.{name}"),
            |_, (_,): (Output,)| -> Answer<()> { Ok((Ok(()),)) },
        )?;
    }
    streams.func_wrap("[method]output-stream.subscribe", |_, (_,): (Output,)| {
        Ok((Resource::<Pollable>::new_own(1),))
    })?;
    for name in ["read", "blocking-read"] {
        streams.func_wrap(
            &format!("[method]input-stream.{name}"),
            |_, (_, _): (Input, u64)| -> Answer<Vec<u8>> { Ok((Err(StreamError::Closed),)) },
        )?;
    }
    streams.func_wrap("[method]input-stream.subscribe", |_, (_,): (Input,)| {
        Ok((Resource::<Pollable>::new_own(1),))
    })
}

fn command_line(linker: &mut Linker<State>) -> Result<()> {
    let mut environment = linker.instance("wasi:cli/environment@0.2.0")?;
    environment.func_wrap("get-environment", |_, ()| {
        Ok((Vec::<(String, String)>::new(),))
    })?;
    environment.func_wrap("get-arguments", |_, ()| Ok((Vec::<String>::new(),)))?;
    environment.func_wrap("initial-cwd", |_, ()| Ok((None::<String>,)))?;
    linker.instance("wasi:cli/exit@0.2.0")?.func_wrap(
        "exit",
        |_, (_,): (std::result::Result<(), ()>,)| -> Result<()> {
            Err(wasmtime::Error::msg("the guest exited"))
        },
    )?;
    let mut stdin = linker.instance("wasi:cli/stdin@0.2.0")?;
    stdin.func_wrap("get-stdin", |_, ()| {
        Ok((Resource::<InputStream>::new_own(0),))
    })?;
    for (name, stream) in [("stdout", STDOUT), ("stderr", STDERR)] {
        let mut instance = linker.instance(&format!("wasi:cli/{name}@0.2.0"))?;
        instance.func_wrap(&format!("get-{name}"), move |_, ()| {
            Ok((Resource::<OutputStream>::new_own(stream),))
        })?;
    }
    resource::<TerminalInput>(
        &mut linker.instance("wasi:cli/terminal-input@0.2.0")?,
        "terminal-input",
    )?;
    resource::<TerminalOutput>(
        &mut linker.instance("wasi:cli/terminal-output@0.2.0")?,
        "terminal-output",
    )?;
    let mut stdin = linker.instance("wasi:cli/terminal-stdin@0.2.0")?;
    stdin.func_wrap("get-terminal-stdin", |_, ()| {
        Ok((None::<Resource<TerminalInput>>,))
    })?;
    for name in ["stdout", "stderr"] {
        let mut instance = linker.instance(&format!("wasi:cli/terminal-{name}@0.2.0"))?;
        instance.func_wrap(&format!("get-terminal-{name}"), |_, ()| {
            Ok((None::<Resource<TerminalOutput>>,))
        })?;
    }
    Ok(())
}
