//! The `guesthouse` binary. Everything is in the library.

fn main() -> std::process::ExitCode {
    guesthouse_server::cli::main()
}
