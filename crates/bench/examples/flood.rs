//! Clients that mean no good: connections that are there, that send a byte a second, and that send requests and
//! never read. They last until the time is over, and say how many of them the server still has.
//!
//!     flood HOST:PORT SECONDS [IDLE SLOW DEAF]        10,000 in all, 1,000 slow, 100 deaf, without the last three

use std::env;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

const DEAF_REQUEST: &[u8] = b"get a b c d e f g h\r\nstats\r\n";

/// A second's; more would be a load of its own.
const DEAF_REQUESTS_PER_ROUND: usize = 500;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |index: usize, default: usize| {
        arguments.get(index).map_or(default, |text| text.parse().expect("a number"))
    };
    let address = arguments.first().expect("HOST:PORT").as_str();
    let end = Instant::now() + Duration::from_secs(number(1, 10) as u64);
    let open = |count: usize| -> Vec<TcpStream> {
        let connect = |_| {
            let stream = TcpStream::connect(address).expect("the server lets -c connections in");
            stream.set_nonblocking(true).expect("a socket can be non-blocking");
            stream
        };
        (0..count).map(connect).collect()
    };
    let idle = open(number(2, 8_900));
    let slow = open(number(3, 1_000));
    let deaf = open(number(4, 100));
    let mut sent = 0u64;
    while Instant::now() < end {
        let round = Instant::now();
        for mut stream in &slow {
            // A server that has closed it is counted at the end.
            drop(stream.write(b"g"));
        }
        for mut stream in &deaf {
            for _ in 0..DEAF_REQUESTS_PER_ROUND {
                let Ok(bytes) = stream.write(DEAF_REQUEST) else { break };
                sent += bytes as u64;
            }
        }
        thread::sleep(Duration::from_secs(1).saturating_sub(round.elapsed()));
    }
    let is_open = |mut stream: &TcpStream| match stream.read(&mut [0; 1]) {
        Ok(bytes) => bytes > 0,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    };
    let left = |streams: &[TcpStream]| streams.iter().filter(|stream| is_open(stream)).count();
    println!(
        "still open: {} idle, {} slow, {} deaf; the deaf sent {sent} bytes",
        left(&idle),
        left(&slow),
        left(&deaf)
    );
}
