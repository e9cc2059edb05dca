//! `mbal status`, `move` and `explain`: questions to a server on this host.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use mbal_server::Served;
use mbal_server::control::{ask, ask_server};

#[derive(Args, Debug)]
pub struct Where {
    /// The server's TCP port
    #[arg(short, long, env = "MBAL_PORT", value_name = "num", default_value_t = 11211)]
    port: u16,

    /// Its control socket, if that is not by port
    #[arg(long, env = "MBAL_CONTROL", value_name = "file")]
    control: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Status {
    /// For programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    at: Where,
}

#[derive(Args, Debug)]
pub struct Move {
    cachelet: u16,
    worker: u16,

    #[command(flatten)]
    at: Where,
}

#[derive(Args, Debug)]
pub struct Explain {
    /// A cachelet's number, or a key
    what: String,

    #[command(flatten)]
    at: Where,
}

pub fn status(status: &Status) -> ExitCode {
    tell(&status.at, if status.json { "status json" } else { "status" })
}

pub fn move_cachelet(what: &Move) -> ExitCode {
    tell(&what.at, &format!("move {} {}", what.cachelet, what.worker))
}

pub fn explain(explain: &Explain) -> ExitCode {
    tell(&explain.at, &format!("explain {}", explain.what))
}

fn tell(at: &Where, question: &str) -> ExitCode {
    let answer = match &at.control {
        Some(path) => ask(path, question.as_bytes()),
        None => ask_server(&Served::Port(at.port), question.as_bytes()),
    };
    match answer {
        Ok(answer) => {
            print!("{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("mbal: {error}");
            ExitCode::FAILURE
        }
    }
}
