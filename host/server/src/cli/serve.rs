//! `guesthouse serve`.

use super::options::ModelOptions;
use crate::http::{self, ApiKeys, AppState, CorsOrigins, HttpConfig, Served};
use crate::serving::ServedModel;
use anyhow::{Context, Result, bail};
use clap::Args;
use guesthouse_engine::Drain;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

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
    /// Origins of web pages that may use the API; `*` is all.
    #[arg(long, num_args = 1..)]
    allowed_origins: Vec<String>,
    /// Longest time for running requests after a shutdown signal, seconds.
    #[arg(long, default_value_t = 120)]
    drain_timeout: u64,
    /// Largest request body, bytes.
    #[arg(long, default_value_t = 8 << 20)]
    max_body_bytes: usize,
    /// Most alternatives per log-probability.
    #[arg(long, default_value_t = 20)]
    max_logprobs: u32,
}

impl Serve {
    pub(super) fn run(self) -> Result<()> {
        let name = self
            .served_model_name
            .first()
            .map_or_else(|| self.model.name().to_owned(), Clone::clone);
        let loaded = self.model.load(&name)?;
        let mut served = loaded.served;
        if let Some(model) = Arc::get_mut(&mut served) {
            model.aliases = self.served_model_name.iter().skip(1).cloned().collect();
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_stack_size(4 << 20)
            .build()?;
        runtime.block_on(self.serve(served))
    }

    async fn serve(self, model: Arc<ServedModel>) -> Result<()> {
        let address = format!("{}:{}", self.host, self.port);
        let listener = TcpListener::bind(&address)
            .await
            .with_context(|| format!("cannot listen on {address}"))?;
        let config = HttpConfig {
            api_keys: ApiKeys::new(&self.api_key),
            cors: match self.allowed_origins.as_slice() {
                [] => CorsOrigins::None,
                list if list.iter().any(|o| o == "*") => CorsOrigins::Any,
                list => CorsOrigins::These(list.to_vec()),
            },
            drain_timeout: Duration::from_secs(self.drain_timeout),
            max_body_bytes: self.max_body_bytes,
            max_logprobs: self.max_logprobs,
            ..HttpConfig::default()
        };
        let engine = model.engine.clone();
        tracing::info!(model = %model.id, max_model_len = model.max_model_len, "serving on http://{}", listener.local_addr()?);
        let state = AppState::new(vec![model], config);
        let served = tokio::select! {
            served = http::serve(listener, state, signals(1)) => served?,
            () = signals(2) => {
                engine.shutdown(Drain::No);
                bail!("a second signal cut running requests off");
            }
        };
        engine.shutdown(Drain::No);
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
