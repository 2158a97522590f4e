//! `guesthouse graph`.

use super::options::{ModelOptions, runtime};
use crate::model::{ModelFiles, load::build_graph};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use guesthouse_graph::{PassOptions, Plan, PlanOptions, dot, dump_graph, dump_plan, optimize};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct GraphCommand {
    #[command(flatten)]
    model: ModelOptions,
    /// Which form to print.
    #[arg(long, value_enum, default_value_t = Form::Plan)]
    form: Form,
    /// Write a Graphviz picture here as well (of the form printed).
    #[arg(long, value_name = "FILE")]
    dot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// As the guest built it.
    Guest,
    /// After the passes.
    Optimized,
    /// After the passes, with the place of every value.
    Plan,
}

impl GraphCommand {
    pub(super) fn run(self) -> Result<()> {
        let files = ModelFiles::open(&self.model.local()?, self.model.load_format())?;
        let mut graph = build_graph(&runtime()?, &files, &self.model.guests())?.graph;
        if self.form != Form::Guest {
            graph = optimize(graph, &PassOptions::default())?;
        }
        if let Some(path) = &self.dot {
            std::fs::write(path, dot(&graph))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let text = match self.form {
            Form::Guest | Form::Optimized => dump_graph(&graph),
            Form::Plan => dump_plan(&Plan::compile(graph, &PlanOptions::new(4))?),
        };
        print!("{text}");
        Ok(())
    }
}
