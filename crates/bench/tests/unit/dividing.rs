//! Batches of a smart client against two servers that have copies of each other's keys.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::spawn;

use crate::address::Address;
use crate::against_servers::args;
use crate::following::table_at;
use crate::measure::{Round, measure};
use crate::pace::Pace;
use crate::plan::{Plan, Task};
use crate::request::label;

const VALUE_BYTES: usize = 32;

/// Two servers of one worker, each of which owns half of all hashes. Each key is said to have a copy on the other one.
#[derive(Default)]
struct TwoServers {
    /// Requests that came together.
    parts: AtomicU64,
    by_lease: AtomicU64,
    /// Keys whose owner was asked without a lease, or who else was.
    astray: AtomicU64,
}

impl TwoServers {
    fn listen(self: &Arc<Self>) -> Address {
        let [first, second] = [0, 1].map(|server| self.clone().listen_as(server));
        table_at(format!(
            "version 1.5\nserver 0 client 127.0.0.1:{first} workers 127.0.0.1:{first}\n\
             server 1 client 127.0.0.1:{second} workers 127.0.0.1:{second}\n\
             cachelet 0000/1 0/0\ncachelet 8000/1 1/0\n"
        ))
    }

    fn listen_as(self: Arc<Self>, server: u64) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        spawn(move || {
            for stream in listener.incoming() {
                let (all, stream) = (self.clone(), stream.unwrap());
                let (input, output) = (BufReader::new(stream.try_clone().unwrap()), stream);
                spawn(move || all.serve(server, input, output));
            }
        });
        port
    }

    /// What has arrived at once is answered at once.
    fn serve(&self, server: u64, mut input: impl BufRead, mut output: impl Write) {
        loop {
            let arrived = match input.fill_buf() {
                Ok(arrived) if !arrived.is_empty() => arrived.to_vec(),
                _ => return,
            };
            input.consume(arrived.len());
            self.parts.fetch_add(1, Ordering::SeqCst);
            let lines = std::str::from_utf8(&arrived).unwrap().split_terminator("\r\n");
            let replies: Vec<u8> = lines.flat_map(|line| self.reply(server, line)).collect();
            if output.write_all(&replies).is_err() {
                return;
            }
        }
    }

    fn reply(&self, server: u64, line: &str) -> Vec<u8> {
        let words: Vec<&str> = line.split(' ').collect();
        let ["mg", name, "v", token] = words[..] else { panic!("{line:?}") };
        let is_owner = mbal_model::Key::new(name.as_bytes()).unwrap().hash() >> 63 == server;
        let by_lease = token.contains('*');
        self.by_lease.fetch_add(u64::from(by_lease), Ordering::SeqCst);
        self.astray.fetch_add(u64::from(is_owner == by_lease), Ordering::SeqCst);
        let told = if by_lease { "" } else { " L=60000.1,2,3,4,5,6,7,8" };
        let mut value = label(name.parse().unwrap(), VALUE_BYTES as u32).to_vec();
        value.resize(VALUE_BYTES, b'.');
        [format!("VA {VALUE_BYTES}{told}\r\n").as_bytes(), &value, b"\r\n"].concat()
    }
}

fn run(servers: &Arc<TwoServers>, flags: &str) -> Round {
    let load = "--follow --connections 8 --keys 50 --multi-get 10 --warmup 0 --requests 400";
    let plan = Plan::new(&args(&format!("{load} {flags}"))).unwrap();
    let loads = plan.loads(&servers.listen().into(), Task::Measure(Pace::Closed), 1);
    measure(loads, None, &[], &AtomicBool::new(false)).unwrap()
}

#[test]
fn a_batch_is_divided_among_owners_and_copies_and_answered_with_its_last_part() {
    let servers = Arc::new(TwoServers::default());
    let tally = run(&servers, "").tally;
    let got = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    assert_eq!((tally.wrong, &tally.wrong_shown[..]), (0, &[][..]));
    assert_eq!((tally.counts.requests, tally.counts.hits, tally.latency.len()), (400, 4_000, 400));
    assert!((600..=800).contains(&got(&servers.parts)), "{}", got(&servers.parts));
    assert_eq!((got(&servers.astray), tally.from_copies), (0, got(&servers.by_lease)));
    assert!((1_000..3_000).contains(&tally.from_copies), "{}", tally.from_copies);
}

#[test]
fn who_wants_no_copies_asks_owners_for_the_keys_of_a_batch() {
    let servers = Arc::new(TwoServers::default());
    let tally = run(&servers, "--no-copies").tally;
    assert_eq!((tally.wrong, tally.counts.hits, tally.from_copies), (0, 4_000, 0));
    let got = [&servers.by_lease, &servers.astray].map(|counter| counter.load(Ordering::SeqCst));
    assert_eq!(got, [0, 0]);
}
