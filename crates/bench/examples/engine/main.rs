//! Figures of the storage engine: `cargo run --release -p mbal-bench --example engine -- hits --help`.
//!
//! Each subcommand measures one thing against honest rivals of its own making, prints a table, and leaves
//! CSV, SVG and the page with the table in one folder. An example, so that `mbal` itself carries none of it.

mod choice;
mod churn;
mod drawn;
mod engine;
mod forecast;
mod hits;
mod memory;
mod output;
mod policies;
mod resized;
mod rival;
mod server;
mod stalls;
mod tables;
mod traces;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
struct Cli {
    /// Folder for CSV, SVG and page
    #[arg(long, global = true, default_value = "docs/results/engine")]
    out: PathBuf,
    #[command(subcommand)]
    figure: Figure,
}

#[derive(clap::Subcommand)]
enum Figure {
    /// Hit ratios on recorded traces, against seven policies
    Hits(hits::Args),
    /// Items per resident MiB, bytes per item, resident memory under churn; against memcached
    Memory(memory::Args),
    /// Sizes and lifetimes that change
    Churn(churn::Args),
    /// The longest that one job keeps a worker
    Stalls(stalls::Args),
    /// Gets and sets in process, against locked tables and malloc
    Tables(tables::Args),
    /// Hit ratios of other sizes, forecast from a trace's first half and judged on its second
    Forecast(forecast::Args),
    /// Hit ratios forecast for a resize, and what the resized engine then hits
    Resized(resized::Args),
    /// What travels when one of ten servers retires: the one that is chosen, and all others
    Choice(choice::Args),
    /// Draws again what the others have left as CSV in the folder; nothing is measured
    Plots,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let made = match &cli.figure {
        Figure::Hits(args) => hits::run(args, &cli.out),
        Figure::Memory(args) => memory::run(args, &cli.out),
        Figure::Churn(args) => churn::run(args, &cli.out),
        Figure::Stalls(args) => stalls::run(args, &cli.out),
        Figure::Tables(args) => tables::run(args, &cli.out),
        Figure::Forecast(args) => forecast::run(args, &cli.out),
        Figure::Resized(args) => resized::run(args, &cli.out),
        Figure::Choice(args) => choice::run(args, &cli.out),
        Figure::Plots => drawn::run(&cli.out),
    };
    if let Err(error) = made {
        eprintln!("engine: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
