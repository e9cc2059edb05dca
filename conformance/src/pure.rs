//! The pure workers as a peer: no process, no socket, and a clock that waits in no time.

use crate::peer::{Arrival, Conn, Peer};
use mbal_cachelet::{Memory, Options, Store};
use mbal_model::WorkerId;
use mbal_worker::{
    Action, Actions, ConnId, Event, Now, Passwords, Protocol, Settings, Shared, Worker,
};
use std::sync::Arc;
use std::time::Duration;

/// `cache_memlimit` may make the memory this many times larger.
const ROOM_TO_GROW: usize = 4;

struct Client {
    worker: usize,
    arrived: Vec<u8>,
    is_stalled: bool,
    /// Sent while the worker read no more.
    waiting: Vec<u8>,
    is_closed: bool,
}

/// Workers of one server, driven by turns: each connection has one, as they come.
pub struct PurePeer {
    workers: Vec<Worker>,
    now: Now,
    actions: Actions,
    clients: Vec<Client>,
}

impl PurePeer {
    /// A server by memcached's `flags`, or the first flag that it does not know.
    pub fn new(flags: &[String], workers: usize) -> Result<PurePeer, String> {
        let mut settings = Settings { workers: workers as u16, ..Settings::default() };
        let mut flags = flags.iter();
        while let Some(flag) = flags.next() {
            let mut value = || flags.next().map(String::as_str).unwrap_or("");
            match flag.as_str() {
                "-m" => settings.memory_bytes = bytes(value(), 1 << 20),
                "-I" => settings.item_bytes_max = bytes(value(), 1) as usize,
                "-M" => settings.evict = false,
                "-F" => settings.flush_enabled = false,
                "-A" => settings.shutdown_enabled = true,
                "-Y" => {
                    settings.protocol = Protocol::Text;
                    settings.auth_file = Some(value().to_string());
                }
                "-X" => settings.dump_enabled = false,
                "-W" => settings.watch_enabled = false,
                "-o" => match value() {
                    "no_lru_crawler" => settings.crawler_enabled = false,
                    // Without effect, as in `mbal serve`.
                    "no_slab_reassign" | "no_lru_maintainer" => {}
                    option => return Err(format!("the pure worker knows no -o {option}")),
                },
                _ => return Err(format!("the pure worker knows no {flag}")),
            }
        }
        let options = Options {
            memory_bytes: settings.memory_bytes as usize,
            workers,
            cachelets: 16 * workers.next_power_of_two(),
            item_bytes_max: settings.item_bytes_max,
            evict: settings.evict,
            generation: 1,
        };
        let room = Memory::heap(ROOM_TO_GROW * options.memory_bytes);
        let store = Store::with_memory(options, room);
        let mut passwords = Passwords::default();
        if let Some(file) = &settings.auth_file {
            let text = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
            passwords = Passwords::parse(&text, false)
                .map_err(|line| format!("{file}: no colon in line {line}"))?;
        }
        let authenticator = Arc::new(move |user: &[u8], word: &[u8]| passwords.admits(user, word));
        let server = Arc::new(Shared::new(settings, store).guarded_by(authenticator));
        let worker = |number| Worker::new(WorkerId(number as u16), server.clone());
        Ok(PurePeer {
            workers: (0..workers).map(worker).collect(),
            now: Now { second: 2, unix: 1_700_000_000, micros: 0 },
            actions: Actions::default(),
            clients: Vec::new(),
        })
    }

    fn handle(&mut self, worker: usize, event: Event<'_>) {
        self.actions.clear();
        self.workers[worker].handle(self.now, event, &mut self.actions);
        let mut actions = std::mem::take(&mut self.actions);
        let (mut leaving, mut nudged) = (Vec::new(), Vec::new());
        for action in actions.list.drain(..) {
            match action {
                Action::Send { conn, bytes } => {
                    let client = &mut self.clients[conn.0 as usize];
                    client.arrived.extend_from_slice(&actions.bytes[bytes]);
                }
                Action::Stall { conn } => self.clients[conn.0 as usize].is_stalled = true,
                Action::Close { conn } => {
                    self.end(conn.0 as usize);
                }
                // The server ends, and every connection with it.
                Action::Shutdown { .. } => (0..self.clients.len()).for_each(|conn| self.end(conn)),
                Action::HandOver { conn, to, session } => leaving.push((conn, to, session)),
                Action::Nudge { worker } => nudged.push(usize::from(worker.0)),
                Action::Report(_) | Action::Say { .. } => {}
                Action::Datagram { .. } => unreachable!("no datagram has come"),
                // For room alone, which is looked for again in `Self::drain`.
                Action::Pause { .. } | Action::Resume { .. } => {}
                Action::Forward { .. }
                | Action::Answer { .. }
                | Action::TellMove { .. }
                | Action::BreakMoveLink { .. } => unreachable!("this server has no peers"),
                Action::RefreshCerts { .. } => unreachable!("this server has no certificates"),
            }
        }
        self.actions = actions;
        for (conn, to, session) in leaving {
            let worker = usize::from(to.0);
            self.clients[conn.0 as usize].worker = worker;
            self.handle(worker, Event::Adopted { conn, session });
        }
        for worker in nudged {
            self.handle(worker, Event::Nudged);
        }
    }

    fn end(&mut self, conn: Conn) {
        let client = &mut self.clients[conn];
        if !std::mem::replace(&mut client.is_closed, true) {
            let worker = client.worker;
            let mut nothing = Actions::default();
            let event = Event::Closed { conn: ConnId(conn as u32) };
            self.workers[worker].handle(self.now, event, &mut nothing);
        }
    }

    /// Time passes until then, if it has not yet; no more than it takes to wait for room.
    fn pass_until(&mut self, until: mbal_model::Instant) {
        let passes = until.left(self.now.instant());
        let micros = u64::from(self.now.micros) + passes.as_micros() as u64;
        let seconds = micros / 1_000_000;
        self.now.second += seconds as u32;
        self.now.unix += seconds;
        self.now.micros = (micros % 1_000_000) as u32;
    }

    /// Everything sent has left: a client that stalled is read again, or has waited for room.
    fn drain(&mut self, conn: Conn) {
        loop {
            let worker = self.clients[conn].worker;
            if let Some(wake) = self.workers[worker].next_wake() {
                self.pass_until(wake);
                self.handle(worker, Event::Woken);
            } else if self.clients[conn].is_stalled && !self.clients[conn].is_closed {
                self.clients[conn].is_stalled = false;
                self.handle(worker, Event::Drained { conn: ConnId(conn as u32) });
            } else {
                break;
            }
        }
        let waiting = std::mem::take(&mut self.clients[conn].waiting);
        if !waiting.is_empty() {
            self.send(conn, &waiting);
        }
    }
}

fn bytes(text: &str, unit: u64) -> u64 {
    let digits = text.trim_end_matches(['k', 'm']);
    let unit = match &text[digits.len()..] {
        "k" => 1 << 10,
        "m" => 1 << 20,
        _ => unit,
    };
    digits.parse::<u64>().expect("a script's flags have sizes") * unit
}

impl Peer for PurePeer {
    fn open(&mut self) -> Conn {
        let conn = self.clients.len();
        let worker = conn % self.workers.len();
        self.clients.push(Client {
            worker,
            arrived: Vec::new(),
            is_stalled: false,
            waiting: Vec::new(),
            is_closed: false,
        });
        self.handle(worker, Event::Opened { conn: ConnId(conn as u32), own_port: false });
        conn
    }

    fn send(&mut self, conn: Conn, bytes: &[u8]) {
        let client = &mut self.clients[conn];
        if client.is_closed {
            return;
        }
        if client.is_stalled {
            client.waiting.extend_from_slice(bytes);
            return;
        }
        let worker = client.worker;
        self.handle(worker, Event::Received { conn: ConnId(conn as u32), bytes });
        self.drain(conn);
    }

    fn receive(&mut self, conn: Conn, into: &mut Vec<u8>, _: Duration) -> Arrival {
        let client = &mut self.clients[conn];
        if !client.arrived.is_empty() {
            into.append(&mut client.arrived);
            // A watcher stalls because of what others did.
            self.drain(conn);
            return Arrival::Bytes;
        }
        if client.is_closed { Arrival::Closed } else { Arrival::Nothing }
    }

    fn finish(&mut self, conn: Conn) {
        self.end(conn);
    }

    fn close(&mut self, conn: Conn) {
        self.end(conn);
    }

    fn wait(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.now.second += 1;
            self.now.unix += 1;
            (0..self.workers.len()).for_each(|worker| self.handle(worker, Event::Tick));
        }
    }
}
