//! `mbal cluster map`, `lost`, `events`, and `status` and `move` of a whole cluster: questions to a coordinator.

use std::fmt::Write;
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

use crate::hot_keys;
use crate::named::NamedServer;
use crate::output::say;
use clap::Args;
use mbal_control::api::{BalanceMode, LinkStatus, LostCall, MoveCall, SplitCall, Status};
use mbal_model::Prefix;
use mbal_server::{CallFailed, Caller, token_left, token_of};
use mbal_wire::{is_printable, printable};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// On loopback.
const LISTENS_WITHIN: Duration = Duration::from_secs(1);
/// Of several, one that is asleep is passed over sooner.
const EACH_ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// Where `mbal coordinator` listens if nothing else is said.
pub const USUAL_COORDINATOR: &str = "http://127.0.0.1:11210";

/// Broken links that a table names: in a large cluster one server may miss all others.
const LINKS_SHOWN: usize = 8;

// The coordinator to ask. No docstring: it would become the help of who has these flags.
#[derive(Args, Clone, Debug)]
pub struct At {
    /// The cluster's coordinator; of several, separated by commas, the one that leads
    #[arg(
        long,
        env = "MBAL_COORDINATOR",
        value_name = "url[,url]",
        default_value = USUAL_COORDINATOR
    )]
    coordinator: String,

    #[command(flatten)]
    token: Token,
}

#[derive(Args, Clone, Debug)]
pub struct Token {
    /// A file with the token that the coordinator asks for
    #[arg(long, env = "MBAL_COORDINATOR_TOKEN", value_name = "file")]
    coordinator_token: Option<std::path::PathBuf>,
}

impl Token {
    pub fn of(file: Option<std::path::PathBuf>) -> Token {
        Token { coordinator_token: file }
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  mbal cluster map          of the coordinator on this host
  mbal cluster map --coordinator http://10.0.0.1:11210

`mbal serve --cluster FILE` reads what this prints.")]
pub struct Map {
    #[command(flatten)]
    at: At,
}

#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  mbal cluster split 2800/5
                            2800/6 and 2c00/6 in its place, at the same server and worker

It is served meanwhile. A half can be moved as any cachelet; its move waits until the server has split what it holds.")]
pub struct Split {
    /// A cachelet of the map, as `mbal cluster map` tells it
    #[arg(value_name = "CACHELET", value_parser = crate::operator::cachelet)]
    cachelet: Prefix,

    #[command(flatten)]
    at: At,
}

#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  mbal cluster events       time (UTC), number and text of the last 1,000 decisions")]
pub struct Events {
    #[command(flatten)]
    at: At,
}

#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  mbal cluster lost 3       server 3 is dead: its cachelets begin empty on the others
  mbal cluster lost 10.0.0.3:11211
                            the same, by an address that status shows
  mbal cluster lost 3 --force
                            though it was just heard: it loses all that it has

Say it only of a process that runs no more: one that does would go on serving
what others serve as well. Without --force it is refused while the server is
heard.")]
pub struct Lost {
    /// The server's number, or its address
    #[arg(value_name = "SERVER")]
    server: NamedServer,

    /// Though it was just heard, or a coordinator has just begun and does not know
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    at: At,
}

pub fn map(map: &Map) -> ExitCode {
    told(map.at.caller().and_then(|caller| text(&caller, "GET", "/v1/map", None)))
}

pub fn events(events: &Events) -> ExitCode {
    told(events.at.caller().and_then(|caller| log_of(&caller)))
}

pub fn lost(lost: &Lost) -> ExitCode {
    let say = |caller: Caller| {
        // Of the process that is there now: a call that is executed late is not of one that came after it.
        let status: Status = read(&text(&caller, "GET", "/v1/status", None)?)?;
        let known = lost.server.among(&status.servers)?;
        let path = format!("/v1/servers/{}/lost", known.id);
        // One that has ended already has none.
        let incarnation = Some(known.incarnation).filter(|_| !known.has_ended());
        let call = LostCall { incarnation, force: lost.force };
        text_with(&caller, "POST", &path, Some(&call))?;
        Ok(match known.has_ended() {
            true => format!("server {} had ended already: it is {}\n", known.id, known.state),
            false => format!(
                "server {} is lost: its keys begin empty on the others within seconds\n",
                known.id
            ),
        })
    };
    told(lost.at.caller().and_then(say))
}

pub fn split(split: &Split) -> ExitCode {
    let call = SplitCall { prefix: split.cachelet.to_string() };
    let say = |caller: Caller| text_with(&caller, "POST", "/v1/splits", Some(&call));
    told(split.at.caller().and_then(say).map(|_| String::new()))
}

/// `mbal cluster status --coordinator URL`.
pub fn status(url: &str, token: &Token, json: bool) -> ExitCode {
    let asked = caller(url, token).and_then(|caller| text(&caller, "GET", "/v1/status", None));
    told(asked.and_then(|text| if json { Ok(text + "\n") } else { Ok(table(&read(&text)?)) }))
}

/// `mbal cluster move CACHELET SERVER[/WORKER] --coordinator URL`.
pub fn move_cachelet(
    url: &str,
    token: &Token,
    cachelet: Prefix,
    to: (&NamedServer, Option<u16>),
) -> ExitCode {
    #[derive(Deserialize)]
    struct Begun {
        number: u32,
    }
    let asked = caller(url, token).and_then(|caller| {
        let server = to.0.number(&caller)?;
        let call = MoveCall { prefix: cachelet.to_string(), server, worker: to.1 };
        text(&caller, "POST", "/v1/moves", Some(&call))
    });
    told(asked.and_then(|text| Ok(format!("move {} begins\n", read::<Begun>(&text)?.number))))
}

pub fn told(answer: Result<String, String>) -> ExitCode {
    match answer {
        Ok(text) => say(&shown(&text)),
        Err(why) => {
            eprintln!("mbal: {}", printable(&why));
            ExitCode::FAILURE
        }
    }
}

/// What others have said does nothing to a terminal; JSON says the same as before.
fn shown(text: &str) -> String {
    if !text.starts_with('{') {
        return printable(text);
    }
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => out.push(character),
            _ if is_printable(character) => out.push(character),
            _ => out += &format!("\\u{:04x}", u32::from(character)),
        }
    }
    out
}

pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("an answer that is none of a coordinator: {error}"))
}

impl At {
    pub fn caller(&self) -> Result<Caller, String> {
        // A variable that is empty says nothing.
        let said = Some(self.coordinator.as_str()).filter(|url| !url.is_empty());
        caller(said.unwrap_or(USUAL_COORDINATOR), &self.token)
    }
}

/// Whether anybody does at this address of this host.
pub fn listens(url: &str) -> bool {
    let address = url.strip_prefix("http://").and_then(|address| address.parse().ok());
    address.is_some_and(|address| TcpStream::connect_timeout(&address, LISTENS_WITHIN).is_ok())
}

pub fn caller(url: &str, token: &Token) -> Result<Caller, String> {
    let token = token.coordinator_token.as_ref();
    let token = token.map(|path| token_of("--coordinator-token", path)).transpose()?;
    let token = token.or_else(|| token_left(url));
    let within = if url.contains(',') { EACH_ANSWERS_WITHIN } else { ANSWERS_WITHIN };
    Caller::new(url, token, within)
}

pub fn text(
    caller: &Caller,
    method: &str,
    path: &str,
    body: Option<&MoveCall>,
) -> Result<String, String> {
    text_with(caller, method, path, body)
}

pub fn text_with(
    caller: &Caller,
    method: &str,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<String, String> {
    caller.call(method, path, body).map_err(|failed| match failed {
        CallFailed::Silent(why) => format!(
            "no coordinator: {why}. --coordinator URL, or MBAL_COORDINATOR, names another one; a server alone has none"
        ),
        CallFailed::Refused(401, _) if caller.has_token() => {
            "the coordinator has another token than this: --coordinator-token names a file".into()
        }
        CallFailed::Refused(401, _) => {
            "the coordinator wants its token: --coordinator-token (or MBAL_COORDINATOR_TOKEN) names a file with it, of `mbal up` only its user can read one".into()
        }
        CallFailed::Refused(_, why) => why,
    })
}

/// An event of a coordinator: what was decided.
#[derive(Deserialize)]
pub struct Decided {
    pub number: u64,
    /// Seconds since 1970.
    pub unix: u64,
    pub text: String,
}

/// Newest first.
pub fn events_of(caller: &Caller) -> Result<Vec<Decided>, String> {
    #[derive(Deserialize)]
    struct Events {
        events: Vec<Decided>,
    }
    Ok(read::<Events>(&text(caller, "GET", "/v1/events", None)?)?.events)
}

/// Oldest first, as a log is read.
fn log_of(caller: &Caller) -> Result<String, String> {
    let line =
        |event: &Decided| format!("{} {:>5} {}\n", clock(event.unix), event.number, event.text);
    Ok(events_of(caller)?.iter().rev().map(line).collect())
}

/// The time of day in UTC.
pub fn clock(unix: u64) -> String {
    let second = unix % 86_400;
    format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

pub fn table(status: &Status) -> String {
    let mut out = match status.waits_for {
        0 => format!("cluster {}, map version {}\n", status.cluster, status.map_version),
        more => format!(
            "cluster {}, no map yet: {more} more servers have to register\n",
            status.cluster
        ),
    };
    out += &broken_links(&status.broken_links);
    out += "server  state      load  share  cachelets  map  clients\n";
    for server in &status.servers {
        let _ = writeln!(
            out,
            "{:>6}  {:<8} {:>6.2} {:>5.1}% {:>10} {:>4}  {}",
            server.id,
            server.state,
            server.load,
            server.share * 100.0,
            server.cachelets,
            server.map_version,
            server.client
        );
    }
    for one in &status.moves {
        let _ = write!(
            out,
            "move {}: {} from server {} to {}",
            one.number, one.prefix, one.from, one.to
        );
        if let Some(report) = &one.report {
            let _ = write!(
                out,
                ", {:.0}% gone, {} slices, {} bytes",
                report.part_gone * 100.0,
                report.slices_gone,
                report.bytes
            );
            if report.part_gone > 0.0 {
                let left = report.moved_ms as f64 / 1e3 * (1.0 / report.part_gone - 1.0);
                let _ = write!(out, ", {left:.1} s left");
            }
            if report.paused_us_max > 0 {
                let paused = report.paused_us_max as f64 / 1e3;
                let _ = write!(out, ", requests for it waited {paused:.1} ms at most");
            }
            if report.slowed {
                out += ", slowed down: clients would feel it";
            }
        }
        out += "\n";
    }
    out += &balance(status);
    if let Some(hot) = &status.hot {
        out += &hot_keys::summary(hot);
    }
    out
}

/// What is missed and fails for want of links, and what to do.
fn broken_links(links: &[LinkStatus]) -> String {
    if links.is_empty() {
        return String::new();
    }
    let mut out = "links are broken: keys are missed, and writes fail\n".to_owned();
    for link in links.iter().take(LINKS_SHOWN) {
        let LinkStatus { from, to, seconds, why, mend } = link;
        let _ = writeln!(
            out,
            "server {from} has had no link to server {to} for {seconds} s: {why}; {mend}"
        );
    }
    if links.len() > LINKS_SHOWN {
        let _ = writeln!(out, "and {} links more", links.len() - LINKS_SHOWN);
    }
    out
}

/// How loads are between servers, and what operators are wanted for.
fn balance(status: &Status) -> String {
    let balance = &status.balance;
    if status.map_version == 0 {
        return String::new();
    }
    let mode = match balance.mode {
        BalanceMode::On => "on",
        BalanceMode::Off => "off",
        BalanceMode::DryRun => "a dry run",
    };
    let mut out = format!(
        "balance is {mode}: loads {:.2} on average, {:.2} at most",
        balance.load_mean, balance.load_max
    );
    if !balance.asking.is_empty() {
        let asking: Vec<String> = balance.asking.iter().map(u16::to_string).collect();
        let _ = write!(out, "; phase 3 for {}", asking.join(", "));
    }
    out += "\n";
    for remedy in &balance.remedies {
        let _ = writeln!(out, "{}", remedy.told());
    }
    if balance.servers_wanted > 0 {
        let _ = writeln!(out, "all are hot: {} more servers wanted", balance.servers_wanted);
    }
    for prefix in &balance.too_heavy {
        let _ = writeln!(out, "{prefix} is too heavy for any worker");
    }
    for server in &balance.by_connections {
        let _ = writeln!(out, "server {server} is overloaded by its connections: no move helps");
    }
    for server in status.servers.iter().filter(|server| server.state == "drained") {
        let _ = writeln!(out, "server {} is empty, and may be stopped", server.id);
    }
    for server in status.servers.iter().filter(|server| server.state == "stuck") {
        let _ = writeln!(out, "server {} cannot be emptied: nobody has room", server.id);
    }
    out
}

#[cfg(test)]
mod tests {
    use mbal_control::api::{BalanceStatus, MoveDecision, MoveReport, MoveStatus, ServerStatus};

    use super::*;

    #[test]
    fn a_table_says_who_serves_what() {
        let server = ServerStatus {
            id: 2,
            state: "serving".into(),
            load: 0.256,
            share: 0.3333,
            cachelets: 43,
            map_version: 7,
            client: "10.0.0.2:11211".into(),
            ..ServerStatus::default()
        };
        let report = MoveReport {
            slices_gone: 3,
            part_gone: 0.376,
            bytes: 4096,
            paused_us_max: 1_240,
            moved_ms: 2_000,
            slowed: true,
            ..MoveReport::default()
        };
        let one = MoveStatus {
            number: 5,
            prefix: "2c00/6".into(),
            from: 2,
            to: 3,
            word: MoveDecision::Go,
            report: Some(report),
        };
        let mut status = Status {
            cluster: "shop".into(),
            map_version: 7,
            waits_for: 0,
            servers: vec![server],
            moves: vec![one],
            balance: BalanceStatus { load_mean: 0.2, load_max: 0.31, ..BalanceStatus::default() },
            hot: None,
            broken_links: Vec::new(),
        };
        let expected = "\
cluster shop, map version 7
server  state      load  share  cachelets  map  clients
     2  serving    0.26  33.3%         43    7  10.0.0.2:11211
move 5: 2c00/6 from server 2 to 3, 38% gone, 3 slices, 4096 bytes, 3.3 s left, requests for it waited 1.2 ms at most, slowed down: clients would feel it
balance is on: loads 0.20 on average, 0.31 at most
";
        assert_eq!(table(&status), expected);
        status.balance = BalanceStatus {
            mode: BalanceMode::DryRun,
            asking: vec![2, 3],
            servers_wanted: 4,
            too_heavy: vec!["2800/5".into()],
            by_connections: vec![3],
            ..status.balance
        };
        status.servers[0].state = "drained".into();
        let wanted = "\
balance is a dry run: loads 0.20 on average, 0.31 at most; phase 3 for 2, 3
all are hot: 4 more servers wanted
2800/5 is too heavy for any worker
server 3 is overloaded by its connections: no move helps
server 2 is empty, and may be stopped
";
        assert!(table(&status).ends_with(wanted), "{}", table(&status));
        let link = LinkStatus {
            from: 1,
            to: 2,
            seconds: 12,
            why: "its secret is another".into(),
            mend: "give all servers the same --cluster-secret".into(),
        };
        status.broken_links = vec![link; 9];
        let lines = table(&status);
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(
            lines[1..3],
            [
                "links are broken: keys are missed, and writes fail",
                "server 1 has had no link to server 2 for 12 s: its secret is another; give all servers the same --cluster-secret",
            ]
        );
        assert_eq!(lines[10], "and 1 links more");
        status.waits_for = 2;
        assert!(
            table(&status)
                .starts_with("cluster shop, no map yet: 2 more servers have to register\n")
        );
    }

    #[test]
    fn what_others_say_does_nothing_to_a_terminal_and_json_stays_json() {
        assert_eq!(shown("key \u{1b}[2J\n"), "key \\x1b[2J\n");
        let json = "{\"key\":\"\u{9b}\u{202e}\"}\n";
        assert_eq!(shown(json), "{\"key\":\"\\u009b\\u202e\"}\n");
        let same: serde_json::Value = serde_json::from_str(json).expect("it is JSON");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown(json)).expect("it still is"),
            same
        );
    }
}
