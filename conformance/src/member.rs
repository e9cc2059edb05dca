//! A server that other programs start as they would start memcached, and that is one of a cluster: memcached's own suite, clients.
//!
//! ```text
//!   test ── starts ──► conformance member ── starts ──► conformance keep: the coordinator, the other servers, who orders moves
//!                             │ becomes                        │ ends when that process is gone
//!                             ▼                                │
//!                      mbal serve FLAGS ◄── watches ───────────┘
//! ```
//! The test has the server itself for a child, with its signals and its exit code.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::cluster::{Cluster, Files};
use crate::mover::moved;
use crate::peer::Address;
use crate::server::{Launch, free_port, spawn};

/// How often the keeper looks whether its server is still there.
const LOOKS_EVERY: Duration = Duration::from_millis(50);
/// Flags with a value that say where one server listens, or writes.
const OWN_WITH_VALUE: [&str; 6] = ["-s", "-l", "-p", "-U", "-P", "-a"];

/// Becomes the server: `words` are the keeper's, `flags` those of the program that starts it. Returns only with an error.
pub fn become_member(command: &Launch, words: &[String], flags: &[String]) -> String {
    let mut server = Command::new(&command.command[0]);
    server.args(&command.command[1..]).args(flags);
    // Who asks what memcached can do gets no cluster for it.
    if !flags.iter().any(|flag| ["-h", "-V", "--help", "--version"].contains(&flag.as_str())) {
        match kept(words, flags) {
            Ok(of_member) => server.args(of_member),
            Err(error) => return error,
        };
    }
    format!("{:?}: {}", command.command, server.exec())
}

/// Starts the keeper, and reads from it what makes the server a member.
fn kept(words: &[String], flags: &[String]) -> Result<Vec<String>, String> {
    let tool = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut keeper = Command::new(tool);
    keeper.args(["keep", "--of", &std::process::id().to_string()]).args(words);
    keeper.arg("--").args(flags);
    // In a group of its own: it outlives the signal that ends its server.
    keeper.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let child = spawn(&mut keeper).map_err(|error| format!("the keeper: {error}"))?;
    let lines = BufReader::new(child.stdout.expect("it is piped")).lines();
    let said: Vec<String> =
        lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    match said.is_empty() {
        true => Err("the keeper could not start the others".into()),
        false => Ok(said),
    }
}

/// Keeps the others of the cluster for as long as the process `of` is there.
pub fn keep(of: u32, launch: &Launch, cluster: &Cluster, flags: &[String]) -> Result<(), String> {
    let mut files = Files::write(cluster, &launch.command[0], free_port)?;
    let shared = shared_flags(flags);
    // They let clients in when the one that is to come is there.
    let start = |id| launch.begin_one(&[shared.as_slice(), &files.flags(id)].concat());
    let others: Result<Vec<_>, String> = cluster.ids().skip(1).map(start).collect();
    let others = others?;
    files.await_begun(cluster.ids().skip(1))?;
    // An empty line is the end.
    let told = format!("{}\n\n", files.flags(cluster.at).join("\n"));
    let mut stdout = std::io::stdout();
    let written = stdout.write_all(told.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| error.to_string())?;
    files.begin_to_move(cluster);
    while is_there(of) {
        std::thread::sleep(LOOKS_EVERY);
    }
    drop((others, files));
    // Nobody reads its output any more.
    eprintln!("{} cachelets moved meanwhile", moved());
    Ok(())
}

/// What all servers of the cluster have to be told: limits and TLS, say. Not where one of them listens.
fn shared_flags(flags: &[String]) -> Vec<String> {
    let mut shared = Vec::new();
    let mut flags = flags.iter();
    while let Some(flag) = flags.next() {
        match flag.as_str() {
            own if OWN_WITH_VALUE.contains(&own) => drop(flags.next()),
            "-d" => {}
            _ => shared.push(flag.clone()),
        }
    }
    shared
}

/// False as well for a process that has ended and was not waited for.
fn is_there(process: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return false };
    // The state comes behind the name, which is in brackets and may have any of them.
    !matches!(stat.rsplit(')').next().map(str::trim_start), Some(rest) if rest.starts_with('Z'))
}

/// Waits until each worker of the server at a port, or at a path, reaches the owners of all keys.
pub fn await_ready(at: &str) -> Result<(), String> {
    let address = match at.parse() {
        Ok(port) => Address::Tcp(port),
        Err(_) => Address::Unix(at.to_owned()),
    };
    Cluster::await_links(&address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_of_a_cluster_do_not_listen_where_one_does() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let told =
            shared_flags(&words("-m 3 -s /tmp/a -d -P /tmp/pid -o modern -l 127.0.0.1 -p 7 -Z"));
        assert_eq!(told, words("-m 3 -o modern -Z"));
    }

    #[test]
    fn a_process_that_has_ended_is_not_there() {
        assert!(is_there(std::process::id()));
        let mut child = Command::new("true").spawn().expect("it is there");
        while is_there(child.id()) {
            std::thread::yield_now();
        }
        child.wait().expect("it is ours");
    }
}
