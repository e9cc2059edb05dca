//! `mbal-lab`: what proves MBal, and is not shipped with it.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

/// Proves MBal in virtual time: thousands of workers on one thread, from a seed.
#[derive(Parser)]
#[command(name = "mbal-lab", version)]
struct Lab {
    #[command(flatten)]
    args: mbal_sim::Args,
}

fn main() -> ExitCode {
    mbal_sim::run(&Lab::parse().args)
}
