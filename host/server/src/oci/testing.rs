//! A registry on loopback.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::{CONFIG, HostPort, LAYER, OciConfig, PinnedReference};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digits = Sha256::digest(bytes);
    let hex: String = digits.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// What a registry answers.
#[derive(Clone)]
pub(crate) enum Says {
    Bytes(Vec<u8>),
    Redirect(String),
    /// To whom to go for a token.
    Realm(String),
    /// Zeros without end.
    Endless,
    /// The head, and then nothing.
    Nothing,
}

/// A registry; ends with the value.
pub(crate) struct Fake {
    pub(crate) at: HostPort,
    /// By path.
    pub(crate) says: Arc<Mutex<HashMap<String, Says>>>,
    /// Paths in the order in which they were asked for.
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
    serving: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

type Shared = (Arc<Mutex<HashMap<String, Says>>>, Arc<Mutex<Vec<String>>>);

async fn answer(State((says, asked)): State<Shared>, uri: Uri) -> Response {
    let path = uri.path().to_owned();
    let said = says.lock().unwrap().get(&path).cloned();
    asked.lock().unwrap().push(path);
    match said {
        None => StatusCode::NOT_FOUND.into_response(),
        Some(Says::Bytes(bytes)) => bytes.into_response(),
        Some(Says::Redirect(to)) => {
            (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response()
        }
        Some(Says::Realm(to)) => {
            let realm = format!(r#"Bearer realm="{to}",service="fake""#);
            (
                StatusCode::UNAUTHORIZED,
                [(header::WWW_AUTHENTICATE, realm)],
            )
                .into_response()
        }
        Some(Says::Endless) => {
            let zeros = vec![0; 1 << 16];
            let zeros = stream::repeat_with(move || Ok::<_, std::io::Error>(zeros.clone()));
            Body::from_stream(zeros).into_response()
        }
        Some(Says::Nothing) => {
            Body::from_stream(stream::pending::<std::io::Result<Vec<u8>>>()).into_response()
        }
    }
}

impl Fake {
    fn routes() -> (Router, Shared) {
        let shared = Shared::default();
        let empty = Says::Bytes(Vec::new());
        shared.0.lock().unwrap().insert("/v2/".to_owned(), empty);
        (
            Router::new().fallback(answer).with_state(shared.clone()),
            shared,
        )
    }

    /// Without TLS.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = HostPort::new("127.0.0.1", listener.local_addr().unwrap().port());
        let (routes, (says, asked)) = Self::routes();
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self {
            at,
            says,
            asked,
            serving,
        }
    }

    /// With TLS, as `localhost`, and its certificate as PEM.
    pub(crate) async fn start_tls() -> (Self, Vec<u8>) {
        let names = vec!["localhost".to_owned()];
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(names).unwrap();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key.into())
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = HostPort::new("localhost", listener.local_addr().unwrap().port());
        let (routes, (says, asked)) = Self::routes();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else {
                    continue;
                };
                let routes = hyper_util::service::TowerToHyperService::new(routes.clone());
                let stream = hyper_util::rt::TokioIo::new(stream);
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(async move { drop(http.serve_connection(stream, routes).await) });
            }
        });
        let fake = Self {
            at,
            says,
            asked,
            serving,
        };
        (fake, cert.pem().into_bytes())
    }

    pub(crate) fn say(&self, path: &str, says: Says) {
        self.says.lock().unwrap().insert(path.to_owned(), says);
    }

    pub(crate) fn say_manifest(&self, digest: &str, says: Says) {
        self.say(&format!("/v2/team/module/manifests/{digest}"), says);
    }

    pub(crate) fn say_blob(&self, digest: &str, says: Says) {
        self.say(&format!("/v2/team/module/blobs/{digest}"), says);
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    pub(crate) fn reference(&self, digest: &str) -> String {
        format!("oci://{}/team/module@{digest}", self.at)
    }

    /// Keeps a manifest; what refers to it.
    pub(crate) fn keep_manifest(&self, manifest: &Value) -> PinnedReference {
        let manifest = manifest.to_string().into_bytes();
        let digest = sha256(&manifest);
        self.say_manifest(&digest, Says::Bytes(manifest));
        self.reference(&digest).parse().unwrap()
    }

    /// Keeps a module in an artifact; what refers to it.
    pub(crate) fn keep(&self, module: &[u8]) -> PinnedReference {
        let digest = sha256(module);
        self.say_blob(&digest, Says::Bytes(module.to_vec()));
        self.keep_manifest(&manifest(&[layer(&digest, module.len())]))
    }

    /// A server that may fetch from here.
    pub(crate) fn config(&self) -> OciConfig {
        OciConfig {
            registries: vec![format!("http://{}", self.at).parse().unwrap()],
            private: vec![self.at.clone()],
            ..OciConfig::default()
        }
    }
}

pub(crate) fn layer(digest: &str, size: usize) -> Value {
    json!({"mediaType": LAYER, "digest": digest, "size": size})
}

pub(crate) fn manifest(layers: &[Value]) -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": CONFIG, "digest": sha256(b"{}"), "size": 2},
        "layers": layers,
    })
}
