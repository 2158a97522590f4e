//! What each world may import, and nothing else.

use wasmtime::Engine;
use wasmtime::component::{HasSelf, Linker};

use crate::bindings::{chat, graph, log, sampler, step_sampler, types};
use crate::guest_log::LogLevel;
use crate::store::State;
use crate::{ComponentError, wasi, wasi_stub};

/// A linker for guests that import our interfaces alone, and one for guests that import WASI too.
pub(crate) struct World {
    plain: Linker<State>,
    wasi: Linker<State>,
}

impl World {
    pub(crate) fn linker(&self, with_wasi: bool) -> &Linker<State> {
        if with_wasi { &self.wasi } else { &self.plain }
    }
}

/// One world per role. Stepping adds exports, but its world is linked apart so that what it imports stays its own.
pub(crate) struct Linkers {
    pub(crate) graph: World,
    pub(crate) chat: World,
    pub(crate) sampler: World,
    pub(crate) step_sampler: World,
}

impl Linkers {
    pub(crate) fn new(engine: &Engine) -> Result<Self, ComponentError> {
        let build = || -> wasmtime::Result<Self> {
            Ok(Self {
                graph: world(
                    engine,
                    |l| graph::GraphGuest::add_to_linker::<_, HasSelf<_>>(l, |s| s),
                    wasi::link,
                )?,
                chat: world(
                    engine,
                    |l| chat::ChatGuest::add_to_linker::<_, HasSelf<_>>(l, |s| s),
                    wasi::link,
                )?,
                sampler: world(
                    engine,
                    |l| sampler::SamplerGuest::add_to_linker::<_, HasSelf<_>>(l, |s| s),
                    wasi_stub::link,
                )?,
                step_sampler: world(
                    engine,
                    |l| step_sampler::StepSamplerGuest::add_to_linker::<_, HasSelf<_>>(l, |s| s),
                    wasi_stub::link,
                )?,
            })
        };
        build().map_err(|error| ComponentError::Engine {
            reason: format!("{error:#}"),
        })
    }
}

fn world(
    engine: &Engine,
    ours: impl Fn(&mut Linker<State>) -> wasmtime::Result<()>,
    wasi: impl Fn(&mut Linker<State>) -> wasmtime::Result<()>,
) -> wasmtime::Result<World> {
    let mut plain = Linker::new(engine);
    ours(&mut plain)?;
    let mut with_wasi = plain.clone();
    wasi(&mut with_wasi)?;
    Ok(World {
        plain,
        wasi: with_wasi,
    })
}

impl types::Host for State {}

impl log::Host for State {
    fn log(&mut self, level: log::Level, message: String) -> wasmtime::Result<()> {
        let level = match level {
            log::Level::Debug => LogLevel::Debug,
            log::Level::Info => LogLevel::Info,
            log::Level::Warn => LogLevel::Warn,
            log::Level::Error => LogLevel::Error,
        };
        self.log.write(level, &message);
        Ok(())
    }
}
