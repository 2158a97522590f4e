//! Every kernel through the compiler, without a GPU.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use guesthouse_kernels::{Header, SOURCES};

/// GPUs, as compute capability and as the compiler calls them.
const GPUS: [(u32, &str); 4] = [
    (80, "sm_80"),
    (89, "sm_89"),
    (90, "sm_90a"),
    (100, "sm_100"),
];

struct Case {
    file: &'static str,
    text: &'static str,
    defines: Vec<String>,
    arch: &'static str,
}

/// Each file, for each set of definitions and each GPU that its first lines name.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (file, text) in SOURCES.iter().filter(|(path, _)| path.ends_with(".cu")) {
        let header = Header::parse(text)
            .unwrap_or_else(|| panic!("{file} does not begin with `// arch:` and `// variants:`"));
        for variant in &header.variants {
            let defines: Vec<String> = variant.iter().map(ToString::to_string).collect();
            let gpus = GPUS.iter().filter(|(cc, _)| header.arch.covers(*cc));
            cases.extend(gpus.map(|&(_, arch)| Case {
                file,
                text,
                defines: defines.clone(),
                arch,
            }));
        }
    }
    cases
}

#[test]
fn every_kernel_names_its_gpus_and_definitions() {
    assert!(!cases().is_empty());
}

#[test]
#[ignore = "needs NVRTC (pip install 'nvidia-cuda-nvrtc==13.0.*')"]
fn every_kernel_compiles_for_every_gpu() {
    libs::load(libs::BUILTINS).unwrap();
    libs::load(libs::NVRTC).unwrap();
    let cases = cases();
    let (next, failures) = (
        std::sync::atomic::AtomicUsize::new(0),
        Mutex::new(Vec::new()),
    );
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(case) =
                    cases.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    match compile(case.file, case.text, &case.defines, case.arch) {
                        // An ELF file, as cubins are.
                        Ok(cubin) if cubin.starts_with(b"\x7fELF") => {}
                        Ok(cubin) => lock(&failures).push(format!(
                            "{} {:?} for {}: {} bytes that are no cubin",
                            case.file,
                            case.defines,
                            case.arch,
                            cubin.len()
                        )),
                        Err(error) => lock(&failures).push(error.to_string()),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} of {} do not compile:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
    println!("{} compilations", cases.len());
}
