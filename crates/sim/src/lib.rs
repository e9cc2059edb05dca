//! `mbal sim`: a cluster in virtual time, many servers on one thread, deterministic from a seed.
//!
//! Called by the `mbal` binary. [`model`] runs the policies of the pure crates over queues with service times; it
//! never opens a socket or reads a clock but to say how long it took.

#![forbid(unsafe_code)]

pub mod model;

use std::process::ExitCode;

/// What there is to simulate.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Kind {
    /// The deciders alone, over queues with service times: figures of the papers, as tables, CSV and plots.
    Model(model::Args),
}

/// Runs to its end; the exit code is 1 where a file could not be read or written.
pub fn run(args: &Args) -> ExitCode {
    let Kind::Model(args) = &args.kind;
    match model::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mbal sim: {error}");
            ExitCode::FAILURE
        }
    }
}
