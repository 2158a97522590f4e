//! Requests recorded and run again.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use guesthouse_component::{
    CallContext, Clock, Conversation, Origin, PoolSizes, RecordError, RecordedRun, Recorder, Role,
    Runtime, RuntimeConfig, builtin,
};
use guesthouse_engine::Finished;

use crate::common::{bytes, context};
use crate::stepping::{candidates, facts, whole};

static RUNTIME: LazyLock<Arc<Runtime>> = LazyLock::new(|| {
    let pool = PoolSizes {
        graph: 1,
        chat: 4,
        sampler: 8,
        step: 8,
    };
    Runtime::new(RuntimeConfig {
        pool,
        clock: Clock::Fuel,
        ..RuntimeConfig::default()
    })
    .unwrap()
});

fn recorded(file: &Path) -> CallContext {
    let context = context();
    let recorder = Recorder::create(file, &RUNTIME, &context).unwrap();
    CallContext {
        recorder: Some(recorder),
        ..context
    }
}

/// A sampler of the testing guest that steps twice.
fn record_steps(file: &Path, request: &str) {
    let module = RUNTIME
        .load("hostile_sampler", &bytes("hostile_sampler"), Origin::File)
        .unwrap();
    let sampler = module.sampler().unwrap();
    let (_, stepping) = sampler.begin(request, &facts(), recorded(file)).unwrap();
    let mut stepping = stepping.unwrap();
    for count in [2, 3] {
        let rows = if request.starts_with("logits") {
            whole(count)
        } else {
            candidates(count)
        };
        // Failures are recorded too.
        drop(stepping.step(rows));
    }
    if request.starts_with("search") {
        let finished = Finished {
            branches: vec![1, 2, 3],
            scores: vec![0.5, f32::NEG_INFINITY, -0.0],
            lengths: vec![1, 1, 1],
            wanted: 2,
        };
        drop(stepping.select(finished));
    }
}

#[test]
fn the_standard_sampler_and_a_chat_guest_replay_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.jsonl");
    let context = recorded(&file);
    let load = |role, name| {
        let guest = builtin::find(role, name).unwrap();
        RUNTIME.load(name, guest.bytes, Origin::Embedded).unwrap()
    };
    let chat = load(Role::Chat, "jinja").chat().unwrap();
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let config = serde_json::json!({ "chat_template": template }).to_string();
    let files = vec![("tokenizer_config.json".to_owned(), config)];
    let conversation = Conversation {
        messages: r#"[{"role":"user","content":"hello"}]"#.into(),
        add_generation_prompt: true,
        now: 1_700_000_000,
        ..Conversation::default()
    };
    let session = chat.open(files, vec![(1, "<s>".into())], context.clone());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut session = session.await.unwrap();
        session.render(conversation.clone()).await.unwrap();
        session.stop_strings().await.unwrap();
        session.visible_controls().await.unwrap();
        let parser = session.parser(conversation).await.unwrap();
        session.push(parser, "wor").await.unwrap();
        session.push(parser, "ld").await.unwrap();
        session.finish(parser).await.unwrap();
    });
    let sampler = load(Role::Sampler, "standard").sampler().unwrap();
    let request = r#"{"temperature":0.7,"top_p":0.9,"seed":3}"#;
    sampler.plan(request, &facts(), context).unwrap();

    let run = RecordedRun::open(&file).unwrap();
    let functions: Vec<&str> = run.calls.iter().map(|call| &*call.function).collect();
    assert_eq!(
        functions,
        [
            "template.create",
            "template.render",
            "template.stop-strings",
            "template.visible-controls",
            "template.parser",
            "parser.push",
            "parser.push",
            "parser.finish",
            "sampler.create",
            "sampler.plan",
        ]
    );
    assert_eq!(run.engine, RUNTIME.compatibility());
    let rendered = &run.calls[1].output["ok"][0]["text"];
    assert_eq!(rendered, "<user>hello");
    let report = run.replay(None).unwrap();
    assert_eq!(report.difference, None);
    assert_eq!((report.calls, report.skipped), (10, 0));
    assert_eq!(report.engine, run.engine);
}

#[test]
fn steps_replay_whatever_came_of_them() {
    let folder = tempfile::tempdir().unwrap();
    for (i, (request, last)) in [
        ("step:chatty", "ok"),
        ("search:fork", "ok"),
        ("logits:", "ok"),
        ("step:loop", "error"),
        ("step:panic", "error"),
        ("step:nan-score", "error"),
    ]
    .into_iter()
    .enumerate()
    {
        let file = folder.path().join(i.to_string());
        record_steps(&file, request);
        let run = RecordedRun::open(&file).unwrap();
        assert_eq!(run.broken, None);
        assert!(run.calls[2].output.get(last).is_some(), "{request}");
        if request == "step:loop" {
            let label = &run.calls[2].output["error"]["label"];
            assert_eq!(label, "limit_instructions");
        }
        let same = bytes("hostile_sampler");
        let report = run.replay(Some(("hostile_sampler", &same))).unwrap();
        assert_eq!(report.difference, None, "{request}");
        assert_eq!(report.calls, run.calls.len() as u64);
    }
}

#[test]
fn a_changed_module_is_told_by_its_first_difference() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r");
    record_steps(&file, "step:chatty");
    let run = RecordedRun::open(&file).unwrap();
    let mut changed = bytes("hostile_sampler");
    let at = changed.windows(6).position(|w| w == b"chose ").unwrap();
    changed[at..at + 6].copy_from_slice(b"picks ");
    let report = run.replay(Some(("hostile_sampler", &changed))).unwrap();
    let difference = report.difference.unwrap();
    assert_eq!(
        difference.to_string(),
        "call 3 (line 4), stepping.step of module hostile_sampler: log[0] was \"info: chose [10, 14]\", is \"info: picks [10, 14]\""
    );
    let standard = builtin::find(Role::Sampler, "standard").unwrap().bytes;
    let report = run.replay(Some(("standard", standard))).unwrap();
    let difference = report.difference.unwrap();
    assert_eq!((difference.call, &*difference.field), (1, "ok"));
    assert!(difference.got.contains("nothing"), "{difference}");
}

#[test]
fn a_module_that_is_not_at_hand_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r");
    record_steps(&file, "step:");
    let run = RecordedRun::open(&file).unwrap();
    let error = run.replay(None).unwrap_err();
    assert!(matches!(error, RecordError::ModuleMissing { line: 2, .. }));
    assert!(
        error
            .to_string()
            .contains("module hostile_sampler (sha256 ")
    );
    // A chat guest stands in for no sampler.
    let jinja = builtin::find(Role::Chat, "jinja").unwrap().bytes;
    let report = run.replay(Some(("jinja", jinja))).unwrap();
    assert_eq!((report.calls, report.skipped), (0, run.calls.len() as u64));
}

#[test]
fn files_that_were_cut_off_say_where() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r");
    record_steps(&file, "step:");
    let text = std::fs::read_to_string(&file).unwrap();
    let whole = text.len();
    std::fs::write(&file, &text[..whole - 40]).unwrap();
    let error = RecordedRun::open(&file).unwrap_err().to_string();
    assert!(
        error.starts_with("record, line 5: the line ends too early"),
        "{error}"
    );
    let exists = Recorder::create(&file, &RUNTIME, &context());
    assert_eq!(
        exists.unwrap_err().kind(),
        std::io::ErrorKind::AlreadyExists
    );
}
