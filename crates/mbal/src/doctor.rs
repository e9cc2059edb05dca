//! `mbal doctor`: what of this host and its cluster is wrong for a server, and the command that mends it.

mod checks;
mod host;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use checks::{CLUSTER_SECRET, COORDINATOR_TOKEN, Finding, Level, Needs, findings};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, value_parser};
use host::Transport;
use mbal_server::{Config, Interface, Listen, files_wanted, link_versions};
use mbal_wire::printable;

use crate::cluster::Token;
use crate::flags::{Checked, Flags, InCluster};

/// Of a line's first words.
const COLUMNS: usize = 16;
const EX_USAGE: u8 = 64;

pub const ABOUT: &str = "Looks at this host and its cluster: what is wrong for a server, and the command that mends it.";
const EXAMPLES: &str = "\
EXAMPLES
  mbal doctor                      for a server as the environment sets it
  mbal doctor --config mbal.toml   as [serve] of a file says
  mbal doctor -- -m 8192 -c 20000  as these flags of `mbal serve` say
  mbal doctor --running            beside a server that has its ports
  mbal doctor --coordinator http://10.0.0.1:11210
                                   as a server of that cluster
  mbal doctor --json | jq '.findings[] | select(.level != \"right\")'

Limits of open files, the kernel's settings, memory, CPU quota, clock, ports,
secrets; of a cluster its coordinator, versions and links. It changes nothing.
What was skipped could not be looked at; its line says what would let it.

Exit code: 0 if nothing is wrong, 1 if something is, 64 if the flags are no
server's. What is poor works, and costs time or comes to an end under load.";

pub fn command() -> Command {
    let command = Command::new("doctor")
        .about(ABOUT)
        .after_help(EXAMPLES)
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .help("A JSON object: ok, and findings with level, check, seen and mend"),
        )
        .arg(
            Arg::new("running")
                .long("running")
                .action(ArgAction::SetTrue)
                .help("Look at no ports: the server has them already"),
        )
        .arg(
            coordinator()
                .help("The cluster that the server is one of: its coordinator; of several, separated by commas, the one that leads"),
        );
    Token::augment_args(command).arg(crate::config::flag()).arg(
        Arg::new("flags")
            .value_name("flags of mbal serve")
            .num_args(0..)
            .last(true)
            .value_parser(value_parser!(OsString))
            .help("The server that is to be started"),
    )
}

/// Looks, and says what it sees of a server with these flags.
pub fn run(flags: Flags, is_running: bool, json: bool) -> ExitCode {
    let (flags, cluster) = flags.apart();
    // Sockets and secrets are looked at below; what stands in flags has to be right.
    let Checked { config, .. } = match flags.check(false, None) {
        Ok(checked) => checked,
        Err(refused) => {
            eprintln!("mbal doctor: {}", refused.reason);
            return ExitCode::from(EX_USAGE);
        }
    };
    let found = examine(&config, &cluster, is_running);
    let is_wrong = found.iter().any(|finding| finding.level == Level::Wrong);
    if json {
        println!("{}", serde_json::json!({ "ok": !is_wrong, "findings": found }));
    } else {
        print!("{}", text(&found));
    }
    ExitCode::from(u8::from(is_wrong))
}

fn examine(config: &Config, cluster: &InCluster, is_running: bool) -> Vec<Finding> {
    let mut seen = host::seen();
    if !is_running {
        seen.ports = ports(config, cluster.link_port);
    }
    let secrets = [(CLUSTER_SECRET, &cluster.secret), (COORDINATOR_TOKEN, &cluster.token)];
    seen.secrets = secrets
        .into_iter()
        .filter_map(|(flag, path)| Some(host::secret(flag, path.as_ref()?)))
        .collect();
    // A variable that is empty says nothing.
    let url = cluster.coordinator.as_ref().filter(|url| !url.is_empty());
    if let Some(url) = url {
        host::cluster(url, cluster.token.clone(), &mut seen);
    }
    let is_clustered = url.is_some() || cluster.secret.is_some();
    let settings = &config.settings;
    let wanted = Needs {
        connections: settings.connections_max,
        files: files_wanted(config, is_clustered),
        workers: settings.workers,
        memory_bytes: settings.memory_bytes,
        backlog: settings.backlog.try_into().unwrap_or(0),
        locks_memory: config.lock_memory,
        version: env!("CARGO_PKG_VERSION"),
        link_versions: link_versions(),
        coordinator: url.cloned(),
    };
    findings(&seen, &wanted)
}

fn ports(config: &Config, link_port: Option<u16>) -> Vec<checks::Port> {
    let mut ports = Vec::new();
    for place in &config.listen {
        ports.extend(host::port("--port", place, &Transport::Tcp));
        let base = config.worker_ports.filter(|base| *base != 0);
        for worker in base.into_iter().flat_map(|base| base..base + config.settings.workers) {
            let place = Listen { port: worker, ..place.clone() };
            ports.extend(host::port("--worker-ports", &place, &Transport::Tcp));
        }
    }
    for place in &config.udp {
        ports.extend(host::port("--udp-port", place, &Transport::Udp));
    }
    if let Some(place) = &config.metrics {
        ports.extend(host::port("--metrics", place, &Transport::Tcp));
    }
    if let Some(port) = link_port {
        let place = Listen { interface: Interface::All, port, tls: None };
        ports.extend(host::port("--link-port", &place, &Transport::Tcp));
    }
    ports
}

fn text(found: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { level, check, seen, mend } in found {
        let level = match level {
            Level::Wrong => "WRONG",
            Level::Poor => "poor",
            Level::Skipped => "skip",
            Level::Right => "right",
        };
        text += &format!("{level:5}  {check:COLUMNS$} {}\n", printable(seen));
        if let Some(mend) = mend {
            let how = if level == "skip" { "with" } else { "mend" };
            text += &format!("{:5}  {:COLUMNS$} {how}: {}\n", "", "", printable(mend));
        }
    }
    let count = |level| found.iter().filter(|finding| finding.level == level).count();
    text + &format!(
        "{} wrong, {} poor, {} right, {} skipped\n",
        count(Level::Wrong),
        count(Level::Poor),
        count(Level::Right),
        count(Level::Skipped)
    )
}

/// As the other commands have it.
fn coordinator() -> Arg {
    Arg::new("coordinator").long("coordinator").env("MBAL_COORDINATOR").value_name("url[,url]")
}

/// `mbal serve`, but that a cluster may be looked at without its secret: who has set `MBAL_COORDINATOR` for other commands has none.
pub fn of_server(serve: &Command) -> Command {
    serve.clone().mut_arg("coordinator", |_| coordinator())
}

/// The command line of the server, with what the file of `--config` says.
pub fn words(matches: &ArgMatches) -> Vec<OsString> {
    let flag = |name: &str, value: OsString| [OsString::from(format!("--{name}")), value];
    let path = |id: &str| matches.get_one::<PathBuf>(id).cloned().map(OsString::from);
    let config = path("config").map(|path| flag("config", path));
    let url = matches.get_one::<String>("coordinator").filter(|url| !url.is_empty());
    let url = url.map(|url| flag("coordinator", url.into()));
    let token = path("coordinator_token").map(|path| flag("coordinator-token", path));
    let own = [config, url, token].into_iter().flatten().flatten();
    let flags = matches.get_many("flags").unwrap_or_default().cloned();
    std::iter::once("serve".into()).chain(own).chain(flags).collect()
}
