//! Compiles one component from standard input to standard output, for hosts that are not the `guesthouse` binary.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    guesthouse_component::compile_module(&arguments)
}
