//! `mbal up`: a cluster in one command, what is left of it when a part dies, and how it ends.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::process::ExitStatus;
use std::time::Duration;

mod running;

use running::heard::Heard;
use running::{MBAL, eventually, output_of};

const SERVERS: usize = 3;
const KEYS: usize = 40;

/// A cluster on free ports, ended with the test.
struct Up {
    heard: Heard,
    coordinator: String,
    clients: Vec<String>,
}

impl Up {
    fn start() -> Up {
        let heard = Heard::start(
            &[
                &["up", "-p", "0", "--coordinator-port", "0", "--autoscale-every", "200ms"][..],
                &["--", "-t", "2", "--control", "off", "--link-timeout", "300ms"],
            ]
            .concat(),
        );
        let mut up = Up { heard, coordinator: String::new(), clients: Vec::new() };
        let ready = up.hear("any of them for any client: ");
        up.clients = ready.split(' ').map(str::to_owned).collect();
        let url = up.hear("coordinator: ");
        up.coordinator = url.trim_end_matches("/v1/status").to_owned();
        for at in 0..SERVERS {
            eventually("all owners can be reached", || up.stored_by(at) == KEYS);
        }
        up
    }

    /// The rest of the next line that has `marker` in it.
    fn hear(&self, marker: &str) -> String {
        let line = self.heard.hear(&[marker]);
        line.split_once(marker).expect("it was heard").1.to_owned()
    }

    /// How many of the keys can be stored by this server's port, by either worker: each has links of its own.
    fn stored_by(&self, at: usize) -> usize {
        let request: String = (0..KEYS).map(|n| format!("set k{n} 0 0 1\r\nv\r\n")).collect();
        // The connections of a moment are spread over the workers.
        let streams = [(); 2].map(|()| TcpStream::connect(&self.clients[at]));
        let stored = |stream| Self::reply_on(stream, &request).matches("STORED").count();
        streams.into_iter().map(stored).min().unwrap_or(0)
    }

    fn found_by(&self, at: usize) -> usize {
        let keys: String = (0..KEYS).map(|n| format!(" k{n}")).collect();
        self.reply(at, &format!("get{keys}\r\n")).matches("VALUE k").count()
    }

    fn reply(&self, at: usize, request: &str) -> String {
        Self::reply_on(TcpStream::connect(&self.clients[at]), request)
    }

    /// Nothing of a server that is not there.
    fn reply_on(stream: std::io::Result<TcpStream>, request: &str) -> String {
        let Ok(mut stream) = stream else { return String::new() };
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
        let sent = stream.write_all(format!("{request}quit\r\n").as_bytes());
        let mut reply = String::new();
        drop(sent.and_then(|()| stream.read_to_string(&mut reply)));
        reply
    }

    /// What the cluster's map calls its version.
    fn map_version(&self) -> u64 {
        let map = self.mbal(&["cluster", "map"]);
        let line = map.lines().find_map(|line| line.strip_prefix("version "));
        line.expect("a map has a version").parse().expect("it is a number")
    }

    fn tool(&self, words: &[&str]) -> std::process::Output {
        output_of(MBAL.as_ref(), &[words, &["--coordinator", &self.coordinator]].concat())
    }

    fn mbal(&self, words: &[&str]) -> String {
        let output = self.tool(words);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is text");
        assert!(output.status.success(), "{words:?}: {}", text(output.stderr));
        text(output.stdout)
    }

    /// Process numbers of the servers, by their ids.
    fn pids(&self) -> BTreeMap<usize, String> {
        let children = format!("/proc/{0}/task/{0}/children", self.heard.child.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        let id = |pid: &str| {
            let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
            let mut words = command.split('\0').skip_while(|word| *word != "--server-id");
            words.nth(1)?.parse().ok()
        };
        children.split_whitespace().filter_map(|pid| Some((id(pid)?, pid.to_owned()))).collect()
    }

    fn signal(&self, name: &str) {
        send(name, &self.heard.child.id().to_string());
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("it ends", || {
            status = self.heard.child.try_wait().expect("it is a child");
            status.is_some()
        });
        status.expect("it has ended")
    }
}

fn send(name: &str, pid: &str) {
    running::signals::send(pid.parse().expect("a process"), name);
}

fn is_there(pid: &str) -> bool {
    // A zombie runs no more.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[test]
fn every_key_is_reached_at_any_port_and_operators_see_the_servers() {
    let up = Up::start();
    for at in 0..SERVERS {
        assert_eq!(up.found_by(at), KEYS);
    }
    let table = up.mbal(&["cluster", "status"]);
    assert_eq!(table.matches("serving").count(), SERVERS, "{table}");
    assert!(up.clients.iter().all(|client| table.contains(client)), "{table}");
    let discovered = up.reply(1, "config get cluster\r\n");
    let listed = |client: &String| discovered.contains(&client.replace(':', "|"));
    assert!(up.clients.iter().all(listed), "{discovered}");
    assert!(up.mbal(&["cluster", "events"]).contains("the first map: 128 cachelets"));
    assert!(up.mbal(&["cluster", "status", "--json"]).contains(r#""state":"serving""#));
}

#[test]
fn a_server_that_is_killed_comes_back_empty_and_the_others_find_it() {
    let up = Up::start();
    let version = up.map_version();
    let before = up.pids();
    send("KILL", &before[&2]);
    eventually("it is another process", || up.pids().get(&2).is_some_and(|pid| *pid != before[&2]));
    eventually("there is a newer map", || up.map_version() > version);
    // Its clients' port is another one, since it was any free one.
    eventually("its keys are missed, and stored again", || up.stored_by(0) == KEYS);
    assert_eq!(up.found_by(0), KEYS);
    eventually("the third one finds it too", || up.found_by(2) == KEYS);
}

#[test]
fn without_a_lost_server_the_others_serve_its_keys() {
    let up = Up::start();
    let version = up.map_version();
    // It cannot come back while it is stopped, and its parent does not take it for dead.
    let stopped = up.pids()[&3].clone();
    send("STOP", &stopped);
    eventually("its keys are missed", || up.found_by(0) < KEYS);
    eventually("it is heard no more", || up.mbal(&["cluster", "status"]).contains("silent"));
    up.mbal(&["cluster", "lost", "3"]);
    assert!(up.map_version() > version);
    eventually("all keys can be stored", || up.stored_by(0) == KEYS && up.stored_by(1) == KEYS);
    assert_eq!(up.found_by(1), KEYS);
    // When it goes on it is told that it is no member, and ends: what it has is stale.
    send("CONT", &stopped);
    eventually("it ends", || !is_there(&stopped));
}

#[test]
fn ctrl_c_ends_all_of_it() {
    let mut up = Up::start();
    let pids = up.pids();
    assert_eq!(pids.len(), SERVERS);
    up.signal("INT");
    assert!(up.wait().success());
    assert!(pids.values().all(|pid| !is_there(pid)));
    let name = format!("mbal-up-{}", up.heard.child.id());
    assert!(!std::env::temp_dir().join(name).exists(), "its files go with it");
}

#[test]
fn servers_do_not_outlive_what_started_them() {
    let mut up = Up::start();
    let pids = up.pids();
    up.signal("KILL");
    up.wait();
    eventually("all servers end", || pids.values().all(|pid| !is_there(pid)));
    drop(std::fs::remove_dir_all(
        std::env::temp_dir().join(format!("mbal-up-{}", up.heard.child.id())),
    ));
}

/// Its bounds say how many: reads are few.
#[test]
fn a_cluster_grows_and_shrinks_within_the_autoscaler_s_bounds() {
    let up = Up::start();
    let autoscale = |servers: &str, more: &[&str]| {
        let bounds = ["--min", servers, "--max", servers, "--database-rate", "1000"];
        up.mbal(&[&["cluster", "autoscale"], &bounds[..], more].concat())
    };
    // Curves are told every five seconds, and what moves takes its time.
    let slowly = |what: &str, is: &dyn Fn() -> bool| {
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while !is() {
            let told = up.mbal(&["cluster", "autoscale"]);
            assert!(std::time::Instant::now() < until, "{what}: {told}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let told = autoscale("4", &["--dry-run"]);
    assert!(told.contains("a dry run, 4 to 4 servers"), "{told}");
    slowly("it says what it would do", &|| {
        up.mbal(&["cluster", "autoscale"]).contains("would change from 3 to 4 servers")
    });
    assert_eq!(up.pids().len(), SERVERS, "a dry run starts nothing");
    let told = up.mbal(&["cluster", "forecast", "--max", "6", "--database-rate", "1000"]);
    assert!(told.contains("3 servers of 67.1 MB") && told.lines().count() == 9, "{told}");

    autoscale("4", &[]);
    slowly("a server comes", &|| up.pids().contains_key(&4));
    slowly("it gets its share", &|| up.mbal(&["cluster", "map"]).contains(" 4/0"));
    assert_eq!(up.stored_by(0), KEYS);
    // A dry run would take the place of what is at work.
    let bounds = ["--min", "1", "--max", "9", "--database-rate", "1000", "--dry-run"];
    let dry = up.tool(&[&["cluster", "autoscale"], &bounds[..]].concat());
    assert!(!dry.status.success(), "{dry:?}");
    assert!(up.mbal(&["cluster", "autoscale"]).contains("4 to 4 servers"));
    autoscale("3", &[]);
    slowly("one of them leaves", &|| up.pids().len() == SERVERS);
    let staying = (0..SERVERS).find(|at| up.pids().contains_key(&(at + 1))).expect("two at least");
    assert_eq!(up.found_by(staying), KEYS, "it has given away what it had");
    let events = up.mbal(&["cluster", "events"]);
    assert!(events.contains("autoscaling changes from 4 to 3 servers"), "{events}");
    assert_eq!(up.mbal(&["cluster", "autoscale", "--policy", "off"]), "autoscaler: off\n");
}

#[test]
fn servers_are_started_and_ended_as_many_as_are_wanted() {
    let up = Up::start();
    let says = |what: &str| up.mbal(&["cluster", "scale"]).starts_with(what);
    up.mbal(&["cluster", "scale", "4", "--no-wait"]);
    eventually("four serve", || says("done: 4 servers serve"));
    up.mbal(&["cluster", "scale", "2", "--no-wait"]);
    up.hear("is stopped");
    up.hear("is stopped");
    eventually("two serve", || says("done: 2 servers serve"));
}

#[test]
fn its_tools_find_its_token_and_others_change_nothing() {
    let mut up = Up::start();
    let at = up.coordinator.trim_start_matches("http://").to_owned();
    let balance = |more: &str| {
        let body = r#"{"mode":"off"}"#;
        let head = format!(
            "PUT /v1/balance HTTP/1.1\r\nHost: {at}\r\nContent-Type: application/json\r\nContent-Length: {}",
            body.len()
        );
        let request = format!("{head}\r\nConnection: close{more}\r\n\r\n{body}");
        let mut stream = TcpStream::connect(&at).expect("it listens");
        stream.write_all(request.as_bytes()).expect("it is taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it is answered");
        answer
    };
    assert!(balance("").starts_with("HTTP/1.1 401"), "whoever reaches the port");
    assert!(up.mbal(&["cluster", "balance", "off"]).is_empty());
    assert!(up.mbal(&["cluster", "status"]).contains("balance is off"));
    let folders =
        ["/run/mbal".to_owned(), std::env::var("XDG_RUNTIME_DIR").unwrap_or_default() + "/mbal"];
    let mine = std::fs::metadata(format!("/proc/{}", up.heard.child.id())).expect("it runs").uid();
    let names = folders.into_iter().chain([format!("/tmp/mbal-{mine}")]);
    let file = names
        .map(|folder| format!("{folder}/{at}.token"))
        .find(|path| std::fs::metadata(path).is_ok());
    let file = file.expect("it is in one of them");
    assert_eq!(std::fs::metadata(&file).expect("it is there").mode() & 0o777, 0o600);
    let token = std::fs::read_to_string(&file).expect("it is this user's");
    assert!(
        balance(&format!("\r\nAuthorization: Bearer {}", token.trim())).starts_with("HTTP/1.1 200")
    );
    // Of whoever has another one.
    let other = format!("/tmp/mbal-up-{}/secret", up.heard.child.id());
    let arguments = [
        "cluster",
        "balance",
        "on",
        "--coordinator",
        &up.coordinator,
        "--coordinator-token",
        &other,
    ];
    let said = String::from_utf8(output_of(MBAL.as_ref(), &arguments).stderr).expect("it is text");
    assert!(said.contains("another token") && said.contains("--coordinator-token"), "{said}");
    up.signal("INT");
    up.wait();
    assert!(std::fs::metadata(&file).is_err(), "it goes with it");
}
