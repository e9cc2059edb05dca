//! `mbal scale`: how many servers a cluster is to have, and what that brings.

mod auto;

use std::process::ExitCode;

use clap::Args;

use crate::cluster::{At, told};

const EXAMPLES: &str = "\
EXAMPLES
  mbal scale --forecast           the hit ratio of every number of servers
  mbal scale --forecast --database-rate 4000
                                  and how many a database of 4,000 reads/s needs
  mbal scale --auto --min 3 --max 12 --database-rate 4000 --dry-run
                                  what the autoscaler would do, and why
  mbal scale --auto --min 3 --max 12 --database-rate 4000 \\
      --schedule '6 from 08:00 to 20:00 on mon-fri'
                                  it does so; hours are UTC
  mbal scale --auto               what it has seen last, and what came true
  mbal scale --auto --policy off  sizes are people's business again

Servers are started and stopped as `mbal coordinator` was told: by commands, an
HTTP call or Kubernetes. `mbal up` starts and stops processes.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Scale {
    #[command(flatten)]
    auto: auto::Auto,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    at: At,
}

pub fn scale(scale: &Scale) -> ExitCode {
    told(scale.at.caller().and_then(|caller| scale.auto.run(&caller, scale.json)))
}
