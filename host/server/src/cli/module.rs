//! `guesthouse module`.

use super::options::runtime;
use crate::model::modules::from_file;
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use guesthouse_component::{CallContext, Conversation, ModelFacts, Module, Role};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Subcommand)]
pub(super) enum ModuleCommand {
    /// Print what a module is: role, digest, imports.
    Inspect(File),
    /// Load a module and call it once, as a server would.
    Check(File),
}

#[derive(Debug, Args)]
pub(super) struct File {
    /// A WebAssembly component.
    #[arg(value_name = "WASM")]
    path: PathBuf,
}

impl ModuleCommand {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Inspect(file) => {
                let module = from_file(&runtime()?, &file.path)?;
                println!("name      {}", module.name());
                println!("role      {}", module.role());
                println!("digest    sha256:{}", module.digest());
                println!(
                    "steps     {}",
                    if module.steps() {
                        "yes (tiers 2 and 3)"
                    } else {
                        "no"
                    }
                );
                println!(
                    "imports   {}",
                    if module.imports().is_empty() {
                        "none".into()
                    } else {
                        module.imports().join(", ")
                    }
                );
                if module.role() == Role::Graph {
                    println!("builds    {}", module.graph()?.architectures()?.join(", "));
                }
                Ok(())
            }
            Self::Check(file) => {
                let module = from_file(&runtime()?, &file.path)?;
                println!("{}", check(&module)?);
                Ok(())
            }
        }
    }
}

/// Calls the module as its role demands; says what came of it.
fn check(module: &Arc<Module>) -> Result<String> {
    let context = CallContext::new("check", 0);
    match module.role() {
        Role::Graph => {
            let names = module.graph()?.architectures()?;
            if names.is_empty() {
                bail!("the module builds no architecture: architectures() returned an empty list");
            }
            Ok(format!(
                "ok: builds {}; load a model with --graph-module to check the graph itself",
                names.join(", ")
            ))
        }
        Role::Sampler => {
            let facts = ModelFacts {
                vocab_size: 1000,
                stop_tokens: vec![0],
                max_len: 1024,
            };
            let planned =
                module
                    .sampler()?
                    .plan(r#"{"temperature":0.7,"top_p":0.9}"#, &facts, context)?;
            Ok(format!(
                "ok: {} stages, then {:?}",
                planned.plan.stages.len(),
                planned.plan.draw
            ))
        }
        Role::Chat => {
            let files = vec![(
                "tokenizer_config.json".to_owned(),
                CHECK_TEMPLATE.to_owned(),
            )];
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let segments = runtime.block_on(async {
                let chat = module.chat()?;
                let mut session = chat
                    .open(
                        files,
                        vec![(1, "<|start|>".into()), (2, "<|end|>".into())],
                        context,
                    )
                    .await?;
                let messages = r#"[{"role":"user","content":"Hello"}]"#.to_owned();
                session
                    .render(Conversation {
                        messages,
                        add_generation_prompt: true,
                        ..Conversation::default()
                    })
                    .await
            })?;
            Ok(format!(
                "ok: one message became {} segments",
                segments.len()
            ))
        }
    }
}

const CHECK_TEMPLATE: &str = r#"{"chat_template":"{% for m in messages %}<|start|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}<|start|>"}"#;
