//! HTTPS as clients meet it.

use super::support::{Server, Setup};
use crate::http::{HttpConfig, Served, Tls, TlsFiles, serve};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

/// A server on a port, with a certificate of its own.
struct Listening {
    address: SocketAddr,
    folder: TempDir,
    root: CertificateDer<'static>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Served>,
    _server: Server,
}

fn certified() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

impl Listening {
    async fn start(change: impl FnOnce(&mut HttpConfig)) -> Self {
        let mut setup = Setup::saying(&["a"]);
        change(&mut setup.config);
        let server = setup.start();
        let folder = tempfile::tempdir().unwrap();
        let pair = certified();
        let files = TlsFiles {
            certificates: folder.path().join("certificate.pem"),
            key: folder.path().join("key.pem"),
        };
        std::fs::write(&files.certificates, pair.cert.pem()).unwrap();
        std::fs::write(&files.key, pair.signing_key.serialize_pem()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = Tls::open(files).unwrap().listen(listener);
        let (stop, stopped) = oneshot::channel();
        let serving = serve(listener, server.state.clone(), async {
            let _ = stopped.await;
        });
        Self {
            address,
            folder,
            root: pair.cert.der().clone(),
            stop,
            task: tokio::spawn(async { serving.await.unwrap() }),
            _server: server,
        }
    }

    /// The answer's head to `GET /health`, from who trusts `root` alone.
    async fn health(&self, root: &CertificateDer<'static>) -> io::Result<String> {
        let mut roots = RootCertStore::empty();
        roots.add(root.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TcpStream::connect(self.address).await?;
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect(name, stream).await?;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        let request = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await?;
        let mut answer = String::new();
        // Fails where the connection ends without TLS' own end.
        stream.read_to_string(&mut answer).await?;
        Ok(answer.lines().next().unwrap().to_owned())
    }

    async fn healthy(&self) {
        assert_eq!(self.health(&self.root).await.unwrap(), "HTTP/1.1 200 OK");
    }
}

async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut bytes).await;
    bytes
}

#[tokio::test]
async fn a_client_that_trusts_the_certificate_is_answered() {
    let listening = Listening::start(|_| ()).await;
    listening.healthy().await;
    let other = certified();
    let error = listening.health(other.cert.der()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    listening.stop.send(()).unwrap();
    assert_eq!(listening.task.await.unwrap(), Served::Drained);
}

#[tokio::test]
async fn plain_http_ends_and_harms_nobody() {
    let listening = Listening::start(|_| ()).await;
    let mut plain = TcpStream::connect(listening.address).await.unwrap();
    let request = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    plain.write_all(request).await.unwrap();
    let answer = read_to_end(&mut plain).await;
    assert!(!answer.starts_with(b"HTTP"), "{}", answer.escape_ascii());
    listening.healthy().await;
}

#[tokio::test]
async fn who_connects_and_says_nothing_delays_nobody() {
    let listening = Listening::start(|config| config.max_connections = 2).await;
    let _silent = TcpStream::connect(listening.address).await.unwrap();
    listening.healthy().await;
    listening.healthy().await;
    // Nor the end of the server.
    listening.stop.send(()).unwrap();
    let end = tokio::time::timeout(Duration::from_secs(20), listening.task);
    assert_eq!(end.await.unwrap().unwrap(), Served::Drained);
}

#[tokio::test]
async fn a_handshake_holds_a_place_and_gives_way() {
    let listening = Listening::start(|config| config.max_connections = 1).await;
    let mut silent = TcpStream::connect(listening.address).await.unwrap();
    listening.healthy().await;
    assert_eq!(read_to_end(&mut silent).await, b"");
}

#[tokio::test]
async fn a_handshake_is_given_up() {
    let timeout = Duration::from_millis(200);
    let listening = Listening::start(|config| config.header_timeout = timeout).await;
    let mut silent = TcpStream::connect(listening.address).await.unwrap();
    assert_eq!(read_to_end(&mut silent).await, b"");
}

#[tokio::test]
async fn a_renewed_certificate_is_taken_up() {
    let listening = Listening::start(|_| ()).await;
    let pair = certified();
    let write = |name: &str, text: String| {
        std::fs::write(listening.folder.path().join(name), text).unwrap();
    };
    // The key alone does not fit: the old pair goes on.
    write("key.pem", pair.signing_key.serialize_pem());
    listening.healthy().await;
    write("certificate.pem", pair.cert.pem());
    for _ in 0..600 {
        if listening.health(pair.cert.der()).await.is_ok() {
            assert!(listening.health(&listening.root).await.is_err());
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it was not taken up");
}
