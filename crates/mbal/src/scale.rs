//! `mbal scale`: changes how many servers share the keys.

mod memcached;
mod results;
mod telling;

use std::process::ExitCode;

use clap::Args;

#[derive(Args, Debug)]
#[command(after_help = memcached::EXAMPLES)]
pub struct Scale {
    #[command(flatten)]
    memcached: memcached::Memcached,
}

pub fn scale(scale: &Scale) -> ExitCode {
    memcached::run(&scale.memcached)
}
