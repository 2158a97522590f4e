//! `guesthouse doctor`: what this machine has and whether it works.

use super::options::runtime;
use anyhow::{Result, bail};
use clap::Args;
use guesthouse_component::{Origin, builtin};
use std::process::Command;

#[derive(Debug, Args)]
pub(super) struct Doctor {}

/// Looks at one thing.
type Check = fn() -> Finding;

/// Outcome of one check.
enum Finding {
    Good(String),
    /// Works, but not as well as it could; what to do.
    Note(String),
    Bad(String),
}

impl Doctor {
    pub(super) fn run(self) -> Result<()> {
        let checks: [(&str, Check); 6] = [
            ("processor", processor),
            ("memory", memory),
            ("kernels", kernels),
            ("guests", guests),
            ("cache folder", cache_folder),
            ("pip", pip),
        ];
        let mut bad = 0;
        for (name, check) in checks {
            let (mark, text) = match check() {
                Finding::Good(text) => ("ok  ", text),
                Finding::Note(text) => ("note", text),
                Finding::Bad(text) => {
                    bad += 1;
                    ("FAIL", text)
                }
            };
            println!("{mark}  {name:<13} {text}");
        }
        if bad > 0 {
            bail!("{bad} checks failed");
        }
        Ok(())
    }
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Finding::Good(format!(
        "{cores} cores, {} kernels",
        guesthouse_device::instruction_set()
    ))
}

fn memory() -> Finding {
    match crate::model::device::available_memory() {
        Some(bytes) => Finding::Good(format!(
            "{:.1} GiB available",
            bytes as f64 / (1u64 << 30) as f64
        )),
        None => Finding::Note("unknown on this system; give --kv-cache-memory-bytes".into()),
    }
}

/// Each kernel against a plain reference.
fn kernels() -> Finding {
    let checks = guesthouse_device::check_kernels();
    let count = checks.len();
    let Some(checks) = checks.into_iter().collect::<Option<Vec<_>>>() else {
        return Finding::Bad("a kernel could not be run".into());
    };
    match checks.iter().max_by(|a, b| a.error.total_cmp(&b.error)) {
        Some(worst) if worst.error < 1e-5 => Finding::Good(format!(
            "{count} weight formats, largest relative error {:.1e}",
            worst.error
        )),
        Some(worst) => Finding::Bad(format!(
            "{} products are off by {:.1e}; please report this with the processor's name",
            worst.scheme, worst.error
        )),
        None => Finding::Bad("there are no kernels".into()),
    }
}

fn guests() -> Finding {
    let load = || -> Result<String> {
        let runtime = runtime()?;
        for guest in builtin::ALL {
            runtime.load(guest.name, guest.bytes, Origin::Embedded)?;
        }
        Ok(builtin::ALL
            .iter()
            .map(|g| format!("{} ({})", g.name, g.role))
            .collect::<Vec<_>>()
            .join(", "))
    };
    load().map_or_else(|error| Finding::Bad(format!("{error:#}")), Finding::Good)
}

fn cache_folder() -> Finding {
    match crate::paths::cache() {
        Ok(folder) => Finding::Good(folder.display().to_string()),
        Err(error) => Finding::Note(error.to_string()),
    }
}

fn pip() -> Finding {
    let found = ["pip3", "pip"].into_iter().find_map(|name| {
        let output = Command::new(name).arg("--version").output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    });
    match found {
        Some(version) => Finding::Good(version),
        None => Finding::Note("not found; only models named pypi:… and short names need it".into()),
    }
}
