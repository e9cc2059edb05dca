//! A sidecar before a cluster of three servers, as processes: clients of its socket have one hop, whatever moves, and go on when a server
//! or the coordinator dies.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

mod running;

use running::heard::Heard;
use running::led::{Coordinator, arguments, folder, free_port, stores};
use running::{Folder, MBAL, Running, eventually, output_of, page};

const KEYS: usize = 200;

struct Site {
    folder: Folder,
    coordinator: Coordinator,
    servers: Vec<Running>,
    sidecar: Heard,
}

impl Site {
    fn start(test: &str) -> Site {
        let folder = folder(test);
        let coordinator = Coordinator::start(&folder, free_port(), 3);
        let secret = folder.path("secret").display().to_string();
        let mut flags = arguments(&coordinator.url, &secret);
        flags.extend(["--metrics", "127.0.0.1:0"]);
        let server = |_| {
            drop(std::fs::remove_file(folder.path("ports")));
            Running::serve(&folder, &flags)
        };
        let servers: Vec<Running> = (0..3).map(server).collect();
        for server in &servers {
            eventually("every owner can be reached", || stores(server));
        }
        let socket = folder.path("socket").display().to_string();
        let words = ["proxy", "--coordinator", &coordinator.url, "-p", "0", "-s", &socket];
        let sidecar = Heard::start(&words);
        sidecar.hear(&["3 upstreams"]);
        Site { folder, coordinator, servers, sidecar }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.path("socket")).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
        stream
    }

    /// What servers have executed, and what they have passed on.
    fn hops(&self) -> [u64; 2] {
        let mut sums = [0; 2];
        for server in &self.servers {
            let page = page(server.metrics);
            for line in page.lines().filter(|line| line.starts_with("mbal_requests_total{")) {
                let value = line.rsplit(' ').next().expect("a value");
                let at = usize::from(line.contains("route=\"peer\""));
                sums[at] += value.parse::<f64>().expect("a number") as u64;
            }
        }
        sums
    }

    fn scale(&self, servers: &str) {
        let words = ["cluster", "scale", servers, "--coordinator", &self.coordinator.url];
        let output = output_of(MBAL.as_ref(), &words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {said}");
    }
}

/// Asks, and hears as many lines.
fn asks(stream: &mut UnixStream, request: &str, lines: usize) -> String {
    stream.write_all(request.as_bytes()).expect("it reads");
    let (mut said, mut bytes) = (Vec::new(), [0; 4096]);
    while said.iter().filter(|byte| **byte == b'\n').count() < lines {
        let count = stream.read(&mut bytes).expect("it answers");
        assert!(count > 0, "it hung up");
        said.extend_from_slice(&bytes[..count]);
    }
    String::from_utf8(said).expect("text")
}

/// Every key is written and read back at once, over one connection; how many went otherwise.
fn round(stream: &mut UnixStream, number: usize) -> usize {
    let mut wrong = 0;
    for key in 0..KEYS {
        let value = format!("{number}-{key}");
        let set = format!("set k{key} 0 0 {}\r\n{value}\r\n", value.len());
        let both = format!("{set}mg k{key} v\r\n");
        let said = asks(stream, &both, 2);
        let said = match said.starts_with("STORED\r\nVA ") && said.matches('\n').count() < 3 {
            true => said + &asks(stream, "", 1),
            false => said,
        };
        let expected = format!("STORED\r\nVA {}\r\n{value}\r\n", value.len());
        wrong += usize::from(said != expected);
    }
    wrong
}

#[test]
fn each_key_is_asked_of_its_owner_and_what_moves_is_followed() {
    let site = Site::start("sidecar-moves");
    let mut client = site.connect();
    let before = site.hops();
    assert_eq!(round(&mut client, 0), 0);
    let after = site.hops();
    assert_eq!([0, 1].map(|at| after[at] - before[at]), [2 * KEYS as u64, 0], "no second hop");
    // All that one server has goes to the others, and comes back.
    site.scale("2");
    for number in 1..4 {
        assert_eq!(round(&mut client, number), 0, "while it moves, and behind");
    }
    site.scale("3");
    for number in 4..7 {
        assert_eq!(round(&mut client, number), 0, "and back");
    }
    let mut number = 7;
    eventually("it knows the last map", || {
        number += 1;
        let before = site.hops();
        assert_eq!(round(&mut client, number), 0);
        site.hops()[1] == before[1]
    });
}

#[test]
fn clients_go_on_without_a_coordinator() {
    let mut site = Site::start("sidecar-alone");
    let mut client = site.connect();
    assert_eq!(round(&mut client, 0), 0);
    site.coordinator.kill();
    for number in 1..4 {
        assert_eq!(round(&mut client, number), 0, "the last map stands");
    }
    drop(site.sidecar);
}
