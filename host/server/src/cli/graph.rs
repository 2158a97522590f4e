//! `guesthouse graph`.

use super::options::{ModelOptions, modules};
use crate::model::{LoadError, LoadFormat, ModelFiles, load::build_graph};
use crate::source::LocalModel;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use guesthouse_graph::{
    PassOptions, Plan, PlanOptions, Totals, dot, dump_graph, dump_plan, optimize,
};
use guesthouse_weights::WeightsError;
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct GraphCommand {
    #[command(flatten)]
    model: ModelOptions,
    /// Which form to print.
    #[arg(long, value_enum, default_value_t = Form::Plan, conflicts_with_all = ["raw", "fused"])]
    form: Form,
    /// As the guest built it: --form guest.
    #[arg(long, conflicts_with = "fused")]
    raw: bool,
    /// After the passes: --form optimized.
    #[arg(long)]
    fused: bool,
    /// Print JSON: `{"totals": …, "graph": …}`, or `"plan"` in place of the graph.
    #[arg(long)]
    json: bool,
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
        let form = match (self.raw, self.fused) {
            (true, _) => Form::Guest,
            (_, true) => Form::Optimized,
            _ => self.form,
        };
        let files = open(&self.model.local()?, self.model.load_format())?;
        let mut graph = build_graph(&modules()?, &files, &self.model.guests())?.graph;
        if form != Form::Guest {
            graph = optimize(graph, &PassOptions::default())?;
        }
        if let Some(path) = &self.dot {
            std::fs::write(path, dot(&graph))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let totals = Totals::of(&graph);
        let plan = match form {
            Form::Guest | Form::Optimized => None,
            Form::Plan => Some(Plan::compile(graph.clone(), &PlanOptions::new(4))?),
        };
        if self.json {
            let document = match &plan {
                Some(plan) => json!({"totals": totals, "plan": plan}),
                None => json!({"totals": totals, "graph": graph}),
            };
            println!("{document}");
            return Ok(());
        }
        println!("{totals}");
        print!(
            "{}",
            plan.map_or_else(|| dump_graph(&graph), |plan| dump_plan(&plan))
        );
        Ok(())
    }
}

/// A graph needs names and shapes alone: without weights, those that it asks for are made up.
fn open(model: &LocalModel, format: LoadFormat) -> Result<ModelFiles, LoadError> {
    match ModelFiles::open(model, format) {
        Err(LoadError::Weights(
            WeightsError::NoWeights { .. } | WeightsError::PickleOnly { .. },
        )) if format == LoadFormat::Auto => {
            tracing::info!(
                "the folder has no weights that are read; types are what config.json says"
            );
            ModelFiles::open(model, LoadFormat::Dummy)
        }
        opened => opened,
    }
}
