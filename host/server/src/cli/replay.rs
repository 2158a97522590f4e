//! `guesthouse replay`: a recorded request's guests, run again without model or device.

use crate::model::modules::read_module;
use anyhow::{Context, Result};
use clap::Args;
use guesthouse_component::RecordedRun;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(super) struct Replay {
    /// What `--record` wrote.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Run this module in the place of the recorded one of its role.
    #[arg(long, value_name = "WASM")]
    module: Option<PathBuf>,
}

/// Something was done differently.
const DIFFERS: u8 = 1;
/// The record or the module cannot be run.
const UNUSABLE: u8 = 2;

impl Replay {
    /// 0: every call did what it had done; 1: one did not; 2: it cannot be known.
    pub(super) fn run(self) -> ExitCode {
        match self.replay() {
            Ok(code) => code,
            Err(error) => {
                eprintln!("error: {}", super::told(&error));
                ExitCode::from(UNUSABLE)
            }
        }
    }

    fn replay(&self) -> Result<ExitCode> {
        let file = || self.file.display().to_string();
        let bytes = File::open(&self.file).with_context(file)?;
        let run = RecordedRun::read(BufReader::new(bytes)).with_context(file)?;
        let module = match &self.module {
            Some(path) => Some((path.display().to_string(), read_module(path)?)),
            None => None,
        };
        let module = module
            .as_ref()
            .map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
        let report = run.replay(module).with_context(file)?;
        if report.skipped > 0 {
            println!("{} calls of other modules were passed over", report.skipped);
        }
        match report.difference {
            None => {
                println!("{} calls, all as recorded", report.calls);
                Ok(ExitCode::SUCCESS)
            }
            Some(difference) => {
                println!("{difference}");
                Ok(ExitCode::from(DIFFERS))
            }
        }
    }
}
