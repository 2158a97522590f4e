#![allow(clippy::unwrap_used)]

use super::{KeyDigest, NewKey, id_of};

#[test]
fn keys_have_the_documented_form() {
    let key = NewKey::generate().unwrap();
    let parts: Vec<&str> = key.reveal().split('_').collect();
    assert_eq!(parts.len(), 3);
    assert_eq!((parts[0], parts[1].len(), parts[2].len()), ("gh", 12, 64));
    assert_eq!(id_of(key.reveal()), Some(key.id()));
    assert_ne!(key.reveal(), NewKey::generate().unwrap().reveal());
    assert!(!format!("{key:?}").contains(parts[2]));
}

#[test]
fn other_texts_have_no_id() {
    let good = format!("gh_{}_{}", "a1".repeat(6), "0f".repeat(32));
    assert_eq!(id_of(&good).unwrap().as_str(), "a1a1a1a1a1a1");
    for bad in [
        String::new(),
        "gh_".to_owned(),
        good.to_uppercase(),
        good.replace('f', "g"),
        good.replace('f', "F"),
        good.replacen("gh_", "gx_", 1),
        good.replacen('1', "_", 1),
        good.replacen('1', "-", 1),
        good.replacen("a1", "é", 1),
        format!("{good}0"),
        format!(" {good}"),
        good[..79].to_owned(),
        "x".repeat(1 << 20),
    ] {
        assert_eq!(id_of(&bad), None, "{:?}", &bad[..bad.len().min(99)]);
    }
}

// FIPS 180-2, the example "abc".
#[test]
fn the_digest_is_sha_256_of_the_whole_text() {
    let hex: String = KeyDigest::of("abc")
        .as_bytes()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert_eq!(
        hex,
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}
