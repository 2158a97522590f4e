//! A model inside a program, without HTTP: `cargo run --release --example offline -- smollm2`.

use guesthouse_server::llm::{Llm, LlmError, SamplingParams};

fn main() -> Result<(), LlmError> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "smollm2".into());
    let llm = Llm::load(&model)?;
    let params = SamplingParams {
        temperature: Some(0.0),
        max_tokens: Some(12),
        ..SamplingParams::default()
    };
    let prompts = ["The capital of France is", "The capital of Italy is"];
    for (prompt, answer) in prompts.iter().zip(llm.generate(prompts, &params)?) {
        println!("{prompt}{}", answer.choices[0].text);
    }
    Ok(())
}
