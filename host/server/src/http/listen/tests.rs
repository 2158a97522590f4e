#![allow(clippy::unwrap_used)]

use super::{Listener as _, PrivateSocket};
use crate::http::{HttpConfig, serve_routes};
use axum::Router;
use axum::routing::get;
use std::os::unix::fs::PermissionsExt;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

#[tokio::test]
async fn a_socket_is_for_its_user_alone_and_answers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let socket = PrivateSocket::bind(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Nothing is left of making it.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

    let routes = Router::new().route("/", get(|| async { "here" }));
    let serving = tokio::spawn(async move {
        let end = std::future::pending();
        serve_routes(socket, routes, &HttpConfig::default(), end).await
    });
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.ends_with("here"), "{answer}");
    serving.abort();
    assert!(serving.await.unwrap_err().is_cancelled());
    assert!(!path.exists());
}

#[tokio::test]
async fn only_a_dead_socket_gives_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let first = PrivateSocket::bind(&path).unwrap();
    let error = PrivateSocket::bind(&path).unwrap_err();
    assert!(error.to_string().contains("listens"), "{error}");
    drop(first);
    assert!(!path.exists());

    // A process that was killed leaves its file.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let second = PrivateSocket::bind(&path).unwrap();
    let (accepted, connected) = tokio::join!(second.accept(), UnixStream::connect(&path));
    assert!(accepted.is_ok() && connected.is_ok());
    // Whoever took its name keeps it.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "mine").unwrap();
    drop(second);
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    let error = PrivateSocket::bind(&path).unwrap_err();
    assert!(error.to_string().contains("no socket"), "{error}");
}
