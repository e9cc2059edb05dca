//! `mbal-lab model`: the policies over queues with service times.

mod drawing;
mod drawings;
mod drawn;
mod fleet;
mod netkv;
mod popularity;
mod report;
mod size;
mod traces;

use std::path::PathBuf;

pub use fleet::{Delays, Fleet};
pub use popularity::Popularity;
pub(crate) use report::Report;

const EXAMPLES: &str = "\
Tables go to standard output, progress to standard error. Files are written only where --out says: each table
as CSV, what is too long for a terminal too, and its plot. A file is written whole or not at all, when its figure
is done, so Ctrl-C at any moment leaves nothing half done.

  mbal-lab model netkv --speed                 28 million requests over 2,500 servers, timed
  mbal-lab model netkv --out figures           NetKV's Figures 5 and 12 to 17, some minutes
  mbal-lab model size --servers 1000           a coordinator's time and bytes, 64,000 workers
  mbal-lab model plots --out figures           draws again what has been left there as CSV";

/// Proves the deciders on traces and generated demand, in virtual time.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
    /// Folder for CSV and SVG files; without it none are written.
    #[arg(long, value_name = "DIR", global = true)]
    out: Option<PathBuf>,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1, global = true)]
    seed: u64,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Experiment {
    /// Figures 5 and 12 to 17 of NetKV, and how fast 28 million requests are.
    Netkv(netkv::Options),
    /// What a cluster costs its coordinator: CPU time of an epoch, bytes of a heartbeat and of the map, by size.
    Size(size::Options),
    /// Plots of what the others, and the examples of `sketch`, `elastic` and `exact`, wrote as CSV into the folder of
    /// --out.
    Plots,
}

/// Runs one experiment; tables go to standard output, progress to standard error.
pub fn run(args: &Args) -> Result<(), String> {
    let report = Report::new(args.out.as_deref())?;
    match &args.experiment {
        Experiment::Netkv(options) => netkv::run(options, args.seed, &report),
        Experiment::Size(options) => size::run(options, args.seed, &report),
        Experiment::Plots => {
            let folder = args.out.as_deref().ok_or("plots: --out DIR says where the CSV is")?;
            drawn::run(folder, &report)
        }
    }
}
