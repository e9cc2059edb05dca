//! `cargo run --release -p mbal-sim --example model -- netkv --help`.

use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: mbal_sim::model::Args,
}

fn main() {
    if let Err(error) = mbal_sim::model::run(&Cli::parse().args) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
