//! What a cluster and a lone server answer alike: `mbal cluster status`, `hotkeys`, `move` and `explain`, and `mbal top`.
//!
//! Who names a server asks that one, by its control socket; otherwise the coordinator is asked, if there is one.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use mbal_dial::{Access, At, ServerName};
use mbal_model::Prefix;
use mbal_server::control::{ask, ask_server};
use mbal_server::{Served, control_paths};
use mbal_wire::printable;

use crate::cluster::USUAL_COORDINATOR;
use crate::coordinator::CopyMode;
use crate::named::NamedServer;
use crate::{cluster, cluster_top, explaining, hot_keys};

/// What the words of `status` and of a decision mean, on 80 columns; `docs/reference/balancing.md` says the same.
const WORDS: &str = "\
FIRST LINE
  version 1.N     the owners of cachelets have changed N times
  epoch           counts the periods of --epoch, at whose end loads are read
  phase 2 open    a worker has had too much for --patience epochs, or
                  cachelets are lent still
  phase 2 closed  loads are read, no more
  on loan         cachelets that are not with their home's worker for a time
TABLE
  load            the part of the last epoch in which the worker was busy
  fixed           of it, what moves with no cachelet: the requests of
                  other servers, and of clients who know no workers
  waiting         requests that stood waiting before they were served, on
                  average; from 1 on they count
  cachelets       those that the worker owns
  connections     those that it serves
DECISION
  uneven          why: a worker had too much; or: undone, loan over, operator
  workers had     by worker, its share of the work / its share of what all can
                  do: 1.00 is even
  expected, came  the same after it: by the plan; two epochs later
  would order     what --balance dry-run says instead of ordered
  no plan helps   nothing makes the workers more even
  connections (0.491) 0>1 1 leaves
                  worker 0 hands connections with that load to worker 1
  cachelet 2800/5 (0.120) 0>1 done
                  worker 0 lends that cachelet, with that load, to worker 1;
                  it is named by the first 5 bits of its keys' hashes";

const STATUS_EXAMPLES: &str = "\
EXAMPLES
  mbal cluster status             the cluster of the coordinator on this host; or
                                  the server on port 11211, if there is none
  mbal cluster status --coordinator http://10.0.0.1:11210
  mbal cluster status 10.0.0.5:11212
                                  the server that listens there, on this host
  mbal cluster status unix:/run/mbal.sock --json

";

const HOT_KEYS_EXAMPLES: &str = "\
EXAMPLES
  mbal cluster hotkeys            the hottest keys of the cluster on this host; or
                                  of the server on port 11211, if there is none
  mbal cluster hotkeys --coordinator http://10.0.0.1:11210
  mbal cluster hotkeys 10.0.0.5:11212 --json
  mbal cluster hotkeys --copy off
                                  none is copied any more; async or atomic:
                                  docs/how-to/hot-key.md

TABLE
  reads/s, writes/s  estimated; reads that copies answer are counted
  by copies          of these reads, those that copies answer: the rest comes
                     to the home
  r:w                reads for each write: each copy of a key needs 12 of them
                     in mode atomic, the default, and 3 in async
  state              -: no key is copied; cold: this one is not; pending: copies
                     are made or renewed; hot: clients are told of copies;
                     cooling: copies go
  copies             the servers that have copies; their number is gamma
  home               the server that has the original

A server looks for hot keys while it is busy. `stats hot` tells of any server,
at any time, which keys it is asked for most.";

const MOVE_EXAMPLES: &str = "\
EXAMPLES
  mbal cluster move 2800/5 2      moves cachelet 2800/5 to server 2
  mbal cluster move 2800/5 2/0    to its worker 0
  mbal cluster move 2800/5 10.0.0.2:11211
                                  the same, by an address that status shows
  mbal cluster move 2800/5 1 unix:/run/mbal.sock
                                  has that server lend it to its worker 1

Without a coordinator on this host, the server on port 11211 is asked. Clients
that know the workers follow. The load of all others stays with their
connections.";

const EXPLAIN_EXAMPLES: &str = "\
EXAMPLES
  mbal cluster explain user:1     which server has a key, and which decisions have
                                  put it there; or, where no coordinator is on
                                  this host, who asks the server on port 11211
  mbal cluster explain user:1 10.0.0.5:11211
                                  who asks that server for a key, and what would
                                  move its load
  mbal cluster explain ab%25c     the key ab%c, as `mbal top` writes it
  mbal cluster explain 2800/5 -p 11212
                                  a cachelet of the server on port 11212
  mbal cluster explain 2800%2f5   the key 2800/5
  mbal cluster explain user:1 --proxy 10.0.0.1:11311
                                  which upstream of a proxy has a key, and why

Rates are of the last second, estimated as in `stats hot`; asked again within
three seconds, they are counted.";

#[derive(Args, Debug)]
pub struct Where {
    #[command(flatten)]
    at: At,

    /// Path of its control socket, if the server was started with --control
    #[arg(long, env = "MBAL_CONTROL", value_name = "FILE")]
    control: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = format!("{STATUS_EXAMPLES}{WORDS}"))]
pub struct Status {
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    at: Where,

    #[command(flatten)]
    cluster: OfCluster,
}

#[derive(Args, Debug)]
#[command(after_help = HOT_KEYS_EXAMPLES)]
pub struct HotKeys {
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,

    /// From now on the coordinator has hot keys copied like that, whatever it was started with
    #[arg(long, value_name = "mode", conflicts_with = "json")]
    copy: Option<CopyMode>,

    #[command(flatten)]
    at: Where,

    #[command(flatten)]
    cluster: OfCluster,
}

#[derive(Args, Debug)]
#[command(after_help = MOVE_EXAMPLES)]
pub struct Move {
    /// The cachelet's prefix, as `stats cachelets` tells it
    #[arg(value_name = "CACHELET", value_parser = cachelet)]
    cachelet: Prefix,

    /// SERVER, or SERVER/WORKER, that is to own it, by number or address; of a lone server WORKER, from 0
    #[arg(value_name = "TO")]
    to: String,

    #[command(flatten)]
    at: Where,

    #[command(flatten)]
    cluster: OfCluster,
}

// A whole cluster is asked by its coordinator. No docstring: it would become the help of who has these flags.
#[derive(Args, Debug)]
pub struct OfCluster {
    /// The cluster's coordinator; of several, separated by commas, the one that leads. By default http://127.0.0.1:11210, if one
    /// listens there
    #[arg(long, env = "MBAL_COORDINATOR", value_name = "url[,url]")]
    coordinator: Option<String>,

    #[command(flatten)]
    token: cluster::Token,
}

impl OfCluster {
    /// The coordinator to ask; `None`: a server is asked.
    fn asked(&self, names_server: bool) -> Option<&str> {
        if names_server {
            return None;
        }
        // A variable that is empty says nothing.
        let said = self.coordinator.as_deref().filter(|url| !url.is_empty());
        let usual = || cluster::listens(USUAL_COORDINATOR).then_some(USUAL_COORDINATOR);
        said.or_else(usual)
    }
}

#[derive(Args, Debug)]
#[command(after_help = EXPLAIN_EXAMPLES)]
pub struct Explain {
    /// A key, as `mbal top` and `stats hot` write it; or a cachelet's prefix
    #[arg(value_name = "KEY|CACHELET")]
    what: String,

    /// Ask a proxy, HOST:PORT, where a key is
    #[arg(long, value_name = "SERVER", value_parser = ServerName::parse)]
    #[arg(conflicts_with = "named")]
    proxy: Option<ServerName>,

    #[command(flatten)]
    access: Access,

    #[command(flatten)]
    at: Where,

    #[command(flatten)]
    cluster: OfCluster,
}

pub fn status(status: &Status, names_server: bool) -> ExitCode {
    let Status { json, at, cluster } = status;
    match cluster.asked(names_server) {
        Some(url) => cluster::status(url, &cluster.token, *json),
        None => tell(at, if *json { "status json" } else { "status" }),
    }
}

pub fn hot_keys(asked: &HotKeys, names_server: bool) -> ExitCode {
    let HotKeys { json, copy, at, cluster } = asked;
    cluster::told(match cluster.asked(names_server) {
        Some(url) if copy.is_some() => {
            let mode = copy.expect("it has just been seen").into();
            hot_keys::set_mode(url, &cluster.token, mode).map(|()| String::new())
        }
        None if copy.is_some() => Err("--copy is for the coordinator of a cluster".into()),
        Some(url) => hot_keys::of_cluster(url, &cluster.token, *json),
        None => answer(at, "hotkeys").and_then(|text| hot_keys::shown(text, *json)),
    })
}

pub fn move_cachelet(what: &Move, names_server: bool) -> ExitCode {
    let Move { cachelet, to, at, cluster } = what;
    let coordinator = cluster.asked(names_server);
    let moved = match coordinator {
        Some(url) => server_and_worker(to).map(|(server, worker)| {
            cluster::move_cachelet(url, &cluster.token, *cachelet, (&server, worker))
        }),
        None => to.parse::<u16>().ok().map(|worker| tell(at, &format!("move {cachelet} {worker}"))),
    };
    moved.unwrap_or_else(|| {
        let expected = if coordinator.is_some() {
            "SERVER or SERVER/WORKER"
        } else {
            "a worker's number; another server's with --coordinator"
        };
        eprintln!("mbal cluster move: {}: expected {expected}", printable(to));
        ExitCode::FAILURE
    })
}

fn server_and_worker(text: &str) -> Option<(NamedServer, Option<u16>)> {
    match text.split_once('/') {
        Some((server, worker)) => Some((server.parse().ok()?, Some(worker.parse().ok()?))),
        None => Some((text.parse().ok()?, None)),
    }
}

pub fn cachelet(text: &str) -> Result<Prefix, String> {
    let expected = || "a cachelet is a prefix like 2800/5, of at most 15 bits".to_owned();
    Prefix::parse(text.as_bytes()).ok_or_else(expected)
}

pub fn explain(explain: &Explain, names_server: bool) -> ExitCode {
    if let Some(proxy) = &explain.proxy {
        return cluster::told(explaining::by_proxy(proxy, &explain.access, &explain.what));
    }
    match explain.cluster.asked(names_server) {
        Some(url) => explaining::explain(url, &explain.cluster.token, &explain.what),
        None => tell(&explain.at, &format!("explain {}", explain.what)),
    }
}

/// Of a cluster, unless a server is named.
pub fn top(args: &mbal_top::Args, cluster: &OfCluster, names_server: bool) -> ExitCode {
    match cluster.asked(names_server) {
        Some(url) => cluster_top::top(args, url, &cluster.token),
        None if names_server => mbal_top::run(args, ""),
        // Who named none meant a cluster, maybe.
        None => mbal_top::run(args, &format!("; {}", no_usual_coordinator())),
    }
}

fn tell(at: &Where, question: &str) -> ExitCode {
    cluster::told(answer(at, question))
}

fn answer(at: &Where, question: &str) -> Result<String, String> {
    let told = match &at.control {
        Some(path) => ask(path, question.as_bytes()),
        None => served(&at.at).and_then(|served| ask_server(&served, question.as_bytes())),
    };
    // Who named none meant a cluster, maybe.
    let is_unnamed = !at.at.is_named() && at.control.is_none();
    told.map_err(|why| match is_unnamed && why.starts_with("no control socket") {
        true => format!("{why}; and {}", no_usual_coordinator()),
        false => why,
    })
}

fn no_usual_coordinator() -> String {
    format!(
        "no coordinator listens at {USUAL_COORDINATOR}: --coordinator URL, or MBAL_COORDINATOR, names another one"
    )
}

/// By what a server's control socket is named. Of a host's several addresses, the first by which there is one.
fn served(at: &At) -> Result<Served, String> {
    let server = at.server();
    let addresses = server.addresses().map_err(|error| format!("{server}: {error}"))?;
    match server {
        ServerName::Unix(path) => Ok(Served::Unix(path)),
        ServerName::Tcp { port, .. } if !at.is_named() => Ok(Served::Port(port)),
        ServerName::Tcp { .. } => {
            let mut served = addresses.into_iter().map(Served::Address);
            let first = served.clone().next().expect("a host has an address");
            Ok(served.find(has_control).unwrap_or(first))
        }
    }
}

fn has_control(served: &Served) -> bool {
    control_paths(served).iter().any(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::WORDS;

    const PAGE: &str = include_str!("../../../docs/reference/balancing.md");

    #[test]
    fn the_words_of_status_are_the_same_in_its_help_and_on_the_page() {
        let table = PAGE.split_once("`status` tells, in these words:").expect("it is there").1;
        let rows = table.trim_start().lines().take_while(|line| line.starts_with('|')).skip(2);
        let cells = rows.map(|row| row.split('|').nth(1).expect("a row has cells"));
        let of_page: Vec<&str> =
            cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        assert!(of_page.len() > 15, "{of_page:?}");
        for word in &of_page {
            assert!(WORDS.contains(word), "{word} is not in the help");
        }
        // A name begins at the third column, its description behind two blanks, or in the next line.
        let names = WORDS.lines().filter_map(|line| line.strip_prefix("  "));
        let names = names.filter(|line| !line.starts_with(' '));
        for name in names.flat_map(|line| line.split("  ").next().expect("one").split(", ")) {
            assert!(of_page.contains(&name), "{name} is not on the page");
        }
    }
}
