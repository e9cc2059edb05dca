//! The web page of this server alone, over HTTP/1.1: its files, what it is sent over and over, a day of history, where a key is.
//!
//! ```text
//!   mbal-web: looks, makes a frame ──► Screen ──► a thread for each viewer, which sends what is newest
//!                                        └──────► /v1/history
//! ```
//! Changes nothing. As with metrics, each connection is one request, bounded in bytes and time; a stream of frames ends with its viewer.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mbal_control::web::{Hosts, is_same_origin};
use mbal_locks::{Condvar, Mutex, ranks};
use mbal_webpage::{
    EventTold, HEADERS, Live, Look, STREAM_HEADERS, STUCK_AFTER, Source, VIEWERS_MAX, asset,
};
use mbal_wire::unescaped;

use crate::balancing::{Note, OperatorCall};
use crate::deadline_read::read_until;
use crate::http::{PLAIN, head, send};
use crate::lookout::Lookout;
use crate::side_doors;

/// Of what comes before the first empty line: a key of 250 bytes, each of them written as nine, and what browsers say of themselves.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// A browser has so long to say what it wants, and to take an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The balancer answers at once, unless it gets no time at all.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Beside those who watch.
const CALLS_MAX: usize = 16;

/// What there is to be seen.
struct Screen {
    newest: Mutex<ranks::PageHistory, Newest>,
    changed: Condvar,
    viewers: AtomicUsize,
}

struct Newest {
    live: Live,
    /// Counts frames; 0 is none yet.
    number: u64,
    frame: Arc<str>,
    /// Somebody has come who has seen none.
    is_wanted: bool,
}

/// Serves the page on all of `listeners`, as long as the process lives. `named` are names of this host with a dot.
pub(crate) fn serve(
    listeners: Vec<TcpListener>,
    named: Vec<String>,
    lookout: Lookout,
    balancer: Sender<Note>,
) -> io::Result<()> {
    if listeners.is_empty() {
        return Ok(());
    }
    let live = Live::new(Source::Server, false);
    let newest = Newest { live, number: 0, frame: "".into(), is_wanted: false };
    let screen = Arc::new(Screen {
        newest: Mutex::new(newest),
        changed: Condvar::new(),
        viewers: AtomicUsize::new(0),
    });
    let hosts = Hosts::and(named);
    for listener in listeners {
        listener.set_nonblocking(false)?;
        let next = move || listener.accept().map(|(stream, _)| stream);
        let (screen, hosts, balancer) = (Arc::clone(&screen), hosts.clone(), balancer.clone());
        // What becomes of one of them is its browser's business.
        let answer = move |stream| drop(answer(stream, &hosts, &screen, &balancer));
        side_doors::serve("mbal-page", VIEWERS_MAX + CALLS_MAX, next, answer)?;
    }
    thread::Builder::new()
        .name("mbal-web".into())
        .spawn(move || produce(&screen, &lookout, &balancer))?;
    Ok(())
}

fn produce(screen: &Screen, lookout: &Lookout, balancer: &Sender<Note>) {
    let mut times = Times::default();
    loop {
        let viewers = screen.viewers.load(Ordering::Relaxed);
        let ledger = ask(balancer, OperatorCall::Ledger);
        let unix_ms = unix_ms();
        let look = match ledger {
            Some(ledger) => {
                let (mode, lines) = ledger.split_once('\n').unwrap_or_default();
                let events = times.of(lines, unix_ms / 1000);
                Look::Seen(Box::new(lookout.overview(mode, viewers > 0)), events)
            }
            None => Look::Blind("the server's balancer gets no time".into()),
        };
        let mut newest = screen.newest.lock();
        newest.is_wanted = false;
        newest.live.looked(unix_ms, look, viewers > 0);
        if viewers > 0 {
            newest.frame = newest.live.frame(unix_ms).into();
            newest.number += 1;
            screen.changed.notify_all();
        }
        let until = Instant::now() + newest.live.pause(viewers);
        // Whoever comes is not kept waiting.
        while !newest.is_wanted {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            newest = screen.changed.wait_timeout(newest, left);
        }
    }
}

/// When decisions were first seen, which have epochs and no times.
#[derive(Default)]
struct Times(BTreeMap<u64, u64>);

impl Times {
    /// Lines of a number and a text, the newest first.
    fn of(&mut self, lines: &str, unix: u64) -> Vec<EventTold> {
        let event = |line: &str| {
            let (number, text) = line.split_once(' ')?;
            let number = number.parse().ok()?;
            let unix = *self.0.entry(number).or_insert(unix);
            Some(EventTold { number, unix, text: text.into() })
        };
        let events: Vec<EventTold> = lines.lines().filter_map(event).collect();
        let oldest = events.last().map_or(0, |event| event.number);
        self.0 = self.0.split_off(&oldest);
        events
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn ask(balancer: &Sender<Note>, call: OperatorCall) -> Option<String> {
    let (asker, answer) = channel();
    balancer.send(Note::OperatorCall(call, asker)).ok()?;
    answer.recv_timeout(ANSWERS_WITHIN).ok()
}

fn answer(
    stream: TcpStream,
    hosts: &Hosts,
    screen: &Screen,
    balancer: &Sender<Note>,
) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = read_until(b"\r\n\r\n", &stream, HEAD_BYTES_MAX, Instant::now() + PATIENCE)?;
    let head = String::from_utf8_lossy(&head);
    let refuse = |status: &str, why: &str| send(&stream, status, PLAIN, why.as_bytes());
    let Some(request) = Request::parse(&head) else {
        return refuse("400 Bad Request", "a request's head, up to 16 KiB\n");
    };
    if let Err(why) = request.is_let_in(hosts) {
        return refuse("403 Forbidden", why);
    }
    if request.method != "GET" {
        return refuse("405 Method Not Allowed", "GET is all there is\n");
    }
    let json = [("content-type", "application/json"), ("x-content-type-options", "nosniff")];
    match request.path {
        "/v1/live" => watch(stream, screen),
        "/v1/history" => {
            let seconds = request.query.strip_prefix("seconds=").unwrap_or("0").parse();
            let Ok(seconds) = seconds else {
                return refuse("400 Bad Request", "seconds=N: a number\n");
            };
            let told = screen.newest.lock().live.history(seconds);
            send(&stream, "200 OK", &json, told.as_bytes())
        }
        "/v1/where" => {
            let what = request.query.strip_prefix("what=").unwrap_or_default();
            let explain = OperatorCall::Explain(unescaped(what.as_bytes()));
            let told = ask(balancer, explain).unwrap_or_else(|| "error: no answer".into());
            let (status, field, text) = match told.strip_prefix("error: ") {
                Some(why) => ("400 Bad Request", "error", why.trim_end()),
                None => ("200 OK", "text", told.as_str()),
            };
            let told = format!("{{\"{field}\":{}}}", serde_json::Value::from(text));
            send(&stream, status, &json, told.as_bytes())
        }
        path => match asset(path) {
            Some(asset) => {
                let headers = [&HEADERS[..], &[("content-type", asset.content_type)]].concat();
                send(&stream, "200 OK", &headers, asset.bytes)
            }
            None => refuse("404 Not Found", "there is no such path\n"),
        },
    }
}

/// Frames, each as soon as it is there; a viewer that is slow misses some, and one that takes nothing is let go.
fn watch(mut stream: TcpStream, screen: &Screen) -> io::Result<()> {
    let Some(_seat) = Seat::take(screen) else {
        return send(&stream, "503 Service Unavailable", PLAIN, b"too many watch already\n");
    };
    stream.set_write_timeout(Some(STUCK_AFTER))?;
    stream.write_all(&head("200 OK", &STREAM_HEADERS, None))?;
    let mut seen = {
        let mut newest = screen.newest.lock();
        newest.is_wanted = true;
        screen.changed.notify_all();
        newest.number
    };
    loop {
        let frame = {
            let mut newest = screen.newest.lock();
            while newest.number == seen {
                newest = screen.changed.wait_timeout(newest, PATIENCE);
            }
            seen = newest.number;
            Arc::clone(&newest.frame)
        };
        stream.write_all(frame.as_bytes())?;
    }
}

/// Of a viewer, given back when it is dropped.
struct Seat<'a>(&'a Screen);

impl Seat<'_> {
    fn take(screen: &Screen) -> Option<Seat<'_>> {
        let one_more = |viewers| (viewers < VIEWERS_MAX).then_some(viewers + 1);
        let taken =
            screen.viewers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok();
        taken.map(|_| Seat(screen))
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a browser asks for.
struct Request<'a> {
    method: &'a str,
    path: &'a str,
    query: &'a str,
    /// Small names, in the order in which they came.
    headers: Vec<(String, &'a str)>,
}

impl<'a> Request<'a> {
    fn parse(head: &'a str) -> Option<Request<'a>> {
        let (head, _) = head.split_once("\r\n\r\n")?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        if !version.starts_with("HTTP/1.") || words.next().is_some() || !target.starts_with('/') {
            return None;
        }
        let header = |line: &'a str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim()))
        };
        let headers = lines.map(header).collect::<Option<_>>()?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Some(Request { method, path, query, headers })
    }

    fn one(&self, name: &str) -> Result<Option<&str>, &'static str> {
        let mut values = self.headers.iter().filter(|(found, _)| found == name);
        match (values.next(), values.next()) {
            (value, None) => Ok(value.map(|(_, value)| *value)),
            _ => Err("a header that may be there once is there twice\n"),
        }
    }

    /// Not by a page of another site, nor by a name that is none of this host's.
    fn is_let_in(&self, hosts: &Hosts) -> Result<(), &'static str> {
        let host = self.one("host")?;
        if !host.is_some_and(|host| hosts.allow(host)) {
            return Err("by this name the page is not served: call it by an address\n");
        }
        match self.one("origin")? {
            Some(origin) if !is_same_origin(origin, host) => Err("not for pages of other sites\n"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &str) -> &'static str {
        let hosts = Hosts::and(["cache1.example".to_owned()]);
        match Request::parse(head).map(|request| request.is_let_in(&hosts)) {
            None => "no request",
            Some(Ok(())) => "let in",
            Some(Err(_)) => "refused",
        }
    }

    #[test]
    fn a_page_of_another_site_and_a_foreign_name_are_refused() {
        for (headers, expected) in [
            ("Host: 127.0.0.1:8080", "let in"),
            ("host: localhost", "let in"),
            ("Host: cache1.example:8080", "let in"),
            ("Host: 127.0.0.1:8080\r\nOrigin: http://127.0.0.1:8080", "let in"),
            ("Host: 127.0.0.1:8080\r\nOrigin: http://evil.example", "refused"),
            ("Host: 127.0.0.1:8080\r\nOrigin: null", "refused"),
            ("Host: evil.example", "refused"),
            ("Host: localhost\r\nHost: localhost", "refused"),
            ("Accept: */*", "refused"),
            ("Host 127.0.0.1", "no request"),
        ] {
            let head = format!("GET /v1/live?x HTTP/1.1\r\n{headers}\r\n\r\n");
            assert_eq!(status(&head), expected, "{headers}");
        }
        for line in
            ["GET", "GET / HTTP/2", "GET http://127.0.0.1/ HTTP/1.1", "GET / x HTTP/1.1", ""]
        {
            assert_eq!(
                status(&format!("{line}\r\nHost: localhost\r\n\r\n")),
                "no request",
                "{line}"
            );
        }
        assert_eq!(status("GET / HTTP/1.1\r\nHost: localhost\r\n"), "no request", "it goes on");
    }

    #[test]
    fn a_decision_has_the_time_at_which_it_was_first_seen() {
        let mut times = Times::default();
        let seen = |times: &mut Times, lines, unix| -> Vec<(u64, u64)> {
            times.of(lines, unix).iter().map(|event| (event.number, event.unix)).collect()
        };
        assert_eq!(seen(&mut times, "1 decision 1, epoch 9", 100), [(1, 100)]);
        assert_eq!(seen(&mut times, "2 two\n1 one\n", 200), [(2, 200), (1, 100)]);
        assert_eq!(seen(&mut times, "2 two\nnonsense\n", 300), [(2, 200)]);
        assert_eq!(times.0.len(), 1, "what is told no more is forgotten");
    }
}
