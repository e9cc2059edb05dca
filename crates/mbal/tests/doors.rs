//! When a server of a cluster lets clients in: not before it can answer for all keys. Who connects earlier is refused.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

mod running;

use running::led::{Coordinator, folder, free_port};
use running::{Ends, Folder, MBAL, Running, eventually, free_ports, output_of, signal};

/// So many that each of three servers has some.
const KEYS: usize = 24;

/// A server at a port that the test knows before the server does; killed with its test.
struct Serving(Child);

impl Serving {
    fn start(folder: &Folder, by: [&str; 2], id: usize, port: u16) -> Serving {
        let secret = folder.path("secret").display().to_string();
        let (id, port) = (id.to_string(), port.to_string());
        let words = ["serve", "-p", &port, "-U", "0", "-t", "2", "--control", "off"];
        let more = ["--server-id", &id, by[0], by[1], "--cluster-secret", &secret];
        let mut command = Command::new(MBAL);
        command.args(words).args(more).stdin(Stdio::null()).stderr(Stdio::null());
        Serving(command.spawn().expect("the program is there"))
    }

    fn ends(&mut self) -> i32 {
        eventually("it ends", || self.0.try_wait().expect("it is a child").is_some());
        self.0.wait().ok().and_then(|status| status.code()).expect("by itself")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn ports<const COUNT: usize>() -> [u16; COUNT] {
    let ports = free_ports(COUNT as u16);
    ports.try_into().expect("it is so many")
}

/// What is answered to one request, up to its last line.
fn asked(stream: &mut TcpStream, request: &str, ends: &[&str]) -> Result<String, Error> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(request.as_bytes())?;
    let (mut said, mut room) = (String::new(), [0; 1024]);
    while !ends.iter().any(|end| said.ends_with(end)) {
        let count = stream.read(&mut room)?;
        if count == 0 {
            return Err(Error::new(ErrorKind::UnexpectedEof, format!("after {said:?}")));
        }
        said += &String::from_utf8_lossy(&room[..count]);
    }
    Ok(said)
}

/// One client: connects as soon as it is let in, stores keys of all servers, and finds them. The error is what it was answered.
fn visit(port: u16, name: &str, written: bool) -> Option<Result<(), String>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let mut exact = |request: String, wanted: String| match asked(&mut stream, &request, &["\r\n"])
    {
        Ok(said) if said == wanted => Ok(()),
        said => Err(format!("port {port} to {request:?}: {said:?}")),
    };
    let mut all = || {
        for n in 0..KEYS {
            if written {
                exact(format!("set {name}{n} 0 0 1\r\nv\r\n"), "STORED\r\n".into())?;
            }
            exact(format!("mg {name}{n} v\r\n"), "VA 1\r\nv\r\n".into())?;
        }
        Ok(())
    };
    Some(all())
}

/// Clients come to each port from the first moment on, until `done`; `served` counts those who were answered as they should be.
fn visited(ports: &[u16], done: &AtomicBool, served: &[AtomicUsize]) {
    thread::scope(|scope| {
        for (&port, served) in ports.iter().zip(served) {
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    match visit(port, &format!("p{port}-"), true) {
                        Some(Ok(())) => drop(served.fetch_add(1, Relaxed)),
                        Some(Err(why)) => {
                            let nth = served.load(Relaxed);
                            done.store(true, Relaxed);
                            panic!("client {nth} there: {why}");
                        }
                        None => {}
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
    });
}

/// Three servers that start at the same time, a client at each port from the first moment on.
fn start_all(folder: &Folder, by: [&str; 2], ports: &[u16; 3]) -> Vec<Serving> {
    let done = AtomicBool::new(false);
    let served = [(); 3].map(|()| AtomicUsize::new(0));
    let mut servers = Vec::new();
    thread::scope(|scope| {
        let ends = Ends(&done);
        scope.spawn(|| visited(ports, &done, &served));
        servers.extend((1..).zip(ports).map(|(id, &port)| Serving::start(folder, by, id, port)));
        eventually("clients are served at all ports", || {
            done.load(Relaxed) || served.iter().all(|count| count.load(Relaxed) >= 5)
        });
        drop(ends);
    });
    servers
}

#[test]
fn whoever_is_let_in_finds_all_keys_from_the_first_connection_on() {
    let folder = folder("first");
    let coordinator = Coordinator::start(&folder, free_port(), 3);
    let ports = ports();
    for _ in 0..3 {
        // Each time all of them at once: nobody waits for the others' clients' ports.
        drop(start_all(&folder, ["--coordinator", &coordinator.url], &ports));
    }
}

#[test]
fn likewise_where_a_file_has_the_map() {
    let folder = folder("file");
    let [first, second, third, links @ ..] = ports::<6>();
    let mut map = "cluster test\nversion 1\nequal 5\n".to_owned();
    for (id, port) in (1..).zip(links) {
        map += &format!("server {id} link 127.0.0.1:{port} client 127.0.0.1:0\n");
    }
    std::fs::write(folder.path("map"), map).expect("it can be written");
    let map = folder.path("map").display().to_string();
    drop(start_all(&folder, ["--cluster", &map], &[first, second, third]));
    // Without the others it serves what is its own.
    let _alone = Serving::start(&folder, ["--cluster", &map], 2, second);
    eventually("it lets clients in", || TcpStream::connect(("127.0.0.1", second)).is_ok());
}

#[test]
fn who_comes_back_answers_for_all_keys_while_the_others_serve() {
    let folder = folder("back");
    let coordinator = Coordinator::start(&folder, free_port(), 3);
    let ports: [u16; 3] = ports();
    let start =
        |at: usize| Serving::start(&folder, ["--coordinator", &coordinator.url], at + 1, ports[at]);
    let mut servers = [start(0), start(1), start(2)];
    let serves = |&port: &u16| matches!(visit(port, "kept", true), Some(Ok(())));
    eventually("all serve", || ports.iter().all(serves));
    for at in [2, 1] {
        // It gives away what it has, and ends.
        signal(&servers[at].0, "TERM");
        assert_eq!(servers[at].ends(), 0);
        servers[at] = start(at);
        let mut served = 0;
        eventually("it serves again", || {
            for written in [false, true] {
                match visit(ports[at], "kept", written) {
                    None => {}
                    Some(Ok(())) => served += 1,
                    Some(Err(why)) => panic!("after {served} times: {why}"),
                }
            }
            served >= 20
        });
    }
}

#[test]
fn a_server_that_is_down_keeps_nobody_waiting_for_long() {
    let folder = folder("down");
    let coordinator = Coordinator::start(&folder, free_port(), 2);
    let ports: [u16; 2] = ports();
    let start =
        |at: usize| Serving::start(&folder, ["--coordinator", &coordinator.url], at + 1, ports[at]);
    let (first, second) = (start(0), start(1));
    eventually("both serve", || {
        ports.iter().all(|&port| matches!(visit(port, "k", true), Some(Ok(()))))
    });
    drop((first, second));
    let _first = start(0);
    let connected = || TcpStream::connect(("127.0.0.1", ports[0])).is_ok();
    eventually("it serves what is its own", connected);
}

/// All ways to a server that has no map, because nobody makes one.
#[test]
fn until_there_is_a_map_no_door_is_open_and_no_other_process_can_take_one() {
    let folder = folder("shut");
    let [client, datagrams, own, coordinated] = ports();
    let unix = folder.path("unix").display().to_string();
    let secret = folder.path("secret").display().to_string();
    let url = format!("http://127.0.0.1:{coordinated}");
    let [port, udp, base] = [client, datagrams, own].map(|port| port.to_string());
    let at = |port: &str| {
        let mut words = vec!["serve", "-l", "127.0.0.1", "-t", "1", "-p", port, "--control", "off"];
        words.extend(["--coordinator", &url, "--cluster-secret", &secret]);
        words.into_iter().map(str::to_owned).collect::<Vec<String>>()
    };
    let more = ["-U", &udp, "--worker-ports", &base].map(str::to_owned);
    let words = [at(&port), more.to_vec()].concat();
    drop(std::fs::remove_file(folder.path("ports")));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // It says at once which ports it has.
    let server = Running::start(&folder, MBAL.as_ref(), &words);
    assert_eq!(server.port, client);
    let words = ["-s", &unix, "-t", "1", "--control", "off", "--coordinator", &url];
    drop(std::fs::remove_file(folder.path("ports")));
    let _at_a_path =
        Running::serve(&folder, &[&words[..], &["--cluster-secret", &secret]].concat());
    let asker = UdpSocket::bind(("127.0.0.1", 0)).expect("there are free ports");
    asker.connect(("127.0.0.1", datagrams)).expect("it can be addressed");
    asker.set_read_timeout(Some(Duration::from_millis(300))).expect("it can be set");
    let packet = |text: &str| [&[0, 1, 0, 0, 0, 1, 0, 0], text.as_bytes()].concat();
    asker.send(&packet("set late 0 0 1\r\nv\r\n")).expect("somebody has the port");
    let refused = |said: Result<(), Error>| {
        said.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    for _ in 0..20 {
        assert!(refused(TcpStream::connect(("127.0.0.1", client)).map(drop)));
        assert!(refused(TcpStream::connect(("127.0.0.1", own)).map(drop)));
        assert!(refused(UnixStream::connect(&unix).map(drop)));
        thread::sleep(Duration::from_millis(10));
    }
    assert!(asker.recv(&mut [0; 64]).is_err(), "datagrams are not answered");
    // Another one is told at once, and so is whoever reuses addresses.
    for taken in [client, own] {
        let second = output_of(
            MBAL.as_ref(),
            &at(&taken.to_string()).iter().map(String::as_str).collect::<Vec<_>>(),
        );
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        assert_eq!(second.status.code(), Some(71), "{said}");
        let why = format!("port {taken}: Address already in use");
        assert!(said.contains(&why), "{said}");
    }
    assert!(TcpListener::bind(("127.0.0.1", client)).is_err());
    let _coordinator = Coordinator::start(&folder, coordinated, 2);
    eventually("clients are served", || TcpStream::connect(("127.0.0.1", client)).is_ok());
    let mut stream = TcpStream::connect(("127.0.0.1", client)).expect("it listens");
    let said = asked(&mut stream, "get late\r\n", &["END\r\n", "ERROR\r\n"]).expect("an answer");
    assert_eq!(said, "END\r\n", "what was sent before is not executed");
    eventually("workers' own ports are open", || TcpStream::connect(("127.0.0.1", own)).is_ok());
    eventually("the unix socket is open", || UnixStream::connect(&unix).is_ok());
    eventually("datagrams are answered", || {
        asker.send(&packet("mn\r\n")).is_ok() && asker.recv(&mut [0; 64]).is_ok()
    });
}

#[test]
fn who_is_said_to_serve_lets_clients_in() {
    let folder = folder("said");
    for _ in 0..5 {
        let coordinator = Coordinator::start(&folder, free_port(), 2);
        let status = || {
            let words = ["cluster", "status", "--coordinator", &coordinator.url];
            String::from_utf8_lossy(&output_of(MBAL.as_ref(), &words).stdout).into_owned()
        };
        let ports: [u16; 2] = ports();
        let start = |at: usize| {
            Serving::start(&folder, ["--coordinator", &coordinator.url], at + 1, ports[at])
        };
        let _first = start(0);
        eventually("it is starting", || status().contains(" starting "));
        assert!(!status().contains(" serving "), "{}", status());
        let _second = start(1);
        eventually("both serve", || status().matches(" serving ").count() == 2);
        for port in ports {
            TcpStream::connect(("127.0.0.1", port)).expect("it lets clients in");
        }
        drop(coordinator);
        drop(std::fs::remove_file(folder.path("state.json")));
    }
}

#[test]
fn who_waits_for_a_map_ends_at_a_signal() {
    let folder = folder("term");
    let secret = folder.path("secret").display().to_string();
    for (name, servers) in [("TERM", None), ("INT", None), ("TERM", Some(2))] {
        // Without a coordinator, and registered at one that waits for a second server.
        let port = free_port();
        let url = format!("http://127.0.0.1:{port}");
        let coordinator = servers.map(|servers| Coordinator::start(&folder, port, servers));
        let words = ["-p", "-1", "--control", "off", "--coordinator", &url, "--cluster-secret"];
        drop(std::fs::remove_file(folder.path("ports")));
        let server = Running::serve(&folder, &[&words[..], &[&secret]].concat());
        if let Some(coordinator) = &coordinator {
            eventually("it is registered", || {
                let status = output_of(
                    MBAL.as_ref(),
                    &["cluster", "status", "--coordinator", &coordinator.url],
                );
                String::from_utf8_lossy(&status.stdout).contains("127.0.0.1")
            });
        }
        let begun = Instant::now();
        let (status, said) = server.signal(name);
        assert_eq!(status.code(), Some(0), "{name}: {said}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{said}");
        drop(std::fs::remove_file(folder.path("state.json")));
    }
}
