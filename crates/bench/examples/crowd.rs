//! Clients beside those that are measured: many, new, slow, deaf, or ones that remember what they wrote. They say `ready`
//! when all are there, last until the time is over, and then tell in a line what they have seen.
//!
//!     crowd PORT SECONDS idle COUNT             stay connected; one in a hundred asks once a second
//!     crowd PORT SECONDS newcomers RATE         connect, get a key, read its reply and close, so many a second
//!     crowd PORT SECONDS slow COUNT KEY         ask for KEY 64 times, and read a byte each 100 ms
//!     crowd PORT SECONDS deaf COUNT KEY         ask for KEY for as long as the socket takes it, and never read
//!     crowd PORT SECONDS check COUNT            set and get keys of their own: a get finds the last value, or nothing

use std::env;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Newcomers wait for their own replies: so many may be under way.
const THREADS: u32 = 32;
/// A connection leaves its port unusable for a minute, beside the same address.
const ADDRESSES: u32 = 8;
const SLOW_REQUESTS: usize = 64;
const KEYS_EACH: usize = 100;
const PATIENCE: Duration = Duration::from_secs(5);

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let word = |index: usize| arguments.get(index).map_or("", String::as_str);
    let number = |index: usize| word(index).parse::<u32>().expect("a number");
    let port = word(0).parse().expect("a port");
    let end = Instant::now() + Duration::from_secs(number(1).into());
    let count = number(3);
    match word(2) {
        "idle" => idle(port, end, count),
        "newcomers" => newcomers(port, end, count),
        "slow" => slow(port, end, count, word(4)),
        "deaf" => deaf(port, end, count, word(4)),
        "check" => check(port, end, count),
        other => panic!("no such crowd: {other:?}"),
    }
}

fn connect(port: u16, number: u32) -> io::Result<TcpStream> {
    let stream =
        TcpStream::connect((Ipv4Addr::new(127, 0, 0, 1 + (number % ADDRESSES) as u8), port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn all(port: u16, count: u32) -> Vec<TcpStream> {
    let streams = (0..count).map(|number| connect(port, number).expect("-c lets them in"));
    let streams = streams.collect();
    println!("ready");
    streams
}

/// What a get of a small key is answered, to its end.
fn get(stream: &mut TcpStream, key: &str) -> io::Result<Vec<u8>> {
    stream.write_all(format!("get {key}\r\n").as_bytes())?;
    let (mut reply, mut buffer) = (Vec::new(), [0; 1024]);
    while !reply.ends_with(b"\r\n") || !(reply.ends_with(b"END\r\n") || reply[0] == b'S') {
        match stream.read(&mut buffer)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => reply.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(reply)
}

fn is_open(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket can be non-blocking");
    match stream.read(&mut [0; 1]) {
        Ok(count) => count > 0,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

fn idle(port: u16, end: Instant, count: u32) {
    let mut streams = all(port, count);
    let (mut asked, mut failed) = (0, 0);
    'over: loop {
        for stream in streams.iter_mut().step_by(100) {
            asked += 1;
            failed += u32::from(get(stream, "k").is_err());
            thread::sleep(Duration::from_secs(1) / (count / 100).max(1));
            if end <= Instant::now() {
                break 'over;
            }
        }
    }
    let open = streams.iter().filter(|stream| is_open(stream)).count();
    println!(
        "{open} of {count} still connected; they asked {asked} times, {failed} without a reply"
    );
}

fn newcomers(port: u16, end: Instant, rate: u32) {
    println!("ready");
    let start = Instant::now();
    let each = Duration::from_secs(1) * THREADS / rate;
    let come = move |thread: u32| {
        let (mut served, mut failed) = (0u32, 0u32);
        loop {
            let due = start + each * thread / THREADS + each * (served + failed);
            if end <= due {
                return (served, failed);
            }
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let came = connect(port, served + thread).and_then(|mut new| get(&mut new, "k"));
            match came {
                Ok(_) => served += 1,
                Err(_) => failed += 1,
            }
        }
    };
    let threads: Vec<_> = (0..THREADS).map(|thread| thread::spawn(move || come(thread))).collect();
    let ended = threads.into_iter().map(|thread| thread.join().expect("nothing panics"));
    let (served, failed) = ended.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{:.0} newcomers a second for {seconds:.1} s, {failed} failed",
        f64::from(served) / seconds
    );
}

fn slow(port: u16, end: Instant, count: u32, key: &str) {
    let mut streams = all(port, count);
    let requests = format!("get {key}\r\n").repeat(SLOW_REQUESTS);
    for stream in &mut streams {
        stream.write_all(requests.as_bytes()).expect("they are short");
        stream.set_nonblocking(true).expect("a socket can be non-blocking");
    }
    let mut read = 0;
    while Instant::now() < end {
        let round = Instant::now();
        for stream in &mut streams {
            read += stream.read(&mut [0; 1]).unwrap_or(0);
        }
        thread::sleep(Duration::from_millis(100).saturating_sub(round.elapsed()));
    }
    let open = streams.iter().filter(|stream| is_open(stream)).count();
    println!("{open} of {count} slow clients still connected; they read {read} bytes");
}

fn deaf(port: u16, end: Instant, count: u32, key: &str) {
    let mut streams = all(port, count);
    let requests = format!("get {key}\r\n").repeat(100);
    let mut sent = 0;
    for stream in &streams {
        stream.set_nonblocking(true).expect("a socket can be non-blocking");
    }
    while Instant::now() < end {
        for stream in &mut streams {
            // What is cut off here makes the next request another one: no matter.
            sent += stream.write(requests.as_bytes()).unwrap_or(0);
        }
        thread::sleep(Duration::from_millis(10));
    }
    // The first may meet a connection that has just been closed; then the second is told.
    let writes = |mut stream: &TcpStream| match stream.write(b"\r\n") {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    };
    streams.retain(|stream| writes(stream));
    thread::sleep(Duration::from_millis(100));
    streams.retain(|stream| writes(stream));
    println!("{} of {count} deaf clients still connected; they sent {sent} bytes", streams.len());
}

#[derive(Default)]
struct Seen {
    right: u64,
    misses: u64,
    stored: u64,
    errors: u64,
    wrong: u64,
    lost: u64,
}

/// Each key's values are numbers that count up. Whether a write was answered by an error or not, nothing older may be read.
fn check(port: u16, end: Instant, count: u32) {
    println!("ready");
    let threads: Vec<_> =
        (0..count).map(|client| thread::spawn(move || checker(port, end, client))).collect();
    let mut all = Seen::default();
    for thread in threads {
        let seen = thread.join().expect("nothing panics");
        all.right += seen.right;
        all.misses += seen.misses;
        all.stored += seen.stored;
        all.errors += seen.errors;
        all.wrong += seen.wrong;
        all.lost += seen.lost;
    }
    let Seen { right, misses, stored, errors, wrong, lost } = all;
    println!(
        "{wrong} wrong; {stored} stored, {right} right, {misses} misses, {errors} errors, {lost} lost connections"
    );
}

fn checker(port: u16, end: Instant, client: u32) -> Seen {
    let mut seen = Seen::default();
    let mut versions = [0u64; KEYS_EACH];
    let mut turn = 0;
    while Instant::now() < end {
        let Ok(stream) = connect(port, client) else {
            seen.lost += 1;
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let mut reader = BufReader::new(stream);
        while Instant::now() < end {
            turn += 1;
            let at = turn % KEYS_EACH;
            let is_set = turn / KEYS_EACH % 3 == 0;
            versions[at] += u64::from(is_set);
            if step(&mut reader, client, at, versions[at], is_set, &mut seen).is_err() {
                seen.lost += 1;
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
    seen
}

fn step(
    stream: &mut BufReader<TcpStream>,
    client: u32,
    at: usize,
    version: u64,
    is_set: bool,
    seen: &mut Seen,
) -> io::Result<()> {
    let key = format!("check-{client}-{at}");
    let value = format!("{key}={version}");
    let request = match is_set {
        true => format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()),
        false => format!("get {key}\r\n"),
    };
    stream.get_mut().write_all(request.as_bytes())?;
    let mut line = || {
        let mut line = String::new();
        match stream.read_line(&mut line)? {
            0 => Err(io::Error::from(ErrorKind::UnexpectedEof)),
            _ => Ok(line),
        }
    };
    let mut reply = line()?;
    if reply.starts_with("VALUE ") {
        reply += &line()?;
        reply += &line()?;
    }
    let right = format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len());
    match reply.as_str() {
        "STORED\r\n" if is_set => seen.stored += 1,
        "END\r\n" if !is_set => seen.misses += 1,
        reply if !is_set && reply == right => seen.right += 1,
        reply if reply.starts_with("SERVER_ERROR ") => seen.errors += 1,
        reply => {
            eprintln!("wrong: {request:?} was answered {reply:?}");
            seen.wrong += 1;
        }
    }
    Ok(())
}
