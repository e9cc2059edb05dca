//! The binary as an operator meets it: names, signals, exit codes, files.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

mod running;

use running::{Daemon, Folder, MBAL, Running, ask, eventually, output_of, stats};

#[test]
fn stores_and_ends_in_order() {
    let folder = Folder::new("orderly");
    for (signal, said) in [("INT", ""), ("TERM", ""), ("USR1", "Gracefully stopping\n")] {
        let server = Running::serve(&folder, &["-p", "-1", "-t", "2"]);
        ask(
            &mut server.connect(),
            "set k 0 0 1\r\nv\r\nget k\r\n",
            "STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n",
        );
        fs::remove_file(folder.path("ports")).unwrap();
        let (status, stderr) = server.signal(signal);
        assert_eq!(status.code(), Some(0), "{signal}");
        let lines: Vec<&str> = stderr.split_inclusive('\n').collect();
        assert!(lines[0].contains(": 2 workers, 64 MiB, on 127.0.0.1:"), "{stderr}");
        assert!(lines[1].starts_with("try it: "), "{stderr}");
        assert_eq!(lines[2..].concat(), said, "{signal}");
    }
}

#[test]
fn the_line_to_try_works() {
    let folder = Folder::new("example");
    let mut server = Running::serve(&folder, &["-p", "-1", "-l", "*"]);
    let mut said = BufReader::new(server.child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = said.find_map(|line| line.strip_prefix("try it: ").map(String::from)).unwrap();
    let tried = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert_eq!(tried.stdout, b"STORED\r\nVALUE k 0 5\r\nhello\r\nEND\r\n", "{line}");
}

#[test]
fn hang_up_changes_nothing() {
    let folder = Folder::new("hangup");
    let server = Running::serve(&folder, &["-p", "-1"]);
    let mut stream = server.connect();
    ask(&mut stream, "mn\r\n", "MN\r\n");
    running::signals::send(server.child.id(), "HUP");
    ask(&mut stream, "mn\r\n", "MN\r\n");
    assert_eq!(server.signal("TERM").0.code(), Some(0));
}

#[test]
fn is_memcached_when_called_so() {
    let folder = Folder::new("name");
    let link = folder.path("memcached-debug");
    symlink(MBAL, &link).unwrap();
    let version = output_of(&link, &["-V"]);
    assert_eq!(version.stdout, b"memcached 1.6.45\n");
    let help = output_of(&link, &["-h"]);
    assert!(help.stdout.starts_with(b"memcached 1.6.45\n"), "{help:?}");
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("--unix-socket") && help.contains("--enable-sasl"));
    assert!(help.contains("--enable-ssl"));
    for absent in ["ext_path", "proxy_config", "no_drop_privileges"] {
        assert!(!help.to_lowercase().contains(absent), "{absent} is not served");
    }

    let server =
        Running::start(&folder, &link, &["-p", "-1", "-u", "root", "-o", "relaxed_privileges"]);
    ask(&mut server.connect(), "mn\r\n", "MN\r\n");
    let (status, stderr) = server.signal("INT");
    assert_eq!((status.code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn is_mbal_otherwise() {
    let version = output_of(MBAL.as_ref(), &["--version"]);
    assert_eq!(version.stdout, format!("mbal {}\n", env!("CARGO_PKG_VERSION")).as_bytes());
    assert!(output_of(MBAL.as_ref(), &["serve", "-V"]).stdout.starts_with(b"mbal"));
    assert!(output_of(MBAL.as_ref(), &["--help"]).status.success());
    for wrong in [&["serve", "--nonsense"][..], &["nonsense"], &[]] {
        assert_eq!(output_of(MBAL.as_ref(), wrong).status.code(), Some(1), "{wrong:?}");
    }
    assert_eq!(output_of(MBAL.as_ref(), &["serve", "-I", "1"]).status.code(), Some(64));
}

#[test]
fn flags_come_from_the_environment_too() {
    let folder = Folder::new("environment");
    let ports = folder.path("ports");
    let child = Command::new(MBAL)
        .args(["serve", "-m", "100"])
        .env("MEMCACHED_PORT_FILENAME", &ports)
        .envs([("MBAL_PORT", "-1"), ("MBAL_MEMORY_LIMIT", "5"), ("MBAL_THREADS", "3")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the server has taken its ports", || ports.exists());
    let (_, said) = Running { child, port: 0, metrics: 0 }.signal("TERM");
    assert!(
        said.contains(": 3 workers, 100 MiB, on 127.0.0.1:"),
        "a flag outdoes its variable: {said}"
    );
}

#[test]
fn a_unix_socket_comes_and_goes_with_its_server() {
    let folder = Folder::new("unix");
    let path = folder.path("socket");
    let name = path.to_str().unwrap();
    for round in 0..2 {
        let server = Running::serve(&folder, &["-s", name, "-a", "770"]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o770);
        let mut stream = UnixStream::connect(&path).unwrap();
        ask(&mut stream, "mn\r\n", "MN\r\n");
        assert_eq!(fs::read(folder.path("ports")).unwrap(), b"", "no TCP beside a unix socket");
        fs::remove_file(folder.path("ports")).unwrap();
        if round == 0 {
            // Killed: its socket stays behind, and the next server replaces it.
            server.signal("KILL");
            assert!(path.exists());
        } else {
            assert_eq!(server.signal("TERM").0.code(), Some(0));
            assert!(!path.exists());
        }
    }
}

#[test]
fn connections_are_bounded() {
    let folder = Folder::new("connections");
    let server = Running::serve(&folder, &["-p", "-1", "-t", "2", "-c", "3"]);
    let mut streams = [server.connect(), server.connect(), server.connect()];
    for stream in &mut streams {
        ask(stream, "mn\r\n", "MN\r\n");
    }
    let mut answer = String::new();
    server.connect().read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "ERROR Too many open connections\r\n");
    // Gauges are published after the client has been told.
    for line in ["curr_connections 3", "total_connections 3", "rejected_connections 1"] {
        let line = format!("STAT {line}\r\n");
        eventually(&line, || stats(&mut streams[0]).contains(&line));
    }
    drop(streams);
    eventually("their places are free", || {
        let mut stream = server.connect();
        let mut answer = [0; 4];
        let asked = stream.write_all(b"mn\r\n").and_then(|()| stream.read_exact(&mut answer));
        asked.is_ok() && &answer == b"MN\r\n"
    });
    server.signal("TERM");
}

/// A server of two workers on four neighbouring ports: a worker's own each, then two common ones.
fn on_neighbouring_ports(folder: &Folder, more: &[&str]) -> (Running, u16) {
    for _ in 0..20 {
        // Free, as far as one can know beforehand: somebody else may take one meanwhile.
        let base = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if base > u16::MAX - 3 {
            continue;
        }
        let listen = format!("127.0.0.1:{},127.0.0.1:{}", base + 2, base + 3);
        let arguments = ["serve", "-l", &listen, "-t", "2", "--worker-ports", &base.to_string()];
        match Running::try_start(folder, MBAL.as_ref(), &[&arguments[..], more].concat()) {
            Ok(server) => return (server, base),
            Err(said) => assert!(said.contains("in use"), "{said}"),
        }
    }
    panic!("none of twenty quadruples of ports is free");
}

#[test]
fn workers_have_ports_of_their_own() {
    let folder = Folder::new("workerports");
    let (server, base) = on_neighbouring_ports(&folder, &[]);
    for port in base..base + 4 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        ask(&mut stream, "mn\r\n", "MN\r\n");
    }
    server.signal("TERM");
}

#[test]
fn shutdown_needs_permission() {
    let folder = Folder::new("shutdown");
    let server = Running::serve(&folder, &["-p", "-1"]);
    ask(&mut server.connect(), "shutdown\r\n", "SERVER_ERROR: shutdown not enabled\r\n");
    server.signal("TERM");
    for (request, said) in
        [("shutdown\r\n", ""), ("shutdown graceful\r\n", "Gracefully stopping\n")]
    {
        fs::remove_file(folder.path("ports")).unwrap();
        let mut server = Running::serve(&folder, &["-A", "-p", "-1"]);
        server.connect().write_all(request.as_bytes()).unwrap();
        let (status, stderr) = server.wait();
        assert_eq!(status.code(), Some(0));
        assert!(stderr.ends_with(said), "{stderr}");
    }
}

#[test]
fn a_daemon_writes_its_process_id_and_takes_it_away() {
    let folder = Folder::new("daemon");
    let (pid_file, socket) = (folder.path("pid"), folder.path("socket"));
    let arguments =
        ["serve", "-d", "-P", pid_file.to_str().unwrap(), "-s", socket.to_str().unwrap()];
    assert!(output_of(MBAL.as_ref(), &arguments).status.success());
    eventually("the process id is written", || {
        fs::read_to_string(&pid_file).is_ok_and(|pid| pid.ends_with('\n'))
    });
    let pid = fs::read_to_string(&pid_file).unwrap().trim().to_string();
    let daemon = Daemon(pid);
    let mut stream = UnixStream::connect(&socket).unwrap();
    ask(&mut stream, "mn\r\n", "MN\r\n");
    drop(daemon);
    eventually("both files are gone", || !pid_file.exists() && !socket.exists());
}

#[test]
fn memory_is_taken_as_it_is_used() {
    let folder = Folder::new("resident");
    let server = Running::serve(&folder, &["-p", "-1", "-t", "2", "-m", "2048"]);
    ask(&mut server.connect(), "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 50 << 10, "{kib} KiB resident before anything is stored");
}

#[test]
fn an_operator_sees_moves_and_explains() {
    let folder = Folder::new("operator");
    let control = folder.path("control");
    let path = control.to_str().unwrap();
    let server = Running::serve(&folder, &["-p", "-1", "-t", "2", "--control", path]);
    let ask = |arguments: &[&str]| {
        let output = output_of(MBAL.as_ref(), &[arguments, &["--control", path]].concat());
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let mode = fs::symlink_metadata(&control).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (code, said) = ask(&["cluster", "status"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("version 1.0, epoch "), "{said}");
    assert_eq!(ask(&["cluster", "move", "1800/5", "1"]), (Some(0), "done\n".into()));
    let (_, said) = ask(&["cluster", "explain", "1800/5"]);
    assert!(said.starts_with("cachelet 1800/5: worker 1, "), "{said}");
    assert!(said.contains("on loan from worker 0 since epoch"), "{said}");
    let (_, said) = ask(&["cluster", "status", "--json"]);
    assert!(said.contains(r#""loans":[{"cachelet":"1800/5","home":0,"owner":1,"#), "{said}");
    for (arguments, wrong) in [
        (["cluster", "move", "1800/5", "9"], "mbal: no such worker, or it is there already\n"),
        (["cluster", "move", "1800/6", "1"], "mbal: there is no such cachelet\n"),
    ] {
        assert_eq!(ask(&arguments), (Some(1), wrong.into()));
    }
    let mut client = server.connect();
    client.write_all(b"config get mbal 1.1\r\n").unwrap();
    let mut known = [0; 5];
    client.read_exact(&mut known).unwrap();
    assert_eq!(&known, b"END\r\n");
    server.signal("TERM");
    assert!(!control.exists(), "it goes with its server");
    let (code, said) = ask(&["cluster", "status"]);
    assert_eq!(code, Some(1));
    assert!(said.starts_with("mbal: no server at "), "{said}");
}

/// A client that goes on asking until it is dropped.
struct Busy {
    ends: Arc<AtomicBool>,
    client: Option<JoinHandle<()>>,
}

impl Busy {
    fn new(mut stream: TcpStream, requests: String, replies: String) -> Busy {
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let client = thread::spawn(move || {
            while !ended.load(Relaxed) {
                ask(&mut stream, &requests, &replies);
            }
        });
        Busy { ends, client: Some(client) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        let ended = self.client.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking(), "the client was answered");
    }
}

/// What `explain` says of a key.
fn explained(key: &str, control: &str) -> Vec<String> {
    let output = output_of(MBAL.as_ref(), &["cluster", "explain", key, "--control", control]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// In percent, at the end of a line.
fn share(line: &str) -> f64 {
    let share = line.strip_suffix("% of the server's").expect(line).rsplit(' ').next();
    share.unwrap().parse().unwrap()
}

#[test]
fn a_hot_key_of_ordinary_clients_is_explained_by_who_asks_for_it() {
    for (balance, workers, who_decides) in [
        ("on", "2", Some("the balancer ")),
        ("off", "2", Some("the balancer is off: nothing moves but by mbal cluster move")),
        ("dry-run", "2", Some("the balancer only says what it would do (--balance dry-run)")),
        ("on", "1", None),
    ] {
        let folder = Folder::new("hot-key");
        let control = folder.path("control");
        let path = control.to_str().unwrap();
        let arguments = ["--hot-sample", "1", "--epoch", "50ms", "--balance", balance];
        let rest = ["-p", "-1", "-t", workers, "--control", path];
        let server = Running::serve(&folder, &[&arguments[..], &rest].concat());
        // 99 of 100 requests are for one key, by one connection, which one worker has.
        let requests = ["mg ab%c:1\r\n".repeat(99), "mg cold\r\n".into()].concat().repeat(50);
        let _busy = Busy::new(server.connect(), requests, "EN\r\n".repeat(5_000));
        eventually("the key is seen where its load is", || {
            let lines = explained("ab%25c:1", path);
            assert!(lines[0].starts_with("key ab%25c:1: hash "), "{lines:?}");
            assert!(lines[1].starts_with("key ab%25c:1: "), "{lines:?}");
            assert!(lines[1].contains(" reads, 0 writes), "), "{lines:?}");
            assert!(lines[2].contains(", at home; "), "{lines:?}");
            let shares = [&lines[1], &lines[2]].map(|line| share(line));
            // Nobody may have asked yet.
            let Some(by) = lines[3].strip_prefix("by connections of worker ") else { return false };
            let (worker, by) = by.split_once(' ').unwrap();
            let moves = format!(
                "its clients do not follow it: lending it moves nothing; handing over connections of worker {worker} does ("
            );
            let only = "it is one connection, which can go elsewhere but not be shared out";
            shares.iter().all(|share| (share - 99.0).abs() < 2.0)
                && by.starts_with("(1 open): ")
                && lines[4] == "load that moves with the cachelet: 0.000"
                && match who_decides {
                    Some(who) => {
                        lines[5].starts_with(&moves)
                            && lines[5].ends_with(only)
                            && lines[6].starts_with(who)
                    }
                    None => lines[5..] == ["there is no other worker to move it to"],
                }
        });
    }
}

#[test]
fn a_key_of_clients_that_follow_it_is_explained_by_its_cachelet() {
    let folder = Folder::new("followed-key");
    let control = folder.path("control");
    let path = control.to_str().unwrap();
    let more = ["--hot-sample", "1", "--epoch", "50ms", "--balance", "off", "--control", path];
    let (_server, base) = on_neighbouring_ports(&folder, &more);
    let idle = explained("k", path);
    let nothing = "it costs no worker a load to speak of: there is nothing to move";
    assert_eq!(idle[3..], ["load that moves with the cachelet: 0.000", nothing]);
    let (cachelet, place) =
        idle[2].strip_prefix("cachelet ").unwrap().split_once(": worker ").unwrap();
    let owner: u16 = place.split(',').next().unwrap().parse().unwrap();
    let client = TcpStream::connect(("127.0.0.1", base + owner)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _busy = Busy::new(client, "mg k L1.0\r\n".repeat(5_000), "EN\r\n".repeat(5_000));
    let moves = format!(
        "its clients follow it: lending it moves that load (mbal cluster move {cachelet} WORKER)"
    );
    eventually("its load is seen with the cachelet", || {
        let lines = explained("k", path);
        lines.contains(&moves) && share(&lines[2]) == 100.0
    });
}

#[test]
fn a_control_socket_that_a_killed_server_left_is_replaced() {
    let folder = Folder::new("control-left");
    let control = folder.path("control");
    let path = control.to_str().unwrap();
    let serve = || {
        drop(fs::remove_file(folder.path("ports")));
        Running::serve(&folder, &["-p", "-1", "--control", path])
    };
    serve().signal("KILL");
    assert!(control.exists(), "nobody was left to remove it");
    let _server = serve();
    let output = output_of(MBAL.as_ref(), &["cluster", "status", "--control", path]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn text_clients_log_in_and_the_passwords_are_read_again() {
    let folder = Folder::new("text-login");
    let users = folder.path("users");
    fs::write(&users, "ann:first\nbob:other\n").unwrap();
    let server = Running::serve(&folder, &["-p", "-1", "-Y", users.to_str().unwrap()]);
    let login = |word: &str| format!("set k 0 0 {}\r\nann {word}\r\n", 4 + word.len());
    let failed = "CLIENT_ERROR authentication failure\r\n";
    let mut client = server.connect();
    ask(&mut client, "get k\r\n", "CLIENT_ERROR unauthenticated\r\n");
    ask(&mut client, &login("other"), failed);
    ask(&mut client, &login("first"), "STORED\r\n");
    ask(&mut client, "set k 0 0 1\r\nv\r\nget k\r\n", "STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n");

    fs::write(&users, "ann:second\n").unwrap();
    running::signals::send(server.child.id(), "HUP");
    eventually("the new password is taken", || {
        let mut client = server.connect();
        client.write_all(login("second").as_bytes()).unwrap();
        let mut reply = [0; 8];
        client.read_exact(&mut reply).unwrap();
        reply == *b"STORED\r\n"
    });
    ask(&mut server.connect(), &login("first"), failed);
    ask(&mut client, "get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");

    fs::write(&users, "no colon\n").unwrap();
    let refused = output_of(MBAL.as_ref(), &["serve", "-p", "-1", "-Y", users.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

#[test]
fn binary_clients_log_in_by_sasl() {
    let folder = Folder::new("sasl");
    let users = folder.path("users");
    let variable = format!("MEMCACHED_SASL_PWDB={}", users.display());
    let server =
        Running::start(&folder, "env".as_ref(), &[&variable, MBAL, "serve", "-p", "-1", "-S"]);
    let mut client = server.connect();
    let mut status = |opcode: u8, key: &[u8], value: &[u8]| {
        let mut request = vec![0; 24];
        request[..4].copy_from_slice(&[0x80, opcode, 0, key.len() as u8]);
        request[11] = (key.len() + value.len()) as u8;
        client.write_all(&[&request, key, value].concat()).unwrap();
        let mut reply = [0; 24];
        client.read_exact(&mut reply).unwrap();
        let mut body = vec![0; reply[11].into()];
        client.read_exact(&mut body).unwrap();
        u16::from_be_bytes([reply[6], reply[7]])
    };
    assert_eq!(status(0x21, b"PLAIN", b"\0ann\0secret"), 0x20, "there is no file yet");
    fs::write(&users, "ann:secret:some token\n").unwrap();
    assert_eq!(status(0x21, b"PLAIN", b"\0ann\0secre"), 0x20);
    assert_eq!(status(0x21, b"PLAIN", b"\0ann\0secret"), 0);
    assert_eq!(status(0x0c, b"k", b""), 1);
}

#[test]
fn datagrams_are_answered_to_their_sender() {
    let folder = Folder::new("datagrams");
    let server = Running::serve(&folder, &["-p", "-1", "-U", "-1", "-t", "2"]);
    let lines = fs::read_to_string(folder.path("ports")).unwrap();
    let port = lines.lines().find_map(|line| line.strip_prefix("UDP INET: ")).unwrap();
    ask(&mut server.connect(), "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    for id in 0..4 {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(("127.0.0.1", port.parse::<u16>().unwrap())).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.send(&[&[0, id, 0, 0, 0, 1, 0, 0], &b"get k\r\n"[..]].concat()).unwrap();
        let mut reply = [0; 100];
        let length = client.recv(&mut reply).unwrap();
        let expected = [&[0, id, 0, 0, 0, 1, 0, 0], &b"VALUE k 0 1\r\nv\r\nEND\r\n"[..]].concat();
        assert_eq!(reply[..length], expected);
    }
}
