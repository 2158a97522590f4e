//! The listener: connections, their limits, and the end.

use super::idle::{Idle, Seated};
use super::listen::Listener;
use super::stall::StallGuard;
use super::{AppState, HttpConfig, router};
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// All requests were answered.
    Drained,
    /// Some were cut off after the drain timeout.
    CutOff {
        /// Their connections.
        connections: usize,
    },
}

/// Accepts connections until `shutdown` is ready, then drains: no connection is accepted, idle ones close, running
/// requests get until the drain timeout. The engine is the caller's to shut down, afterwards.
///
/// # Errors
/// When the listener itself breaks.
pub async fn serve(
    listener: impl Listener,
    state: AppState,
    shutdown: impl Future<Output = ()>,
) -> io::Result<Served> {
    let config = state.config().clone();
    serve_routes(listener, router(state), &config, shutdown).await
}

/// Likewise, with routes of one's own.
///
/// # Errors
/// When the listener itself breaks.
pub async fn serve_routes(
    listener: impl Listener,
    routes: Router,
    config: &HttpConfig,
    shutdown: impl Future<Output = ()>,
) -> io::Result<Served> {
    let service = TowerToHyperService::new(routes);
    let permits = Arc::new(Semaphore::new(config.max_connections));
    let idle = Idle::default();
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    // Dropping the sender ends connections that are still being opened.
    let (open, opening_ends) = watch::channel(());
    let builder = builder(config);
    tokio::pin!(shutdown);
    // The one that waits for a place.
    let mut newcomer = None;
    loop {
        let permit = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept(), if newcomer.is_none() => {
                match accepted {
                    Ok(opening) => newcomer = Some(opening),
                    Err(error) => {
                        idle.evict();
                        refused(&error).await?;
                    }
                }
                continue;
            }
            permit = place(&permits, &idle), if newcomer.is_some() => permit,
        };
        let Some(opening) = newcomer.take() else {
            continue;
        };
        let (limit, write_timeout) = (config.header_timeout, config.write_timeout);
        let builder = builder.clone();
        let (watcher, ends) = (graceful.watcher(), opening_ends.clone());
        let seat = idle.enter();
        let seated = Seated {
            service: service.clone(),
            seat: seat.clone(),
        };
        let served = async move {
            let Some(stream) = opened(opening, limit, ends).await else {
                return;
            };
            let io = TokioIo::new(StallGuard::new(stream, write_timeout));
            let connection = watcher.watch(builder.serve_connection(io, seated));
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
        };
        connections.spawn(async move {
            tokio::select! {
                () = served => {}
                () = seat.evicted() => tracing::debug!("an idle connection gave way"),
            }
            drop(permit);
        });
    }
    drop((listener, open));
    tracing::info!(
        connections = connections.len(),
        "shutting down: waiting for running requests"
    );
    let drained = tokio::time::timeout(config.drain_timeout, graceful.shutdown()).await;
    match drained {
        Ok(()) => Ok(Served::Drained),
        Err(_) => {
            let left = connections.len();
            connections.shutdown().await;
            Ok(Served::CutOff { connections: left })
        }
    }
}

/// The connection, ready for HTTP; none if it came to nothing, took longer than `limit`, or `ends` has lost its sender.
async fn opened<S>(
    opening: impl Future<Output = io::Result<S>>,
    limit: Duration,
    mut ends: watch::Receiver<()>,
) -> Option<S> {
    let opening = tokio::time::timeout(limit, opening);
    tokio::select! {
        // What is open already is served, also when the server is shutting down.
        biased;
        opened = opening => match opened {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a connection could not be opened");
                None
            }
            Err(_) => {
                tracing::debug!("a connection was not opened in time");
                None
            }
        },
        _ = ends.changed() => None,
    }
}

/// How long a connection that was asked to leave may take before the next one is asked.
const LEAVING: Duration = Duration::from_millis(10);

/// A connection's place among those that may be there at once. Where there is none, idle ones make room.
async fn place(permits: &Arc<Semaphore>, idle: &Idle) -> Option<OwnedSemaphorePermit> {
    if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
        return Some(permit);
    }
    loop {
        idle.evict();
        let permit = Arc::clone(permits).acquire_owned();
        if let Ok(permit) = tokio::time::timeout(LEAVING, permit).await {
            // The semaphore is never closed.
            return permit.ok();
        }
    }
}

fn builder(config: &HttpConfig) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        .max_headers(config.max_headers)
        .max_buf_size(config.max_header_bytes.max(8 << 10))
        .half_close(false)
        .keep_alive(true);
    builder
}

/// Waits where the machine is out of sockets; passes over connections that were gone before they were accepted.
async fn refused(error: &io::Error) -> io::Result<()> {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted, InvalidInput,
    };
    match error.kind() {
        ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted => Ok(()),
        InvalidInput => Err(io::Error::new(error.kind(), error.to_string())),
        _ => {
            tracing::error!(%error, "no connection can be accepted; raise the limit of open files (ulimit -n)");
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok(())
        }
    }
}
