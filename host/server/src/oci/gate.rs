//! The only way out of a pull: an HTTP proxy on loopback, for as long as the pull takes and for it alone.
//!
//! It looks names up itself and connects to exactly the addresses that it has checked. So what a registry's names mean at
//! another moment, where it redirects to, and where it sends for tokens are all checked in one place.

use super::address::{Reach, reach};
use super::{HostPort, OciConfig, OciError, RegistryAddress, Transport, error};
use crate::lock::lock;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{Either, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Answers of the registry, or none of ours.
type Body = Either<Incoming, Empty<Bytes>>;

/// Dropping it ends all of its connections.
pub(super) struct Gate {
    state: Arc<State>,
    proxy: String,
}

struct State {
    config: Arc<OciConfig>,
    /// Where connections without TLS may go.
    plain: Option<HostPort>,
    /// What the pull's client shows, and nobody else knows.
    credential: HeaderValue,
    /// Bytes that may still come in.
    allowance: AtomicU64,
    /// What was allowed last.
    allowed: AtomicU64,
    /// The first refusal.
    refused: Mutex<Option<OciError>>,
    /// Where somebody without the credential would go: the client drops it when it is sent to another host without TLS.
    strayed: Mutex<Option<OciError>>,
    tasks: Mutex<JoinSet<()>>,
}

impl Drop for Gate {
    fn drop(&mut self) {
        lock(&self.state.tasks).abort_all();
    }
}

impl Gate {
    /// For a pull from this registry. Nothing comes in before [`Gate::allow`].
    pub(super) async fn open(
        config: Arc<OciConfig>,
        registry: &RegistryAddress,
    ) -> Result<Self, OciError> {
        let failed = |error: &dyn std::error::Error| OciError::Client(error.to_string());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .map_err(|error| failed(&error))?;
        let address = listener.local_addr().map_err(|error| failed(&error))?;
        let secret: u128 = rand::random();
        let proxy = format!("http://pull:{secret:032x}@{address}");
        let uri = Uri::from_static("https://registry.invalid");
        let matcher = Matcher::builder().all(proxy.as_str()).build();
        let credential = matcher
            .intercept(&uri)
            .and_then(|way| way.basic_auth().cloned())
            .ok_or_else(|| OciError::Client("no credential for the way out".to_owned()))?;
        let state = Arc::new(State {
            config,
            plain: (registry.transport == Transport::Plain).then(|| registry.at.clone()),
            credential,
            allowance: AtomicU64::new(0),
            allowed: AtomicU64::new(0),
            refused: Mutex::default(),
            strayed: Mutex::default(),
            tasks: Mutex::default(),
        });
        let accepting = Arc::clone(&state);
        state.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&accepting);
                accepting.spawn(serve(state, stream));
            }
        });
        Ok(Self { state, proxy })
    }

    /// Its address with the credential, for the pull's client alone.
    pub(super) fn proxy(&self) -> String {
        self.proxy.clone()
    }

    /// From now on so many bytes may come in, over all connections.
    pub(super) fn allow(&self, bytes: u64) {
        self.state.allowed.store(bytes, Ordering::Relaxed);
        self.state.allowance.store(bytes, Ordering::Relaxed);
    }

    /// What it refused first.
    pub(super) fn refused(&self) -> Option<OciError> {
        lock(&self.state.refused).clone()
    }

    /// Why a pull may have failed that was not refused. Anybody on this machine can bring it about, so it makes none fail.
    pub(super) fn strayed(&self) -> Option<OciError> {
        lock(&self.state.strayed).clone()
    }
}

async fn serve(state: Arc<State>, stream: TcpStream) {
    let service = service_fn(move |request| {
        let state = Arc::clone(&state);
        async move { Ok::<_, Infallible>(state.answer(request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a registry's connection ended");
    }
}

impl State {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    fn refuse(&self, error: OciError) {
        lock(&self.refused).get_or_insert(error);
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let shown = request.headers().get(header::PROXY_AUTHORIZATION);
        if shown != Some(&self.credential) {
            if let Err(error) = self.plain(request.uri()) {
                lock(&self.strayed).get_or_insert(error);
            }
            return status(StatusCode::PROXY_AUTHENTICATION_REQUIRED);
        }
        let done = if request.method() == Method::CONNECT {
            Arc::clone(&self).tunnel(request).await
        } else {
            Arc::clone(&self).forward(request).await
        };
        done.unwrap_or_else(|error| {
            self.refuse(error);
            status(StatusCode::FORBIDDEN)
        })
    }

    async fn tunnel(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, OciError> {
        let authority = request.uri().authority();
        let Some((host, port)) = authority.and_then(|a| Some((a.host(), a.port_u16()?))) else {
            return Ok(status(StatusCode::BAD_REQUEST));
        };
        let mut remote = Arc::clone(&self).connect(HostPort::new(host, port)).await?;
        self.spawn(async move {
            if let Ok(client) = hyper::upgrade::on(request).await {
                let mut client = TokioIo::new(client);
                // Either end may go at any time.
                drop(tokio::io::copy_bidirectional(&mut client, &mut remote).await);
            }
        });
        Ok(status(StatusCode::OK))
    }

    /// Where a URL without TLS leads, if connections may go there.
    fn plain(&self, uri: &Uri) -> Result<HostPort, OciError> {
        let to = HostPort::new(uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(80));
        if self.plain.as_ref() == Some(&to) {
            return Ok(to);
        }
        Err(OciError::Plain {
            host: to.host,
            port: to.port,
        })
    }

    async fn forward(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, OciError> {
        let to = self.plain(request.uri())?;
        let Some(path) = request.uri().path_and_query().cloned() else {
            return Ok(status(StatusCode::BAD_REQUEST));
        };
        *request.uri_mut() = Uri::from(path);
        request.headers_mut().remove(header::PROXY_AUTHORIZATION);
        let failed = |error: hyper::Error| OciError::Unreachable {
            host: to.host.clone(),
            port: to.port,
            what: error::chain(&error),
        };
        let remote = Arc::clone(&self).connect(to.clone()).await?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(remote));
        let (mut sender, connection) = handshake.await.map_err(failed)?;
        self.spawn(async move { drop(connection.await) });
        let response = sender.send_request(request).await.map_err(failed)?;
        Ok(response.map(Either::Left))
    }

    /// Looks the name up and connects to an address that was checked.
    async fn connect(self: Arc<Self>, to: HostPort) -> Result<Metered, OciError> {
        let unreachable = |what: String| OciError::Unreachable {
            host: to.host.clone(),
            port: to.port,
            what,
        };
        let late = |_| unreachable("it took too long".to_owned());
        let time = self.config.connect;
        let found = tokio::net::lookup_host((to.host.as_str(), to.port));
        let found = tokio::time::timeout(time, found).await.map_err(late)?;
        let found: Vec<SocketAddr> = found
            .map_err(|error| unreachable(error.to_string()))?
            .collect();
        let mut last = unreachable("its name has no address".to_owned());
        for address in found {
            if let Err(error) = may_connect(&to, address.ip(), &self.config.private) {
                last = error;
                continue;
            }
            match tokio::time::timeout(time, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    return Ok(Metered {
                        stream,
                        host: to.host.clone(),
                        state: self,
                    });
                }
                Ok(Err(error)) => last = unreachable(error.to_string()),
                Err(elapsed) => last = late(elapsed),
            }
        }
        Err(last)
    }
}

/// `private` are those whose addresses may be private.
fn may_connect(to: &HostPort, address: IpAddr, private: &[HostPort]) -> Result<(), OciError> {
    let (what, openable) = match reach(address) {
        Reach::Public => return Ok(()),
        Reach::Private(_) if private.contains(to) => return Ok(()),
        Reach::Private(what) => (what, true),
        Reach::Never(what) => (what, false),
    };
    Err(OciError::Address {
        host: to.host.clone(),
        port: to.port,
        address,
        what,
        openable,
    })
}

fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Either::Right(Empty::new()));
    *response.status_mut() = status;
    response
}

/// A connection that brings in no more than is allowed.
struct Metered {
    stream: TcpStream,
    host: String,
    state: Arc<State>,
}

impl Metered {
    fn spend(&self, bytes: usize) -> io::Result<()> {
        let allowance = &self.state.allowance;
        let spent = allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(bytes as u64)
        });
        if spent.is_ok() {
            return Ok(());
        }
        let limit = self.state.allowed.load(Ordering::Relaxed);
        self.state.refuse(OciError::Flood {
            host: self.host.clone(),
            limit,
        });
        Err(io::Error::other("too many bytes"))
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        Poll::Ready(self.spend(into.filled().len() - before))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
