//! How a server starts, or does not: what it says, what it leaves, and where operators find it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

mod running;

use running::{Daemon, Folder, MBAL, Running, ask, certificate, output_of};

const NOBODY: u32 = 65534;

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout == b"0\n"
}

/// Runs what follows with a `/run` of its own, after `before`; `None` where this test may not.
fn in_own_run(before: &str) -> Option<Command> {
    let mounts = "mount -t tmpfs -o mode=755 mbal /run";
    let tried =
        Command::new("unshare").args(["-m", "sh", "-c", mounts]).stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: this needs root, and unshare");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &format!("{mounts} && exec {before} \"$@\""), "sh"]);
    Some(command)
}

/// Without the rights of root, if this test has them.
fn unprivileged(command: &mut Command) -> &mut Command {
    if is_root() { command.uid(NOBODY).gid(NOBODY) } else { command }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn code_and_words(output: Output) -> (Option<i32>, String) {
    (output.status.code(), text(&[output.stdout, output.stderr].concat()))
}

/// The first lines that a server says: the one about itself, and what comes before it.
fn said_at_start(server: &mut Running) -> Vec<String> {
    let mut lines = Vec::new();
    let stderr = server.child.stderr.as_mut().unwrap();
    let mut said = BufReader::new(stderr);
    while !lines.last().is_some_and(|line: &String| line.contains(" workers, ")) {
        let mut line = String::new();
        assert!(said.read_line(&mut line).unwrap() > 0, "the server ended: {lines:?}");
        lines.push(line.trim_end().to_owned());
    }
    lines
}

fn control_of(line: &str) -> &str {
    let (_, rest) = line.split_once("control socket ").expect("the line names it");
    rest.split_once(", metrics").expect("metrics come behind it").0
}

/// Ends the server of a unix socket, which is nobody's child.
fn daemon_of(stream: &mut UnixStream) -> Daemon {
    stream.write_all(b"stats\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let pid = lines.find_map(|line| line.strip_prefix("STAT pid ").map(String::from)).unwrap();
    Daemon(pid)
}

#[test]
fn a_daemon_serves_when_its_parent_ends() {
    let folder = Folder::new("daemon-serves");
    let (pid, socket) = (folder.path("pid"), folder.path("socket"));
    let (pid, socket) = (pid.to_str().unwrap(), socket.to_str().unwrap());
    let started = output_of(MBAL.as_ref(), &["serve", "-d", "-t", "1", "-P", pid, "-s", socket]);
    assert_eq!(started.status.code(), Some(0), "{started:?}");
    let mut stream = UnixStream::connect(socket).unwrap();
    let daemon = daemon_of(&mut stream);
    assert_eq!(fs::read_to_string(pid).unwrap(), format!("{}\n", daemon.0));
    assert!(text(&started.stderr).contains(&format!(": 1 worker, 64 MiB, on {socket}; ")));
}

#[test]
fn a_daemon_that_gets_no_memory_says_so_and_leaves_nothing() {
    let folder = Folder::new("daemon-memory");
    let limited =
        "ulimit -d 200000 && exec \"$0\" serve -d -m 1024 -P pid -s socket --control control";
    let started = Command::new("sh").args(["-c", limited, MBAL]).current_dir(&folder.0).output();
    let (code, said) = code_and_words(started.unwrap());
    assert_eq!(code, Some(71), "{said}");
    assert!(said.contains("-m 1024: the kernel does not give so much memory: "), "{said}");
    assert!(said.ends_with("ulimit allows the process 195 MiB\n"), "{said}");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "nothing stays behind");
}

#[test]
fn a_daemon_that_finds_its_port_taken_leaves_nothing() {
    let folder = Folder::new("daemon-port");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let started = Command::new(MBAL)
        .args(["serve", "-d", "-P", "pid", "--control", "control", "-l", "127.0.0.1", "-p", &port])
        .current_dir(&folder.0)
        .output();
    let (code, said) = code_and_words(started.unwrap());
    assert_eq!(code, Some(71), "{said}");
    assert!(said.contains(&format!("failed to listen on 127.0.0.1 port {port}: ")), "{said}");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "nothing stays behind");
}

#[test]
fn memory_beyond_the_machines_is_warned_about() {
    let folder = Folder::new("memory-beyond");
    // A tebibyte of addresses; memory is taken as it is used.
    let mut server = Running::serve(&folder, &["-p", "-1", "-m", "1048576", "-t", "2"]);
    let said = said_at_start(&mut server);
    let begins = " mbal: -m 1048576 is more than there is: this machine has ";
    assert!(said[0].contains(begins), "{said:?}");
    ask(&mut server.connect(), "mn\r\n", "MN\r\n");
}

#[test]
fn a_pid_file_that_cannot_be_written_stops_nobody() {
    let folder = Folder::new("pid-unwritable");
    let socket = folder.path("socket");
    let pid = folder.path("no such folder/pid");
    let (pid, name) = (pid.to_str().unwrap(), socket.to_str().unwrap());
    let started = output_of(MBAL.as_ref(), &["serve", "-d", "-P", pid, "-s", name]);
    let (code, said) = code_and_words(started);
    let mut stream = UnixStream::connect(&socket).unwrap();
    let _daemon = daemon_of(&mut stream);
    assert_eq!(code, Some(0), "{said}");
    let warning = format!(
        "Could not open the pid file {pid} for writing: No such file or directory (os error 2)\n"
    );
    assert!(said.contains(&warning), "{said}");
}

#[test]
fn a_user_who_may_not_write_is_named() {
    if !is_root() {
        return eprintln!("SKIPPED: this needs root");
    }
    let folder = Folder::new("user-unwritable");
    let (socket, pid) = (folder.path("socket"), folder.path("pid"));
    let (socket, pid) = (socket.to_str().unwrap(), pid.to_str().unwrap());
    let as_nobody = ["serve", "-d", "-u", "nobody", "--control", "off", "-s"];
    let refused = output_of(MBAL.as_ref(), &[&as_nobody[..], &[socket]].concat());
    let expected = format!(
        "failed to listen on UNIX socket {socket}: Permission denied (os error 13)\n\
         -u nobody: this user may not write there\n"
    );
    assert_eq!(code_and_words(refused), (Some(71), expected));
    fs::create_dir(folder.path("own")).unwrap();
    fs::set_permissions(folder.path("own"), fs::Permissions::from_mode(0o777)).unwrap();
    let socket = folder.path("own/socket");
    let flags = [&as_nobody[..], &[socket.to_str().unwrap(), "-P", pid]].concat();
    let (code, said) = code_and_words(output_of(MBAL.as_ref(), &flags));
    let mut stream = UnixStream::connect(&socket).unwrap();
    let _daemon = daemon_of(&mut stream);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("Could not open the pid file {pid} for writing: ")), "{said}");
}

#[test]
fn root_makes_a_folder_in_the_hosts_own_for_the_user_that_serves() {
    let Some(mut command) = in_own_run("") else { return };
    let folder = Folder::new("control-user");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
    command.args([MBAL, "serve", "-u", "nobody", "-p", "-1", "-t", "2", "-l", "127.0.0.1"]);
    let mut server = Running::of(&folder, &mut command).unwrap();
    let line = said_at_start(&mut server).pop().unwrap();
    let path = format!("/run/mbal/user-65534/127.0.0.1:{}.control", server.port);
    assert_eq!(control_of(&line), path, "{line}");
    let host = format!("/proc/{}/root/run/mbal", server.child.id());
    assert_eq!(fs::metadata(host).unwrap().uid(), 0, "others' sockets are in it");
    let seen = format!("/proc/{}/root{path}", server.child.id());
    let status = output_of(MBAL.as_ref(), &["cluster", "status", "--control", &seen]);
    assert_eq!(status.status.code(), Some(0), "{status:?}");
}

#[test]
fn as_many_connections_as_open_files_allow() {
    let folder = Folder::new("descriptors");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
    let mut shell = Command::new("sh");
    let limited = "ulimit -n 300 && exec \"$0\" serve -t 2 -c 1024 -p -1 -l 127.0.0.1";
    shell.args(["-c", limited, MBAL]);
    let mut server = Running::of(&folder, unprivileged(&mut shell)).unwrap();
    // Two workers with four descriptors each, and 64 for the rest.
    let warning =
        "mbal: -c 1024: there is room for 228 connections, by the hard limit of 300 open files";
    assert_eq!(said_at_start(&mut server)[0], warning);
    let mut streams: Vec<_> = (0..228).map(|_| server.connect()).collect();
    for stream in &mut streams {
        ask(stream, "mn\r\n", "MN\r\n");
    }
    let mut answer = String::new();
    server.connect().read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "ERROR Too many open connections\r\n");
}

#[test]
fn no_room_for_a_connection_is_no_start() {
    let limited = "ulimit -n 60 && exec \"$0\" serve -t 2 -p -1 -l 127.0.0.1";
    let mut shell = Command::new("sh");
    shell.args(["-c", limited, MBAL]).stdin(Stdio::null());
    let (code, said) = code_and_words(unprivileged(&mut shell).output().unwrap());
    let expected = "72 open files are needed beside the connections, and the hard limit is 60\n\
                    start as root, raise `ulimit -Hn`, or ask for fewer workers with -t\n";
    assert_eq!((code, said.as_str()), (Some(71), expected));
}

#[test]
fn servers_on_one_port_of_two_addresses_have_a_control_socket_each() {
    let (first_folder, second_folder) = (Folder::new("control-1"), Folder::new("control-2"));
    let mut first = Running::serve(&first_folder, &["-l", "127.0.0.1", "-p", "-1", "-t", "2"]);
    let port = first.port.to_string();
    let mut second = Running::serve(&second_folder, &["-l", "127.0.0.2", "-p", &port, "-t", "2"]);
    let paths = [&mut first, &mut second]
        .map(|server| control_of(said_at_start(server).last().unwrap()).to_owned());
    assert!(paths[0].ends_with(&format!("/mbal/127.0.0.1:{port}.control")), "{paths:?}");
    assert!(paths[1].ends_with(&format!("/mbal/127.0.0.2:{port}.control")), "{paths:?}");

    let tell = |arguments: &[&str]| code_and_words(output_of(MBAL.as_ref(), arguments));
    assert_eq!(tell(&["cluster", "move", "-p", &port, "1800/5", "1"]), (Some(0), "done\n".into()));
    let owner = |path: &str| {
        let (code, said) = tell(&["cluster", "explain", "--control", path, "1800/5"]);
        assert_eq!(code, Some(0), "{said}");
        said.split(',').next().unwrap().to_owned()
    };
    assert_eq!(owner(&paths[0]), "cachelet 1800/5: worker 1");
    assert_eq!(owner(&paths[1]), "cachelet 1800/5: worker 0");

    assert_eq!(second.signal("TERM").0.code(), Some(0));
    assert!(!Path::new(&paths[1]).exists(), "it goes with its server");
    assert_eq!(owner(&paths[0]), "cachelet 1800/5: worker 1");
}

#[test]
fn every_address_is_a_name_of_the_control_socket() {
    let folder = Folder::new("control-addresses");
    let flags = ["-l", "127.0.0.3,127.0.0.4", "-p", "-1", "-t", "2"];
    let mut server = Running::serve(&folder, &flags);
    let lines = fs::read_to_string(folder.path("ports")).unwrap();
    let ports: Vec<&str> =
        lines.lines().map(|line| line.strip_prefix("TCP INET: ").unwrap()).collect();
    let path = control_of(said_at_start(&mut server).last().unwrap()).to_owned();
    let (first, _) = path.rsplit_once("127.0.0.3").unwrap();
    let paths = [0, 1].map(|at| format!("{first}127.0.0.{}:{}.control", 3 + at, ports[at]));
    assert_eq!(path, paths[0]);
    for path in &paths {
        let (code, said) =
            code_and_words(output_of(MBAL.as_ref(), &["cluster", "status", "--control", path]));
        assert_eq!(code, Some(0), "{said}");
    }
    assert_eq!(server.signal("TERM").0.code(), Some(0));
    assert!(!paths.iter().any(|path| Path::new(path).exists()), "all its names go");
}

#[test]
fn the_control_socket_of_a_living_server_is_not_taken() {
    let folder = Folder::new("control-living");
    let control = folder.path("control");
    let path = control.to_str().unwrap();
    let _first = Running::serve(&folder, &["-p", "-1", "-t", "2", "--control", path]);
    let refused = output_of(MBAL.as_ref(), &["serve", "-p", "-1", "--control", path]);
    let expected = format!("failed to listen on UNIX socket {path}: another server has it\n");
    assert_eq!(code_and_words(refused), (Some(71), expected));
    let (code, said) =
        code_and_words(output_of(MBAL.as_ref(), &["cluster", "status", "--control", path]));
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_server_of_a_unix_socket_has_a_control_socket_of_its_own() {
    let folder = Folder::new("control-unix");
    let socket = folder.path("cache.sock");
    let name = socket.to_str().unwrap();
    let mut first = Running::serve(&folder, &["-t", "2", "-s", name]);
    let line = said_at_start(&mut first).pop().unwrap();
    let path = control_of(&line).to_owned();
    assert!(path.contains("/mbal/cache.sock-") && path.ends_with(".control"), "{line}");
    let status =
        || code_and_words(output_of(MBAL.as_ref(), &["cluster", "status", "--control", &path]));
    assert_eq!(status().0, Some(0));

    // It takes the socket, as memcached does, but operators stay with the first.
    fs::remove_file(folder.path("ports")).unwrap();
    let mut second = Running::serve(&folder, &["-t", "2", "-s", name]);
    let line = said_at_start(&mut second).pop().unwrap();
    assert!(
        line.contains(&format!("no control socket ({path}: another server has it), ")),
        "{line}"
    );
    assert_eq!(second.signal("TERM").0.code(), Some(0));
    assert_eq!(status().0, Some(0));
    assert_eq!(first.signal("TERM").0.code(), Some(0));
    assert!(!Path::new(&path).exists());
}

#[test]
fn the_control_socket_of_a_killed_server_goes_with_the_next_one() {
    let folder = Folder::new("control-killed");
    let mut first = Running::serve(&folder, &["-t", "2", "-p", "-1"]);
    let left = control_of(said_at_start(&mut first).last().unwrap()).to_owned();
    assert!(Path::new(&left).exists());
    first.signal("KILL");
    fs::remove_file(folder.path("ports")).unwrap();
    let _second = Running::serve(&folder, &["-t", "2", "-p", "-1"]);
    assert!(!Path::new(&left).exists());
}

#[test]
fn a_folder_that_leads_elsewhere_is_not_followed() {
    let unprivileged = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let Some(mut command) = in_own_run(unprivileged) else { return };
    let folder = Folder::new("control-foreign");
    let (session, elsewhere) = (folder.path("session"), folder.path("elsewhere"));
    for path in [&folder.0, &session, &elsewhere] {
        fs::create_dir_all(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    symlink(&elsewhere, session.join("mbal")).unwrap();
    command.args([MBAL, "serve", "-p", "-1", "-t", "2"]).env("XDG_RUNTIME_DIR", &session);
    let mut server = Running::of(&folder, &mut command).unwrap();
    let line = said_at_start(&mut server).pop().unwrap();
    assert!(control_of(&line).starts_with("/tmp/mbal-65534/127.0.0.1:"), "{line}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);

    let port = server.port.to_string();
    let mut as_owner = Command::new(MBAL);
    let status =
        as_owner.args(["cluster", "status", "-p", &port]).uid(NOBODY).gid(NOBODY).output().unwrap();
    assert_eq!(status.status.code(), Some(0), "{status:?}");
    let (code, said) =
        code_and_words(output_of(MBAL.as_ref(), &["cluster", "status", "-p", &port]));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.starts_with(&format!("mbal: no control socket of port {port}: looked in ")));
}

/// What a server with these flags says of itself, and whether of a line to try.
fn line_and_example(folder: &Folder, flags: &[&str]) -> (String, bool) {
    let mut command = Command::new(MBAL);
    command.args(["serve", "-p", "-1", "-t", "2", "-l", "127.0.0.1"]).args(flags);
    let server = Running::of(folder, command.env("MEMCACHED_SASL_PWDB", folder.path("users")));
    let (_, said) = server.unwrap().signal("TERM");
    fs::remove_file(folder.path("ports")).unwrap();
    let mut lines = said.lines();
    let line = lines.next().unwrap().to_owned();
    (line, lines.any(|line| line.starts_with("try it: ")))
}

#[test]
fn one_line_says_what_is_on() {
    let folder = Folder::new("line");
    let users = folder.path("users");
    folder.keep("users", "ann:first\n");
    let users = users.to_str().unwrap();
    for (flags, expected, is_tried) in [
        (&[][..], "; text and binary, TLS off, login off, ", true),
        (&["-B", "ascii"], "; text, TLS off, login off, ", true),
        (&["-B", "binary"], "; binary, TLS off, login off, ", false),
        (&["-Y", users], "; text, TLS off, login by text, ", false),
        (&["-S"], "; binary, TLS off, login by SASL, ", false),
    ] {
        let flags = [flags, &["--control", "off"]].concat();
        let (line, tried) = line_and_example(&folder, &flags);
        let expected = format!("{expected}no control socket (off), metrics off");
        assert!(line.ends_with(&expected), "{flags:?}: {line}");
        assert_eq!(tried, is_tried, "{flags:?}");
    }
    let control = folder.path("control");
    let control = control.to_str().unwrap();
    let (line, _) = line_and_example(&folder, &["--control", control, "--metrics", "0"]);
    let expected = format!(", control socket {control}, metrics on http://127.0.0.1:");
    assert!(line.contains(&expected), "{line}");
}

#[test]
fn the_line_says_which_addresses_have_no_tls() {
    let folder = Folder::new("line-tls");
    let Some(options) = certificate(&folder) else {
        return eprintln!("SKIPPED: this needs openssl");
    };
    let tls = ["-Z", "-o", &options, "--control", "off"];
    let (line, tried) = line_and_example(&folder, &tls);
    assert!(line.contains("; text and binary, TLS on, login off, "), "{line}");
    assert!(!tried, "bash speaks no TLS");
    let (line, tried) = line_and_example(&folder, &[&tls[..], &["-l", "notls:127.0.0.1"]].concat());
    assert!(line.contains(" (no TLS); text and binary, TLS on, "), "{line}");
    assert!(tried, "one address is plain");
}

#[test]
fn twice_verbose_tells_connections_and_requests() {
    let folder = Folder::new("verbose");
    let flags = ["-vv", "-p", "-1", "-l", "127.0.0.1", "-t", "1", "--control", "off"];
    let server = Running::serve(&folder, &flags);
    let mut stream = server.connect();
    ask(&mut stream, "set a 0 0 1\r\nv\r\n", "STORED\r\n");
    ask(&mut stream, "get a\r\n", "VALUE a 0 1\r\nv\r\nEND\r\n");
    stream.write_all(b"quit\r\n").unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it closes");
    let (_, said) = server.signal("TERM");
    let (first, rest) = said.split_once('\n').unwrap();
    assert!(
        first.starts_with('<') && first.ends_with(" server listening (auto-negotiate)"),
        "{said}"
    );
    let (_, told) = rest.split_once(" new auto-negotiating client connection\n").expect("it came");
    let fd = told.split_once(':').unwrap().0;
    let expected = format!(
        "{fd}: Client using the ascii protocol\n<{fd} set a 0 0 1\n>{fd} STORED\n\
         <{fd} get a\n>{fd} sending key a\n>{fd} END\n<{fd} quit\n<{fd} connection closed.\n\
         Exiting normally\n"
    );
    assert_eq!(told, expected);
}

#[test]
fn nobody_waits_for_a_standard_error_that_is_not_read() {
    let folder = Folder::new("verbose-unread");
    let flags = ["-vv", "-p", "-1", "-l", "127.0.0.1", "-t", "1", "--control", "off"];
    let server = Running::serve(&folder, &flags);
    let mut stream = server.connect();
    // A pipe keeps 64 KiB.
    let key = "k".repeat(200);
    for _ in 0..2_000 {
        ask(&mut stream, &format!("get {key}\r\n"), "END\r\n");
    }
}
