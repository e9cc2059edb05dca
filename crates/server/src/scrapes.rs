//! Answers `GET /metrics`, one scraper after the other: a request is bounded in bytes and time.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::patience::read_until;

/// Of what comes before the first empty line.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// A scraper has so long to say what it wants, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
const PAGE_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves `page` on all of `listeners`, a thread each, as long as the process lives.
pub(crate) fn serve(
    listeners: Vec<TcpListener>,
    page: impl Fn() -> String + Clone + Send + 'static,
) -> io::Result<()> {
    for listener in listeners {
        listener.set_nonblocking(false)?;
        let page = page.clone();
        let work = move || {
            for stream in listener.incoming() {
                match stream {
                    // What becomes of one scrape is its scraper's business.
                    Ok(stream) => drop(answer(stream, &page)),
                    // Out of descriptors, most likely: later there may be one.
                    Err(_) => thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        thread::Builder::new().name("mbal-metrics".into()).spawn(work)?;
    }
    Ok(())
}

fn answer(mut stream: TcpStream, page: &impl Fn() -> String) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = read_until(b"\r\n\r\n", &stream, HEAD_BYTES_MAX, Instant::now() + PATIENCE)?;
    if HEAD_BYTES_MAX <= head.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let request = String::from_utf8_lossy(&head);
    let mut words = request.split_whitespace();
    let (status, body) = match (words.next(), words.next()) {
        (Some("GET" | "HEAD"), Some("/metrics")) => ("200 OK", page()),
        (Some("GET" | "HEAD"), Some("/")) => ("200 OK", "see /metrics\n".into()),
        (Some("GET" | "HEAD"), Some(_)) => ("404 Not Found", "there is only /metrics\n".into()),
        _ => ("405 Method Not Allowed", "GET /metrics\n".into()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {PAGE_TYPE}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    if !request.starts_with("HEAD") {
        stream.write_all(body.as_bytes())?;
    }
    stream.shutdown(std::net::Shutdown::Write)
}
