//! Kernels from source to code for the GPU at hand: NVRTC makes a cubin on a thread of its own, which is kept on disk.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use cudarc::driver::{result, sys as driver};
use cudarc::nvrtc::sys as nvrtc;
use sha2::{Digest, Sha256};

use super::driver::failed;
use super::libs;
use crate::error::{DeviceError, Result};

/// What is compiled: a file, the definitions that shape it, and the function that is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source {
    /// Below `kernels/`, such as `norm/rms.cu`.
    pub file: &'static str,
    /// Preprocessor definitions, `NAME` or `NAME=value`, in any order.
    pub defines: Vec<String>,
    /// Name of the `__global__` function.
    pub entry: &'static str,
}

impl Source {
    /// A function of a file.
    pub(crate) fn new(file: &'static str, entry: &'static str) -> Self {
        Self {
            file,
            defines: Vec::new(),
            entry,
        }
    }

    /// With `-DNAME=value`.
    #[must_use]
    pub(crate) fn define(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.defines.push(format!("{name}={value}"));
        self
    }

    /// With `-DNAME`.
    #[must_use]
    pub(crate) fn flag(mut self, name: &str) -> Self {
        self.defines.push(name.to_owned());
        self
    }
}

/// A file and its definitions in order.
type Key = (&'static str, Vec<String>);

/// Compiles sources, each once.
pub(crate) struct Compiler {
    arch: String,
    cache: Option<PathBuf>,
    /// Hash of everything that all kernels depend on: headers, compiler version, options.
    common: [u8; 32],
    modules: Mutex<HashMap<Key, Arc<Module>>>,
    /// Compilations under way.
    slots: Arc<Slots>,
}

/// One compiled file. Filled by its compilation's thread, loaded when first needed.
pub(crate) struct Module {
    file: &'static str,
    defines: Vec<String>,
    state: Mutex<State>,
}

enum State {
    Compiling(JoinHandle<Result<Vec<u8>>>),
    Loaded(Handle),
    Failed(String),
}

#[derive(Clone, Copy)]
struct Handle(driver::CUmodule);

// SAFETY: modules may be used from any thread in which their context is current.
unsafe impl Send for Handle {}

/// Bounds the number of compilers at work.
struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Compiler {
    /// A compiler for an architecture such as `sm_90a`; keeps its output in `cache`.
    ///
    /// # Errors
    /// When NVRTC is missing.
    pub(crate) fn new(arch: &str, cache: Option<&Path>) -> Result<Self> {
        libs::load(libs::BUILTINS)?;
        libs::load(libs::NVRTC)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are written to; the library is loaded.
        unsafe { nvrtc::nvrtcVersion(&raw mut major, &raw mut minor) }
            .result()
            .map_err(|e| compile_error("NVRTC", format!("{e:?}")))?;
        let mut hash = Sha256::new();
        hash.update(format!("{arch} {major}.{minor}"));
        for option in options(arch) {
            hash.update(option);
        }
        for (path, text) in headers() {
            hash.update(path);
            hash.update(text);
        }
        let cache = match cache {
            Some(folder) => match std::fs::create_dir_all(folder) {
                Ok(()) => Some(folder.to_owned()),
                Err(error) => {
                    tracing::warn!(folder = %folder.display(), %error, "compiled kernels are not kept");
                    None
                }
            },
            None => None,
        };
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        Ok(Self {
            arch: arch.to_owned(),
            cache,
            common: hash.finalize().into(),
            modules: Mutex::default(),
            slots: Arc::new(Slots {
                free: Mutex::new(threads.clamp(1, 16)),
                freed: Condvar::new(),
            }),
        })
    }

    /// Begins to compile a source unless that was done before. Returns at once.
    ///
    /// # Errors
    /// When there is no such file, or no thread.
    pub(crate) fn module(&self, source: &Source) -> Result<Arc<Module>> {
        let mut defines = source.defines.clone();
        defines.sort();
        let key = (source.file, defines.clone());
        let mut modules = lock(&self.modules);
        if let Some(module) = modules.get(&key) {
            return Ok(Arc::clone(module));
        }
        let text = guesthouse_kernels::SOURCES
            .iter()
            .find(|(path, _)| *path == source.file)
            .map(|(_, text)| *text)
            .ok_or_else(|| {
                compile_error(source.file, "is not among the embedded kernels".to_owned())
            })?;
        let mut hash = Sha256::new();
        hash.update(self.common);
        hash.update(text);
        for define in &defines {
            hash.update([0]);
            hash.update(define);
        }
        let kept = self.cache.as_ref().map(|folder| {
            let name: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
            folder.join(format!("{name}.cubin"))
        });
        let job = Job {
            file: source.file,
            text,
            defines: defines.clone(),
            arch: self.arch.clone(),
            kept,
        };
        let slots = Arc::clone(&self.slots);
        let thread = std::thread::Builder::new()
            .name("nvrtc".to_owned())
            .spawn(move || job.run(&slots))?;
        let module = Arc::new(Module {
            file: source.file,
            defines,
            state: Mutex::new(State::Compiling(thread)),
        });
        modules.insert(key, Arc::clone(&module));
        Ok(module)
    }

    /// Unloads everything, once what is being compiled is done: the compiler must not run while the process ends. Kernels
    /// must not be launched any more.
    pub(crate) fn unload(&self) {
        for module in lock(&self.modules).values() {
            let mut state = lock(&module.state);
            match std::mem::replace(&mut *state, State::Failed("was unloaded".to_owned())) {
                State::Compiling(thread) => drop(thread.join()),
                // SAFETY: loaded by `Module::function`, unloaded once, as the GPU goes.
                State::Loaded(handle) => drop(unsafe { result::module::unload(handle.0) }),
                State::Failed(_) => {}
            }
        }
    }
}

impl Module {
    /// The file.
    pub(crate) fn name(&self) -> &'static str {
        self.file
    }

    /// A function of the module; waits for its compilation and loads it if need be.
    ///
    /// # Errors
    /// What the compiler or the driver said.
    pub(crate) fn function(&self, entry: &str) -> Result<driver::CUfunction> {
        let mut state = lock(&self.state);
        if let State::Compiling(_) = *state {
            let waiting =
                std::mem::replace(&mut *state, State::Failed("is being loaded".to_owned()));
            if let State::Compiling(thread) = waiting {
                *state = self.load(thread);
            }
        }
        let handle = match &*state {
            State::Loaded(handle) => *handle,
            State::Failed(why) => return Err(compile_error(self.file, why.clone())),
            State::Compiling(_) => {
                return Err(compile_error(self.file, "is being compiled".to_owned()));
            }
        };
        let name = CString::new(entry).map_err(|e| compile_error(self.file, e.to_string()))?;
        // SAFETY: the module is loaded.
        unsafe { result::module::get_function(handle.0, name) }.map_err(|_| {
            compile_error(
                self.file,
                format!("has no function {entry} with {:?}", self.defines),
            )
        })
    }

    fn load(&self, thread: JoinHandle<Result<Vec<u8>>>) -> State {
        let cubin = match thread.join() {
            Ok(Ok(cubin)) => cubin,
            Ok(Err(error)) => return State::Failed(error.to_string()),
            Err(_) => return State::Failed("its compilation panicked".to_owned()),
        };
        // SAFETY: the image is a whole cubin, made by NVRTC for this architecture and checked by its digest when it came
        // from disk; the driver copies it.
        match unsafe { result::module::load_data(cubin.as_ptr().cast()) } {
            Ok(module) => State::Loaded(Handle(module)),
            Err(e) => State::Failed(failed("loading a kernel")(e).to_string()),
        }
    }
}

/// One compilation.
struct Job {
    file: &'static str,
    text: &'static str,
    defines: Vec<String>,
    arch: String,
    kept: Option<PathBuf>,
}

impl Job {
    fn run(self, slots: &Slots) -> Result<Vec<u8>> {
        if let Some(cubin) = self.kept.as_deref().and_then(read_kept) {
            return Ok(cubin);
        }
        let mut free = lock(&slots.free);
        while *free == 0 {
            free = slots
                .freed
                .wait(free)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        drop(free);
        let began = std::time::Instant::now();
        let outcome = compile(self.file, self.text, &self.defines, &self.arch);
        *lock(&slots.free) += 1;
        slots.freed.notify_one();
        let cubin = outcome?;
        tracing::debug!(file = self.file, defines = ?self.defines, seconds = began.elapsed().as_secs_f32(), "compiled");
        if let Some(path) = &self.kept
            && let Err(error) = keep(path, &cubin)
        {
            tracing::warn!(path = %path.display(), %error, "a compiled kernel was not kept");
        }
        Ok(cubin)
    }
}

/// A kept cubin begins with its SHA-256; what does not match is compiled again.
fn read_kept(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    let (digest, cubin) = bytes.split_at_checked(32)?;
    (Sha256::digest(cubin)[..] == *digest).then(|| cubin.to_vec())
}

fn keep(path: &Path, cubin: &[u8]) -> std::io::Result<()> {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut bytes = Sha256::digest(cubin).to_vec();
    bytes.extend_from_slice(cubin);
    std::fs::write(&temporary, bytes)?;
    std::fs::rename(temporary, path)
}

fn options(arch: &str) -> Vec<String> {
    vec![
        format!("--gpu-architecture={arch}"),
        "--std=c++17".to_owned(),
        "-default-device".to_owned(),
        "--fmad=true".to_owned(),
    ]
}

fn headers() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    guesthouse_kernels::SOURCES
        .iter()
        .filter(|(path, _)| path.ends_with(".cuh"))
}

/// Compiles a kernel file to a cubin with the headers at hand. Needs no GPU.
///
/// # Errors
/// With the compiler's log.
pub(crate) fn compile(file: &str, text: &str, defines: &[String], arch: &str) -> Result<Vec<u8>> {
    let c = |s: &str| CString::new(s).map_err(|e| compile_error(file, e.to_string()));
    let (source, name) = (c(text)?, c(file)?);
    let (mut names, mut texts) = (Vec::new(), Vec::new());
    for (path, text) in headers() {
        names.push(c(path)?);
        texts.push(c(text)?);
    }
    let pointers = |list: &[CString]| list.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
    let (name_pointers, text_pointers) = (pointers(&names), pointers(&texts));
    let mut arguments = Vec::new();
    for option in options(arch) {
        arguments.push(c(&option)?);
    }
    for define in defines {
        arguments.push(c(&format!("-D{define}"))?);
    }
    let argument_pointers = pointers(&arguments);
    let mut program = std::ptr::null_mut();
    // SAFETY: all strings and lists outlive the program, which is destroyed below.
    unsafe {
        nvrtc::nvrtcCreateProgram(
            &raw mut program,
            source.as_ptr(),
            name.as_ptr(),
            names.len() as i32,
            text_pointers.as_ptr(),
            name_pointers.as_ptr(),
        )
        .result()
        .map_err(|e| compile_error(file, format!("{e:?}")))?;
        let status =
            nvrtc::nvrtcCompileProgram(program, arguments.len() as i32, argument_pointers.as_ptr());
        let cubin = match status.result() {
            Ok(()) => {
                let mut size = 0;
                let sized = nvrtc::nvrtcGetCUBINSize(program, &raw mut size).result();
                let mut cubin = vec![0u8; size];
                sized
                    .and_then(|()| {
                        nvrtc::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast()).result()
                    })
                    .map(|()| cubin)
                    .map_err(|e| compile_error(file, format!("{e:?}")))
            }
            Err(e) => Err(compile_error(
                file,
                format!("{defines:?} for {arch}: {e:?}\n{}", log(program)),
            )),
        };
        nvrtc::nvrtcDestroyProgram(&raw mut program);
        cubin
    }
}

/// # Safety
/// `program` is alive.
unsafe fn log(program: nvrtc::nvrtcProgram) -> String {
    let mut size = 0;
    // SAFETY: the buffer has the size that the compiler asked for.
    unsafe {
        if nvrtc::nvrtcGetProgramLogSize(program, &raw mut size)
            .result()
            .is_err()
            || size == 0
        {
            return String::new();
        }
        let mut text = vec![0u8; size];
        if nvrtc::nvrtcGetProgramLog(program, text.as_mut_ptr().cast())
            .result()
            .is_err()
        {
            return String::new();
        }
        CStr::from_bytes_until_nul(&text)
            .map(|s| s.to_string_lossy().into_owned())
            .unwrap_or_default()
    }
}

fn compile_error(file: &str, what: String) -> DeviceError {
    DeviceError::Kernel {
        file: file.to_owned(),
        what,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
