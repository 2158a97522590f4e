//! What guest calls cost on this machine: `cargo run --release -p guesthouse-component --example guest_costs`.
//!
//! Medians of wall time, one thread, nothing else running.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use guesthouse_component::{
    CallContext, ChatModule, Conversation, GraphModule, ModelFacts, Origin, Role, Runtime,
    RuntimeConfig, SamplerModule, builtin,
};
use guesthouse_graph::AssumedCatalog;
use guesthouse_weights::DType;

const SAMPLES: usize = 301;

fn main() {
    let started = Instant::now();
    let runtime = Runtime::new(RuntimeConfig::default()).unwrap();
    println!("engine and pools: {:?}", started.elapsed());
    for guest in builtin::ALL {
        let started = Instant::now();
        let module = runtime
            .load(guest.name, guest.bytes, Origin::Embedded)
            .unwrap();
        println!(
            "{} {}: {} KB, loaded in {:?}",
            guest.role,
            guest.name,
            guest.bytes.len() / 1000,
            started.elapsed()
        );
        match guest.role {
            Role::Graph if guest.name == "llama" => graph(&module.graph().unwrap()),
            Role::Graph => {}
            Role::Sampler => sampler(&module.sampler().unwrap()),
            Role::Chat => chat(&module.chat().unwrap()),
        }
    }
}

fn median(mut run: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<_> = (0..SAMPLES).map(|_| run()).collect();
    times.sort_unstable();
    times[SAMPLES / 2]
}

fn timed<T>(run: impl FnOnce() -> T) -> Duration {
    let started = Instant::now();
    drop(run());
    started.elapsed()
}

/// Guests never wait, so a future of theirs is ready when polled often enough.
fn ready<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(answer) = future.as_mut().poll(&mut context) {
            return answer;
        }
    }
}

fn context() -> CallContext {
    CallContext::new("bench", 1_700_000_000)
}

fn graph(module: &GraphModule) {
    let config = r#"{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":4096,"intermediate_size":14336,
        "num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"vocab_size":128256,
        "rms_norm_eps":1e-5,"rope_theta":500000.0,"max_position_embeddings":8192,"tie_word_embeddings":false,
        "hidden_act":"silu","attention_bias":false,"mlp_bias":false,"torch_dtype":"bfloat16"}"#;
    let catalog =
        || Arc::new(AssumedCatalog::new(DType::Bf16).absent_where(|name| name.ends_with("bias")));
    match module.build(config, catalog()) {
        Ok(graph) => {
            let time = median(|| timed(|| module.build(config, catalog()).unwrap()));
            println!(
                "  build of Llama 3 8B, {} nodes: {time:?}",
                graph.nodes.len()
            );
        }
        Err(error) => println!("  build: {error}"),
    }
}

fn sampler(module: &SamplerModule) {
    let facts = ModelFacts {
        vocab_size: 49_152,
        stop_tokens: vec![2],
        max_len: 2048,
        prompt_len: 4,
        max_tokens: 16,
        choices: 1,
    };
    let request = r#"{"temperature":0.7,"top_p":0.9,"top_k":40,"seed":7,"presence_penalty":0.5}"#;
    match module.plan(request, &facts, context()) {
        Ok(_) => {
            let time = median(|| timed(|| module.plan(request, &facts, context()).unwrap()));
            println!("  plan, store and instance included: {time:?}");
        }
        Err(error) => println!("  plan: {error}"),
    }
}

const TEMPLATE: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + \
    '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

fn chat(module: &ChatModule) {
    let open = || {
        let config = serde_json::json!({ "chat_template": TEMPLATE, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>" });
        let files = vec![("tokenizer_config.json".to_owned(), config.to_string())];
        let controls = vec![(1, "<|im_start|>".to_owned()), (2, "<|im_end|>".to_owned())];
        ready(module.open(files, controls, context()))
    };
    let message = serde_json::json!({ "role": "user", "content": "The quick brown fox jumps over the lazy dog. ".repeat(6) });
    let conversation = Conversation {
        messages: serde_json::Value::from(vec![message; 20]).to_string(),
        add_generation_prompt: true,
        ..Conversation::default()
    };
    if let Err(error) = open() {
        println!("  open: {error}");
        return;
    }
    println!(
        "  open (store, instance, template): {:?}",
        median(|| timed(|| open().unwrap()))
    );
    let mut session = open().unwrap();
    let time = median(|| timed(|| ready(session.render(conversation.clone())).unwrap()));
    println!(
        "  render of 20 messages, {} bytes of JSON: {time:?}",
        conversation.messages.len()
    );
    let both = median(|| {
        timed(|| {
            let mut session = open().unwrap();
            ready(session.render(conversation.clone())).unwrap()
        })
    });
    println!("  open and render: {both:?}");
    let parser = ready(session.parser(conversation.clone())).unwrap();
    let pushes = median(|| {
        timed(|| {
            for _ in 0..100 {
                ready(session.push(parser, " token")).unwrap();
            }
        })
    });
    println!("  parser push of one token: {:?}", pushes / 100);
}
