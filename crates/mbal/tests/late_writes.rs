//! A write that was answered with an error is not executed afterwards, over a newer one: not when the network delivers late what was on
//! its way to the owner, and not when the owner stood still with it in its receive buffer.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

mod running;

use running::{Folder, Running, ask, eventually, free_ports};

const NO_ROUTE: &str = "SERVER_ERROR no route to owner\r\n";

/// The network between a server and another's port of links. It can stop to deliver, and then delivers late what it has taken, as
/// routers and a kernel do: though whoever sent it has closed, or reset, its end.
struct Network {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Default)]
struct Now {
    holds: bool,
    /// Bytes that wait, on all connections; how many there ever were that did.
    held: usize,
    held_ever: usize,
    /// How connections have ended that the dialing server gave up.
    resets: usize,
    closes: usize,
}

impl Network {
    fn to(port: u16) -> Network {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let network = Network {
            port: listener.local_addr().unwrap().port(),
            state: Arc::new(State::default()),
        };
        let state = Arc::clone(&network.state);
        thread::spawn(move || {
            for dialed in listener.incoming() {
                let (dialed, state) = (dialed.unwrap(), Arc::clone(&state));
                // Nobody listens there yet, or any more.
                let Ok(accepted) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let back = (accepted.try_clone().unwrap(), dialed.try_clone().unwrap());
                let known = Arc::new(AtomicBool::new(false));
                let (both, its) = (Arc::clone(&state), Arc::clone(&known));
                thread::spawn(move || carry(dialed, accepted, &state, &known));
                thread::spawn(move || carry_back(back.0, back.1, &both, &its));
            }
        });
        network
    }

    fn holds(&self, holds: bool) {
        self.state.now.lock().unwrap().holds = holds;
        self.state.changed.notify_all();
    }

    fn now<T>(&self, look: impl Fn(&Now) -> T) -> T {
        look(&self.state.now.lock().unwrap())
    }
}

/// Carries requests. An end of the dialing side is told to nobody while bytes are held. It may be `known` otherwise how that has ended: a
/// kernel tells of a reset once, maybe to who carries back.
fn carry(mut from: TcpStream, mut to: TcpStream, state: &State, known: &AtomicBool) {
    let mut buffer = [0; 64 << 10];
    let mut delivers = true;
    loop {
        let read = from.read(&mut buffer);
        let mut now = state.now.lock().unwrap();
        let count = match read {
            Ok(0) => {
                now.closes += usize::from(delivers && !known.load(Relaxed));
                0
            }
            Ok(count) => count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                now.resets += 1;
                0
            }
        };
        if now.holds {
            now.held += count;
            now.held_ever += count;
            now = state.changed.wait_while(now, |now| now.holds).unwrap();
            now.held -= count;
        }
        drop(now);
        if count == 0 {
            // What has been delivered is read first.
            drop(to.shutdown(Shutdown::Write));
            return;
        }
        // Who is not there any more: how the dialing side ends is still to be seen.
        delivers = delivers && to.write_all(&buffer[..count]).is_ok();
    }
}

fn carry_back(mut from: TcpStream, mut to: TcpStream, state: &State, known: &AtomicBool) {
    let mut buffer = [0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        // Held over the write: until it is noted whoever reads the same end looks at nothing. Who dialed reads always.
        let mut now = state.now.lock().unwrap();
        if let Err(error) = to.write_all(&buffer[..count]) {
            if error.kind() == ErrorKind::ConnectionReset {
                known.store(true, Relaxed);
                now.resets += 1;
            }
            return;
        }
    }
    known.store(true, Relaxed);
    drop(to.shutdown(Shutdown::Both));
}

/// Two servers: what the first asks of the second goes by the network.
struct Pair {
    _folder: Folder,
    first: Running,
    second: Running,
    network: Network,
}

impl Pair {
    fn start(test: &str) -> Pair {
        let folder = Folder::new(test);
        let ports = free_ports(2);
        let network = Network::to(ports[1]);
        folder.keep("secret", "a secret of this test\n");
        let start = |id: &str, links: [u16; 2]| {
            let [one, two] = links;
            let map = format!(
                "cluster test\nversion 1\nequal 5\nserver 1 link 127.0.0.1:{one} client 127.0.0.1:0\n\
                 server 2 link 127.0.0.1:{two} client 127.0.0.1:0\n"
            );
            let (path, secret) = (folder.path(id), folder.path("secret"));
            fs::write(&path, map).unwrap();
            let (path, secret) = (path.display().to_string(), secret.display().to_string());
            drop(fs::remove_file(folder.path("ports")));
            let mut arguments = vec!["-p", "-1", "-t", "1", "--control", "off", "--cluster", &path];
            arguments.extend(["--server-id", id, "--cluster-secret", &secret]);
            Running::serve(&folder, &arguments)
        };
        let first = start("1", [ports[0], network.port]);
        let second = start("2", [ports[0], ports[1]]);
        Pair { _folder: folder, first, second, network }
    }

    /// A key of the second server's, with the value `v`, when there are links.
    fn key(&self) -> String {
        let mut found = None;
        eventually("there are links", || {
            found = (0..64).map(|nth| format!("k{nth}")).find(|key| {
                let stored = reply(&self.second, &format!("set {key} 0 0 1\r\nv\r\n"));
                let before = gets(&self.second);
                let got = reply(&self.first, &format!("get {key}\r\n"));
                stored == "STORED\r\n" && got != "END\r\n" && gets(&self.second) > before
            });
            found.is_some()
        });
        found.unwrap()
    }

    fn has_a_link_again(&self, key: &str) {
        let touch = format!("touch {key} 0\r\n");
        eventually("there is a link again", || reply(&self.first, &touch) == "TOUCHED\r\n");
    }
}

fn reply(server: &Running, request: &str) -> String {
    let mut stream = server.connect();
    stream.write_all(format!("{request}mn\r\n").as_bytes()).unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"MN\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        reply.extend(byte);
    }
    reply.truncate(reply.len() - 4);
    String::from_utf8(reply).unwrap()
}

/// How many gets a server has executed, whoever asked it.
fn gets(server: &Running) -> u64 {
    let stats = running::stats(&mut server.connect());
    let count = stats.lines().find_map(|line| line.strip_prefix("STAT cmd_get "));
    count.unwrap().parse().unwrap()
}

#[test]
fn what_the_network_delivers_after_the_client_was_told_of_the_failure_is_not_executed() {
    let pair = Pair::start("late-network");
    let key = pair.key();
    pair.network.holds(true);
    ask(&mut pair.first.connect(), &format!("set {key} 0 0 3\r\nOLD\r\n"), NO_ROUTE);
    ask(&mut pair.second.connect(), &format!("set {key} 0 0 3\r\nNEW\r\n"), "STORED\r\n");
    assert!(pair.network.now(|now| now.held_ever > 3), "it holds the request");
    pair.network.holds(false);
    eventually("all is delivered", || pair.network.now(|now| now.held == 0));
    eventually("the link was given up by a reset", || pair.network.now(|now| now.resets > 0));
    assert_eq!(pair.network.now(|now| now.closes), 0, "a close in order lets the kernel send on");
    pair.has_a_link_again(&key);
    let found = format!("VALUE {key} 0 3\r\nNEW\r\nEND\r\n");
    ask(&mut pair.second.connect(), &format!("get {key}\r\n"), &found);
}

#[test]
fn what_lay_in_the_receive_buffer_of_a_server_that_stood_still_is_not_executed() {
    let pair = Pair::start("late-buffer");
    let key = pair.key();
    running::signal(&pair.second.child, "STOP");
    ask(&mut pair.first.connect(), &format!("set {key} 0 0 3\r\nOLD\r\n"), NO_ROUTE);
    running::signal(&pair.second.child, "CONT");
    // It has read what lay there when it serves the first server's next request.
    thread::sleep(Duration::from_millis(100));
    pair.has_a_link_again(&key);
    let found = format!("VALUE {key} 0 1\r\nv\r\nEND\r\n");
    ask(&mut pair.second.connect(), &format!("get {key}\r\n"), &found);
}
