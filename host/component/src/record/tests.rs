#![allow(clippy::unwrap_used)]
use super::*;

const HEADER: &str = r#"{"guesthouse-record":1,"request":"r","now":5,"seed":6,"engine":"e","limits":{"chat":{"memory":1,"transfer":2,"handles":3,"resources":4,"log_lines":5,"log_bytes":6,"fuel":4000},"sampler":{"memory":1,"transfer":2,"handles":3,"resources":4,"log_lines":5,"log_bytes":6,"fuel":4000},"step":{"memory":1,"transfer":2,"handles":3,"resources":4,"log_lines":5,"log_bytes":6,"fuel":4000}}}"#;
const CALL: &str = r#"{"call":1,"role":"sampler","module":"m","digest":"d","function":"sampler.plan","in":null,"ok":{},"log":[]}"#;

fn read(lines: &[&str]) -> Result<RecordedRun, RecordError> {
    let mut text = lines.join("\n");
    text.push('\n');
    RecordedRun::read(text.as_bytes())
}

#[track_caller]
fn says(lines: &[&str], expected: &str) {
    let error = read(lines).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_whole_record_is_read() {
    let run = read(&[HEADER, CALL, r#"{"end":1}"#]).unwrap();
    assert_eq!(
        (&*run.request, run.now, run.seed, &*run.engine),
        ("r", 5, 6, "e")
    );
    assert_eq!(run.step.memory, 1);
    assert_eq!(run.step.fuel(), 4000);
    assert_eq!(run.calls.len(), 1);
    assert_eq!(run.calls[0].line, 2);
    assert_eq!(run.calls[0].output, json!({ "ok": {} }));
    assert_eq!(run.broken, None);
    let run = read(&[HEADER, r#"{"end":0,"broken":"full"}"#]).unwrap();
    assert_eq!(run.broken.as_deref(), Some("full"));
}

#[test]
fn broken_files_are_told_with_their_line() {
    let end = r#"{"end":1}"#;
    let error = RecordedRun::read(&b""[..]).unwrap_err();
    assert_eq!(error.to_string(), "record, line 1: the file is empty");
    says(
        &["{}"],
        "line 1: no record: the key guesthouse-record is missing",
    );
    says(
        &[&HEADER.replace("record\":1", "record\":2")],
        "line 1: version 2, this program reads version 1",
    );
    says(&["not json"], "line 1: no JSON: expected ident at line 1");
    says(
        &[&HEADER.replace("\"now\":5", "\"now\":-5")],
        "line 1: now: expected a whole number of at least 0",
    );
    says(
        &[&HEADER.replace("\"memory\":1,", "\"memory\":99999999999,")],
        "line 1: memory: 99999999999, expected at most 4294967296",
    );
    says(
        &[HEADER, CALL],
        "line 2: the record ends after this line, without its end line",
    );
    says(
        &[HEADER, &CALL[..40]],
        "line 2: the line ends too early at byte 41",
    );
    says(
        &[HEADER, &CALL.replace("\"ok\":{},", ""), end],
        "line 2: expected one of the fields",
    );
    says(
        &[HEADER, &CALL.replace("\"in\":null,", ""), end],
        "line 2: the field \"in\" is missing",
    );
    says(
        &[HEADER, &CALL.replace("\"call\":1", "\"call\":2"), end],
        "line 2: call 2, expected call 1",
    );
    says(
        &[HEADER, CALL, r#"{"end":2}"#],
        "line 3: the end line says 2 calls, found 1",
    );
    says(
        &[HEADER, CALL, end, CALL],
        "line 4: more lines after the end line",
    );
    let missing = RecordedRun::open(Path::new("/nonexistent/x")).unwrap_err();
    assert!(missing.to_string().contains("record /nonexistent/x: "));
}

#[test]
fn what_was_encoded_is_decoded() {
    use guesthouse_engine::{Content, Finished, Rows};
    let nan = f32::from_bits(0x7fc0_1234);
    let rows = Rows {
        branches: vec![1, u32::MAX],
        choices: vec![0, 1],
        last: vec![7, 8],
        lengths: vec![3, 3],
        uniform: vec![0.25, 0.75],
        random: vec![],
        content: Content::Candidates {
            n: 2,
            tokens: vec![1, 2, 3, 4],
            logits: vec![0.1, -0.0, f32::NEG_INFINITY, nan],
            log_sum_exp: vec![1.0, 2.0],
            entropy: vec![0.5, f32::MIN_POSITIVE],
        },
        hidden: vec![1.5],
    };
    let text = encode::rows(&rows).to_string();
    let back = decode::rows(&serde_json::from_str(&text).unwrap()).unwrap();
    // NaN is unequal to itself; its bits are not.
    let bits = |rows: &Rows| match &rows.content {
        Content::Candidates { logits, .. } => {
            logits.iter().map(|l| l.to_bits()).collect::<Vec<_>>()
        }
        Content::Logits(_) => Vec::new(),
    };
    assert_eq!(bits(&back), bits(&rows));
    assert_eq!(format!("{back:?}"), format!("{rows:?}"));
    let mut short: Value = serde_json::from_str(&text).unwrap();
    short["content"]["candidates"]["n"] = 3.into();
    assert!(
        decode::rows(&short)
            .unwrap_err()
            .contains("expected 2 rows of 3")
    );
    short["branches"] = json!({ "u32": "AQAA" });
    assert_eq!(
        decode::rows(&short).unwrap_err(),
        "branches: expected {\"u32\": base64}"
    );
    let finished = Finished {
        branches: vec![4],
        scores: vec![-1.5],
        lengths: vec![9],
        wanted: 1,
    };
    assert_eq!(
        decode::finished(&encode::finished(&finished)).unwrap(),
        finished
    );
}
