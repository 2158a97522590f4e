//! JSON as calls: the other half of `encode`. Errors say which field is wrong.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use guesthouse_engine::{Content, Finished, Rows};
use serde_json::Value;

use crate::{Conversation, ModelFacts};

type Result<T> = std::result::Result<T, String>;

/// A JSON object, and the fields that were asked of it.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    value: &'a Value,
}

impl<'a> Fields<'a> {
    pub(super) fn of(value: &'a Value) -> Self {
        Self { value }
    }

    pub(super) fn get(self, name: &str) -> Result<&'a Value> {
        let found = self.value.get(name);
        found.ok_or_else(|| format!("the field {name:?} is missing"))
    }

    pub(super) fn inner(self, name: &str) -> Result<Self> {
        Ok(Self::of(self.get(name)?))
    }

    pub(super) fn text(self, name: &str) -> Result<&'a str> {
        let text = self.get(name)?.as_str();
        text.ok_or_else(|| format!("{name}: expected a string"))
    }

    pub(super) fn maybe_text(self, name: &str) -> Result<Option<String>> {
        match self.get(name)? {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.clone())),
            _ => Err(format!("{name}: expected a string or null")),
        }
    }

    pub(super) fn whole(self, name: &str) -> Result<u64> {
        let number = self.get(name)?.as_u64();
        number.ok_or_else(|| format!("{name}: expected a whole number of at least 0"))
    }

    pub(super) fn small(self, name: &str) -> Result<u32> {
        let number = self.whole(name)?;
        u32::try_from(number).map_err(|_| format!("{name}: {number} is above {}", u32::MAX))
    }

    pub(super) fn flag(self, name: &str) -> Result<bool> {
        let flag = self.get(name)?.as_bool();
        flag.ok_or_else(|| format!("{name}: expected true or false"))
    }

    fn words(self, name: &str, kind: &str) -> Result<Vec<[u8; 4]>> {
        let bytes = packed(self.get(name)?, kind);
        let bytes = bytes.ok_or_else(|| format!("{name}: expected {{{kind:?}: base64}}"))?;
        Ok(bytes)
    }

    pub(super) fn u32s(self, name: &str) -> Result<Vec<u32>> {
        let words = self.words(name, "u32")?;
        Ok(words.into_iter().map(u32::from_le_bytes).collect())
    }

    pub(super) fn f32s(self, name: &str) -> Result<Vec<f32>> {
        let words = self.words(name, "f32")?;
        Ok(words.into_iter().map(f32::from_le_bytes).collect())
    }
}

/// The 4-byte words of `{"u32": base64}` or `{"f32": base64}`.
pub(super) fn packed(value: &Value, kind: &str) -> Option<Vec<[u8; 4]>> {
    let bytes = STANDARD.decode(value.get(kind)?.as_str()?).ok()?;
    let (words, rest) = bytes.as_chunks::<4>();
    rest.is_empty().then(|| words.to_vec())
}

pub(super) fn create(input: &Value) -> Result<(String, ModelFacts)> {
    let input = Fields::of(input);
    let facts = input.inner("facts")?;
    let stops = facts.get("stop_tokens")?.as_array();
    let stops = stops.and_then(|stops| {
        let id = |stop: &Value| u32::try_from(stop.as_u64()?).ok();
        stops.iter().map(id).collect()
    });
    Ok((
        input.text("request")?.to_owned(),
        ModelFacts {
            vocab_size: facts.small("vocab_size")?,
            stop_tokens: stops.ok_or("stop_tokens: expected token ids")?,
            max_len: facts.small("max_len")?,
            prompt_len: facts.small("prompt_len")?,
            max_tokens: facts.small("max_tokens")?,
            choices: facts.small("choices")?,
        },
    ))
}

pub(super) fn rows(input: &Value) -> Result<Rows> {
    let input = Fields::of(input);
    let content = input.inner("content")?;
    let content = match content.inner("candidates") {
        Ok(best) => Content::Candidates {
            n: best.small("n")?,
            tokens: best.u32s("tokens")?,
            logits: best.f32s("logits")?,
            log_sum_exp: best.f32s("log_sum_exp")?,
            entropy: best.f32s("entropy")?,
        },
        Err(_) => Content::Logits(content.f32s("logits")?),
    };
    let rows = Rows {
        branches: input.u32s("branches")?,
        choices: input.u32s("choices")?,
        last: input.u32s("last")?,
        lengths: input.u32s("lengths")?,
        uniform: input.f32s("uniform")?,
        random: Vec::new(),
        content,
        hidden: input.f32s("hidden")?,
    };
    if let Content::Candidates {
        n, tokens, logits, ..
    } = &rows.content
    {
        let expected = rows.branches.len().checked_mul(*n as usize);
        if Some(tokens.len()) != expected || Some(logits.len()) != expected {
            return Err(format!(
                "tokens and logits: expected {} rows of {n}",
                rows.branches.len()
            ));
        }
    }
    Ok(rows)
}

pub(super) fn finished(input: &Value) -> Result<Finished> {
    let input = Fields::of(input);
    Ok(Finished {
        branches: input.u32s("branches")?,
        scores: input.f32s("scores")?,
        lengths: input.u32s("lengths")?,
        wanted: input.small("wanted")?,
    })
}

/// (name, content) of each file, (id, literal) of each control token.
pub(super) type Opened = (Vec<(String, String)>, Vec<(u32, String)>);

pub(super) fn open(input: &Value) -> Result<Opened> {
    let pairs = |name: &str| -> Result<Vec<(&Value, String)>> {
        let wrong = || format!("{name}: expected pairs");
        let list = Fields::of(input).get(name)?.as_array().ok_or_else(wrong)?;
        let pair = |pair: &'_ Value| -> Option<String> { Some(pair.get(1)?.as_str()?.to_owned()) };
        list.iter()
            .map(|p| Some((p.get(0)?, pair(p)?)))
            .collect::<Option<_>>()
            .ok_or_else(wrong)
    };
    let files = pairs("files")?.into_iter().map(|(name, content)| {
        let name = name.as_str().ok_or("files: expected names")?;
        Ok((name.to_owned(), content))
    });
    let controls = pairs("controls")?.into_iter().map(|(id, literal)| {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        Ok((id.ok_or("controls: expected token ids")?, literal))
    });
    Ok((
        files.collect::<Result<_>>()?,
        controls.collect::<Result<_>>()?,
    ))
}

pub(super) fn conversation(input: &Value) -> Result<Conversation> {
    let input = Fields::of(input);
    Ok(Conversation {
        messages: input.text("messages")?.to_owned(),
        tools: input.maybe_text("tools")?,
        tool_choice: input.maybe_text("tool_choice")?,
        documents: input.maybe_text("documents")?,
        add_generation_prompt: input.flag("add_generation_prompt")?,
        continue_final_message: input.flag("continue_final_message")?,
        now: input.whole("now")?,
        kwargs: input.maybe_text("kwargs")?,
    })
}
