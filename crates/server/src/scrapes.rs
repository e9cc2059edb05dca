//! Answers `GET /metrics`: a request is bounded in bytes and time, and so is how many there are.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use mbal_control::web::Hosts;

use crate::deadline_read::read_until;
use crate::http::{Headers, head, send};
use crate::side_doors;

/// Of what comes before the first empty line.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// A scraper has so long to say what it wants, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Scrapers at a time.
const SCRAPERS_MAX: usize = 64;
const PAGE: Headers<'static> = &[("Content-Type", "text/plain; version=0.0.4; charset=utf-8")];

/// Serves `page` on all of `listeners`, as long as the process lives.
pub(crate) fn serve(
    listeners: Vec<TcpListener>,
    page: impl Fn() -> String + Clone + Send + 'static,
) -> io::Result<()> {
    for listener in listeners {
        listener.set_nonblocking(false)?;
        let is_loopback = listener.local_addr()?.ip().is_loopback();
        let page = page.clone();
        let next = move || listener.accept().map(|(stream, _)| stream);
        // What becomes of one scrape is its scraper's business.
        let answer = move |stream| drop(answer(stream, is_loopback, &page));
        side_doors::serve("mbal-metrics", SCRAPERS_MAX, next, answer)?;
    }
    Ok(())
}

fn answer(stream: TcpStream, is_loopback: bool, page: &impl Fn() -> String) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let asked = read_until(b"\r\n\r\n", &stream, HEAD_BYTES_MAX, Instant::now() + PATIENCE)?;
    if HEAD_BYTES_MAX <= asked.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let request = String::from_utf8_lossy(&asked);
    let mut words = request.split_whitespace();
    let (status, body) = match (words.next(), words.next()) {
        _ if is_of_a_page(&request, is_loopback) => {
            ("403 Forbidden", "not for web pages, nor by a foreign name\n".into())
        }
        (Some("GET" | "HEAD"), Some("/metrics")) => ("200 OK", page()),
        (Some("GET" | "HEAD"), Some("/")) => ("200 OK", "see /metrics\n".into()),
        (Some("GET" | "HEAD"), Some(_)) => ("404 Not Found", "there is only /metrics\n".into()),
        _ => ("405 Method Not Allowed", "GET /metrics\n".into()),
    };
    if request.starts_with("HEAD") {
        return (&stream).write_all(&head(status, PAGE, Some(body.len())));
    }
    send(&stream, status, PAGE, body.as_bytes())
}

/// Whether a browser may have sent it for a page of somebody else's: it says of which site the page is, or, at a loopback address, a name that
/// is none of this host's. Elsewhere Prometheus may know a server by any name.
fn is_of_a_page(request: &str, is_loopback: bool) -> bool {
    let headers = request.lines().skip(1).filter_map(|line| line.split_once(':'));
    let mut headers = headers.map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim()));
    headers.any(|(name, value)| match name.as_str() {
        "origin" => true,
        "host" => is_loopback && !Hosts::default().allow(value),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn got(at: std::net::SocketAddr, more: &str) -> String {
        let mut stream = TcpStream::connect(at).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout can be set");
        write!(stream, "GET /metrics HTTP/1.1\r\n{more}\r\n").expect("it is taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it is answered");
        answer
    }

    #[test]
    fn silent_connections_delay_no_scrape() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there are free ports");
        let at = listener.local_addr().expect("it has an address");
        serve(vec![listener], || "a page\n".into()).expect("threads can be had");
        let silent: Vec<TcpStream> =
            (0..40).map(|_| TcpStream::connect(at).expect("it listens")).collect();
        let begun = Instant::now();
        assert!(got(at, "Host: localhost\r\n").ends_with("\r\n\r\na page\n"));
        // One after the other they would take eighty.
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        drop(silent);
    }

    #[test]
    fn a_web_page_is_not_answered() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there are free ports");
        let at = listener.local_addr().expect("it has an address");
        serve(vec![listener], || "a page\n".into()).expect("threads can be had");
        for (more, status) in [
            ("", "200"),
            ("Host: 127.0.0.1:9150\r\n", "200"),
            ("HOST:localhost\r\n", "200"),
            ("host: evil.example\r\n", "403"),
            ("Host: localhost\r\nOrigin: http://evil.example\r\n", "403"),
            ("Host: localhost\r\norigin: null\r\n", "403"),
        ] {
            let answer = got(at, more);
            assert_eq!(answer.get(9..12), Some(status), "{more:?}: {answer}");
        }
        assert!(!is_of_a_page("GET / HTTP/1.1\r\nHost: cache1.example:9150\r\n\r\n", false));
    }
}
