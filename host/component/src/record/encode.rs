//! Calls as JSON. Lists of numbers are little-endian bytes in base64, so that floats stay what they are bit for bit.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use guesthouse_engine::{Choices, Content, Finished, Next, Rows};
use serde_json::{Value, json};

use crate::{Conversation, Delta, ModelFacts, PlannedSampling, Segment, Verdict};

fn u32s(values: &[u32]) -> Value {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    json!({ "u32": STANDARD.encode(bytes) })
}

fn f32s(values: &[f32]) -> Value {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    json!({ "f32": STANDARD.encode(bytes) })
}

pub(crate) fn create(request: &str, facts: &ModelFacts) -> Value {
    json!({
        "request": request,
        "facts": {
            "vocab_size": facts.vocab_size,
            "stop_tokens": facts.stop_tokens,
            "max_len": facts.max_len,
            "prompt_len": facts.prompt_len,
            "max_tokens": facts.max_tokens,
            "choices": facts.choices,
        },
    })
}

/// Plans that were checked hold finite numbers only, which JSON keeps as they are.
pub(crate) fn plan(planned: &PlannedSampling) -> Value {
    let grammar = planned.grammar.as_ref();
    json!({
        "stages": planned.plan.stages,
        "draw": planned.plan.draw,
        "seed": planned.seed,
        "grammar": grammar.map(|g| json!({ "syntax": g.syntax, "source": g.source })),
    })
}

pub(crate) fn rows(rows: &Rows) -> Value {
    let content = match &rows.content {
        Content::Candidates {
            n,
            tokens,
            logits,
            log_sum_exp,
            entropy,
        } => json!({
            "candidates": {
                "n": n,
                "tokens": u32s(tokens),
                "logits": f32s(logits),
                "log_sum_exp": f32s(log_sum_exp),
                "entropy": f32s(entropy),
            },
        }),
        Content::Logits(logits) => json!({ "logits": f32s(logits) }),
    };
    json!({
        "branches": u32s(&rows.branches),
        "choices": u32s(&rows.choices),
        "last": u32s(&rows.last),
        "lengths": u32s(&rows.lengths),
        "uniform": f32s(&rows.uniform),
        "hidden": f32s(&rows.hidden),
        "content": content,
    })
}

pub(crate) fn verdict(verdict: &Verdict) -> Value {
    match verdict {
        Verdict::Choices(choices) => json!({ "choices": branches(choices) }),
        Verdict::Logits(logits) => json!({ "logits": f32s(logits) }),
    }
}

fn branches(choices: &Choices) -> Value {
    let of = |value: fn(&guesthouse_engine::Choice) -> u32| -> Vec<u32> {
        choices.branches.iter().map(value).collect()
    };
    let scores: Vec<f32> = choices.branches.iter().map(|b| b.score).collect();
    json!({
        "parent": u32s(&of(|b| b.row)),
        "token": u32s(&of(|b| b.token)),
        "flags": u32s(&of(|b| u32::from(b.next == Next::Finish))),
        "score": f32s(&scores),
    })
}

pub(crate) fn finished(finished: &Finished) -> Value {
    json!({
        "branches": u32s(&finished.branches),
        "scores": f32s(&finished.scores),
        "lengths": u32s(&finished.lengths),
        "wanted": finished.wanted,
    })
}

pub(crate) fn selected(indices: &[u32]) -> Value {
    u32s(indices)
}

pub(crate) fn open(files: &[(String, String)], controls: &[(u32, String)]) -> Value {
    json!({ "files": files, "controls": controls })
}

pub(crate) fn conversation(c: &Conversation) -> Value {
    json!({
        "messages": c.messages,
        "tools": c.tools,
        "tool_choice": c.tool_choice,
        "documents": c.documents,
        "add_generation_prompt": c.add_generation_prompt,
        "continue_final_message": c.continue_final_message,
        "now": c.now,
        "kwargs": c.kwargs,
    })
}

pub(crate) fn segments(segments: &[Segment]) -> Value {
    let segment = |segment: &Segment| match segment {
        Segment::Special(id) => json!({ "special": id }),
        Segment::Text(text) => json!({ "text": text }),
        Segment::Media(index) => json!({ "media": index }),
    };
    segments.iter().map(segment).collect()
}

pub(crate) fn deltas(deltas: &[Delta]) -> Value {
    let delta = |delta: &Delta| match delta {
        Delta::Content(text) => json!({ "content": text }),
        Delta::Reasoning(text) => json!({ "reasoning": text }),
        Delta::ToolCall {
            index,
            id,
            name,
            arguments,
        } => {
            json!({ "tool_call": { "index": index, "id": id, "name": name, "arguments": arguments } })
        }
        Delta::Custom { kind, json: text } => json!({ "custom": { "kind": kind, "json": text } }),
    };
    deltas.iter().map(delta).collect()
}
