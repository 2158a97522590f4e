use super::super::*;

fn parse(text: &str) -> Result<PinnedReference, OciError> {
    text.parse()
}

#[test]
fn references_pin() {
    let digest = format!("sha256:{}", "0a".repeat(32));
    for whole in [
        "ghcr.io/team/module",
        "127.0.0.1:5000/m",
        "localhost/a/b/c",
        "r.example:443/m:v1",
    ] {
        let text = format!("oci://{whole}@{digest}");
        let found = parse(&text).unwrap();
        assert_eq!(found.to_string(), text);
        assert_eq!(found.digest(), digest);
    }
    let upper = digest.to_uppercase().replace("SHA", "sha");
    for (text, words) in [
        ("oci://ghcr.io/team/module".to_owned(), "no digest"),
        ("oci://ghcr.io/team/module:latest".to_owned(), "no digest"),
        (
            format!("oci://ghcr.io/m@sha512:{}", "0".repeat(128)),
            "sha256:",
        ),
        (format!("oci://ghcr.io/m@{upper}"), "sha256"),
        (format!("oci://ghcr.io/m@{}", &digest[..70]), "digest"),
        (format!("oci://team/module@{digest}"), "registry"),
        (format!("oci://module@{digest}"), "registry"),
        (format!("https://ghcr.io/m@{digest}"), "oci://"),
        (format!("oci://user@ghcr.io/m@{digest}"), "oci://"),
        (format!("oci://ghcr.io/../m@{digest}"), "oci://"),
        (String::new(), "oci://"),
    ] {
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn registries_and_hosts_have_ports() {
    let registry = |text: &str| text.parse::<RegistryAddress>().unwrap();
    let ghcr = registry("ghcr.io");
    assert_eq!((ghcr.transport, ghcr.at.port), (Transport::Https, 443));
    assert_eq!(ghcr, registry("https://GHCR.io:443"));
    for (name, is) in [
        ("ghcr.io", true),
        ("ghcr.io:443", true),
        ("GHCR.IO", true),
        ("ghcr.io:80", false),
        ("a.ghcr.io", false),
    ] {
        assert_eq!(ghcr.is(name), is, "{name}");
    }
    let plain = registry("http://127.0.0.1:5000");
    assert!(plain.is("127.0.0.1:5000") && !plain.is("127.0.0.1"));
    assert_eq!(plain.to_string(), "http://127.0.0.1:5000");
    assert_eq!(
        "[::1]:5000".parse::<HostPort>().unwrap(),
        HostPort::new("::1", 5000)
    );
    for wrong in [
        "",
        "a/b",
        "user@host",
        "host:",
        "host:0",
        "host:99999",
        "ftp://host",
        "http://",
        "a b",
    ] {
        assert!(wrong.parse::<RegistryAddress>().is_err(), "{wrong}");
        assert!(wrong.parse::<HostPort>().is_err(), "{wrong}");
    }
}
