#![allow(clippy::unwrap_used, clippy::panic)]

mod reference;

use super::testing::{Fake, Says, layer, manifest, sha256};
use super::*;
use serde_json::json;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const MODULE: &[u8] = b"\0asm and more";
const LIMIT: u64 = 1000;

async fn pull(config: OciConfig, from: &PinnedReference) -> Result<Vec<u8>, OciError> {
    Registries::new(config).pull(from, LIMIT).await
}

async fn refused(fake: &Fake, from: &PinnedReference) -> OciError {
    pull(fake.config(), from).await.unwrap_err()
}

#[tokio::test]
async fn what_is_pinned_is_pulled() {
    let fake = Fake::start().await;
    let from = fake.keep(MODULE);
    assert_eq!(pull(fake.config(), &from).await.unwrap(), MODULE);
    // At the limit, and with a tag that says nothing.
    let largest = vec![7; 1000];
    let from = fake.keep(&largest).to_string();
    let from = from.replace("@", ":latest@").parse().unwrap();
    assert_eq!(pull(fake.config(), &from).await.unwrap(), largest);
}

#[tokio::test]
async fn with_tls_names_and_certificates_are_checked() {
    let (fake, certificate) = Fake::start_tls().await;
    let from = fake.keep(MODULE);
    let config = OciConfig {
        registries: vec![fake.at.to_string().parse().unwrap()],
        private: vec![fake.at.clone()],
        authorities: vec![certificate],
        ..OciConfig::default()
    };
    assert_eq!(pull(config.clone(), &from).await.unwrap(), MODULE);
    let unknown = OciConfig {
        authorities: Vec::new(),
        ..config.clone()
    };
    let error = pull(unknown, &from).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    // The certificate is not of this name.
    let port = fake.at.port;
    let other: PinnedReference = from
        .to_string()
        .replace("localhost", "127.0.0.1")
        .parse()
        .unwrap();
    let config = OciConfig {
        registries: vec![format!("127.0.0.1:{port}").parse().unwrap()],
        private: vec![HostPort::new("127.0.0.1", port)],
        ..config
    };
    let error = pull(config, &other).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[tokio::test]
async fn only_listed_registries_are_asked() {
    let fake = Fake::start().await;
    let from = fake.keep(MODULE);
    for registries in [vec![], vec!["https://127.0.0.1"], vec!["registry.example"]] {
        let config = OciConfig {
            registries: registries.iter().map(|r| r.parse().unwrap()).collect(),
            ..fake.config()
        };
        let error = pull(config, &from).await.unwrap_err();
        assert!(matches!(error, OciError::Registry { .. }), "{error}");
        assert!(
            error.to_string().contains("--oci-registry 127.0.0.1:"),
            "{error}"
        );
    }
    // Listed with TLS, it is not asked without.
    let config = OciConfig {
        registries: vec![fake.at.to_string().parse().unwrap()],
        ..fake.config()
    };
    assert!(pull(config, &from).await.is_err());
    assert_eq!(fake.asked(), 0);
}

#[tokio::test]
async fn private_addresses_are_refused_whatever_their_name() {
    let fake = Fake::start().await;
    let from = fake.keep(MODULE);
    let port = fake.at.port;
    for host in ["127.0.0.1", "localhost", "2130706433.example"] {
        let listed = HostPort::new(host, port);
        let config = OciConfig {
            registries: vec![format!("http://{listed}").parse().unwrap()],
            private: vec![HostPort::new(host, port + 1), HostPort::new("other", port)],
            ..OciConfig::default()
        };
        let from = from.to_string().replace("127.0.0.1", host).parse().unwrap();
        let error = pull(config, &from).await.unwrap_err();
        match error {
            OciError::Address { what, openable, .. } => {
                assert_eq!((what, openable), ("loopback", true), "{host}");
            }
            OciError::Unreachable { .. } if host.ends_with(".example") => {}
            error => panic!("{host}: {error}"),
        }
    }
    assert_eq!(fake.asked(), 0);
}

/// A listener that nobody should reach.
async fn forbidden() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn nobody_came(listener: &TcpListener) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(listener.poll_accept(&mut context).is_pending());
}

#[tokio::test]
async fn redirects_lead_nowhere_else() {
    let fake = Fake::start().await;
    let (listener, other) = forbidden().await;
    let digest = sha256(MODULE);
    let from = fake.keep(MODULE);
    let plain = |error: &OciError| matches!(error, OciError::Plain { .. });
    let address = |error: &OciError| matches!(error, OciError::Address { .. });
    type Expected = fn(&OciError) -> bool;
    let cases: &[(String, Expected)] = &[
        ("http://169.254.169.254/latest/meta-data/".to_owned(), plain),
        (
            "https://169.254.169.254/latest/meta-data/".to_owned(),
            address,
        ),
        ("https://[fd00:ec2::254]/latest/".to_owned(), address),
        ("https://[::ffff:169.254.169.254]/".to_owned(), address),
        ("https://0.0.0.0/".to_owned(), address),
        (format!("http://{other}/"), plain),
        (format!("https://{other}/"), address),
        (format!("https://localhost:{}/", other.port()), address),
        (
            format!("https://[::ffff:127.0.0.1]:{}/", other.port()),
            address,
        ),
        // The registry itself, by another name than the one that is listed.
        (format!("http://localhost:{}/", fake.at.port), plain),
    ];
    for (to, expected) in cases {
        fake.say_blob(&digest, Says::Redirect(to.clone()));
        let error = refused(&fake, &from).await;
        assert!(expected(&error), "{to}: {error}");
    }
    // So are manifests and tokens.
    let to = format!("https://{other}/");
    let pinned = from.digest().to_owned();
    fake.say_manifest(&pinned, Says::Redirect(to.clone()));
    assert!(address(&refused(&fake, &from).await));
    fake.say("/v2/", Says::Realm(to));
    assert!(address(&refused(&fake, &from).await));
    nobody_came(&listener);
}

#[tokio::test]
async fn redirects_within_the_registry_are_followed() {
    let fake = Fake::start().await;
    let from = fake.keep(MODULE);
    fake.say("/storage", Says::Bytes(MODULE.to_vec()));
    fake.say_blob(&sha256(MODULE), Says::Redirect("/storage".to_owned()));
    assert_eq!(pull(fake.config(), &from).await.unwrap(), MODULE);
    assert_eq!(fake.asked.lock().unwrap().last().unwrap(), "/storage");
}

#[tokio::test]
async fn other_bytes_than_pinned_are_refused() {
    let fake = Fake::start().await;
    let from = fake.keep(MODULE);
    fake.say_blob(&sha256(MODULE), Says::Bytes(b"\0asm and less".to_vec()));
    let error = refused(&fake, &from).await.to_string();
    assert!(error.contains(&sha256(b"\0asm and less")), "{error}");

    let honest = manifest(&[layer(&sha256(MODULE), MODULE.len())]).to_string();
    let other = format!("{honest} ");
    let pinned = from.digest().to_owned();
    fake.say_manifest(&pinned, Says::Bytes(other.clone().into_bytes()));
    let error = refused(&fake, &from).await.to_string();
    assert!(error.contains(&sha256(other.as_bytes())), "{error}");
}

#[tokio::test]
async fn no_more_than_the_limit_comes_in() {
    let fake = Fake::start().await;
    let large = vec![0; 1001];
    let digest = sha256(&large);
    let too_large = |error: &OciError| matches!(error, OciError::TooLarge { limit: LIMIT, .. });
    // The manifest says so: the blob is not asked for.
    let from = fake.keep(&large);
    assert!(too_large(&refused(&fake, &from).await));
    assert!(
        !fake
            .asked
            .lock()
            .unwrap()
            .iter()
            .any(|p| p.contains("blobs"))
    );
    // It lies.
    for size in [0, 10] {
        let from = fake.keep_manifest(&manifest(&[layer(&digest, size)]));
        assert!(too_large(&refused(&fake, &from).await));
    }
    fake.say_blob(&digest, Says::Endless);
    let from = fake.keep_manifest(&manifest(&[layer(&digest, 10)]));
    // Whichever counts first.
    let error = refused(&fake, &from).await;
    assert!(
        too_large(&error) || matches!(error, OciError::Flood { .. }),
        "{error}"
    );
    let pinned = from.digest().to_owned();
    fake.say_manifest(&pinned, Says::Endless);
    let error = refused(&fake, &from).await;
    assert!(
        matches!(
            error,
            OciError::Flood {
                limit: 5_242_880,
                ..
            }
        ),
        "{error}"
    );
    // Nor does an error's text.
    fake.say("/v2/", Says::Endless);
    let error = refused(&fake, &from).await;
    assert!(matches!(error, OciError::Flood { .. }), "{error}");
}

#[tokio::test]
async fn late_is_late() {
    let fake = Fake::start().await;
    let from = fake.keep(MODULE);
    let pinned = from.digest().to_owned();
    let config = OciConfig {
        total: Duration::from_millis(300),
        ..fake.config()
    };
    for stall in [
        |fake: &Fake, _: &str| fake.say_blob(&sha256(MODULE), Says::Nothing),
        |fake: &Fake, pinned: &str| fake.say_manifest(pinned, Says::Nothing),
        |fake: &Fake, _: &str| fake.say("/v2/", Says::Nothing),
    ] {
        stall(&fake, &pinned);
        let error = pull(config.clone(), &from).await.unwrap_err();
        assert!(matches!(error, OciError::Timeout { .. }), "{error}");
    }
}

#[tokio::test]
async fn only_modules_are_modules() {
    let fake = Fake::start().await;
    let digest = sha256(MODULE);
    fake.say_blob(&digest, Says::Bytes(MODULE.to_vec()));
    let one = layer(&digest, MODULE.len());
    let with = |what: &str, value: serde_json::Value| {
        let mut changed = manifest(std::slice::from_ref(&one));
        *changed.pointer_mut(what).unwrap() = value;
        changed
    };
    let image = "application/vnd.oci.image.config.v1+json";
    let tar = "application/vnd.oci.image.layer.v1.tar+gzip";
    let sha512 = format!("sha512:{}", "0".repeat(128));
    for (manifest, words) in [
        (manifest(&[one.clone(), one.clone()]), "2 layers"),
        (manifest(&[]), "0 layers"),
        (with("/config/mediaType", json!(image)), image),
        (with("/layers/0/mediaType", json!(tar)), tar),
        (
            with("/layers/0/digest", json!("../../secret")),
            "../../secret",
        ),
        (with("/layers/0/digest", json!(sha512)), "sha512"),
        (
            json!({"schemaVersion": 2, "manifests": []}),
            "no image manifest",
        ),
        (json!([1]), "no image manifest"),
    ] {
        let from = fake.keep_manifest(&manifest);
        let error = refused(&fake, &from).await;
        assert!(matches!(error, OciError::Artifact { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(
        !fake
            .asked
            .lock()
            .unwrap()
            .iter()
            .any(|p| p.contains("blobs"))
    );
    let missing = fake.reference(&sha256(b"none")).parse().unwrap();
    let error = refused(&fake, &missing).await.to_string();
    assert!(error.contains("404"), "{error}");
}

#[tokio::test]
async fn the_way_out_is_the_pulls_alone() {
    let fake = Fake::start().await;
    let registry = format!("http://{}", fake.at).parse().unwrap();
    let gate = Gate::open(Arc::new(fake.config()), &registry)
        .await
        .unwrap();
    gate.allow(1 << 20);
    let (_, address) = gate
        .proxy()
        .rsplit_once('@')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    for more in ["", "Proxy-Authorization: Basic cHVsbDpndWVzcw==\r\n"] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let request = format!("CONNECT {} HTTP/1.1\r\nHost: x\r\n{more}\r\n", fake.at);
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 407");
    }
    assert_eq!(gate.refused(), None);
    assert_eq!(fake.asked(), 0);
    drop(gate);
    // Aborted tasks go when they are next scheduled.
    while TcpStream::connect(&address).await.is_ok() {
        tokio::task::yield_now().await;
    }
}
