//! `guesthouse generate`: offline batches.
//!
//! Each input line is a JSON string (a prompt), an object with the fields of `/v1/completions` or (with `messages`) of
//! `/v1/chat/completions`, or a line of an OpenAI batch file (`custom_id`, `url`, `body`). Each output line is
//! `{"index", "custom_id"?, "response" | "error"}`, in input order.

use super::options::ModelOptions;
use crate::llm::{Llm, LlmError, SamplingParams};
use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(super) struct Generate {
    #[command(flatten)]
    model: ModelOptions,
    /// Continue this text; may be given several times.
    #[arg(long)]
    prompt: Vec<String>,
    /// Read JSON lines from here; `-` is standard input.
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Write JSON lines here instead of to standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Most tokens of an answer, where a line does not say.
    #[arg(long)]
    max_tokens: Option<u32>,
    /// 0 is greedy; where a line does not say.
    #[arg(long)]
    temperature: Option<f64>,
    /// Nucleus, where a line does not say.
    #[arg(long)]
    top_p: Option<f64>,
    /// Choices per prompt, where a line does not say.
    #[arg(long)]
    n: Option<u32>,
    /// Makes answers repeatable, where a line does not say.
    #[arg(long)]
    seed: Option<u64>,
}

/// One line of input.
struct Line {
    custom_id: Option<Value>,
    path: String,
    body: Map<String, Value>,
}

impl Generate {
    pub(super) fn run(self) -> Result<()> {
        let lines = self.lines()?;
        if lines.is_empty() {
            bail!("nothing to do: give --prompt or --input");
        }
        let mut output: Box<dyn Write> = match &self.output {
            Some(path) => Box::new(BufWriter::new(
                std::fs::File::create(path)
                    .with_context(|| format!("cannot write {}", path.display()))?,
            )),
            None => Box::new(std::io::stdout().lock()),
        };
        let local = self.model.local()?;
        let llm = Llm::start(
            self.model.name(),
            &local,
            &self.model.modules()?,
            &self.model.options(),
        )?;
        let bar = ProgressBar::new(lines.len() as u64).with_style(ProgressStyle::with_template(
            "{bar:30} {pos}/{len} prompts, {eta} left",
        )?);
        let ids: Vec<_> = lines.iter().map(|l| l.custom_id.clone()).collect();
        let requests = lines
            .into_iter()
            .map(|l| (l.path, Value::Object(l.body)))
            .collect();
        let (mut waiting, mut next, mut failed, mut written) = (BTreeMap::new(), 0, 0, Ok(()));
        llm.requests(requests, |i, answer| {
            bar.inc(1);
            failed += usize::from(answer.is_err());
            waiting.insert(i, answer);
            while let Some(answer) = waiting.remove(&next) {
                if written.is_ok() {
                    written = writeln!(output, "{}", line(next, ids[next].as_ref(), answer))
                        .and_then(|()| output.flush());
                }
                next += 1;
            }
        });
        bar.finish_and_clear();
        written.context("cannot write the output")?;
        if failed > 0 {
            bail!("{failed} requests failed; their lines say why");
        }
        Ok(())
    }

    fn lines(&self) -> Result<Vec<Line>> {
        let mut lines: Vec<Line> = Vec::new();
        for prompt in &self.prompt {
            lines.push(self.line(json!(prompt)).map_err(anyhow::Error::msg)?);
        }
        if let Some(path) = &self.input {
            let reader: Box<dyn BufRead> = if path == Path::new("-") {
                Box::new(std::io::stdin().lock())
            } else {
                Box::new(BufReader::new(
                    std::fs::File::open(path)
                        .with_context(|| format!("cannot read {}", path.display()))?,
                ))
            };
            for (number, text) in reader.lines().enumerate() {
                let text = text?;
                if text.trim().is_empty() {
                    continue;
                }
                let value = serde_json::from_str(&text).map_err(|e| e.to_string());
                let line = value.and_then(|v| self.line(v));
                lines.push(
                    line.map_err(|e| {
                        anyhow::anyhow!("{} line {}: {e}", path.display(), number + 1)
                    })?,
                );
            }
        }
        Ok(lines)
    }

    fn line(&self, value: Value) -> Result<Line, String> {
        let mut object = match value {
            Value::String(prompt) => Map::from_iter([("prompt".to_owned(), Value::String(prompt))]),
            Value::Object(object) => object,
            _ => return Err("expected a JSON string or object".into()),
        };
        let custom_id = object.remove("custom_id");
        let mut path = None;
        if let Some(Value::Object(body)) = object.remove("body") {
            path = object.get("url").and_then(Value::as_str).map(str::to_owned);
            object = body;
        }
        let chat = object.contains_key("messages");
        let path = path.unwrap_or_else(|| {
            if chat {
                "/v1/chat/completions".into()
            } else {
                "/v1/completions".into()
            }
        });
        if path != "/v1/completions" && path != "/v1/chat/completions" {
            return Err(format!(
                "url {path} is not one of /v1/completions and /v1/chat/completions"
            ));
        }
        object.remove("stream");
        object.remove("model");
        let defaults = SamplingParams {
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            n: self.n,
            seed: self.seed,
            ..SamplingParams::default()
        };
        if let Value::Object(defaults) = json!(defaults) {
            for (key, value) in defaults {
                object.entry(key).or_insert(value);
            }
        }
        Ok(Line {
            custom_id,
            path,
            body: object,
        })
    }
}

fn line(index: usize, custom_id: Option<&Value>, answer: Result<Value, LlmError>) -> Value {
    let mut line = json!({ "index": index });
    if let Some(id) = custom_id {
        line["custom_id"] = id.clone();
    }
    match answer {
        Ok(response) => line["response"] = response,
        Err(LlmError::Request { message, param }) => {
            line["error"] = json!({ "message": message, "param": param });
        }
        Err(other) => line["error"] = json!({ "message": other.to_string(), "param": null }),
    }
    line
}
