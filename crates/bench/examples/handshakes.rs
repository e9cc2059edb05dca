//! Clients that shake hands by TLS and go, so many a second, whatever the server makes of it. None takes up an earlier
//! session.
//!
//!     handshakes HOST:PORT SECONDS [RATE]        500 a second without the last

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use mbal_dial::{Access, ServerName};

/// Each waits for its own handshakes: so many may be under way.
const THREADS: u32 = 32;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |index: usize, default: u32| {
        arguments.get(index).map_or(default, |text| text.parse().expect("a number"))
    };
    let server = ServerName::parse(arguments.first().expect("HOST:PORT")).expect("HOST:PORT");
    let (seconds, rate) = (number(1, 10), number(2, 500));
    let start = Instant::now();
    let each = Duration::from_secs(1) * THREADS / rate;
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let first = start + each * thread / THREADS;
            let server = server.clone();
            thread::spawn(move || shake(&server, first, each, seconds * rate / THREADS))
        })
        .collect();
    let mut took: Vec<Duration> = Vec::new();
    for thread in threads {
        took.extend(thread.join().expect("nothing panics"));
    }
    let wanted = seconds * rate / THREADS * THREADS;
    took.sort_unstable();
    let quantile = |part: f64| took.get((took.len() as f64 * part) as usize).copied();
    println!(
        "{} of {wanted} handshakes in {:.1} s; each p50 {:?}, p99 {:?}",
        took.len(),
        start.elapsed().as_secs_f64(),
        quantile(0.5).unwrap_or_default(),
        quantile(0.99).unwrap_or_default(),
    );
}

/// How long those took that came off.
fn shake(server: &ServerName, first: Instant, each: Duration, count: u32) -> Vec<Duration> {
    let anybody = Access { tls_insecure: true, ..Access::default() };
    let mut took = Vec::new();
    for number in 0..count {
        let due = first + each * number;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let begin = Instant::now();
        // A dialer of its own remembers no session.
        let dialer = anybody.open().expect("no file is read");
        if dialer.connect(server).is_ok() {
            took.push(begin.elapsed());
        }
    }
    took
}
