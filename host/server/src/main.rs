//! The `guesthouse` binary. Everything is in the library.

/// Rows, events and answers are freed by other threads than those that made them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    guesthouse_server::cli::main()
}
