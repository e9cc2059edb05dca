//! `mbal-lab`: a cluster in virtual time, many servers on one thread, deterministic from a seed.
//!
//! [`model`] runs the policies of the pure crates over queues with service times, [`closed`] all that balances in a loop with
//! clients that wait, [`chaos`] the workers of a server as they are. None opens a socket, or reads a clock but to say how long it took.

#![forbid(unsafe_code)]

pub mod chaos;
pub mod closed;
mod draw;
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
    Closed(closed::Args),
    Spore(closed::spore::Args),
    Phases(closed::phases::Args),
    Chaos(chaos::Args),
    Draw(draw::Args),
}

/// Runs to its end; the exit code is 1 where a file could not be read or written.
pub fn run(args: &Args) -> ExitCode {
    let ran = match &args.kind {
        Kind::Model(args) => model::run(args),
        Kind::Closed(args) => closed::run(args),
        Kind::Spore(args) => closed::spore::run(args),
        Kind::Phases(args) => closed::phases::run(args),
        Kind::Chaos(args) => chaos::run(args),
        Kind::Draw(args) => draw::run(args),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mbal-lab: {error}");
            ExitCode::FAILURE
        }
    }
}
