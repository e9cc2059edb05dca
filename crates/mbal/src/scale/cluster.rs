//! `mbal cluster scale N`: servers of a cluster retire, or more are wanted.

use std::fmt::Write;
use std::io::{IsTerminal, Write as _};
use std::thread;
use std::time::Duration;

use clap::Args;
use mbal_control::api::{
    AutoscaleStatus, BalanceMode, ScaleCall, ScaleState, ScaleStatus, ServerStatus, Status,
};
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

    /// Who retires, the first one first, by number or address in mbal cluster status; the coldest ones otherwise
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
            return shown(caller, &answer, json);
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
        shown(caller, &answer, json)
    }
}

fn shown(caller: &Caller, answer: &str, json: bool) -> Result<String, String> {
    if json {
        return Ok(answer.to_owned() + "\n");
    }
    let autoscaler = text(caller, "GET", "/v1/autoscale", None);
    let autoscaler = autoscaler.and_then(|answer| read::<AutoscaleStatus>(&answer));
    // Of `mbal up`, whose servers are its processes: it does what is asked, whoever asks. What was asked for is told in any case.
    let by_up = autoscaler.is_ok_and(|autoscaler| autoscaler.machines == "processes");
    let scaling: ScaleStatus = read(answer)?;
    let mut out = in_words(&scaling, by_up);
    // Who has come serves at once, and has nothing yet.
    if scaling.state == ScaleState::Done && !scaling.dry_run && scaling.plan.is_none() {
        let status = text(caller, "GET", "/v1/status", None)?;
        out += &without_share(&read(&status)?);
    }
    Ok(out)
}

/// Servers that have less than half of their share of the cachelets, as the planner counts it, and what becomes of that.
fn without_share(status: &Status) -> String {
    let serving = || status.servers.iter().filter(|server| server.state == "serving");
    let cachelets: usize = serving().map(|server| server.cachelets).sum();
    let workers: usize = serving().map(|server| server.workers).sum();
    let share = |server: &ServerStatus| cachelets * server.workers / workers.max(1);
    let mut out = String::new();
    for server in serving().filter(|server| 2 * server.cachelets < share(server)) {
        let ServerStatus { id, cachelets, .. } = server;
        let _ = writeln!(
            out,
            "server {id} has {cachelets} of its share of {} cachelets",
            share(server)
        );
    }
    if !out.is_empty() {
        out += match status.balance.mode {
            BalanceMode::On => {
                "balance moves cachelets there until they have their share: mbal cluster status says how many they have\n"
            }
            BalanceMode::DryRun => {
                "balance is a dry run: nothing moves there until mbal cluster balance on\n"
            }
            BalanceMode::Off => {
                "balance is off: nothing moves there until mbal cluster balance on\n"
            }
        };
    }
    out
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

/// `by_up`: the coordinator is `mbal up`'s.
fn in_words(status: &ScaleStatus, by_up: bool) -> String {
    let mut out = match status.state {
        ScaleState::Idle => {
            format!("{} servers serve, nothing else was asked for\n", status.serving)
        }
        ScaleState::Asking => progress(status) + "\n",
        ScaleState::Growing => {
            let ScaleStatus { serving, servers, more, .. } = status;
            match by_up {
                true => {
                    format!("{serving} of {servers} servers serve: mbal up starts {more} more\n")
                }
                false => format!("{serving} of {servers} servers serve: start {more} more\n"),
            }
        }
        ScaleState::Moving => {
            format!("to {} servers: {}\n", status.servers, progress(status))
        }
        ScaleState::Done if status.dry_run && status.more > 0 => {
            let ScaleStatus { serving, more, .. } = status;
            match by_up {
                true => format!("{serving} servers serve: mbal up would start {more} more\n"),
                false => format!("{serving} servers serve: {more} more would have to be started\n"),
            }
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
    let then = match (by_up, status.stops) {
        (true, _) => "is stopped by mbal up",
        (false, true) => "is stopped by the autoscaler",
        (false, false) => "may be stopped",
    };
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
    fn who_has_come_and_has_nothing_yet_is_named_with_what_follows() {
        let server = |id, workers, cachelets, state: &str| ServerStatus {
            id,
            workers,
            cachelets,
            state: state.into(),
            ..ServerStatus::default()
        };
        let mut status = Status {
            servers: vec![
                server(1, 2, 512, "serving"),
                server(2, 2, 502, "serving"),
                server(3, 4, 0, "serving"),
                server(4, 2, 10, "serving"),
                server(5, 2, 0, "draining"),
                server(6, 2, 0, "lost"),
            ],
            ..Status::default()
        };
        let who = "server 3 has 0 of its share of 409 cachelets\n\
                   server 4 has 10 of its share of 204 cachelets\n";
        for (mode, then) in [
            (BalanceMode::On, "balance moves cachelets there until they have their share: "),
            (
                BalanceMode::Off,
                "balance is off: nothing moves there until mbal cluster balance on\n",
            ),
            (BalanceMode::DryRun, "balance is a dry run: nothing moves there until "),
        ] {
            status.balance.mode = mode;
            let said = without_share(&status);
            assert!(said.starts_with(&format!("{who}{then}")), "{said}");
        }
        for one in &mut status.servers {
            one.cachelets = 200;
        }
        assert_eq!(without_share(&status), "");
        assert_eq!(without_share(&Status::default()), "");
    }

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
        assert_eq!(in_words(&status, false), expected);
        let state = ScaleState::Growing;
        let grows = ScaleStatus { state, servers: 5, serving: 3, more: 2, ..Default::default() };
        let planned = ScaleStatus { state: ScaleState::Done, dry_run: true, ..grows.clone() };
        let retired = ScaleStatus {
            state: ScaleState::Done,
            serving: 3,
            plan: status.plan,
            retired: vec![4],
            ..ScaleStatus::default()
        };
        for (status, by_up, ending) in [
            (&grows, false, "3 of 5 servers serve: start 2 more\n"),
            (&grows, true, "3 of 5 servers serve: mbal up starts 2 more\n"),
            (&planned, false, "3 servers serve: 2 more would have to be started\n"),
            (&planned, true, "3 servers serve: mbal up would start 2 more\n"),
            (&retired, false, "server 4 is empty, and may be stopped\n"),
            (&retired, true, "server 4 is empty, and is stopped by mbal up\n"),
        ] {
            let told = in_words(status, by_up);
            assert!(told.ends_with(ending), "{told}");
        }
    }
}
