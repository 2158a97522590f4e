//! `/docs`: the OpenAPI document as one page without scripts or anything from elsewhere.

use super::openapi::document;
use axum::http::header;
use axum::response::{Html, IntoResponse};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h2{margin-top:2.5rem;border-bottom:1px solid #8884}h3{margin-bottom:.2rem}code,pre{font:14px/1.4 ui-monospace,monospace}\
pre{padding:1rem;overflow:auto;background:#8881}table{border-collapse:collapse;width:100%}\
td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0;border-top:1px solid #8884}\
.method{text-transform:uppercase;font-weight:bold}:root{color-scheme:light dark}";

const EXAMPLE: &str = "curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\\n  \
-d '{\"messages\": [{\"role\": \"user\", \"content\": \"Name three colors.\"}], \"max_tokens\": 32}'";

pub(super) async fn page() -> impl IntoResponse {
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    let document = serde_json::to_value(document()).unwrap_or_default();
    (
        [(header::CONTENT_SECURITY_POLICY, policy)],
        Html(render(&document)),
    )
}

fn render(document: &Value) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Guesthouse API</title><style>{STYLE}</style>\
         <h1>Guesthouse API {}</h1><p>{} The same as <a href=\"openapi.json\">OpenAPI document</a>.</p>\
         <pre>{}</pre>",
        escape(text(document, "/info/version")),
        escape(text(document, "/info/description")),
        escape(EXAMPLE)
    );
    let mut types = BTreeSet::new();
    for (path, methods) in fields(document, "/paths") {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let _ = write!(
                out,
                "<h2><span class=\"method\">{}</span> <code>{}</code></h2><p>{}</p>",
                escape(method),
                escape(path),
                escape(text(operation, "/summary"))
            );
            if let Some(schema) = operation.pointer("/requestBody/content/application~1json/schema")
            {
                let _ = write!(out, "<p>Body: {}</p>", kind(schema));
                references(schema, document, &mut types);
            }
            for (status, response) in fields(operation, "/responses") {
                let schema = response.pointer("/content/application~1json/schema");
                let shown = schema.map(kind).unwrap_or_default();
                let _ = write!(
                    out,
                    "<p>{}: {} {shown}</p>",
                    escape(status),
                    escape(text(response, "/description"))
                );
                if let Some(schema) = schema {
                    references(schema, document, &mut types);
                }
            }
        }
    }
    out.push_str("<h2>Types</h2>");
    for name in types {
        if let Some(schema) = document.pointer(&format!("/components/schemas/{name}")) {
            describe(&mut out, &name, schema);
        }
    }
    out
}

fn describe(out: &mut String, name: &str, schema: &Value) {
    let _ = write!(
        out,
        "<h3 id=\"{name}\"><code>{name}</code></h3><p>{}</p>",
        escape(text(schema, "/description")),
        name = escape(name)
    );
    let parts: Vec<_> = items(schema, "/allOf").map(kind).collect();
    if !parts.is_empty() {
        let _ = write!(out, "<p>All fields of {}.</p>", parts.join(" and "));
    }
    if schema.get("properties").is_none() {
        return;
    }
    out.push_str("<table><tr><th>Field<th>Type<th>");
    for (field, schema) in fields(schema, "/properties") {
        let description = escape(text(schema, "/description"));
        let _ = write!(
            out,
            "<tr><td><code>{}</code><td>{}<td>{description}",
            escape(field),
            kind(schema)
        );
    }
    out.push_str("</table>");
}

/// A type's name in HTML, with a link where it has an entry of its own.
fn kind(schema: &Value) -> String {
    if let Some(name) = reference(schema) {
        return format!("<a href=\"#{0}\"><code>{0}</code></a>", escape(name));
    }
    let either: Vec<_> = items(schema, "/oneOf")
        .chain(items(schema, "/anyOf"))
        .map(kind)
        .filter(|k| k != "null")
        .collect();
    if !either.is_empty() {
        return either.join(" or ");
    }
    let words: Vec<&str> = match schema.get("type") {
        Some(Value::String(word)) => vec![word],
        Some(Value::Array(words)) => words
            .iter()
            .filter_map(Value::as_str)
            .filter(|word| *word != "null")
            .collect(),
        _ => vec![],
    };
    match schema.get("items") {
        Some(items) if words == ["array"] => format!("list of {}", kind(items)),
        _ => escape(&words.join(" or ")),
    }
}

/// Names of all types that a schema leads to.
fn references(schema: &Value, document: &Value, names: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            if let Some(name) = reference(schema)
                && names.insert(name.to_owned())
                && let Some(target) = document.pointer(&format!("/components/schemas/{name}"))
            {
                references(target, document, names);
            }
            fields
                .values()
                .for_each(|value| references(value, document, names));
        }
        Value::Array(values) => values
            .iter()
            .for_each(|value| references(value, document, names)),
        _ => {}
    }
}

fn reference(schema: &Value) -> Option<&str> {
    schema
        .get("$ref")?
        .as_str()?
        .strip_prefix("#/components/schemas/")
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn fields<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    value
        .pointer(pointer)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
}

fn items<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
