//! `watch`: lines about what happens, for those who watch. While nobody does, a batch of requests costs
//! one relaxed load.
//!
//! ```text
//!   any worker: event ─► line ─► queue of each watcher of its stream ─► its worker is nudged, sends
//! ```
//! A queue is bounded (`-o watcher_logbuf_size`): a watcher that does not read is told how many lines it
//! missed, and nobody waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use mbal_locks::{Mutex, ranks};
use mbal_model::WorkerId;
use mbal_wire::{push_escaped, push_i64, push_u64, streams};

use crate::observing::conns::{ConnInfo, Endpoint};
use crate::time::Now;

/// Not for `watch`: lines for standard error, from `-vv` on, and what connections do next, from `-vvv` on.
pub(crate) const VERBOSE: u32 = 1 << 30;
pub(crate) const STATES: u32 = 1 << 31;

/// Watchers at a time.
const WATCHERS_MAX: usize = 20;

pub(crate) struct WatchLog {
    /// What anybody watches.
    streams: AtomicU32,
    /// [`VERBOSE`] and [`STATES`], as `-v` has them.
    verbose: AtomicU32,
    last_line: AtomicU64,
    watchers: Mutex<ranks::Watchers, Vec<Arc<Watcher>>>,
    /// By worker: one of its watchers has something to send.
    nudges: Box<[AtomicBool]>,
    queue_bytes_max: usize,
    /// Lines, by what became of them.
    pub written: AtomicU64,
    pub sent: AtomicU64,
    pub skipped: AtomicU64,
}

pub(crate) struct Watcher {
    streams: u32,
    worker: WorkerId,
    queue: Mutex<ranks::WatcherQueue, Queue>,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    /// Lines that found no room since the last one that did.
    skipped: u64,
}

impl WatchLog {
    pub fn new(workers: u16, queue_bytes_max: usize) -> WatchLog {
        WatchLog {
            streams: AtomicU32::new(0),
            verbose: AtomicU32::new(0),
            last_line: AtomicU64::new(0),
            watchers: Mutex::default(),
            nudges: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            queue_bytes_max,
            written: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    /// The streams that somebody watches.
    #[inline]
    pub fn watched(&self) -> u32 {
        self.streams.load(Relaxed)
    }

    pub fn watchers(&self) -> usize {
        self.watchers.lock().len()
    }

    /// `None`: there are too many.
    pub fn watch(&self, streams: u32, worker: WorkerId) -> Option<Arc<Watcher>> {
        let mut watchers = self.watchers.lock();
        if watchers.len() >= WATCHERS_MAX {
            return None;
        }
        let watcher = Arc::new(Watcher { streams, worker, queue: Mutex::default() });
        watchers.push(Arc::clone(&watcher));
        self.gather(&watchers);
        Some(watcher)
    }

    fn gather(&self, watchers: &[Arc<Watcher>]) {
        let verbose = self.verbose.load(Relaxed);
        self.streams.store(watchers.iter().fold(verbose, |all, one| all | one.streams), Relaxed);
    }

    /// `-v`, so often.
    pub fn set_verbosity(&self, level: u32) {
        let watchers = self.watchers.lock();
        let bits = if level >= 2 { VERBOSE } else { 0 } | if level >= 3 { STATES } else { 0 };
        self.verbose.store(bits, Relaxed);
        self.gather(&watchers);
    }

    pub fn unwatch(&self, gone: &Arc<Watcher>) {
        let mut watchers = self.watchers.lock();
        watchers.retain(|watcher| !Arc::ptr_eq(watcher, gone));
        self.gather(&watchers);
    }

    /// Puts a line into the queues of those who watch `stream`.
    #[cold]
    pub fn write(&self, now: Now, stream: u32, fields: impl FnOnce(&mut Vec<u8>)) {
        let mut line = Vec::with_capacity(128);
        line.extend_from_slice(b"ts=");
        push_u64(&mut line, now.unix);
        // memcached's fraction has no leading zeros either.
        text(&mut line, ".", now.micros.into());
        line.extend_from_slice(b" gid=");
        push_u64(&mut line, self.last_line.fetch_add(1, Relaxed) + 1);
        fields(&mut line);
        line.push(b'\n');
        self.written.fetch_add(1, Relaxed);
        for watcher in &*self.watchers.lock() {
            if watcher.streams & stream == 0 {
                continue;
            }
            let mut queue = watcher.queue.lock();
            if queue.bytes.len() + line.len() > self.queue_bytes_max {
                queue.skipped += 1;
                self.skipped.fetch_add(1, Relaxed);
                continue;
            }
            queue.bytes.extend_from_slice(&line);
            self.sent.fetch_add(1, Relaxed);
            self.nudges[usize::from(watcher.worker.0)].store(true, Relaxed);
        }
    }

    /// Workers whose watchers have something to send, once each.
    pub fn nudged(&self) -> impl Iterator<Item = WorkerId> + '_ {
        let nudged = |nudge: &AtomicBool| nudge.load(Relaxed) && nudge.swap(false, Relaxed);
        let workers = (0..).zip(&*self.nudges);
        workers.filter(move |(_, nudge)| nudged(nudge)).map(|(worker, _)| WorkerId(worker))
    }
}

impl Watcher {
    /// What waits to be sent, and how much found no room behind it; nothing afterwards.
    ///
    /// memcached tells of skipped lines when there is a next one, for which somebody who knows of none may wait long.
    pub fn take(&self, out: &mut Vec<u8>) {
        let mut queue = self.queue.lock();
        out.append(&mut queue.bytes);
        if queue.skipped > 0 {
            let told = format!("skipped={}\n", std::mem::take(&mut queue.skipped));
            out.extend_from_slice(told.as_bytes());
        }
    }
}

/// An item as lines tell it.
pub(crate) struct ItemLine<'a> {
    pub key: &'a [u8],
    pub class: usize,
    pub value_bytes: usize,
    pub fd: u32,
}

impl ItemLine<'_> {
    fn key(&self, line: &mut Vec<u8>) {
        line.extend_from_slice(b" key=");
        push_escaped(line, self.key);
    }

    fn end(&self, line: &mut Vec<u8>, with_connection: bool) {
        text(line, " clsid=", self.class as u64);
        if with_connection {
            text(line, " cfd=", self.fd.into());
        }
        text(line, " size=", self.value_bytes as u64);
    }
}

fn text(line: &mut Vec<u8>, name: &str, number: u64) {
    line.extend_from_slice(name.as_bytes());
    push_u64(line, number);
}

pub(crate) fn item_get(log: &WatchLog, now: Now, status: &str, item: &ItemLine<'_>) {
    log.write(now, streams::FETCHERS, |line| {
        line.extend_from_slice(b" type=item_get");
        item.key(line);
        line.extend_from_slice(b" status=");
        line.extend_from_slice(status.as_bytes());
        item.end(line, true);
    });
}

pub(crate) fn item_store(
    log: &WatchLog,
    now: Now,
    status: &str,
    command: &str,
    ttl: u32,
    item: &ItemLine<'_>,
) {
    log.write(now, streams::MUTATIONS, |line| {
        line.extend_from_slice(b" type=item_store");
        item.key(line);
        for part in [" status=", status, " cmd=", command] {
            line.extend_from_slice(part.as_bytes());
        }
        text(line, " ttl=", ttl.into());
        item.end(line, true);
    });
}

pub(crate) fn deletion(log: &WatchLog, now: Now, command: &str, item: &ItemLine<'_>) {
    log.write(now, streams::DELETIONS, |line| {
        line.extend_from_slice(b" type=deleted");
        item.key(line);
        line.extend_from_slice(b" cmd=");
        line.extend_from_slice(command.as_bytes());
        item.end(line, false);
    });
}

pub(crate) fn eviction(
    log: &WatchLog,
    now: Now,
    fetched: bool,
    ttl: i64,
    idle: u32,
    item: &ItemLine<'_>,
) {
    log.write(now, streams::EVICTIONS, |line| {
        line.extend_from_slice(b" type=eviction");
        item.key(line);
        line.extend_from_slice(if fetched { b" fetch=yes ttl=" } else { b" fetch=no ttl=" });
        push_i64(line, ttl);
        text(line, " la=", idle.into());
        item.end(line, false);
    });
}

pub(crate) fn tls_error(log: &WatchLog, now: Now, fd: u32, why: &str) {
    log.write(now, streams::CONNECTIONS, |line| {
        text(line, " type=conntlserr fd=", fd.into());
        line.extend_from_slice(format!(" msg={why}").as_bytes());
    });
}

/// `reason`: why it closes; `None` is a new one.
pub(crate) fn connection(log: &WatchLog, now: Now, info: &ConnInfo, reason: Option<&str>) {
    log.write(now, streams::CONNECTIONS, |line| {
        let kind = if reason.is_some() { "conn_close" } else { "conn_new" };
        let (ip, port, transport) = match &info.peer {
            Endpoint::Tcp(address) => (address.ip().to_string(), address.port(), "tcp"),
            Endpoint::Udp(address) => (address.ip().to_string(), address.port(), "udp"),
            Endpoint::Unix(_) => ("unix".to_owned(), 0, "local"),
        };
        line.extend_from_slice(
            format!(" type={kind} rip={ip} rport={port} transport={transport}").as_bytes(),
        );
        if let Some(reason) = reason {
            line.extend_from_slice(format!(" reason={reason}").as_bytes());
        }
        text(line, " cfd=", info.fd.into());
    });
}
