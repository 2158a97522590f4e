//! `guesthouse doctor`: what this machine has and whether it works.

mod compare;
mod gpu;

use super::options::{Format, runtime};
use crate::model::DeviceChoice;
use crate::source::ModelRef;
use anyhow::{Result, bail};
use clap::Args;
use gpu::Wish;
use guesthouse_component::{Origin, builtin};
use guesthouse_device::Numerics;
use std::process::Command;

#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// auto looks at a GPU where there is one, cuda fails without one, cpu leaves it alone.
    #[arg(long, default_value_t = DeviceChoice::Auto)]
    device: DeviceChoice,
    /// Check only GPU kernels whose name contains this; `none` checks none.
    #[arg(long)]
    kernels: Option<String>,
    /// Compare this model's logits on the CPU and on the GPU.
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Where the model's weights come from.
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    load_format: Format,
    /// Text to compare on; may be given several times (default: random tokens).
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// Random prompts.
    #[arg(long, default_value_t = 4)]
    num_prompts: usize,
    /// Tokens of the longest of them.
    #[arg(long, default_value_t = 96)]
    input_len: usize,
    /// Compare the batch-invariant mode.
    #[arg(long)]
    batch_invariant: bool,
}

/// Looks at one thing.
type Check = fn() -> Finding;

/// Outcome of one check.
enum Finding {
    Good(String),
    /// Works, but not as well as it could; what to do.
    Note(String),
    Bad(String),
}

impl Finding {
    /// Mark and text.
    fn told(&self) -> (&'static str, &str) {
        match self {
            Self::Good(text) => ("ok  ", text),
            Self::Note(text) => ("note", text),
            Self::Bad(text) => ("FAIL", text),
        }
    }
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
            bad += print(name, &check());
        }
        if let Some(wish) = Wish::of(self.device) {
            let found = guesthouse_device::cuda::check::environment();
            for (name, finding) in gpu::describe(&found, wish) {
                bad += print(&name, &finding);
            }
            if !found.gpus.is_empty() && self.kernels.as_deref() != Some("none") {
                bad += gpu::kernels(self.kernels.as_deref())?;
            }
        }
        if let Some(model) = &self.model {
            bad += self.compare(model)?;
        }
        if bad > 0 {
            bail!("{bad} checks failed");
        }
        Ok(())
    }

    fn compare(&self, model: &str) -> Result<usize> {
        let ordinal = match self.device {
            DeviceChoice::Cuda { ordinal } => ordinal,
            DeviceChoice::Auto => 0,
            DeviceChoice::Cpu => bail!("--model compares with a GPU; leave --device cpu out"),
        };
        let comparison = compare::Comparison {
            model: ModelRef::parse(model, None)?.fetch()?,
            format: self.load_format.into(),
            ordinal,
            numerics: if self.batch_invariant {
                Numerics::BatchInvariant
            } else {
                Numerics::Fast
            },
            prompts: self.prompt.clone(),
            random: (self.num_prompts.max(1), self.input_len.max(2)),
        };
        comparison.run()
    }
}

/// Prints a finding; 1 where it is bad.
fn print(name: &str, finding: &Finding) -> usize {
    let (mark, text) = finding.told();
    println!("{mark}  {name:<17} {text}");
    usize::from(matches!(finding, Finding::Bad(_)))
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
