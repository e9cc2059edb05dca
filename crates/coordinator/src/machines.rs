//! Who starts and stops servers when the cluster's size changes: commands, an HTTP call, Kubernetes, or this process's parent.

use std::process::{Command, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use mbal_planning::{Leaver, Stoppable};

use crate::kubernetes::StatefulSet;

/// A command or a call has ended by then, or it has failed.
const WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Set by who starts the coordinator, never by its API: who may change a cluster's size is not to run commands.
#[derive(Debug, Default)]
pub enum Machines {
    /// Sizes are told, not changed.
    #[default]
    Nobody,
    /// Run by `/bin/sh -c`, once for each server.
    Commands { start: String, stop: String },
    /// Called once for each server, by POST.
    Http(String),
    /// Told how many replicas there are to be.
    Kubernetes(StatefulSet),
    /// Whoever runs this coordinator in its own process.
    Told(Sender<MachineOrder>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineOrder {
    /// One more.
    Start,
    Stop {
        id: u16,
    },
}

impl Machines {
    /// As the API says it.
    pub fn name(&self) -> &'static str {
        match self {
            Machines::Nobody => "nobody",
            Machines::Commands { .. } => "commands",
            Machines::Http(_) => "http",
            Machines::Kubernetes(_) => "kubernetes",
            Machines::Told(_) => "processes",
        }
    }

    pub(crate) fn stoppable(&self) -> Stoppable {
        match self {
            Machines::Nobody => Stoppable::Nobody,
            Machines::Kubernetes(_) => Stoppable::Last,
            Machines::Commands { .. } | Machines::Http(_) | Machines::Told(_) => Stoppable::Any,
        }
    }

    /// The cluster is to have `count` servers, `more` of which are not there.
    pub fn start(&self, cluster: &str, count: usize, more: usize) -> Result<(), String> {
        match self {
            Machines::Nobody => Err("nobody starts servers: see `mbal coordinator --help`".into()),
            Machines::Commands { start, .. } => {
                (0..more).try_for_each(|_| run(start, cluster, count, None))
            }
            Machines::Http(url) => {
                (0..more).try_for_each(|_| call(url, "start", cluster, count, None))
            }
            Machines::Kubernetes(set) => set.scale(count),
            Machines::Told(parent) => (0..more).try_for_each(|_| tell(parent, MachineOrder::Start)),
        }
    }

    /// Of a pool whose servers have names before they run: this one is to.
    pub fn start_named(&self, pool: &str, count: usize, server: &Leaver) -> Result<(), String> {
        match self {
            Machines::Commands { start, .. } => run(start, pool, count, Some(server)),
            Machines::Http(url) => call(url, "start", pool, count, Some(server)),
            Machines::Nobody | Machines::Kubernetes(_) | Machines::Told(_) => {
                Err("nobody starts servers by their names".into())
            }
        }
    }

    /// The cluster is to have `count` servers, without these.
    pub fn stop(&self, cluster: &str, count: usize, leavers: &[Leaver]) -> Result<(), String> {
        let each = |stop: &dyn Fn(&Leaver) -> Result<(), String>| leavers.iter().try_for_each(stop);
        match self {
            Machines::Nobody => Err("nobody stops servers: see `mbal coordinator --help`".into()),
            Machines::Commands { stop, .. } => each(&|one| run(stop, cluster, count, Some(one))),
            Machines::Http(url) => each(&|one| call(url, "stop", cluster, count, Some(one))),
            Machines::Kubernetes(set) => set.scale(count),
            Machines::Told(parent) => each(&|one| tell(parent, MachineOrder::Stop { id: one.id })),
        }
    }
}

fn tell(parent: &Sender<MachineOrder>, order: MachineOrder) -> Result<(), String> {
    parent.send(order).map_err(|_| "the process that starts servers is ending".into())
}

/// `server` is the one that it is about, if that is known before.
fn run(command: &str, cluster: &str, count: usize, server: Option<&Leaver>) -> Result<(), String> {
    let failed = |what: String| format!("{command}: {what}");
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).stdin(Stdio::null());
    // Stdout is the caller's, who may have promised JSON.
    shell.stdout(std::io::stderr());
    shell.env("MBAL_CLUSTER", cluster).env("MBAL_COUNT", count.to_string());
    if let Some(server) = server {
        shell.env("MBAL_SERVER", &server.client).env("MBAL_SERVER_ID", server.id.to_string());
    }
    let mut child = shell.spawn().map_err(|error| failed(error.to_string()))?;
    let until = Instant::now() + WITHIN;
    loop {
        match child.try_wait().map_err(|error| failed(error.to_string()))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(failed(status.to_string())),
            None if until <= Instant::now() => {
                drop(child.kill());
                drop(child.wait());
                return Err(failed(format!("not done after {} s", WITHIN.as_secs())));
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
}

fn call(
    url: &str,
    action: &str,
    cluster: &str,
    count: usize,
    server: Option<&Leaver>,
) -> Result<(), String> {
    let body = serde_json::json!({
        "action": action,
        "cluster": cluster,
        "count": count,
        "server": server.map(|server| &server.client),
        "id": server.map(|server| server.id),
    });
    let agent = ureq::AgentBuilder::new().timeout(WITHIN).build();
    match agent.post(url).send_json(body) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{url}: {error}")),
    }
}
