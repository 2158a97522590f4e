//! WASI 0.2 in its empty form, for graph and chat guests that other tool chains made.
//!
//! No files, no environment, no network. Standard output and error become log lines, clocks stand at the request's
//! time, random numbers follow from its seed. A guest that waits (sleeps, polls) is ended by [`crate::meter`].

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use wasmtime::component::Linker;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};
use wasmtime_wasi::{
    Deterministic, HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxView, WasiView,
};

use crate::CallContext;
use crate::guest_log::{GuestLog, LogLevel};
use crate::store::State;

/// Version of the interfaces that wasmtime-wasi defines.
const SOCKETS: &str = "0.2.12";
/// Bytes of the random stream before it repeats.
const RANDOM_BYTES: u32 = 4096;
/// Bytes that one write to an output stream may carry.
const WRITE_BYTES: usize = 64 << 10;

/// Adds all of WASI 0.2 but the creation of sockets, which would take descriptors of the process.
pub(crate) fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    linker.allow_shadowing(true);
    for kind in ["tcp", "udp"] {
        let mut instance =
            linker.instance(&format!("wasi:sockets/{kind}-create-socket@{SOCKETS}"))?;
        instance.func_new(&format!("create-{kind}-socket"), |_, _, _, _| {
            Err(wasmtime::Error::msg("guests have no network"))
        })?;
    }
    linker.allow_shadowing(false);
    Ok(())
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let ctx = self
            .wasi
            .get_or_insert_with(|| Box::new(empty(&self.context, &self.log)));
        WasiCtxView {
            ctx,
            table: &mut self.table,
        }
    }
}

fn empty(context: &CallContext, log: &GuestLog) -> WasiCtx {
    let digest = Sha256::digest(context.seed.to_le_bytes());
    let mut seed = [0; 16];
    seed.copy_from_slice(&digest[..16]);
    let output = |level| Output {
        log: log.clone(),
        level,
    };
    WasiCtx::builder()
        .stdout(output(LogLevel::Info))
        .stderr(output(LogLevel::Error))
        .wall_clock(Standing(Duration::from_secs(context.now)))
        .monotonic_clock(Standing(Duration::ZERO))
        .secure_random(random(context.seed, 0))
        .insecure_random(random(context.seed, 1))
        .insecure_random_seed(u128::from_le_bytes(seed))
        .max_random_size(1 << 20)
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false)
        .build()
}

/// SHA-256 in counter mode.
fn random(seed: u64, stream: u8) -> Deterministic {
    let block = |i: u32| {
        let mut hash = Sha256::new();
        hash.update(seed.to_le_bytes());
        hash.update([stream]);
        hash.update(i.to_le_bytes());
        hash.finalize()
    };
    Deterministic::new((0..RANDOM_BYTES / 32).flat_map(block).collect())
}

/// A clock that stands still during a call.
struct Standing(Duration);

impl HostWallClock for Standing {
    fn resolution(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn now(&self) -> Duration {
        self.0
    }
}

impl HostMonotonicClock for Standing {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Standard output or error: each write is a log line.
#[derive(Clone)]
struct Output {
    log: GuestLog,
    level: LogLevel,
}

impl IsTerminal for Output {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Output {
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        // Only WASI 0.3 asks for this form.
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Output {
    async fn ready(&mut self) {}
}

impl OutputStream for Output {
    fn write(&mut self, bytes: bytes::Bytes) -> StreamResult<()> {
        self.log.write_bytes(self.level, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BYTES)
    }
}
