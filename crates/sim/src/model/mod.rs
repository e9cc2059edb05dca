//! `mbal sim model`: the policies over queues with service times.

mod cluster;
mod fleet;
mod netkv;
mod phases;
mod plot;
mod popularity;
mod replication;
mod report;
mod traces;
mod workloads;

use std::path::PathBuf;

pub use fleet::{Delays, Fleet};
pub use popularity::Popularity;
use report::Report;

/// Proves the deciders on traces and generated demand, in virtual time.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
    /// Where CSV and SVG files go.
    #[arg(long, default_value = "docs/results/deciders", global = true)]
    out: PathBuf,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1, global = true)]
    seed: u64,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Experiment {
    /// Figures 5 and 12 to 17 of NetKV, and how fast 28 million requests are.
    Netkv(netkv::Options),
    /// MBal's three phases, each alone and together, over workloads A, B and C.
    Phases(phases::Options),
}

/// Runs one experiment; tables go to standard output, progress to standard error.
pub fn run(args: &Args) -> Result<(), String> {
    let report = Report::new(&args.out)?;
    match &args.experiment {
        Experiment::Netkv(options) => netkv::run(options, args.seed, &report),
        Experiment::Phases(options) => phases::run(options, args.seed, &report),
    }
}
