//! A module that passed every check and is ready to be instantiated.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use wasmtime::component::InstancePre;

use crate::bindings::chat::ChatGuestPre;
use crate::bindings::graph::GraphGuestPre;
use crate::precheck::{self, Summary};
use crate::sampling::SamplerExports;
use crate::store::State;
use crate::{ChatModule, CodeDigests, ComponentError, GraphModule, Runtime, SamplerModule, cache};

/// What a guest is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Builds model graphs.
    Graph,
    /// Renders conversations and parses answers.
    Chat,
    /// Plans sampling.
    Sampler,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Graph => "graph",
            Self::Chat => "chat",
            Self::Sampler => "sampler",
        })
    }
}

/// Who brought a module. Decides how big it may be, and with what priority its calls run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Part of this binary.
    Embedded,
    /// A file the administrator named.
    File,
    /// Uploaded by a tenant.
    Tenant,
}

/// SHA-256 of a module's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleDigest(pub [u8; 32]);

impl ModuleDigest {
    /// Of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// From 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digit = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 64 || !text.bytes().all(digit) {
            return None;
        }
        let mut digest = [0; 32];
        for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        }
        Some(Self(digest))
    }
}

impl fmt::Display for ModuleDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&cache::hex(&self.0))
    }
}

impl fmt::Debug for ModuleDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Where a module's machine code came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeSource {
    /// Compiled at this load.
    Compiled,
    /// Read from the folder for compiled code.
    Cache,
}

/// The typed exports of each role.
pub(crate) enum Exports {
    Graph(GraphGuestPre<State>),
    Chat(ChatGuestPre<State>),
    Sampler(SamplerExports),
}

/// A loaded module. Cheap to share; each call or session gets an instance of its own.
pub struct Module {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) name: Arc<str>,
    pub(crate) exports: Exports,
    digest: ModuleDigest,
    code: CodeSource,
    origin: Origin,
    summary: Summary,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Module({} {} {})",
            self.summary.role, self.name, self.digest
        )
    }
}

impl Module {
    pub(crate) fn load(
        runtime: &Arc<Runtime>,
        name: &str,
        bytes: &[u8],
        origin: Origin,
        digests: Option<&dyn CodeDigests>,
    ) -> Result<Self, ComponentError> {
        let summary = precheck::check(name, bytes, origin)?;
        let digest = ModuleDigest::of(bytes);
        let compile = || runtime.compile(name, bytes, origin);
        let (component, code) = match &runtime.cache {
            Some(cache) => cache.load(&runtime.engine, &digest, digests, compile)?,
            None => (
                compile()?.component(&runtime.engine, &digest)?,
                CodeSource::Compiled,
            ),
        };
        let linkers = &runtime.linkers;
        let world = match summary.role {
            Role::Graph => &linkers.graph,
            Role::Chat => &linkers.chat,
            Role::Sampler if summary.steps => &linkers.step_sampler,
            Role::Sampler => &linkers.sampler,
        };
        let link = || -> wasmtime::Result<Exports> {
            exports(
                world.linker(summary.wasi).instantiate_pre(&component)?,
                &summary,
            )
        };
        let exports = link().map_err(|error| ComponentError::Link {
            module: name.into(),
            reason: format!("{error:#}"),
        })?;
        Ok(Self {
            runtime: Arc::clone(runtime),
            name: name.into(),
            exports,
            digest,
            code,
            origin,
            summary,
        })
    }

    /// The name it was loaded under.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// SHA-256 of its bytes.
    #[must_use]
    pub fn digest(&self) -> ModuleDigest {
        self.digest
    }

    /// Its one role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.summary.role
    }

    /// Who brought it.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Interfaces it imports, with versions.
    #[must_use]
    pub fn imports(&self) -> &[String] {
        &self.summary.imports
    }

    /// Whether a sampler exports stepping (tiers 2 and 3) too.
    #[must_use]
    pub fn steps(&self) -> bool {
        self.summary.steps
    }

    /// Where its machine code came from.
    #[must_use]
    pub fn code_source(&self) -> CodeSource {
        self.code
    }

    /// As a graph guest.
    ///
    /// # Errors
    /// [`ComponentError::WrongRole`]
    pub fn graph(self: &Arc<Self>) -> Result<GraphModule, ComponentError> {
        match &self.exports {
            Exports::Graph(pre) => Ok(GraphModule::new(Arc::clone(self), pre.clone())),
            _ => Err(self.wrong_role(Role::Graph)),
        }
    }

    /// As a chat guest.
    ///
    /// # Errors
    /// [`ComponentError::WrongRole`]
    pub fn chat(self: &Arc<Self>) -> Result<ChatModule, ComponentError> {
        match &self.exports {
            Exports::Chat(pre) => Ok(ChatModule::new(Arc::clone(self), pre.clone())),
            _ => Err(self.wrong_role(Role::Chat)),
        }
    }

    /// As a sampler guest.
    ///
    /// # Errors
    /// [`ComponentError::WrongRole`]
    pub fn sampler(self: &Arc<Self>) -> Result<SamplerModule, ComponentError> {
        match &self.exports {
            Exports::Sampler(exports) => Ok(SamplerModule::new(Arc::clone(self), exports.clone())),
            _ => Err(self.wrong_role(Role::Sampler)),
        }
    }

    fn wrong_role(&self, expected: Role) -> ComponentError {
        ComponentError::WrongRole {
            module: self.name.to_string(),
            expected,
            found: self.summary.role,
        }
    }
}

fn exports(pre: InstancePre<State>, summary: &Summary) -> wasmtime::Result<Exports> {
    Ok(match summary.role {
        Role::Graph => Exports::Graph(GraphGuestPre::new(pre)?),
        Role::Chat => Exports::Chat(ChatGuestPre::new(pre)?),
        Role::Sampler => Exports::Sampler(SamplerExports::new(pre, summary.steps)?),
    })
}
