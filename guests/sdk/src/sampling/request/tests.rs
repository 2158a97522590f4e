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

#[test]
fn fields_of_fields_are_named_by_their_path() {
    let r = Request::parse(
        r#"{"w": {"key": -1, "x": {"y": 2}}, "big": 18446744073709551615, "on": true}"#,
    )
    .unwrap();
    let w = r.object("w").unwrap().unwrap();
    assert_eq!(w.bits("key").unwrap(), Some(u64::MAX));
    assert_eq!(r.bits("big").unwrap(), Some(u64::MAX));
    assert_eq!(r.flag("on").unwrap(), Some(true));
    assert_eq!(said(w.flag("key")), "w.key: must be true or false, got -1");
    let x = w.object("x").unwrap().unwrap();
    assert_eq!(
        said(x.above_zero("y", 1.0)),
        "w.x.y: must be between 0 and 1, got 2"
    );
    assert_eq!(said(r.object("on")), "on: must be an object, got true");
    assert!(r.object("none").unwrap().is_none());
}

#[test]
fn arguments_of_the_sampler_stand_before_fields() {
    let r = Request::parse(r#"{"a": 1, "b": 2, "sampler_args": {"b": 3, "c": 4}}"#).unwrap();
    let read = |key| r.whole(key, 0..=9).unwrap();
    assert_eq!(["a", "b", "c"].map(read), [Some(1), Some(3), Some(4)]);
    let wrong = Request::parse(r#"{"sampler_args": 1}"#);
    assert_eq!(said(wrong), "sampler_args: must be an object, got 1");
}
