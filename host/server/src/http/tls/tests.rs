#![allow(clippy::unwrap_used)]
//! Files in `testdata` are openssl's (`req -x509`, `rsa -traditional`, `ecparam -genkey`); nothing trusts them.

use super::renew::{Found, Renewing};
use super::{Tls, TlsFiles};
use rcgen::generate_simple_self_signed;
use std::path::{Path, PathBuf};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http/tls/testdata");

fn data(certificates: &str, key: &str) -> TlsFiles {
    let folder = Path::new(DATA);
    TlsFiles {
        certificates: folder.join(certificates),
        key: folder.join(key),
    }
}

#[test]
fn keys_are_read_in_all_forms() {
    Tls::open(data("rsa-certificate.pem", "rsa-pkcs1.pem")).unwrap();
    // It has a section of parameters before the key.
    Tls::open(data("ec-certificate.pem", "ec-sec1.pem")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let pair = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let both = folder.path().join("both.pem");
    let (certificate, key) = (pair.cert.pem(), pair.signing_key.serialize_pem());
    assert!(key.starts_with("-----BEGIN PRIVATE KEY-----"));
    std::fs::write(&both, format!("{key}\n{certificate}{certificate}")).unwrap();
    let files = TlsFiles {
        certificates: both.clone(),
        key: both,
    };
    Tls::open(files).unwrap();
}

#[test]
fn what_does_not_do_names_the_file_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let TlsFiles { certificates, key } = data("ec-certificate.pem", "ec-sec1.pem");
    let secret = std::fs::read_to_string(&key).unwrap();
    let begin = "-----BEGIN CERTIFICATE-----\n";
    let end = "-----END CERTIFICATE-----\n";
    let bad_certificates = [
        (folder.path().join("none"), "cannot read"),
        (folder.path().to_owned(), "cannot read"),
        (put("empty", b""), "holds no certificate"),
        (key.clone(), "holds no certificate"),
        (put("open", begin.as_bytes()), "does not end"),
        (
            put("no64", format!("{begin}!!\n{end}").as_bytes()),
            "not base64",
        ),
        (
            put("noder", format!("{begin}AAAA\n{end}").as_bytes()),
            "expected an X.509",
        ),
        (put("big", &vec![b' '; (1 << 20) + 1]), "larger than"),
        (
            data("rsa-certificate.pem", "").certificates,
            "were made together",
        ),
    ];
    let bad_keys = [
        (folder.path().join("none"), "cannot read"),
        (certificates.clone(), "holds no private key"),
        (data("", "rsa-encrypted.pem").key, "openssl pkey"),
        (data("", "rsa-encrypted1.pem").key, "openssl pkey"),
        (data("", "rsa-pkcs1.pem").key, "were made together"),
        (
            put("cut", &secret.as_bytes()[..secret.len() - 20]),
            "does not end",
        ),
    ];
    let bad_certificates = bad_certificates.map(|(path, what)| {
        let files = TlsFiles {
            certificates: path.clone(),
            key: key.clone(),
        };
        (files, path, what)
    });
    let bad_keys = bad_keys.map(|(path, what)| {
        let files = TlsFiles {
            certificates: certificates.clone(),
            key: path.clone(),
        };
        (files, path, what)
    });
    for (files, path, what) in bad_certificates.into_iter().chain(bad_keys) {
        let error = Tls::open(files).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        let leaks = secret.lines().filter(|line| !line.starts_with('-'));
        assert!(
            !leaks.into_iter().any(|line| error.contains(line)),
            "{error}"
        );
    }
}

#[test]
fn a_broken_pair_is_told_once_and_a_fitting_one_serves() {
    let folder = tempfile::tempdir().unwrap();
    let files = TlsFiles {
        certificates: folder.path().join("certificate.pem"),
        key: folder.path().join("key.pem"),
    };
    let copy = |from: &TlsFiles| {
        std::fs::copy(&from.certificates, &files.certificates).unwrap();
        std::fs::copy(&from.key, &files.key).unwrap();
    };
    let rsa = data("rsa-certificate.pem", "rsa-pkcs1.pem");
    let ec = data("ec-certificate.pem", "ec-sec1.pem");
    copy(&rsa);
    let mut renewing = Renewing::open(files.clone()).unwrap();
    assert!(matches!(renewing.look(), Found::Nothing));
    // A look between the two copies.
    std::fs::copy(&ec.certificates, &files.certificates).unwrap();
    assert!(matches!(renewing.look(), Found::Nothing));
    copy(&ec);
    assert!(matches!(renewing.look(), Found::New));
    assert!(matches!(renewing.look(), Found::Nothing));
    // Trouble that stays.
    std::fs::remove_file(&files.key).unwrap();
    assert!(matches!(renewing.look(), Found::Nothing));
    assert!(matches!(renewing.look(), Found::Broken(_)));
    assert!(matches!(renewing.look(), Found::Nothing));
    copy(&ec);
    assert!(matches!(renewing.look(), Found::Nothing));
    std::fs::remove_file(&files.key).unwrap();
    assert!(matches!(renewing.look(), Found::Nothing));
    assert!(matches!(renewing.look(), Found::Broken(_)));
    copy(&rsa);
    assert!(matches!(renewing.look(), Found::New));
}
