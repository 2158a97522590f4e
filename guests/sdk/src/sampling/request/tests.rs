use super::*;

fn said<T: std::fmt::Debug>(r: Result<T, Error>) -> String {
    match r.unwrap_err() {
        Error::InvalidRequest(m) => m,
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_begin_with_the_field() {
    let r = Request::parse(
        r#"{"t": -1, "k": 1.5, "ids": [1, 9], "words": [[]], "bias": {"x": 1}, "far": {"9": 1}, "s": "a", "big": 1e300}"#,
    )
    .unwrap();
    assert_eq!(
        said(r.number("t", 0.0..=f64::INFINITY)),
        "t: must be at least 0, got -1"
    );
    assert_eq!(
        said(r.number("s", 0.0..=1.0)),
        "s: must be between 0 and 1, got \"a\""
    );
    assert_eq!(
        said(r.number("big", 0.0..=f64::INFINITY)),
        "big: must be at least 0, got 1e+300"
    );
    assert_eq!(
        said(r.whole("k", -1..=10)),
        "k: must be a whole number from -1 to 10, got 1.5"
    );
    assert_eq!(
        said(r.tokens("ids", 9)),
        "ids: must have token ids from 0 to 8, got 9"
    );
    assert_eq!(
        said(r.token_sequences("words", 9)),
        "words: must not have an empty list, got []"
    );
    assert_eq!(
        said(r.token_numbers("bias", 9)),
        "bias: must have token ids from 0 to 8 as keys, got x"
    );
    assert_eq!(
        said(r.token_numbers("far", 9)),
        "far: must have token ids from 0 to 8 as keys, got 9"
    );
    assert!(said(Request::parse("[]")).starts_with("request: "));
}

#[test]
fn null_is_absent() {
    let r = Request::parse(r#"{"t": null}"#).unwrap();
    assert_eq!(r.number("t", 0.0..=1.0).unwrap(), None);
    assert_eq!(r.tokens("t", 1).unwrap(), None);
}
