//! Finding NVIDIA's libraries: on the loader's path, in `CUDA_HOME`, in pip's folders.
//!
//! A library loaded here by its full path satisfies later look-ups by name, so that everything else may rely on plain
//! names.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{DeviceError, Result};

/// A library that the CUDA device uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// As users know it.
    pub name: &'static str,
    /// File names that do, best first.
    pub files: &'static [&'static str],
    /// The command that installs it.
    pub install: &'static str,
}

/// The driver's own library.
pub(crate) const DRIVER: Wanted = Wanted {
    name: "libcuda",
    files: &["libcuda.so.1", "libcuda.so"],
    install: "install NVIDIA's driver (apt install nvidia-driver-580-server, or see https://docs.nvidia.com/cuda)",
};

/// Part of the compiler, which it looks for by name.
pub(crate) const BUILTINS: Wanted = Wanted {
    name: "libnvrtc-builtins",
    files: &[
        "libnvrtc-builtins.so.13.0",
        "libnvrtc-builtins.so.13.1",
        "libnvrtc-builtins.so.13.2",
        "libnvrtc-builtins.so.13.3",
        "libnvrtc-builtins.so.13.4",
        "libnvrtc-builtins.so",
    ],
    install: "pip install 'nvidia-cuda-nvrtc==13.0.*'",
};

/// The compiler of kernels.
pub(crate) const NVRTC: Wanted = Wanted {
    name: "libnvrtc",
    files: &["libnvrtc.so.13", "libnvrtc.so"],
    install: "pip install 'nvidia-cuda-nvrtc==13.0.*'",
};

/// Matrix products.
pub(crate) const CUBLASLT: Wanted = Wanted {
    name: "libcublasLt",
    files: &["libcublasLt.so.13", "libcublasLt.so"],
    install: "pip install 'nvidia-cublas==13.*'",
};

/// Loads a library for the rest of the process.
///
/// # Errors
/// When no file of that name loads; says which command installs it.
pub(crate) fn load(wanted: Wanted) -> Result<PathBuf> {
    static HELD: Mutex<Vec<(&'static str, PathBuf)>> = Mutex::new(Vec::new());
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, path)) = held.iter().find(|(name, _)| *name == wanted.name) {
        return Ok(path.clone());
    }
    let by_name = wanted.files.iter().map(PathBuf::from);
    let in_folders = folders()
        .into_iter()
        .flat_map(|folder| wanted.files.iter().map(move |file| folder.join(file)))
        .filter(|path| path.exists());
    for path in by_name.chain(in_folders) {
        // SAFETY: NVIDIA's libraries run nothing at load that needs anything of us.
        if let Ok(library) = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) } {
            std::mem::forget(library);
            held.push((wanted.name, path.clone()));
            return Ok(path);
        }
    }
    Err(DeviceError::Absent {
        device: "cuda",
        why: format!(
            "{} was not found on the loader's path, in CUDA_HOME or among pip's packages; {}",
            wanted.name, wanted.install
        ),
    })
}

/// Folders outside the loader's path where the libraries are usually put.
fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(home) = std::env::var_os(variable) {
            let home = PathBuf::from(home);
            folders.extend(["lib64", "lib", "targets/x86_64-linux/lib"].map(|d| home.join(d)));
        }
    }
    let mut pythons: Vec<PathBuf> = Vec::new();
    if let Some(venv) = std::env::var_os("VIRTUAL_ENV") {
        pythons.push(PathBuf::from(venv).join("lib"));
    }
    if let Some(path) = std::env::var_os("PATH") {
        pythons.extend(std::env::split_paths(&path).filter_map(|bin| {
            let prefix = bin.parent()?;
            bin.join("python3").exists().then(|| prefix.join("lib"))
        }));
    }
    if let Some(home) = std::env::var_os("HOME") {
        pythons.push(PathBuf::from(home).join(".local/lib"));
    }
    for lib in pythons {
        for python in entries(&lib, "python3") {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = python.join(packages).join("nvidia");
                folders.extend(entries(&nvidia, "").into_iter().map(|p| p.join("lib")));
            }
        }
    }
    folders.push(PathBuf::from("/usr/local/cuda/lib64"));
    folders.push(PathBuf::from("/usr/local/nvidia/lib64"));
    folders
}

/// Sub-folders whose name begins so, in order of their names.
fn entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(list) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut names: Vec<OsString> = list
        .filter_map(|e| Some(e.ok()?.file_name()))
        .filter(|name| name.to_string_lossy().starts_with(prefix))
        .collect();
    names.sort();
    names.into_iter().map(|name| folder.join(name)).collect()
}
