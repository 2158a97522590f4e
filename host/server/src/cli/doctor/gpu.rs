//! The GPU part of `guesthouse doctor`: libraries, devices, and each kernel against its reference.

use super::Finding;
use crate::model::DeviceChoice;
use guesthouse_device::cuda::check::{self, Environment, KernelReport, Need, Verdict};

const GIB: f64 = (1u64 << 30) as f64;

/// Whether a missing GPU is a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// It was asked for.
    Required,
    /// It is looked at where there is one.
    IfPresent,
}

impl Wish {
    pub(super) fn of(device: DeviceChoice) -> Option<Self> {
        match device {
            DeviceChoice::Cpu => None,
            DeviceChoice::Auto => Some(Self::IfPresent),
            DeviceChoice::Cuda { .. } => Some(Self::Required),
        }
    }
}

/// Lines about libraries and devices: (name, finding).
pub(super) fn describe(found: &Environment, wish: Wish) -> Vec<(String, Finding)> {
    let mut lines = Vec::new();
    // Without a GPU nobody misses its libraries.
    let worse = |text| match wish {
        Wish::Required => Finding::Bad(text),
        Wish::IfPresent => Finding::Note(text),
    };
    if wish == Wish::Required || !found.gpus.is_empty() {
        for library in &found.libraries {
            let finding = match (&library.found, library.need) {
                (Some(place), _) => Finding::Good(place.clone()),
                (None, Need::Required) => worse(format!("not found; {}", library.install)),
                (None, Need::Optional) => {
                    Finding::Note(format!("not found (optional); {}", library.install))
                }
            };
            lines.push((library.name.to_owned(), finding));
        }
    }
    for gpu in &found.gpus {
        let bandwidth = gpu.bandwidth.map_or_else(String::new, |b| {
            format!(", a copy moves {:.0} GB/s", b / 1e9)
        });
        let text = format!(
            "{}, compute capability {}.{}, {} multiprocessors, {:.1} of {:.1} GiB free{bandwidth}",
            gpu.name,
            gpu.capability.0,
            gpu.capability.1,
            gpu.multiprocessors,
            gpu.free as f64 / GIB,
            gpu.memory as f64 / GIB,
        );
        lines.push((format!("cuda:{}", gpu.ordinal), Finding::Good(text)));
    }
    if found.gpus.is_empty() {
        let why = found.absent.as_deref().unwrap_or("no GPU was found");
        lines.push(("gpu".to_owned(), worse(why.to_owned())));
    }
    lines
}

/// Checks kernels and prints a line for each case. Returns how many failed.
pub(super) fn kernels(filter: Option<&str>) -> anyhow::Result<usize> {
    println!(
        "\n{:<22} {:<54} {:>9} {:>9} {:>11} {:>14}",
        "kernel", "case", "error", "allowed", "time", "rate"
    );
    let (mut failed, mut cases) = (0, 0);
    check::run(filter, &mut |report| {
        cases += 1;
        failed += usize::from(report.verdict == Verdict::Fail);
        println!("{}", line(&report));
    })?;
    println!("{cases} cases, {failed} failed");
    Ok(failed)
}

fn line(r: &KernelReport) -> String {
    let number = |x: f64| match r.verdict {
        Verdict::Skipped => "-".to_owned(),
        _ => format!("{x:.1e}"),
    };
    let time = r
        .seconds
        .map_or_else(String::new, |s| format!("{:.1} µs", s * 1e6));
    let rate = match (r.throughput(), r.bandwidth()) {
        (Some(flops), _) => format!("{:.1} TFLOP/s", flops / 1e12),
        (None, Some(bytes)) => format!("{:.0} GB/s", bytes / 1e9),
        (None, None) => String::new(),
    };
    format!(
        "{:<22} {:<54} {:>9} {:>9} {time:>11} {rate:>14}  {}",
        r.name,
        r.case,
        number(r.error),
        number(r.tolerance),
        r.verdict
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use guesthouse_device::cuda::check::{Gpu, Library};

    fn marks(found: &Environment, wish: Wish) -> Vec<(String, &'static str)> {
        describe(found, wish)
            .into_iter()
            .map(|(name, finding)| (name, finding.told().0))
            .collect()
    }

    #[test]
    fn a_missing_gpu_is_a_failure_only_where_it_was_asked_for() {
        let library = Library {
            name: "libnvrtc",
            found: None,
            install: "pip install 'nvidia-cuda-nvrtc==13.0.*'",
            need: Need::Required,
        };
        let found = Environment {
            libraries: vec![library.clone()],
            gpus: Vec::new(),
            absent: Some("libcuda was not found".to_owned()),
        };
        assert_eq!(marks(&found, Wish::IfPresent), [("gpu".to_owned(), "note")]);
        let required = marks(&found, Wish::Required);
        assert_eq!(required.len(), 2);
        assert!(required.iter().all(|(_, mark)| *mark == "FAIL"));
        let text = describe(&found, Wish::Required)[0].1.told().1.to_owned();
        assert!(text.contains("pip install"), "{text}");

        let gpu = Gpu {
            ordinal: 0,
            name: "Test".to_owned(),
            capability: (9, 0),
            multiprocessors: 132,
            memory: 1 << 37,
            free: 1 << 36,
            bandwidth: Some(4.2e12),
        };
        let found = Environment {
            libraries: vec![Library {
                need: Need::Optional,
                ..library
            }],
            gpus: vec![gpu],
            absent: None,
        };
        let lines = describe(&found, Wish::Required);
        assert_eq!(lines[0].1.told().0, "note");
        let (mark, text) = lines[1].1.told();
        assert_eq!(mark, "ok  ");
        for part in ["9.0", "64.0 of 128.0 GiB", "4200 GB/s"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn lines_show_the_rate_that_bounds_the_kernel() {
        let mut report = KernelReport::new("norm/rms", "bf16 [64, 4096]", 1e-3, 1e-2);
        report.seconds = Some(2e-6);
        report.bytes = Some(4e6);
        assert!(line(&report).contains("2000 GB/s"), "{}", line(&report));
        report.flops = Some(1e9);
        assert!(line(&report).contains("500.0 TFLOP/s"));
        assert!(line(&report).ends_with("ok"));
        let failed = KernelReport::new("norm/rms", "x", f64::NAN, 1e-2);
        assert!(line(&failed).ends_with("FAIL"));
        assert!(line(&KernelReport::skipped("a", "b")).ends_with("skipped"));
    }
}
