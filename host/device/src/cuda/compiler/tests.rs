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
    let cases = cases();
    for (_, arch) in GPUS {
        assert!(cases.iter().any(|case| case.arch == arch), "{arch}");
    }
}

/// One after the other: NVRTC holds a lock for most of its time, so it is processes that run side by side.
fn all_compile_for(arch: &str) {
    libs::load(libs::BUILTINS).unwrap();
    libs::load(libs::NVRTC).unwrap();
    let cases: Vec<_> = cases().into_iter().filter(|c| c.arch == arch).collect();
    let mut failures = Vec::new();
    for case in &cases {
        match compile(case.file, case.text, &case.defines, case.arch) {
            // An ELF file, as cubins are.
            Ok(cubin) if cubin.starts_with(b"\x7fELF") => {}
            Ok(cubin) => failures.push(format!(
                "{} {:?}: {} bytes that are no cubin",
                case.file,
                case.defines,
                cubin.len()
            )),
            Err(error) => failures.push(error.to_string()),
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} do not compile for {arch}:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
    println!("{} compilations", cases.len());
}

#[test]
#[ignore = "needs NVRTC (pip install 'nvidia-cuda-nvrtc==13.0.*')"]
fn kernels_compile_for_sm_80() {
    all_compile_for("sm_80");
}

#[test]
#[ignore = "needs NVRTC (pip install 'nvidia-cuda-nvrtc==13.0.*')"]
fn kernels_compile_for_sm_89() {
    all_compile_for("sm_89");
}

#[test]
#[ignore = "needs NVRTC (pip install 'nvidia-cuda-nvrtc==13.0.*')"]
fn kernels_compile_for_sm_90a() {
    all_compile_for("sm_90a");
}

#[test]
#[ignore = "needs NVRTC (pip install 'nvidia-cuda-nvrtc==13.0.*')"]
fn kernels_compile_for_sm_100() {
    all_compile_for("sm_100");
}
