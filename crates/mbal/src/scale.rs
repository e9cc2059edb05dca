//! `mbal cluster scale`, `autoscale` and `forecast`: how many servers share the keys of a cluster, and what that brings.

mod auto;
mod cluster;
mod prices;

use std::process::ExitCode;

use clap::Args;

use crate::cluster::{At, told};

#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  mbal cluster scale 3      three servers are to serve: the coldest others retire
  mbal cluster scale 3 --dry-run
                            says which, and what would travel
  mbal cluster scale 3 --retire 4
                            server 4 retires, however warm: its hottest items travel
  mbal cluster scale        how far it is
  mbal cluster scale --cancel
                            those that were to retire serve on

Servers that retire are emptied together, and serve meanwhile. If the others have
less room than all items need, only the youngest travel, and the oldest make room
for them. Who has retired may be stopped. `mbal up` starts and stops processes.")]
pub struct Scale {
    #[command(flatten)]
    resize: cluster::Resize,

    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    at: At,
}

#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  mbal cluster autoscale    what it has seen last, and what came true
  mbal cluster autoscale --min 3 --max 12 --database-rate 4000 --dry-run
                            what it would do, and why
  mbal cluster autoscale --min 3 --max 9 --database-rate 4000 --schedule '6 from 08:00'
                            it does so, and never below six from then on; UTC
  mbal cluster autoscale --policy off
                            sizes are people's business again

It starts and stops servers as `mbal coordinator` was told: by commands, an HTTP
call or Kubernetes.")]
pub struct Autoscale {
    #[command(flatten)]
    auto: auto::Auto,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    at: At,
}

#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  mbal cluster forecast     the hit ratio of every number of servers
  mbal cluster forecast --database-rate 4000
                            and how many a database of 4,000 reads/s needs
  mbal cluster forecast --prices prices.toml
                            and what each costs: server = 0.08, gigabyte = 0.004 an hour")]
pub struct Forecast {
    #[command(flatten)]
    sizes: auto::Sizes,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    at: At,
}

pub fn scale(scale: &Scale) -> ExitCode {
    let Scale { resize, dry_run, json, at } = scale;
    told(at.caller().and_then(|caller| resize.run(&caller, *dry_run, *json)))
}

pub fn autoscale(asked: &Autoscale) -> ExitCode {
    told(asked.at.caller().and_then(|caller| asked.auto.run(&caller, asked.json)))
}

pub fn forecast(asked: &Forecast) -> ExitCode {
    told(asked.at.caller().and_then(|caller| asked.sizes.told(&caller, asked.json)))
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}
