//! Fixtures: public chat templates, conversations, and what transformers makes of them (see `make_golden.py`).
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use guesthouse_chat_jinja::conversation::{Fields, Turn};
use guesthouse_chat_jinja::error::Error;
use guesthouse_chat_jinja::template::{ChatTemplate, Segment};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// 2025-07-28 09:04:05 UTC, as in `make_golden.py`.
pub const NOW: u64 = 1_753_693_445;

/// The folder of fixtures, or another of the same form.
pub fn folder() -> PathBuf {
    std::env::var_os("GUESTHOUSE_CHAT_FIXTURES").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"),
        PathBuf::from,
    )
}

pub fn read(name: &str) -> Map<String, Value> {
    let text = std::fs::read_to_string(folder().join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A model of the fixtures. Token i of `controls` has id i.
pub struct Model {
    pub name: String,
    pub controls: Vec<String>,
    pub template: ChatTemplate,
}

impl Model {
    pub fn new(name: &str, entry: &Value) -> Self {
        let source =
            std::fs::read_to_string(folder().join(format!("templates/{name}.jinja"))).unwrap();
        let controls: Vec<String> = serde_json::from_value(entry["controls"].clone()).unwrap();
        let tokens: Map<String, Value> = entry
            .as_object()
            .unwrap()
            .iter()
            .filter(|(k, _)| k.ends_with("_token"))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let files = [
            (
                "tokenizer_config.json".to_owned(),
                json!(tokens).to_string(),
            ),
            ("chat_template.jinja".to_owned(), source),
        ];
        let template = ChatTemplate::new(&files, (0..).zip(controls.clone()).collect())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        Self {
            name: name.to_owned(),
            controls,
            template,
        }
    }

    pub fn all() -> Vec<Self> {
        read("models.json")
            .iter()
            .map(|(name, entry)| Self::new(name, entry))
            .collect()
    }

    pub fn render(&mut self, case: &Value) -> Result<Vec<Segment>, Error> {
        let text = |key: &str| case.get(key).map(Value::to_string);
        let (tools, documents, kwargs) = (text("tools"), text("documents"), text("kwargs"));
        let on = |key: &str| case.get(key).and_then(Value::as_bool);
        let turn = match (on("continue"), on("generate")) {
            (Some(true), _) => Turn::Continue,
            (_, Some(false)) => Turn::Closed,
            _ => Turn::Answer,
        };
        let fields = Fields {
            messages: &case["messages"].to_string(),
            tools: tools.as_deref(),
            documents: documents.as_deref(),
            kwargs: kwargs.as_deref(),
            turn,
        };
        Ok(self.template.render(&fields, NOW)?.segments)
    }

    /// The prompt with control tokens spelled out.
    pub fn spell(&self, segments: &[Segment]) -> String {
        segments
            .iter()
            .map(|s| match s {
                Segment::Special(id) => self.controls[*id as usize].as_str(),
                Segment::Text(text) => text,
            })
            .collect()
    }

    /// How often each control token stands in a prompt.
    pub fn count(&self, segments: &[Segment]) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for s in segments {
            if let Segment::Special(id) = s {
                *all.entry(self.controls[*id as usize].clone()).or_default() += 1;
            }
        }
        all
    }
}

/// The text of a prompt, control tokens left out.
pub fn text(segments: &[Segment]) -> String {
    let pieces = segments.iter().map(|s| {
        if let Segment::Text(t) = s {
            t.as_str()
        } else {
            "\u{1}"
        }
    });
    pieces.collect()
}
