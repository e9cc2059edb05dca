//! The generator against servers that stall, lie, die or forget, and against a real memcached.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use clap::Parser;

use crate::address::Address;
use crate::args::Args;
use crate::compare::{Comparison, Series, commands, compare};
use crate::measure::{Round, measure};
use crate::pace::Pace;
use crate::peer::Peer;
use crate::plan::{Plan, Task};
use crate::report;
use crate::tally::Tally;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

pub fn args(flags: &str) -> Args {
    Cli::parse_from(std::iter::once("bench").chain(flags.split_ascii_whitespace())).args
}

/// A meta server of a thread per connection, which may be told to misbehave.
#[derive(Default)]
struct Fake {
    store: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    requests: AtomicU64,
    /// All requests between these two moments wait for the second.
    stall: Option<(Instant, Instant)>,
    /// Every so manieth get is answered with another key's value.
    lie_every: Option<u64>,
    deaf: bool,
}

impl Fake {
    fn address(self) -> Address {
        Arc::new(self).listen()
    }

    fn listen(self: Arc<Self>) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        spawn(move || {
            for stream in listener.incoming() {
                let (fake, stream) = (self.clone(), stream.unwrap());
                stream.set_nodelay(true).unwrap();
                spawn(move || fake.serve(stream));
            }
        });
        address
    }

    fn serve(&self, stream: TcpStream) {
        let mut input = BufReader::new(stream.try_clone().unwrap());
        let (mut stream, mut line) = (stream, Vec::new());
        while input.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
            if let Some((from, to)) = self.stall {
                let now = Instant::now();
                if (from..to).contains(&now) {
                    sleep(to - now);
                }
            }
            let words: Vec<&[u8]> = line.trim_ascii_end().split(|byte| *byte == b' ').collect();
            let reply = match (words[0], self.deaf) {
                (_, true) => vec![],
                (b"ms", _) => {
                    let bytes: usize = std::str::from_utf8(words[2]).unwrap().parse().unwrap();
                    let mut value = vec![0; bytes + 2];
                    input.read_exact(&mut value).unwrap();
                    self.store.lock().unwrap().insert(words[1].to_vec(), value);
                    b"HD\r\n".to_vec()
                }
                (b"mg", _) => {
                    let store = self.store.lock().unwrap();
                    let lie = self.lie_every.is_some_and(|every| number % every == 0);
                    let other = store.iter().find(|(key, _)| &key[..] != words[1]);
                    let found = if lie { other.map(|(_, v)| v) } else { store.get(words[1]) };
                    match found {
                        None => b"EN\r\n".to_vec(),
                        Some(v) => [format!("VA {}\r\n", v.len() - 2).as_bytes(), v].concat(),
                    }
                }
                (other, _) => panic!("{}", other.escape_ascii()),
            };
            line.clear();
            if stream.write_all(&reply).is_err() {
                return;
            }
        }
    }
}

fn run(flags: &str, address: &Address, task: Task) -> Result<Round, String> {
    let plan = Plan::new(&args(flags))?;
    let target = address.clone().into();
    measure(plan.loads(&target, task, 1), plan.timeline(task), &[], &AtomicBool::new(false))
}

fn open(requests_per_second: f64) -> Task {
    Task::Measure(Pace::Open { requests_per_second })
}

const CLOSED: Task = Task::Measure(Pace::Closed);

fn p999_ms(round: &Round) -> u64 {
    round.tally.latency.value_at_quantile(0.999) / 1_000_000
}

#[test]
fn a_stall_of_200_ms_shows_in_open_loop_and_hides_in_closed() {
    let flags = "--connections 2 --keys 100 --warmup 0.1 --duration 1.5";
    let stalling = || {
        let from = Instant::now() + Duration::from_millis(700);
        Fake { stall: Some((from, from + Duration::from_millis(200))), ..Fake::default() }.address()
    };
    let opened = run(flags, &stalling(), open(2_000.0)).unwrap();
    assert!(p999_ms(&opened) >= 150, "open: p99.9 {} ms", p999_ms(&opened));
    // A seventh to an eighth of all requests were due in the stall, and most of them waited long.
    assert!(opened.tally.latency.value_at_quantile(0.93) > 20_000_000);
    assert_eq!(opened.tally.wrong, 0);
    let closed = run(flags, &stalling(), CLOSED).unwrap();
    assert!(closed.tally.latency.max() >= 190_000_000, "the stall did happen");
    // Two requests of thousands; on a busy machine perhaps of hundreds.
    let p99_ms = closed.tally.latency.value_at_quantile(0.99) / 1_000_000;
    assert!(p99_ms < 100, "closed: p99 {p99_ms} ms");
}

#[test]
fn a_replay_at_its_own_pace_ends_with_its_trace() {
    let path = std::env::temp_dir().join(format!("mbal-own-pace-{}.txt", std::process::id()));
    std::fs::write(&path, "10.00 5 30\n10.02 6 40\n10.05 5 30\n").unwrap();
    let flags = "--connections 2 --warmup 0 --value-bytes trace --store 1 --own-pace --trace";
    let flags = format!("{flags} {}", path.display());
    let pace = Plan::new(&args(&flags)).unwrap().pace().unwrap();
    let begun = std::time::Instant::now();
    let round = run(&flags, &Fake::default().address(), Task::Measure(pace)).unwrap();
    let took = begun.elapsed();
    std::fs::remove_file(path).unwrap();
    let Tally { counts, .. } = round.tally;
    assert_eq!((counts.gets, counts.hits + counts.sets), (3, 3));
    assert!(took.as_millis() >= 50, "{took:?}");
}

#[test]
fn what_is_answered_outside_of_the_window_is_counted_too() {
    let flags = "--connections 4 --keys 100 --warmup 0.1 --duration 0.3";
    // Nothing is answered from within the window until after it.
    let from = Instant::now() + Duration::from_millis(250);
    let fake = Arc::new(Fake {
        stall: Some((from, from + Duration::from_millis(400))),
        ..Fake::default()
    });
    let round = run(flags, &fake.clone().listen(), open(2_000.0)).unwrap();
    let Tally { counts, outside, .. } = round.tally;
    assert_eq!(counts.keys() + outside.keys(), fake.requests.load(Ordering::Relaxed));
    assert_eq!(counts.requests + outside.requests, counts.keys() + outside.keys());
    assert!(outside.requests > 100, "{outside:?}");
}

#[test]
fn a_sleeping_generator_is_late_by_far_less_than_a_millisecond() {
    let flags = "--connections 4 --keys 100 --warmup 0.1 --duration 0.5 --waiting sleep";
    let lag_us = || {
        let round = run(flags, &Fake::default().address(), open(500.0)).unwrap();
        round.tally.lag.value_at_quantile(0.5) / 1_000
    };
    // Other work may hold up a run; what would round every wait up to a millisecond holds up all of them.
    let all: Vec<u64> = std::iter::repeat_with(lag_us).take(10).collect();
    assert!(all.iter().any(|us| *us < 250), "half of the requests left so many µs late: {all:?}");
}

#[test]
fn every_request_that_was_due_has_a_latency_even_if_it_could_not_be_sent() {
    let flags = "--connections 1 --keys 100 --warmup 0 --duration 0.5";
    let address = Fake { deaf: true, ..Fake::default() }.address();
    let round = run(flags, &address, open(1_000.0)).unwrap();
    let tally = &round.tally;
    assert_eq!((tally.counts.requests, tally.wrong), (0, 1), "{:?}", tally.wrong_shown);
    // The one that was sent may have been due just before the window.
    assert!((tally.unsent..=tally.unsent + 1).contains(&tally.latency.len()));
    assert!((400..600).contains(&tally.unsent), "{}", tally.unsent);
    assert!(tally.latency.min() >= 2_000_000_000, "all waited until the drain's end");
}

#[test]
fn a_server_that_swaps_items_is_caught_and_fails_the_run() {
    let flags = "--connections 4 --keys 50 --depth 4 --requests 5000 --warmup 0";
    let address = Fake { lie_every: Some(100), ..Fake::default() }.address();
    run(flags, &address, Task::Fill).unwrap();
    let round = run(flags, &address, CLOSED).unwrap();
    assert_eq!((round.tally.wrong, round.tally.counts.hits), (50, 4_950));
    assert!(round.tally.wrong_shown[0].starts_with("value of key "));
    let series = vec![Series { command: "fake".into(), rounds: vec![round] }];
    let (wrong, shown) = report::wrongs(&Comparison { load: String::new(), filled: true, series });
    assert_eq!((wrong, shown.len()), (50, 10));
}

#[test]
fn filling_sets_every_key_once_whatever_the_threads_and_the_depth() {
    let flags = "--connections 3 --client-threads 2 --keys 1001 --multi-get 7";
    let address = Fake::default().address();
    let fill = run(flags, &address, Task::Fill).unwrap();
    let verify = run(flags, &address, Task::Verify).unwrap();
    assert_eq!(
        (fill.tally.counts.sets, verify.tally.counts.gets, verify.tally.counts.hits),
        (1_001, 1_001, 1_001)
    );
    assert_eq!(verify.tally.counts.requests, 144, "501 and 500 keys by sevens");
}

#[test]
fn a_replay_sets_what_it_missed() {
    let path = std::env::temp_dir().join(format!("mbal-replay-{}.txt", std::process::id()));
    std::fs::write(&path, "1 5 30\n2 6 40\n3 5 31\n4 5 31\n5 7 20\n").unwrap();
    let flags = format!("--connections 1 --value-bytes trace --trace {}", path.display());
    let round = run(&flags, &Fake::default().address(), CLOSED).unwrap();
    std::fs::remove_file(path).unwrap();
    let tally = round.tally;
    assert_eq!(
        (tally.counts.gets, tally.counts.hits, tally.counts.sets, tally.wrong),
        (5, 2, 3, 0)
    );
}

#[test]
fn a_server_that_closes_ends_the_run_with_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    spawn(move || listener.accept().map(drop));
    let error = run("--connections 1 --duration 1", &address, CLOSED).err().unwrap();
    assert!(
        ["the server closed a connection", "send: ", "receive: "]
            .iter()
            .any(|start| error.starts_with(start))
    );
}

#[test]
fn a_comparison_rotates_rounds_and_leaves_no_server_behind() {
    if std::process::Command::new("memcached").arg("-V").output().is_err() {
        eprintln!("SKIPPED: memcached is not installed");
        return;
    }
    for flags in [
        "--protocol text --multi-get 5",
        "--set-share 0.5 --depth 8 --rate 50%",
        "--protocol text --set-share 0.5 --depth 8 --client-threads 2",
    ] {
        let mut args = args(&format!("--keys 1000 --rounds 2 --requests 5000 --warmup 0 {flags}"));
        args.compare = vec!["memcached -l 127.0.0.1 -t {threads} -p {port}".into()];
        args.serve = Some("memcached -t {threads} -s {socket}".into());
        let plan = Plan::new(&args).unwrap();
        let stop = AtomicBool::new(false);
        let comparison = compare(&args, &plan, &commands(&args).unwrap(), &stop).unwrap();
        for series in &comparison.series {
            assert_eq!(series.rounds.len(), 2, "{flags}");
            for round in &series.rounds {
                assert_eq!(
                    (round.tally.wrong, round.tally.counts.hits),
                    (0, round.tally.counts.gets)
                );
                assert!(
                    round.tally.counts.keys() > 100 && round.server_cpu_ns > Some(0),
                    "{flags}"
                );
            }
        }
        assert_eq!(comparison.series[1].command, "memcached -t 1 -s {socket}");
        let table = report::table("a", &comparison);
        assert!(table.contains("server CPU per key") && table.contains(" × "), "{table}");
    }
}

#[test]
fn every_operation_of_every_protocol_is_answered_as_memcached_answers() {
    if std::process::Command::new("memcached").arg("-V").output().is_err() {
        eprintln!("SKIPPED: memcached is not installed");
        return;
    }
    let cores = crate::cpu::Cores::current().unwrap();
    let stop = AtomicBool::new(false);
    for protocol in ["text", "meta", "binary"] {
        let flags = format!(
            "--protocol {protocol} --keys 500 --key-bytes 6-40 --value-bytes 0-3000 --ttl 0:1,1000:1 --depth 3 \
             --mix get:4,set,add,delete,incr,insert,scan,rmw --multi-get 3 --look-aside --store 1 --connections 4 \
             --warmup 0 --requests 5000"
        );
        let peer = Peer::start("memcached -l 127.0.0.1 -p {port}", 1, &cores).unwrap();
        let plan = Plan::new(&args(&flags)).unwrap();
        let run = |task| measure(plan.loads(&peer.target, task, 1), None, &[], &stop).unwrap();
        let (fill, verify) = (run(Task::Fill).tally, run(Task::Verify).tally);
        assert_eq!(
            (fill.counts.sets, verify.counts.hits, verify.wrong),
            (500, 500, 0),
            "{protocol}"
        );
        let tally = run(CLOSED).tally;
        assert_eq!((tally.wrong, &tally.wrong_shown[..]), (0, &[][..]), "{protocol}");
        assert!(
            tally.counts.requests >= 5_000 && tally.counts.gets > tally.counts.sets,
            "{protocol}: {tally:?}"
        );
        assert!(
            tally.counts.others > 500 && tally.counts.hits < tally.counts.gets,
            "{protocol}: {tally:?}"
        );
    }
}

#[test]
fn whoever_misses_waits_for_the_store() {
    let flags = "--keys 1000 --connections 2 --warmup 0 --requests 400 --look-aside --store 30";
    let round = run(flags, &Fake::default().address(), CLOSED).unwrap();
    let tally = &round.tally;
    assert_eq!((tally.wrong, tally.counts.gets), (0, tally.counts.requests - tally.counts.sets));
    let misses = tally.counts.gets - tally.counts.hits;
    assert!(misses > 100, "{misses}");
    let slow = tally.latency.count_between(30_000_000, u64::MAX);
    assert!(slow >= misses, "{slow} of {misses} misses took the store's time");
}

#[test]
fn datagrams_are_answered_as_memcached_answers_and_long_values_are_put_together() {
    if std::process::Command::new("memcached").arg("-V").output().is_err() {
        eprintln!("SKIPPED: memcached is not installed");
        return;
    }
    let cores = crate::cpu::Cores::current().unwrap();
    let peer = Peer::start("memcached -l 127.0.0.1 -p {port} -U {port}", 1, &cores).unwrap();
    let target = peer.target.address.clone().by_udp().unwrap().into();
    for protocol in ["text", "meta", "binary"] {
        let flags = format!(
            "--udp --protocol {protocol} --keys 300 --value-bytes 0-5000 --set-share 0.3 --connections 3 \
             --warmup 0 --requests 2000"
        );
        let plan = Plan::new(&args(&flags)).unwrap();
        let run = |task| measure(plan.loads(&target, task, 1), None, &[], &AtomicBool::new(false));
        let fill = run(Task::Fill).unwrap().tally;
        let tally = run(CLOSED).unwrap().tally;
        assert_eq!((tally.wrong, &tally.wrong_shown[..]), (0, &[][..]), "{protocol}");
        assert_eq!(
            (fill.counts.sets + fill.lost, tally.counts.requests + tally.lost),
            (300, 2_000),
            "{protocol}"
        );
        // The kernel may drop datagrams of a busy machine, but not most of them.
        assert!(fill.counts.sets > 100 && tally.counts.hits > 200, "{protocol}: {tally:?}");
    }
}

#[test]
fn tls_carries_every_request_and_value() {
    let folder = std::env::temp_dir().join(format!("mbal-bench-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (key, chain) = (folder.join("key.pem"), folder.join("chain.pem"));
    let made = std::process::Command::new("openssl")
        .args(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=test -keyout"
                .split(' '),
        )
        .args([&key, std::path::Path::new("-out"), &chain])
        .stderr(std::process::Stdio::null())
        .status();
    let knows_tls = std::process::Command::new("memcached").arg("-h").output();
    let knows_tls = knows_tls.is_ok_and(|help| help.stdout.windows(10).any(|w| w == b"enable-ssl"));
    if !made.is_ok_and(|status| status.success()) || !knows_tls {
        eprintln!("SKIPPED: this needs openssl and a memcached with TLS");
        return;
    }
    let options = format!("ssl_chain_cert={},ssl_key={}", chain.display(), key.display());
    let command = format!("memcached -l 127.0.0.1 -p {{port}} -Z -o {options}");
    let peer = Peer::start(&command, 1, &crate::cpu::Cores::current().unwrap()).unwrap();
    let flags = "--tls-insecure --keys 200 --value-bytes 0-40000 --set-share 0.3 --connections 3 --warmup 0 --requests 2000";
    let plan = Plan::new(&args(flags)).unwrap();
    let mut target = peer.target.clone();
    plan.enter(&mut target, None).unwrap();
    let run = |task| measure(plan.loads(&target, task, 1), None, &[], &AtomicBool::new(false));
    assert_eq!(run(Task::Fill).unwrap().tally.counts.sets, 200);
    let tally = run(CLOSED).unwrap().tally;
    assert_eq!(
        (tally.wrong, tally.counts.requests, tally.counts.hits),
        (0, 2_000, tally.counts.gets)
    );
    std::fs::remove_dir_all(folder).unwrap();
}
