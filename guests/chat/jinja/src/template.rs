//! A model's chat template: made from its files, probed, rendered into segments.

use crate::answer::{AnswerFormat, Start};
use crate::controls::{BREAKER, CONTINUE_MARK, Controls};
use crate::conversation::{Conversation, Fields, Shape, Turn};
use crate::environment::environment;
use crate::error::{Error, describe};
use crate::marking;
use crate::probe::{self, Habits};
use minijinja::{Environment, Value, value::Serde};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};

/// A piece of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A control token's id.
    Special(u32),
    /// Text that never becomes a control token.
    Text(String),
}

/// A compiled template and what is known about it.
pub struct ChatTemplate {
    env: Environment<'static>,
    controls: Controls,
    /// Names of templates in `env`: "default", perhaps "tool_use".
    names: Vec<String>,
    /// `bos_token` and the like, as the template sees them.
    specials: BTreeMap<String, String>,
    /// Learnt by probing; until then nothing is assembled and everything is passed as sent.
    habits: Habits,
    answer: AnswerFormat,
}

/// A rendered conversation.
#[derive(Clone, Debug)]
pub struct Rendered {
    /// The prompt.
    pub segments: Vec<Segment>,
    /// Where the answer begins: in the open, or inside a thought that the prompt opened.
    pub start: Start,
}

impl ChatTemplate {
    /// From the model's files (`tokenizer_config.json`, `chat_template.jinja`) and all control tokens.
    ///
    /// # Errors
    /// When a file is not what its name says, when there is no template, or when it does not parse.
    pub fn new(files: &[(String, String)], tokens: Vec<(u32, String)>) -> Result<Self, Error> {
        let file = |name: &str| {
            files
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, c)| c.as_str())
        };
        let config: Json = match file("tokenizer_config.json") {
            Some(text) => serde_json::from_str(text).map_err(|e| {
                Error::InvalidConfig(format!("tokenizer_config.json is not JSON: {e}"))
            })?,
            None => Json::Null,
        };
        let controls = Controls::new(tokens);
        let sources = sources(file("chat_template.jinja"), &config)?;
        let bad = |e: &minijinja::Error| {
            Error::InvalidConfig(format!("the chat template does not parse: {}", describe(e)))
        };
        let mut env = environment(0).map_err(|e| bad(&e))?;
        let mut signs = marking::Signs::default();
        for (name, source) in &sources {
            let marked = marking::mark_source(source, &controls).map_err(|e| bad(&e))?;
            env.add_template_owned(name.clone(), marked.source)
                .map_err(|e| bad(&e))?;
            signs = signs.or(marked.signs);
        }
        let answer =
            AnswerFormat::of_template(&sources.iter().map(|(_, s)| s.as_str()).collect::<Vec<_>>());
        let specials = special_tokens(&config, &controls);
        let names = sources.into_iter().map(|(n, _)| n).collect();
        let mut this = Self {
            env,
            controls,
            names,
            specials,
            habits: Habits {
                assembled: BTreeSet::new(),
                shape: Shape::AS_SENT,
            },
            answer,
        };
        this.habits = probe::habits(signs, &this.controls, &|conversation| {
            this.run(conversation).ok()
        });
        Ok(this)
    }

    /// What probing found out about the template.
    pub fn habits(&self) -> &Habits {
        &self.habits
    }

    /// Control tokens that the parser of answers needs to see.
    pub fn visible_controls(&self) -> Vec<u32> {
        let wanted = self.answer.visible();
        let controls = wanted
            .iter()
            .filter_map(|literal| self.controls.of_literal(literal));
        controls.map(|control| self.controls.id(control)).collect()
    }

    /// How answers to this template's prompts are taken apart.
    pub fn answer(&self) -> &AnswerFormat {
        &self.answer
    }

    /// Tokens that the template assembles from pieces, by literal.
    pub fn assembled(&self) -> impl Iterator<Item = &str> {
        self.habits
            .assembled
            .iter()
            .map(|&c| self.controls.literal(c))
    }

    /// Renders a conversation. `now` is in Unix seconds.
    ///
    /// # Errors
    /// When the fields are not what the template can take; its own `raise_exception` included.
    pub fn render(&mut self, fields: &Fields<'_>, now: u64) -> Result<Rendered, Error> {
        let conversation = Conversation::parse(fields, &self.habits.shape)?;
        // The clock is a function of the environment; adding it again replaces it.
        crate::environment::set_clock(&mut self.env, now);
        let output = self.run(&conversation)?;
        let output = match conversation.turn {
            Turn::Continue => cut_at_mark(
                &output,
                conversation.unfinished.as_deref().unwrap_or_default(),
            )?,
            Turn::Answer | Turn::Closed => &output,
        };
        let start = self.answer.start_after(&self.controls.spell(tail(output)));
        Ok(Rendered {
            segments: self.segments(output),
            start,
        })
    }

    /// The renderer's raw output, with marks in it.
    fn run(&self, c: &Conversation) -> Result<String, Error> {
        let name = if !c.tools.is_null() && self.names.iter().any(|n| n == "tool_use") {
            "tool_use"
        } else {
            "default"
        };
        let name = self
            .names
            .iter()
            .find(|n| *n == name)
            .or(self.names.first());
        let template = self
            .env
            .get_template(name.map_or("default", String::as_str))
            .map_err(|e| Error::InvalidConfig(describe(&e)))?;
        let mut context: BTreeMap<String, Value> = BTreeMap::new();
        for (key, value) in &c.kwargs {
            context.insert(key.clone(), Value::from(Serde(value)));
        }
        for (key, value) in &self.specials {
            context.insert(key.clone(), Value::from(value.clone()));
        }
        context.insert("messages".into(), Value::from(Serde(&c.messages)));
        context.insert("tools".into(), Value::from(Serde(&c.tools)));
        context.insert("documents".into(), Value::from(Serde(&c.documents)));
        context.insert(
            "add_generation_prompt".into(),
            Value::from(c.turn == Turn::Answer),
        );
        template.render(Value::from(context)).map_err(|e| {
            Error::InvalidRequest(format!(
                "the model's chat template refused the messages: {}",
                self.controls.spell(&describe(&e))
            ))
        })
    }

    /// Cuts output at marks, and at literals of assembled tokens.
    fn segments(&self, output: &str) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut text = String::new();
        let mut i = 0;
        while let Some(c) = output[i..].chars().next() {
            let found = match self.controls.of_mark(c) {
                Some(control) => Some((control, c.len_utf8())),
                None if self.habits.assembled.is_empty() => None,
                None => self
                    .controls
                    .at(output, i)
                    .filter(|(control, _)| self.habits.assembled.contains(control)),
            };
            if let Some((control, n)) = found {
                if !text.is_empty() {
                    segments.push(Segment::Text(std::mem::take(&mut text)));
                }
                segments.push(Segment::Special(self.controls.id(control)));
                i += n;
                continue;
            }
            if c != BREAKER && c != CONTINUE_MARK {
                text.push(c);
            }
            i += c.len_utf8();
        }
        if !text.is_empty() {
            segments.push(Segment::Text(text));
        }
        segments
    }
}

/// Named sources. `chat_template.jinja` wins over `tokenizer_config.json`, as in transformers.
fn sources(file: Option<&str>, config: &Json) -> Result<Vec<(String, String)>, Error> {
    let prepare = |s: &str| without_generation_tags(s);
    if let Some(text) = file {
        return Ok(vec![("default".into(), prepare(text))]);
    }
    match config.get("chat_template") {
        Some(Json::String(text)) => Ok(vec![("default".into(), prepare(text))]),
        Some(Json::Array(list)) => {
            let pick = |t: &Json| Some((t.get("name")?.as_str()?.to_owned(), prepare(t.get("template")?.as_str()?)));
            let all: Vec<_> = list.iter().filter_map(pick).collect();
            if all.is_empty() {
                return Err(Error::InvalidConfig("tokenizer_config.json: chat_template is a list without name and template".into()));
            }
            Ok(all)
        }
        _ => Err(Error::InvalidConfig(
            "this model has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); use /v1/completions, or name a chat module that writes its prompts".into(),
        )),
    }
}

/// transformers' `{% generation %}` marks answers for training; here it is a block without effect.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(close) = rest[open..].find("%}").map(|c| open + c + 2) else {
            break;
        };
        let tag = &rest[open..close];
        let word = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
        out.push_str(&rest[..open]);
        match word {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[close..];
    }
    out.push_str(rest);
    out
}

/// `bos_token` and the like, control tokens as their marks.
fn special_tokens(config: &Json, controls: &Controls) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (key, value) in config.as_object().into_iter().flatten() {
        if !key.ends_with("_token") {
            continue;
        }
        let Some(literal) = value.as_str().or_else(|| value.get("content")?.as_str()) else {
            continue;
        };
        let shown = controls.mark_all(literal);
        all.insert(key.clone(), shown);
    }
    all
}

/// The end of a prompt, enough to see how it leaves the answer.
fn tail(output: &str) -> &str {
    let mut from = output.len().saturating_sub(64);
    while !output.is_char_boundary(from) {
        from += 1;
    }
    &output[from..]
}

/// Output up to the end of the final message, `unfinished`, which must be shown as a whole. If the template kept the
/// blank after the mark it does not trim messages; if not, what precedes the mark is trimmed (transformers' rule).
fn cut_at_mark<'a>(output: &'a str, unfinished: &str) -> Result<&'a str, Error> {
    let Some(at) = output
        .rfind(CONTINUE_MARK)
        .filter(|_| output.contains(unfinished))
    else {
        let what = "continue_final_message: the model's chat template does not show the whole text of the last message";
        return Err(Error::InvalidRequest(what.into()));
    };
    let kept = output[at + CONTINUE_MARK.len_utf8()..].starts_with(' ');
    Ok(if kept {
        &output[..at]
    } else {
        output[..at].trim_end()
    })
}

#[cfg(test)]
mod tests;
