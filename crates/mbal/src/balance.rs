//! `mbal cluster balance` and `mbal cluster drain`: what operators decide about a cluster's loads.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use mbal_control::api::{BalanceCall, BalanceMode};

use crate::cluster::{At, text, text_with, told};
use crate::named::NamedServer;

#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  mbal cluster balance off  nothing moves between servers but what operators order
  mbal cluster balance dry-run
                            `mbal cluster events` tells what would move
  mbal cluster balance on   cachelets move from overloaded servers to lighter ones

Moves under way go on. Each server's own balancer has a flag: mbal serve --balance.")]
pub struct Balance {
    /// Whether the coordinator moves cachelets between servers
    mode: Mode,

    #[command(flatten)]
    at: At,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    On,
    Off,
    DryRun,
}

#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  mbal cluster drain 3      server 3 is to be emptied, and serves meanwhile
  mbal cluster status       says when it may be stopped
  mbal cluster drain 10.0.0.3:11211
                            the same, by an address that status shows
  mbal cluster drain 3 --undo
                            it keeps what it still has

Its cachelets move with their items to the servers that have most room, a few at
a time. A server that is started again after it was stopped gets cachelets again.")]
pub struct Drain {
    /// The server's number, or its address
    #[arg(value_name = "SERVER")]
    server: NamedServer,

    /// Do not empty it any more
    #[arg(long)]
    undo: bool,

    #[command(flatten)]
    at: At,
}

pub fn balance(balance: &Balance) -> ExitCode {
    let mode = match balance.mode {
        Mode::On => BalanceMode::On,
        Mode::Off => BalanceMode::Off,
        Mode::DryRun => BalanceMode::DryRun,
    };
    let call = BalanceCall { mode };
    let asked = balance.at.caller();
    let asked = asked.and_then(|caller| text_with(&caller, "PUT", "/v1/balance", Some(&call)));
    told(asked.map(|_| String::new()))
}

pub fn drain(drain: &Drain) -> ExitCode {
    let method = if drain.undo { "DELETE" } else { "POST" };
    let asked = drain.at.caller().and_then(|caller| {
        let path = format!("/v1/servers/{}/drain", drain.server.number(&caller)?);
        text(&caller, method, &path, None)
    });
    told(asked.map(|_| String::new()))
}
