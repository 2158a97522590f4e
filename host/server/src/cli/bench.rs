//! `guesthouse bench`: what vLLM's benchmarks of the same names measure.

mod client;
mod offline;
mod report;
mod roofline;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(super) enum Bench {
    /// One batch at a time: seconds per batch, time to first token, time per output token.
    Latency(offline::Latency),
    /// Many requests at once: tokens and requests per second.
    Throughput(offline::Throughput),
    /// Load on a running server, over HTTP.
    Serve(client::Serve),
}

impl Bench {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Latency(c) => c.run(),
            Self::Throughput(c) => c.run(),
            Self::Serve(c) => c.run(),
        }
    }
}
