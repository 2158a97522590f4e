//! The answer's body, watched to its end.

use super::Trace;
use super::report::Report;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The body within; when it is dropped its report is made.
pub(super) struct Followed {
    body: Body,
    trace: Arc<Trace>,
    report: Report,
}

impl Followed {
    pub(super) fn new(body: Body, trace: Arc<Trace>, report: Report) -> Self {
        Self {
            body,
            trace,
            report,
        }
    }
}

impl HttpBody for Followed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let _entered = this.trace.span.enter();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            this.report.complete();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        // A body whose length is known is not asked for its end.
        if self.body.is_end_stream() {
            self.report.complete();
        }
        // What made the body tells its counts as it is dropped, which must be before the report.
        drop(std::mem::take(&mut self.body));
    }
}
