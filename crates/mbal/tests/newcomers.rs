//! What somebody meets who sets up a cluster for the first time and gets something wrong: the reason, and what mends it.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

mod running;

use running::heard::Heard;
use running::led::{Coordinator, arguments, folder, free_port};
use running::{Folder, Killed, MBAL, eventually, free_ports, output_of};

fn secret(folder: &Folder) -> String {
    folder.path("secret").display().to_string()
}

fn server(folder: &Folder, url: &str, more: &[&str]) -> Heard {
    let secret = secret(folder);
    Heard::start(&[&["serve"], &arguments(url, &secret)[..], more].concat())
}

/// The first of four free ports in a row.
fn ports_in_a_row() -> u16 {
    free_ports(4)[0]
}

fn up(base: u16, flags: &[&str]) -> Output {
    let base = base.to_string();
    let words = [&["up", "-p", &base, "--coordinator-port", "0", "--"], flags].concat();
    output_of(MBAL.as_ref(), &words)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("it is text")
}

#[test]
fn a_cluster_that_cannot_start_ends_with_the_reason() {
    let base = ports_in_a_row();
    let _taken = TcpListener::bind(("127.0.0.1", base + 1)).expect("it was free");
    let output = up(base, &["--control", "off"]);
    let said = text(output.stderr);
    let why =
        format!("mbal up: server 2 does not start: failed to listen on TCP port {}", base + 1);
    assert!(said.contains(&why), "{said}");
    assert_eq!(output.status.code(), Some(71), "{said}");
}

#[test]
fn so_does_one_whose_servers_refuse_their_flags() {
    let output = up(ports_in_a_row(), &["-m", "abc"]);
    let said = text(output.stderr);
    assert!(said.contains("does not start: "), "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
}

#[test]
fn a_taken_port_of_the_coordinator_names_the_flag_that_chooses_another() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("there are free ports");
    let port = taken.local_addr().expect("it has one").port().to_string();
    let output = output_of(MBAL.as_ref(), &["up", "-p", "0", "--coordinator-port", &port]);
    let said = text(output.stderr);
    assert!(said.contains(&port) && said.contains("--coordinator-port"), "{said}");
    assert_eq!(output.status.code(), Some(71), "{said}");
}

#[test]
fn up_takes_a_bare_number_of_servers_and_prints_what_other_terminals_need() {
    let base = ports_in_a_row().to_string();
    let mut up = Command::new(MBAL);
    up.args(["up", "2", "-p", &base, "--coordinator-port", "0", "--", "-t", "1"]);
    up.args(["--control", "off"]).env("MBAL_SERVERS", "5").stdin(Stdio::null());
    let mut up = Killed(up.stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut printed = String::new();
    let mut stdout = BufReader::new(up.0.stdout.take().expect("it is piped"));
    stdout.read_line(&mut printed).expect("it is text");
    let url = printed.trim_end().strip_prefix("export MBAL_COORDINATOR=");
    let url = url.unwrap_or_else(|| panic!("{printed}"));
    let with = |words: &[&str]| {
        let mut command = Command::new(MBAL);
        let output = command.args(words).env("MBAL_COORDINATOR", url).output().expect("it runs");
        (output.status.success(), text(output.stdout) + &text(output.stderr))
    };
    let (worked, status) = with(&["cluster", "status", "--json"]);
    assert!(worked, "{status}");
    let status: serde_json::Value = serde_json::from_str(&status).expect("it is JSON");
    assert_eq!(status["servers"].as_array().map(Vec::len), Some(2), "{status}");
    let (worked, said) = with(&["cluster", "balance", "off"]);
    assert!(worked, "who changes something needs no more than that line: {said}");
    let output = output_of(MBAL.as_ref(), &["up", "0"]);
    assert!(!output.status.success() && text(output.stderr).contains("1..=64"));
}

#[test]
fn lines_have_times_and_names_and_each_server_has_metrics() {
    let base = ports_in_a_row();
    let (first, metrics) = (base.to_string(), ports_in_a_row());
    let up = Heard::start(&[
        "up",
        "-p",
        &first,
        "--coordinator-port",
        "0",
        "--",
        "--control",
        "off",
        "-t",
        "1",
        "--metrics",
        &metrics.to_string(),
    ]);
    let mut lines = Vec::new();
    loop {
        let line = up.lines.recv_timeout(Duration::from_secs(60)).expect("it becomes ready");
        lines.push(line);
        if lines.last().is_some_and(|line| line.contains("any of them for any client")) {
            break;
        }
    }
    for at in 0..3 {
        assert!(running::page(metrics + at).contains("mbal_"));
    }
    for server in 1..=3 {
        while !is_linked(&lines, server) {
            lines.push(up.lines.recv_timeout(Duration::from_secs(30)).expect("it is linked"));
        }
    }
    let said = lines.join("\n");
    assert!(!said.contains("handshake in time"), "{said}");
    let stamp = lines[0].split(' ').next().expect("a word");
    assert!(stamp.len() == 24 && stamp.ends_with('Z') && stamp.contains('T'), "{said}");
}

fn is_linked(lines: &[String], server: u16) -> bool {
    let linked = format!("Z server {server}: linked to server ");
    lines.iter().any(|line| line.contains(&linked))
}

#[test]
fn a_server_that_the_coordinator_refuses_says_what_to_change() {
    let folder = folder("refused-servers");
    let token = folder.path("token");
    fs::write(&token, "a token of this test\n").expect("it can be written");
    let token = token.display().to_string();
    for name in ["token", "secret"] {
        let mode = Permissions::from_mode(0o600);
        fs::set_permissions(folder.path(name), mode).expect("it is ours");
    }
    let coordinator = Coordinator::start_with(&folder, free_port(), 1, &["--token-file", &token]);
    let without = server(&folder, &coordinator.url, &[]);
    without.hear(&["refuses this server", "--coordinator-token", "tries again"]);
    let elsewhere = server(
        &folder,
        &coordinator.url,
        &["--cluster-name", "shop", "--coordinator-token", &token],
    );
    elsewhere.hear(&["this is cluster mbal, not shop", "--cluster-name", "tries again"]);
    let _member = server(&folder, &coordinator.url, &["--coordinator-token", &token]);
    eventually("there is a map", || coordinator.map().is_some());
    let scale = |flags: &[&str]| {
        output_of(
            MBAL.as_ref(),
            &[&["cluster", "scale", "1", "--coordinator", &coordinator.url], flags].concat(),
        )
    };
    let output = scale(&["--dry-run"]);
    assert!(output.status.success(), "{}", text(output.stderr));
    assert!(!scale(&["--no-wait"]).status.success(), "what changes something needs the token");
}

#[test]
fn who_is_no_coordinator_is_said_to_be_none() {
    let folder = folder("no-coordinator");
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there are free ports");
    let url = format!("http://{}", listener.local_addr().expect("it has an address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            drop(stream.read(&mut [0; 4096]));
            drop(stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"));
        }
    });
    server(&folder, &url, &[]).hear(&["is it a coordinator", "--coordinator", "tries again"]);
    let nobody = format!("http://127.0.0.1:{}", free_port());
    server(&folder, &nobody, &[]).hear(&["no coordinator", "--coordinator", "tries again"]);
}

#[test]
fn every_process_that_goes_on_speaks_json_if_it_is_to() {
    let folder = folder("json");
    let ports = free_ports(4);
    let [coordinator, proxy, first] = [ports[0], ports[1], ports[2]].map(|port| port.to_string());
    let (listen, state) = (format!("127.0.0.1:{coordinator}"), folder.path("state.json"));
    let state = state.display().to_string();
    for (words, last) in [
        (
            &["coordinator", "--listen", &listen, "--state", &state, "--log-format", "json"][..],
            "started",
        ),
        (&["proxy", "-p", &proxy, "--upstream", "127.0.0.1:1", "--log-format", "json"], "started"),
        (
            &[
                "up",
                "1",
                "-p",
                &first,
                "--coordinator-port",
                "0",
                "--log-format",
                "json",
                "--",
                "-t",
                "1",
                "--control",
                "off",
            ],
            "ready",
        ),
    ] {
        let process = Heard::start(words);
        loop {
            let line = process.lines.recv_timeout(Duration::from_secs(60)).expect("it starts");
            let said: serde_json::Value =
                serde_json::from_str(&line).unwrap_or_else(|_| panic!("{words:?}: {line}"));
            assert!(said["level"].is_string() && said["text"].is_string(), "{line}");
            if said["event"] == last && said["server"].is_null() {
                break;
            }
        }
    }
}

#[test]
fn where_no_coordinator_is_it_is_said_how_another_one_is_named() {
    // Whoever has the usual port answers.
    if TcpStream::connect(("127.0.0.1", 11210)).is_ok() {
        return;
    }
    for words in [
        &["cluster", "map"][..],
        &["cluster", "status"],
        &["cluster", "hotkeys"],
        &["top", "--once"],
    ] {
        let mut command = Command::new(MBAL);
        command.args(words).env_remove("MBAL_COORDINATOR").stdin(Stdio::null());
        let output = command.env("MBAL_PORT", free_port().to_string()).output().expect("it runs");
        let said = text(output.stderr);
        let named = said.contains("--coordinator URL, or MBAL_COORDINATOR, names another one");
        assert!(!output.status.success() && named, "{words:?}: {said}");
        assert!(said.contains("127.0.0.1:11210"), "{words:?}: {said}");
    }
}

#[test]
fn a_server_without_a_map_says_what_it_waits_for() {
    let folder = folder("waits");
    let coordinator = Coordinator::start(&folder, free_port(), 2);
    let first = server(&folder, &coordinator.url, &[]);
    first.hear(&["server 1 of cluster mbal"]);
    first.hear(&["no map yet", "--servers"]);
}

#[test]
fn who_does_not_have_a_key_says_who_has_it_and_what_to_type() {
    let folder = folder("wrong-server");
    let coordinator = Coordinator::start(&folder, free_port(), 2);
    let controls = [folder.path("one.control"), folder.path("two.control")];
    let controls = controls.map(|path| path.display().to_string());
    let secret = secret(&folder);
    let ports = [free_port(), free_port()];
    let _servers: Vec<Heard> = (0..2)
        .map(|at| {
            let (id, port) = ((at + 1).to_string(), ports[at].to_string());
            let words =
                ["serve", "-t", "2", "-p", &port, "--control", &controls[at], "--server-id", &id];
            let more = ["--coordinator", &coordinator.url, "--cluster-secret", &secret];
            Heard::start(&[&words[..], &more].concat())
        })
        .collect();
    let connected = |port| TcpStream::connect(("127.0.0.1", port)).is_ok();
    eventually("both serve", || ports.into_iter().all(connected));
    eventually("there is a map", || coordinator.map().is_some());
    let map = coordinator.map().expect("there is one");
    // A cachelet of server 2, and a key of it.
    let of_two = map.lines().find(|line| line.starts_with("cachelet") && line.contains(" 2/"));
    let of_two = of_two.and_then(|line| line.split(' ').nth(1)).expect("it has some").to_owned();
    let asked = |words: &[&str]| {
        let output = output_of(MBAL.as_ref(), &[words, &["--control", &controls[0]]].concat());
        text(output.stdout) + &text(output.stderr)
    };
    let address = format!("127.0.0.1:{}", ports[1]);
    eventually("server 1 follows it", || {
        asked(&["cluster", "explain", &of_two]).contains("server 2's by map")
    });
    let said = asked(&["cluster", "explain", &of_two]);
    assert!(said.contains(&format!("cachelet {of_two}: server 2's by map ")), "{said}");
    assert!(said.contains(&format!("mbal cluster explain {of_two} {address}")), "{said}");
    let told: Vec<String> =
        (0..20).map(|n| asked(&["cluster", "explain", &format!("k{n}")])).collect();
    let elsewhere = told.iter().filter(|said| said.contains(": server 2's by map ")).count();
    assert!(elsewhere > 0, "{told:?}");
    assert!(told.iter().all(|said| said.starts_with("key k")), "{told:?}");
    let said = asked(&["cluster", "move", &of_two, "1"]);
    assert!(
        said.contains(&format!("cachelet {of_two} is server 2's, and this is server 1")),
        "{said}"
    );
    assert!(said.contains(&address) && said.contains("--coordinator URL"), "{said}");
    assert!(!said.contains("a cachelet is a prefix"), "{said}");
}
