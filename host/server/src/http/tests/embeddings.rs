use super::support::{Setup, vector};
use axum::http::StatusCode;
use serde_json::{Value, json};

fn floats(value: &Value) -> Vec<f32> {
    let list = value.as_array().unwrap().iter();
    list.map(|x| x.as_f64().unwrap() as f32).collect()
}

#[tokio::test]
async fn every_form_of_input_is_embedded_in_order() {
    let server = Setup::embedding().start();
    let prompts: [(Value, Vec<Vec<u32>>); 4] = [
        (json!("ab"), vec![vec![97, 98]]),
        (json!(["b", "abc"]), vec![vec![98], vec![97, 98, 99]]),
        (json!([5, 6, 7]), vec![vec![5, 6, 7]]),
        (json!([[5], [6, 8]]), vec![vec![5], vec![6, 8]]),
    ];
    for (input, ids) in prompts {
        let answer = server
            .ask("/v1/embeddings", &json!({"model": "tiny", "input": input}))
            .await;
        assert_eq!(
            (&answer["object"], &answer["model"]),
            (&json!("list"), &json!("org/tiny"))
        );
        let data = answer["data"].as_array().unwrap();
        assert_eq!(data.len(), ids.len());
        for (i, (data, ids)) in data.iter().zip(&ids).enumerate() {
            assert_eq!(
                (&data["index"], &data["object"]),
                (&json!(i), &json!("embedding"))
            );
            assert_eq!(floats(&data["embedding"]), vector(ids));
        }
        let tokens: usize = ids.iter().map(Vec::len).sum();
        assert_eq!(
            answer["usage"],
            json!({"prompt_tokens": tokens, "total_tokens": tokens})
        );
    }
    assert_eq!(server.stats().generation_tokens, 0);
}

#[tokio::test]
async fn a_prompt_may_fill_the_context() {
    let server = Setup::embedding().start();
    let answer = server
        .ask("/v1/embeddings", &json!({"input": "x".repeat(256)}))
        .await;
    assert_eq!(answer["usage"]["prompt_tokens"], 256);
    let answer = server
        .post("/v1/embeddings", &json!({"input": vec![1; 257]}))
        .await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.json()["error"]["param"], "input");
}

#[tokio::test]
async fn vectors_are_written_in_base64_and_cut() {
    let server = Setup::embedding().start();
    let body = json!({"input": [5, 6], "encoding_format": "base64"});
    let answer = server.ask("/v1/embeddings", &body).await;
    let bytes: Vec<u8> = vector(&[5, 6])
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let text = answer["data"][0]["embedding"].as_str().unwrap();
    // 16 bytes are 22 digits and two signs of padding.
    assert_eq!((text.len(), &text[22..]), (24, "=="));
    assert_eq!(decoded(text), bytes);

    // [2, 5] of [2, 5, 6, 7], of length 1 again.
    let body = json!({"input": [5, 6], "dimensions": 2});
    let answer = server.ask("/v1/embeddings", &body).await;
    let found = floats(&answer["data"][0]["embedding"]);
    let length = 29f32.sqrt();
    assert_eq!(found.len(), 2);
    assert!((found[0] - 2.0 / length).abs() < 1e-6 && (found[1] - 5.0 / length).abs() < 1e-6);
}

/// Digit by digit.
fn decoded(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits = text.bytes().filter(|c| *c != b'=').map(digit);
    let bits: Vec<u8> = digits
        .flat_map(|d| (0..6).rev().map(move |i| d >> i & 1))
        .collect();
    let bytes = bits.chunks_exact(8);
    bytes
        .map(|b| b.iter().fold(0, |byte, bit| byte << 1 | bit))
        .collect()
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_field() {
    let server = Setup::embedding().start();
    for (body, field) in [
        (json!({"input": "a", "dimensions": 5}), "dimensions"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (
            json!({"input": "a", "encoding_format": "int8"}),
            "encoding_format",
        ),
        (json!({"input": []}), "input"),
        (json!({"input": [[]]}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": [258]}), "input"),
    ] {
        let answer = server.post("/v1/embeddings", &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert_eq!(
            answer.json()["error"]["param"],
            field,
            "{body}: {}",
            answer.body
        );
    }
}

#[tokio::test]
async fn each_model_answers_requests_of_its_task() {
    let embeds = Setup::embedding().start();
    let messages = json!([{"role": "user", "content": "a"}]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "a"})),
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/generate", json!({"prompt": "a"})),
    ] {
        let answer = embeds.post(path, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
        assert_eq!(answer.json()["error"]["param"], "model");
        assert!(answer.body.contains("/v1/embeddings"), "{}", answer.body);
    }
    let generates = Setup::saying(&["a"]).start();
    let answer = generates
        .post("/v1/embeddings", &json!({"input": "a"}))
        .await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.body.contains("embeds no prompts"), "{}", answer.body);
}
