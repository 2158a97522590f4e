//! `guesthouse chat`.

use super::options::ModelOptions;
use crate::llm::{Llm, SamplingParams};
use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal, Write};

#[derive(Debug, Args)]
pub(super) struct Chat {
    #[command(flatten)]
    model: ModelOptions,
    /// System message.
    #[arg(long)]
    system_prompt: Option<String>,
    /// 0 is greedy.
    #[arg(long)]
    temperature: Option<f64>,
    /// Most tokens of an answer.
    #[arg(long)]
    max_tokens: Option<u32>,
    /// Makes answers repeatable.
    #[arg(long)]
    seed: Option<u64>,
    /// Ask this one thing, print the answer and end.
    #[arg(short, long)]
    quick: Option<String>,
}

impl Chat {
    pub(super) fn run(self) -> Result<()> {
        let local = self.model.local()?;
        let llm = Llm::start(
            self.model.name(),
            &local,
            &self.model.modules()?,
            &self.model.options(),
        )?;
        let mut messages: Vec<Value> = self
            .system_prompt
            .iter()
            .map(|s| json!({"role": "system", "content": s}))
            .collect();
        if let Some(question) = &self.quick {
            self.answer(&llm, &mut messages, question)?;
            return Ok(());
        }
        let stdin = std::io::stdin();
        let prompt = stdin.is_terminal();
        if prompt {
            eprintln!("Type a message; an empty line starts over, Ctrl-D ends.");
        }
        let system = messages.len();
        let mut line = String::new();
        loop {
            if prompt {
                eprint!("> ");
            }
            line.clear();
            if stdin.lock().read_line(&mut line)? == 0 {
                return Ok(());
            }
            let question = line.trim();
            if question.is_empty() {
                messages.truncate(system);
            } else if let Err(error) = self.answer(&llm, &mut messages, question) {
                if !prompt {
                    bail!(error);
                }
                eprintln!("error: {error:#}");
                messages.pop();
            }
        }
    }

    /// Streams an answer to standard output and adds both messages.
    fn answer(&self, llm: &Llm, messages: &mut Vec<Value>, question: &str) -> Result<()> {
        messages.push(json!({"role": "user", "content": question}));
        let params = SamplingParams {
            temperature: self.temperature,
            max_tokens: self.max_tokens,
            seed: self.seed,
            ..SamplingParams::default()
        };
        let mut answer = String::new();
        llm.chat_stream(&json!(messages), &params, |chunk| {
            if let Some(text) = chunk["choices"][0]["delta"]["content"].as_str() {
                answer.push_str(text);
                print!("{text}");
                // A closed pipe shows at the end; the answer is still wanted for the conversation.
                let _ = std::io::stdout().flush();
            }
        })?;
        println!();
        messages.push(json!({"role": "assistant", "content": answer}));
        Ok(())
    }
}
