//! The engine with everything that guests share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use wasmtime::component::Component;

use crate::cache::{self, Cache, CodeDigests, Fresh};
use crate::compiler::{Compiler, Gate, Job};
use crate::linkers::Linkers;
use crate::slots::Slots;
use crate::store::Budget;
use crate::tenant_threads::TenantThreads;
use crate::ticker::Ticker;
use crate::{ComponentError, Module, ModuleDigest, Origin, Role, RuntimeConfig, engine, precheck};

/// One per process: engine, ticker, linkers, pools, compiled-code cache.
pub struct Runtime {
    pub(crate) engine: wasmtime::Engine,
    pub(crate) ticker: Ticker,
    pub(crate) linkers: Linkers,
    pub(crate) budget: Arc<Budget>,
    pub(crate) config: RuntimeConfig,
    pub(crate) cache: Option<Cache>,
    compiling: Gate,
    /// Started by the first call that needs them.
    tenant_threads: OnceLock<Result<TenantThreads, String>>,
    pub(crate) graph: Slots,
    pub(crate) chat: Slots,
    pub(crate) sampler: Slots,
    pub(crate) step: Slots,
}

impl Runtime {
    /// Starts the engine and its ticker thread.
    ///
    /// # Errors
    /// [`ComponentError::Engine`] when the pools do not fit, [`ComponentError::Cache`] when the folder for compiled
    /// code is not ours alone.
    pub fn new(config: RuntimeConfig) -> Result<Arc<Self>, ComponentError> {
        let engine = engine::engine(&config)?;
        let cache = config
            .cache_dir
            .as_deref()
            .map(|folder| Cache::open(folder, &engine))
            .transpose()?;
        Ok(Arc::new(Self {
            ticker: Ticker::start(engine.clone())?,
            linkers: Linkers::new(&engine)?,
            budget: Arc::new(Budget::new(config.process_memory)),
            cache,
            compiling: Gate::default(),
            tenant_threads: OnceLock::new(),
            graph: Slots::new(Role::Graph, config.pool.graph),
            chat: Slots::new(Role::Chat, config.pool.chat),
            sampler: Slots::new(Role::Sampler, config.pool.sampler),
            step: Slots::new(Role::Sampler, config.pool.step),
            config,
            engine,
        }))
    }

    /// Checks, compiles and links a module. Takes a second of CPU time for a big one that is not in the cache; call it
    /// where blocking is allowed.
    ///
    /// # Errors
    /// Says what was expected of the module and what was found.
    pub fn load(
        self: &Arc<Self>,
        name: &str,
        bytes: &[u8],
        origin: Origin,
    ) -> Result<Arc<Module>, ComponentError> {
        Module::load(self, name, bytes, origin, None).map(Arc::new)
    }

    /// Likewise, with the digest of its compiled code in `digests` and not beside the code: code that is kept is used for
    /// those alone whose records know it.
    ///
    /// # Errors
    /// As [`Runtime::load`].
    pub fn load_recorded(
        self: &Arc<Self>,
        name: &str,
        bytes: &[u8],
        origin: Origin,
        digests: &dyn CodeDigests,
    ) -> Result<Arc<Module>, ComponentError> {
        Module::load(self, name, bytes, origin, Some(digests)).map(Arc::new)
    }

    /// What a module is for, by its outline alone: nothing is compiled.
    ///
    /// # Errors
    /// Says what was expected of the module and what was found.
    pub fn role(&self, name: &str, bytes: &[u8], origin: Origin) -> Result<Role, ComponentError> {
        precheck::check(name, bytes, origin).map(|summary| summary.role)
    }

    /// Hex of the hash of all settings of the engine that compiled code depends on.
    #[must_use]
    pub fn compatibility(&self) -> String {
        cache::compatibility(&self.engine)
    }

    /// Linear memory and tables of a tenant's live guests, bytes.
    #[must_use]
    pub fn memory_of(&self, tenant: &str) -> usize {
        self.budget.account(tenant).used()
    }

    /// Where calls of modules that tenants brought belong.
    ///
    /// # Errors
    /// [`ComponentError::Engine`] when there can be no threads.
    pub fn tenant_threads(&self) -> Result<&TenantThreads, ComponentError> {
        let threads = self.tenant_threads.get_or_init(|| {
            TenantThreads::start()
                .map_err(|error| format!("no threads for tenants' guests: {error}"))
        });
        threads.as_ref().map_err(|reason| ComponentError::Engine {
            reason: reason.clone(),
        })
    }

    /// CPU time that a tenant's guests used since the runtime began, graph guests aside: they are of no tenant. Calls under way
    /// count when they end.
    #[must_use]
    pub fn guest_time(&self, tenant: &str) -> Duration {
        self.budget.account(tenant).time()
    }

    /// Linear memory and tables of all live guests, bytes.
    #[must_use]
    pub fn memory_in_use(&self) -> usize {
        self.budget.used()
    }

    /// Whether compiled code of a module is kept already, for whom `digests` is.
    #[must_use]
    pub fn is_compiled(&self, module: &ModuleDigest, digests: &dyn CodeDigests) -> bool {
        self.cache
            .as_ref()
            .is_some_and(|cache| cache.holds(module, digests))
    }

    /// Removes a module's compiled code from the disk. Modules in use go on.
    pub fn forget_code(&self, digest: &ModuleDigest) {
        if let Some(cache) = &self.cache {
            cache.forget(digest);
        }
    }

    /// Validates what others brought, and compiles: what is part of this binary in this process, the rest as configured.
    pub(crate) fn compile(
        &self,
        name: &str,
        bytes: &[u8],
        origin: Origin,
    ) -> Result<Fresh, ComponentError> {
        if origin != Origin::Embedded {
            precheck::validate(name, bytes, engine::FEATURES)?;
            if let Compiler::Child(compiler) = &self.config.compiler {
                let job = Job {
                    module: name,
                    bytes,
                    clock: self.config.clock,
                    engine: &self.compatibility(),
                };
                return compiler.compile(&self.compiling, &job).map(Fresh::Code);
            }
        }
        let component = Component::from_binary(&self.engine, bytes);
        component
            .map(Fresh::Component)
            .map_err(|error| ComponentError::Compile {
                module: name.into(),
                reason: format!("{error:#}"),
            })
    }
}
