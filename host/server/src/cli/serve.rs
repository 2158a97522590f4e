//! `guesthouse serve`.

use super::books::Books;
use super::oci::OciOptions;
use super::options::ModelOptions;
use super::state::StateFile;
use super::tls::TlsOptions;
use crate::admin::{self, Admin};
use crate::http::{
    self, Access, AccessLog, ApiKeys, AppState, CorsOrigins, Directory, HttpConfig, Listener,
    PrivateSocket, Served, Tls, Traces, TracesEndpoint,
};
use crate::model::guests::guest_time;
use crate::model::watch::Watcher;
use crate::model::{LoadedModel, ModuleStore};
use crate::modules::ModuleDesk;
use anyhow::{Context, Result, bail};
use axum::Router;
use clap::Args;
use guesthouse_engine::Drain;
use guesthouse_tenants::Registry;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

#[derive(Debug, Args)]
pub(super) struct Serve {
    #[command(flatten)]
    model: ModelOptions,
    /// Address to listen on; only this machine by default.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port; 0 takes a free one.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Name that requests use (default: MODEL as written); more are aliases.
    #[arg(long, num_args = 1..)]
    served_model_name: Vec<String>,
    /// Key that clients must send as `Authorization: Bearer`; may be given several times.
    #[arg(long, env = "GUESTHOUSE_API_KEY", hide_env_values = true)]
    api_key: Vec<String>,
    /// Asks for no keys, even where there are some, and shows all metrics to everyone.
    #[arg(long)]
    no_auth: bool,
    /// Most sequences (prompts times choices) per request.
    #[arg(long, default_value_t = 256)]
    max_sequences: usize,
    /// Origins of web pages that may use the API; `*` is all.
    #[arg(long, num_args = 1..)]
    allowed_origins: Vec<String>,
    /// Longest time for running requests after a shutdown signal, seconds.
    #[arg(long, default_value_t = 120)]
    drain_timeout: u64,
    /// Most connections at once; at that many, those that are idle for longest give way to new ones.
    #[arg(long, default_value_t = HttpConfig::default().max_connections)]
    max_connections: usize,
    /// Largest request body, bytes.
    #[arg(long, default_value_t = 8 << 20)]
    max_body_bytes: usize,
    /// Log each request's body, which holds what clients wrote; without this no log does.
    #[arg(long)]
    enable_log_requests: bool,
    /// Most characters of a body that --enable-log-requests logs.
    #[arg(long, value_name = "CHARACTERS", default_value_t = 4096)]
    max_log_len: usize,
    /// Log no line for each request that was answered.
    #[arg(long, alias = "disable-uvicorn-access-log")]
    disable_access_log: bool,
    /// Most alternatives per log-probability.
    #[arg(long, default_value_t = 20)]
    max_logprobs: u32,
    /// Folder of modules: a .wasm that is there, or appears or changes later, serves under the file's name.
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Key of the admin API, which loads modules and models while others serve; without one there is no such API.
    #[arg(long, env = "GUESTHOUSE_ADMIN_KEY", hide_env_values = true)]
    admin_key: Option<String>,
    /// Address of the admin API: on this machine (port 0 takes a free one), or unix:/path of a socket of mode 0600.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8001", value_parser = admin_address)]
    admin_listen: AdminAddress,
    /// URL of an OpenTelemetry collector (OTLP over HTTP with protobuf) that gets a span of each request, such as
    /// http://127.0.0.1:4318/v1/traces.
    #[arg(
        long,
        value_name = "URL",
        env = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        hide_env_values = true
    )]
    otlp_traces_endpoint: Option<String>,
    #[command(flatten)]
    tls: TlsOptions,
    #[command(flatten)]
    oci: OciOptions,
    #[command(flatten)]
    state: StateFile,
}

/// How it is reached, and where it tells of its requests.
struct Ways {
    tls: Option<Tls>,
    endpoint: Option<TracesEndpoint>,
}

/// Longest time for spans that wait when the server ends.
const LAST_SPANS: Duration = Duration::from_secs(5);

/// Where only this machine, or only its user, reaches the admin API.
#[derive(Clone, Debug)]
enum AdminAddress {
    Loopback(SocketAddr),
    Unix(PathBuf),
}

fn admin_address(text: &str) -> Result<AdminAddress, String> {
    if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
        return Ok(AdminAddress::Unix(path.into()));
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(AdminAddress::Loopback(address)),
        _ => Err(
            "expected a loopback address and port, such as 127.0.0.1:8001, or unix:/path"
                .to_owned(),
        ),
    }
}

impl Serve {
    pub(super) fn run(self) -> Result<()> {
        crate::process::keep_memory_private();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_stack_size(4 << 20)
            .build()?;
        {
            let _within = runtime.enter();
            crate::process::survive_file_limits();
        }
        // Before the model, which may take minutes.
        let tls = self.tls.open()?;
        let endpoint = self.traces_endpoint()?;
        let name = self
            .served_model_name
            .first()
            .map_or_else(|| self.model.name().to_owned(), Clone::clone);
        let tenants = self.state.open_for_serving()?.map(Arc::new);
        let mut modules = self.model.modules()?;
        if let Some(tenants) = &tenants {
            modules = modules.keeping(Arc::clone(tenants), &self.state.modules()?)?;
        }
        if let Some(folder) = &self.modules {
            // The first model may need one of them.
            let watching = Watcher::open(folder, &modules).and_then(Watcher::start);
            watching.with_context(|| format!("cannot watch {}", folder.display()))?;
        }
        let mut loaded = self.model.load(&name, &modules)?;
        if let Some(model) = Arc::get_mut(&mut loaded.served) {
            model.aliases = self.served_model_name.iter().skip(1).cloned().collect();
        }
        let ways = Ways { tls, endpoint };
        runtime.block_on(self.serve(&modules, loaded, tenants, ways))
    }

    async fn serve(
        self,
        modules: &Arc<ModuleStore>,
        loaded: LoadedModel,
        tenants: Option<Arc<Registry>>,
        ways: Ways,
    ) -> Result<()> {
        let Ways { tls, endpoint } = ways;
        let model = Arc::clone(&loaded.served);
        self.announce(tenants.as_deref());
        let address = format!("{}:{}", self.host, self.port);
        let listener = TcpListener::bind(&address)
            .await
            .with_context(|| format!("cannot listen on {address}"))?;
        let traces = endpoint.as_ref().map(Traces::to).transpose()?;
        let config = HttpConfig {
            traces: traces.clone(),
            api_keys: ApiKeys::new(&self.api_key),
            directory: tenants
                .clone()
                .map(|registry| registry as Arc<dyn Directory>),
            admin_keys: ApiKeys::new(&self.admin_key),
            access: if self.no_auth {
                Access::Open
            } else {
                Access::Keys
            },
            cors: match self.allowed_origins.as_slice() {
                [] => CorsOrigins::None,
                list if list.iter().any(|o| o == "*") => CorsOrigins::Any,
                list => CorsOrigins::These(list.to_vec()),
            },
            drain_timeout: Duration::from_secs(self.drain_timeout),
            max_body_bytes: self.max_body_bytes,
            max_connections: crate::process::allow_connections(self.max_connections),
            max_logprobs: self.max_logprobs,
            max_sequences: self.max_sequences,
            access_log: if self.disable_access_log {
                AccessLog::Off
            } else {
                AccessLog::Requests
            },
            log_bodies: self.enable_log_requests.then_some(self.max_log_len),
            ..HttpConfig::default()
        };
        let desk = ModuleDesk::fetching(Arc::clone(modules), self.oci.registries()?);
        let state =
            AppState::new(vec![Arc::clone(&model)], config.clone()).with_modules(desk.clone());
        let runtime = Arc::clone(modules.runtime());
        let state = state.with_guest_clock(Arc::new(move |tenant| guest_time(&runtime, tenant)));
        let books = tenants
            .clone()
            .map(|registry| Books::open(registry, &state, modules));
        let admin = self.admin(desk, &loaded, &state, config, tenants).await?;
        drop(loaded);
        tracing::info!(model = %model.id, max_model_len = model.max_model_len, "serving on {}://{}", scheme(tls.as_ref()), listener.local_addr()?);
        drop(model);
        let served = tokio::select! {
            served = serve_on(listener, tls, state.clone()) => Some(served?),
            () = signals(2) => None,
        };
        // Nothing is loaded any more.
        if let Some(admin) = admin {
            admin.abort();
        }
        for model in state.served() {
            model.engine.shutdown(Drain::No);
        }
        if let Some(books) = books {
            books.close().await;
        }
        if let Some(traces) = traces {
            traces.close(LAST_SPANS).await;
        }
        let Some(served) = served else {
            bail!("a second signal cut running requests off");
        };
        match served {
            Served::Drained => tracing::info!("all requests were answered; bye"),
            Served::CutOff { connections } => tracing::warn!(
                connections,
                "the drain timeout passed; connections were cut off"
            ),
        }
        Ok(())
    }
}

impl Serve {
    /// None where it is absent or, as OpenTelemetry has it for its variables, empty.
    fn traces_endpoint(&self) -> Result<Option<TracesEndpoint>> {
        let given = self.otlp_traces_endpoint.as_deref();
        let given = given.filter(|url| !url.is_empty());
        Ok(given.map(str::parse).transpose()?)
    }

    /// Says whether keys are asked for.
    fn announce(&self, tenants: Option<&Registry>) {
        if self.no_auth {
            tracing::warn!(
                "--no-auth: every route is open to everyone who reaches this server, and /metrics shows all tenants"
            );
            return;
        }
        if let Some(registry) = tenants.filter(|registry| registry.requires_key()) {
            let tenants = registry.numbers().len();
            tracing::info!(tenants, "keys are asked for: one was made before");
        }
    }

    /// Starts the admin API where there is a key for it.
    async fn admin(
        &self,
        desk: ModuleDesk,
        loaded: &LoadedModel,
        state: &AppState,
        config: HttpConfig,
        tenants: Option<Arc<Registry>>,
    ) -> Result<Option<JoinHandle<()>>> {
        let keys = ApiKeys::new(&self.admin_key);
        if keys.is_empty() {
            return Ok(None);
        }
        let base = self.model.options();
        let admin = Admin::new(state.clone(), desk, base, keys, tenants);
        admin.announce(self.model.name(), loaded);
        let routes = admin::router(admin);
        let serving = match &self.admin_listen {
            AdminAddress::Loopback(address) => {
                let listener = TcpListener::bind(address)
                    .await
                    .with_context(|| format!("cannot listen on {address}"))?;
                tracing::info!("admin API on http://{}", listener.local_addr()?);
                tokio::spawn(serve_admin(listener, routes, config))
            }
            AdminAddress::Unix(path) => {
                let listener = PrivateSocket::bind(path)
                    .with_context(|| format!("cannot listen on {}", path.display()))?;
                tracing::info!("admin API on the socket {}", path.display());
                tokio::spawn(serve_admin(listener, routes, config))
            }
        };
        Ok(Some(serving))
    }
}

fn scheme(tls: Option<&Tls>) -> &'static str {
    tls.map_or("http", |_| "https")
}

/// Serves until the first signal.
async fn serve_on(listener: TcpListener, tls: Option<Tls>, state: AppState) -> io::Result<Served> {
    match tls {
        Some(tls) => http::serve(tls.listen(listener), state, signals(1)).await,
        None => http::serve(listener, state, signals(1)).await,
    }
}

async fn serve_admin(listener: impl Listener, routes: Router, config: HttpConfig) {
    let end = std::future::pending();
    if let Err(error) = http::serve_routes(listener, routes, &config, end).await {
        tracing::error!(%error, "the admin API ended");
    }
}

/// Ready at the `count`th SIGINT or SIGTERM from now on.
async fn signals(count: u32) {
    let listen =
        |kind| signal(kind).inspect_err(|error| tracing::warn!(%error, "a signal is not handled"));
    let mut interrupts = listen(SignalKind::interrupt());
    let mut terminations = listen(SignalKind::terminate());
    for _ in 0..count {
        tokio::select! {
            () = next(&mut interrupts) => {}
            () = next(&mut terminations) => {}
        }
    }
}

/// Never ready where the signal cannot be listened for.
async fn next(signals: &mut io::Result<Signal>) {
    match signals {
        Ok(signals) => drop(signals.recv().await),
        Err(_) => std::future::pending().await,
    }
}
