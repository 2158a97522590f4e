#![allow(clippy::unwrap_used)]

use super::*;

fn headers(id: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(HEADER, HeaderValue::from_bytes(id.as_bytes()).unwrap());
    headers
}

#[test]
fn a_clients_name_is_kept_if_it_is_allowed() {
    for id in ["a", "A-b_c.9", &"x".repeat(128)] {
        assert_eq!(RequestId::of(&headers(id)).as_str(), id);
    }
}

#[test]
fn other_names_are_passed_over() {
    for id in ["", "a b", "a/b", "é", "a\tb", "{\"a\":1}", &"x".repeat(129)] {
        let made = RequestId::of(&headers(id));
        assert_ne!(made.as_str(), id);
        assert!(allowed(made.as_str()) && made.as_str().starts_with("req-"));
    }
    let (one, two) = (
        RequestId::of(&HeaderMap::new()),
        RequestId::of(&HeaderMap::new()),
    );
    assert_ne!(one, two);
}
