//! A planner that panics, on its real thread, in a real server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, thread};

use mbal_server::control::ask;
use mbal_server::{
    BalanceConfig, Config, Control, Interface, Listen, Login, Mode, Proposal, Question, Server,
    Settings,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn breaks(question: &Question) -> Proposal {
    panic!("question {} is too hard", question.number);
}

fn config(ports: PathBuf, control: PathBuf) -> Config {
    Config {
        settings: Settings { workers: 2, connections_max: 64, ..Settings::default() },
        listen: vec![Listen { interface: Interface::Loopback, port: 0, tls: None }],
        udp: Vec::new(),
        unix_socket: None,
        worker_ports: None,
        pin: false,
        login: Login::NotAsked,
        user: None,
        daemon: false,
        pid_file: None,
        core_dumps: false,
        lock_memory: false,
        balance: BalanceConfig {
            mode: Mode::On,
            epoch: Duration::from_millis(20),
            load_max: 0.05,
            patience: 1,
            chaos: 0,
        },
        control: Control::Path(control),
        metrics: None,
        http: None,
        cluster: None,
        port_file: Some(ports),
    }
}

/// Asks again until there is an answer.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn exchange(client: &mut TcpStream, request: &[u8], reply: &[u8]) {
    client.write_all(request).expect("the server reads");
    let mut replied = vec![0; reply.len()];
    client.read_exact(&mut replied).expect("the server answers");
    assert_eq!(replied, reply);
}

#[test]
fn a_planner_that_panics_stops_nobody() {
    let folder = std::env::temp_dir().join(format!("mbal-planner-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder of our own");
    let (ports, control) = (folder.join("ports"), folder.join("control"));
    let server = Server::open(config(ports.clone(), control.clone())).expect("its sockets open");
    let running = server.planned_by(breaks).start().expect("its threads start");
    thread::spawn(move || running.wait().map(drop));

    let port: u16 = until("the port", || {
        let lines = fs::read_to_string(&ports).ok()?;
        lines.lines().find_map(|line| line.strip_prefix("TCP INET: "))?.parse().ok()
    });
    let mut client = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // One connection is one worker's: it is busy and the other is not, so that there is something to plan.
    let gets: Vec<u8> =
        (0..5_000).flat_map(|key| format!("get key-{key}\r\n").into_bytes()).collect();
    let misses = b"END\r\n".repeat(5_000);
    let failures = || {
        let status = ask(&control, b"status json").expect("the balancer answers");
        status.matches("the planner failed").count()
    };
    until("two panics", || {
        for _ in 0..20 {
            exchange(&mut client, &gets, &misses);
        }
        (failures() >= 2).then_some(())
    });
    exchange(
        &mut client,
        b"set k 0 0 1\r\nv\r\nget k\r\n",
        b"STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n",
    );
    assert_eq!(ask(&control, b"move 1800/5 1").as_deref(), Ok("done\n"));
    fs::remove_dir_all(&folder).expect("it is ours");
}
