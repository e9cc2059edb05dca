//! `mbal scale N`: servers of a cluster retire, or more are wanted.

use std::fmt::Write;
use std::io::{IsTerminal, Write as _};
use std::thread;
use std::time::Duration;

use clap::Args;
use mbal_control::api::{ScaleCall, ScaleState, ScaleStatus};
use mbal_server::Caller;

use super::bytes;
use crate::cluster::{read, text, text_with};
use crate::named::NamedServer;

/// How far it is is asked so often.
const LOOKS_EVERY: Duration = Duration::from_millis(250);

#[derive(Args, Debug)]
pub struct Resize {
    /// So many servers are to serve
    #[arg(value_name = "SERVERS", conflicts_with = "cancel")]
    servers: Option<usize>,

    /// Who retires, the first one first, by number or address in mbal status; the coldest ones otherwise
    #[arg(long, requires = "servers", value_name = "SERVER", value_delimiter = ',')]
    retire: Vec<NamedServer>,

    /// Whoever was to retire serves on
    #[arg(long)]
    cancel: bool,

    /// Do not wait until it is done
    #[arg(long, requires = "servers")]
    no_wait: bool,
}

impl Resize {
    pub fn run(&self, caller: &Caller, dry_run: bool, json: bool) -> Result<String, String> {
        if self.cancel {
            return text(caller, "DELETE", "/v1/scale", None).map(|_| String::new());
        }
        let Some(servers) = self.servers else {
            let answer = text(caller, "GET", "/v1/scale", None)?;
            return shown(&answer, json);
        };
        let retire = self.retire.iter().map(|server| server.number(caller));
        let retire = retire.collect::<Result<_, String>>()?;
        let call = ScaleCall { servers, dry_run, retire, stops: false };
        let mut answer = text_with(caller, "POST", "/v1/scale", Some(&call))?;
        let begun: ScaleStatus = read(&answer)?;
        let mut bar = Bar::default();
        loop {
            let status: ScaleStatus = read(&answer)?;
            let is_chosen = status.state != ScaleState::Asking;
            let goes_on = !is_chosen || status.state == ScaleState::Moving && !self.no_wait;
            if status.dry_run != dry_run || status.servers != servers {
                return Err(format!("scaling {} has been replaced or cancelled", begun.number));
            }
            if !goes_on {
                break;
            }
            bar.show(&status);
            thread::sleep(LOOKS_EVERY);
            answer = text(caller, "GET", "/v1/scale", None)?;
        }
        bar.end();
        shown(&answer, json)
    }
}

fn shown(answer: &str, json: bool) -> Result<String, String> {
    if json { Ok(answer.to_owned() + "\n") } else { Ok(in_words(&read(answer)?)) }
}

/// How far it is, on a terminal, in a line of its own.
#[derive(Default)]
struct Bar {
    shown: bool,
}

impl Bar {
    fn show(&mut self, status: &ScaleStatus) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K{}", progress(status));
            drop(std::io::stderr().flush());
            self.shown = true;
        }
    }

    fn end(&self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

const BAR_CELLS: usize = 30;

fn progress(status: &ScaleStatus) -> String {
    if status.state == ScaleState::Asking {
        return format!("asking servers for the ages of items: {} left", status.awaited.len());
    }
    let full = ((status.part_done * BAR_CELLS as f64) as usize).min(BAR_CELLS);
    let left = match status.seconds_left {
        Some(seconds) => format!("{seconds} s left"),
        None => "beginning".into(),
    };
    let (done, rest) = ("#".repeat(full), ".".repeat(BAR_CELLS - full));
    format!("[{done}{rest}] {:.0}%, {}, {left}", status.part_done * 100.0, bytes(status.bytes))
}

fn in_words(status: &ScaleStatus) -> String {
    let mut out = match status.state {
        ScaleState::Idle => {
            format!("{} servers serve, nothing else was asked for\n", status.serving)
        }
        ScaleState::Asking => progress(status) + "\n",
        ScaleState::Growing => {
            format!(
                "{} of {} servers serve: start {} more\n",
                status.serving, status.servers, status.more
            )
        }
        ScaleState::Moving => {
            format!("to {} servers: {}\n", status.servers, progress(status))
        }
        ScaleState::Done if status.dry_run && status.more > 0 => {
            format!(
                "{} servers serve: {} more would have to be started\n",
                status.serving, status.more
            )
        }
        ScaleState::Done if status.dry_run => {
            format!("{} servers serve, {} would\n", status.serving, status.servers)
        }
        ScaleState::Done => format!("done: {} servers serve\n", status.serving),
    };
    let Some(plan) = &status.plan else { return out };
    if !plan.retiring.is_empty() {
        out += "retires  median item's age      items' size        travels\n";
    }
    for one in &plan.retiring {
        let _ = writeln!(
            out,
            "{:>7} {:>15} s {:>18} {:>14}",
            one.server,
            one.score,
            bytes(one.bytes),
            bytes(one.carried_bytes)
        );
    }
    let _ = match plan.cuts.is_empty() {
        true => writeln!(out, "the others have room for everything"),
        false => writeln!(
            out,
            "the others keep {} of {}; older items make room",
            bytes(plan.kept_bytes),
            bytes(plan.staying_bytes)
        ),
    };
    let then = if status.stops { "is stopped by the autoscaler" } else { "may be stopped" };
    for server in &status.retired {
        let _ = writeln!(out, "server {server} is empty, and {then}");
    }
    out
}

#[cfg(test)]
mod tests {
    use mbal_control::api::{Retiring, ScaleCut, ScalePlan};

    use super::*;

    #[test]
    fn it_says_who_retires_what_travels_and_how_long_it_takes() {
        let retiring =
            Retiring { server: 4, score: 812, bytes: 64_000_000, carried_bytes: 40_100_000 };
        let plan = ScalePlan {
            retiring: vec![retiring],
            nodes: 16_384,
            staying_bytes: 192_000_000,
            kept_bytes: 150_000_000,
            cuts: vec![ScaleCut::default()],
        };
        let status = ScaleStatus {
            number: 7,
            state: ScaleState::Moving,
            servers: 3,
            serving: 3,
            plan: Some(plan),
            part_done: 0.5,
            bytes: 20_050_000,
            seconds_left: Some(9),
            ..ScaleStatus::default()
        };
        let expected = "\
to 3 servers: [###############...............] 50%, 20.1 MB, 9 s left
retires  median item's age      items' size        travels
      4             812 s            64.0 MB        40.1 MB
the others keep 150.0 MB of 192.0 MB; older items make room
";
        assert_eq!(in_words(&status), expected);
        let state = ScaleState::Growing;
        let grows = ScaleStatus { state, servers: 5, serving: 3, more: 2, ..Default::default() };
        assert_eq!(in_words(&grows), "3 of 5 servers serve: start 2 more\n");
    }
}
