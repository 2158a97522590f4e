//! The client of collectors that are reached by plain HTTP. Unlike the library's it needs no root certificates, which small
//! images lack.

use axum::body::Bytes;
use axum::http::{Request, Response};
use futures::future::BoxFuture;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError};
use std::time::Duration;

/// Longest time for one answer: OTLP's default.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer, bytes.
const MAX_ANSWER: usize = 64 << 10;

#[derive(Clone, Debug)]
pub(super) struct PlainClient(Client<HttpConnector, Full<Bytes>>);

impl PlainClient {
    pub(super) fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }
}

impl HttpClient for PlainClient {
    fn send_bytes<'a, 'answer>(
        &'a self,
        request: Request<Bytes>,
    ) -> BoxFuture<'answer, Result<Response<Bytes>, HttpError>>
    where
        'a: 'answer,
        Self: 'answer,
    {
        let answer = self.0.request(request.map(Full::new));
        let whole = async {
            let (parts, body) = answer.await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
            Ok(Response::from_parts(parts, body))
        };
        Box::pin(async { tokio::time::timeout(TIMEOUT, whole).await? })
    }
}
