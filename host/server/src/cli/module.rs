//! `guesthouse module`.

mod new;

use super::options::runtime;
use crate::model::check;
use crate::model::modules::from_file;
use anyhow::Result;
use clap::{Args, Subcommand};
use guesthouse_component::{CallContext, Module, Role};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Subcommand)]
pub(super) enum ModuleCommand {
    /// Print what a module is: role, digest, imports.
    Inspect(File),
    /// Load a module and call it once, as a server would.
    Check(File),
    /// Start a guest of your own: writes a project that builds.
    #[command(subcommand)]
    New(new::New),
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
                print!("{}", describe(&from_file(&runtime()?, &file.path)?)?);
                Ok(())
            }
            Self::New(what) => what.run(),
            Self::Check(file) => {
                let module = from_file(&runtime()?, &file.path)?;
                let context = CallContext::new("check", 0);
                print!("{}", describe(&module)?);
                println!("check     ok: {}", check::call(&module, &context)?.summary);
                Ok(())
            }
        }
    }
}

/// What a module is, a line each.
fn describe(module: &Arc<Module>) -> Result<String> {
    let steps = if module.steps() {
        "yes (tiers 2 and 3)"
    } else {
        "no"
    };
    let imports = match module.imports() {
        [] => "none".to_owned(),
        all => all.join(", "),
    };
    let mut text = format!(
        "name      {}\nrole      {}\ndigest    sha256:{}\nsteps     {steps}\nimports   {imports}\n",
        module.name(),
        module.role(),
        module.digest(),
    );
    if module.role() == Role::Graph {
        let builds = module.graph()?.architectures()?;
        text.push_str(&format!("builds    {}\n", builds.join(", ")));
    }
    Ok(text)
}
