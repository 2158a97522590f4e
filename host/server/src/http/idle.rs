//! Connections without a request. Where a server has as many connections as it takes, the one that asked for nothing for
//! longest gives way to the next.

use crate::lock::lock;
use axum::body::{Body, HttpBody};
use axum::http::{Request, Response};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use hyper::service::Service;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::sync::Notify;

/// The idle connections of a listener. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Idle(Arc<Mutex<Queue>>);

/// By the time since which they are idle.
#[derive(Default)]
struct Queue {
    next: u64,
    waiting: BTreeMap<u64, Arc<Notify>>,
}

/// A connection's place. Clones are the same.
#[derive(Clone)]
pub(super) struct Seat(Arc<Inner>);

struct Inner {
    idle: Idle,
    leave: Arc<Notify>,
    /// Locked before the queue.
    state: Mutex<State>,
}

struct State {
    /// Whose answers did not end.
    requests: usize,
    /// In the queue, while it is idle and was not asked to leave.
    place: Option<u64>,
}

/// A request whose answer did not end.
struct Asking(Seat);

impl Idle {
    /// A new connection: idle until it asks for something.
    pub(super) fn enter(&self) -> Seat {
        let leave = Arc::default();
        let place = Some(self.push(&leave));
        Seat(Arc::new(Inner {
            idle: self.clone(),
            leave,
            state: Mutex::new(State { requests: 0, place }),
        }))
    }

    /// Asks the connection that is idle for longest to leave, if any is.
    pub(super) fn evict(&self) {
        if let Some((_, leave)) = lock(&self.0).waiting.pop_first() {
            leave.notify_one();
        }
    }

    fn push(&self, leave: &Arc<Notify>) -> u64 {
        let mut queue = lock(&self.0);
        let place = queue.next;
        queue.next += 1;
        queue.waiting.insert(place, Arc::clone(leave));
        place
    }

    fn remove(&self, place: u64) {
        lock(&self.0).waiting.remove(&place);
    }

    fn has(&self, place: u64) -> bool {
        lock(&self.0).waiting.contains_key(&place)
    }
}

impl Seat {
    /// Ready when the connection is asked to leave and is idle.
    pub(super) async fn evicted(&self) {
        loop {
            self.0.leave.notified().await;
            let state = lock(&self.0.state);
            // It may have asked for something meanwhile, and be idle again.
            if state.requests == 0 && !state.place.is_some_and(|place| self.0.idle.has(place)) {
                return;
            }
        }
    }

    fn ask(&self) -> Asking {
        let mut state = lock(&self.0.state);
        state.requests += 1;
        if let Some(place) = state.place.take() {
            self.0.idle.remove(place);
        }
        Asking(self.clone())
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let Seat(inner) = &self.0;
        let mut state = lock(&inner.state);
        state.requests -= 1;
        if state.requests == 0 {
            state.place = Some(inner.idle.push(&inner.leave));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(place) = lock(&self.state).place {
            self.idle.remove(place);
        }
    }
}

/// A connection's service: busy from the head of a request to the end of its answer.
pub(super) struct Seated<S> {
    pub(super) service: S,
    pub(super) seat: Seat,
}

impl<S, B> Service<Request<B>> for Seated<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn call(&self, request: Request<B>) -> Self::Future {
        let asking = self.seat.ask();
        let answer = self.service.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            Ok(answer.map(|body| {
                Body::new(Answer {
                    body,
                    _asking: asking,
                })
            }))
        })
    }
}

/// An answer's body.
struct Answer {
    body: Body,
    _asking: Asking,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
