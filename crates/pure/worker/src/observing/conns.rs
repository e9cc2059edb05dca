//! What all workers may know of a connection: `stats conns` tells it, and watchers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use mbal_locks::{Mutex, ranks};
use mbal_model::Seconds;
use mbal_wire::push_u64;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    /// The path, if the end has one.
    Unix(String),
}

/// memcached's word for what a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    Listening,
    Reading,
    Parsing,
    /// A value has not arrived whole.
    Storing,
    Swallowing,
    /// Replies have to leave first.
    Writing,
    /// Peers have to answer first, or there is no room yet.
    Waiting,
    Watching,
    Closing,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        STATES[self as usize]
    }
}

const STATES: [&str; 9] = [
    "conn_listening",
    "conn_read",
    "conn_parse_cmd",
    "conn_nread",
    "conn_swallow",
    "conn_mwrite",
    "conn_io_queue",
    "conn_watch",
    "conn_closing",
];

/// A connection as others see it; its worker alone writes.
#[derive(Debug)]
pub struct ConnInfo {
    /// The descriptor: a name for people, unique while the connection is there.
    pub fd: u32,
    pub peer: Endpoint,
    /// Where it came in; `None` of one that listens.
    pub here: Option<Endpoint>,
    state: AtomicU8,
    last_command: AtomicU32,
}

impl ConnInfo {
    pub fn new(fd: u32, peer: Endpoint, here: Endpoint) -> ConnInfo {
        ConnInfo {
            fd,
            peer,
            here: Some(here),
            state: State::Reading.into(),
            last_command: 0.into(),
        }
    }

    /// A socket that listens.
    pub fn listening(fd: u32, at: Endpoint) -> ConnInfo {
        let state = State::Listening.into();
        ConnInfo { fd, peer: at, here: None, state, last_command: AtomicU32::new(0) }
    }

    /// A socket for datagrams: they have no connections of their own.
    pub fn datagrams(fd: u32, at: Endpoint) -> ConnInfo {
        let state = State::Reading.into();
        ConnInfo { fd, peer: at, here: None, state, last_command: AtomicU32::new(0) }
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Relaxed);
    }

    /// What it was set to last, by name.
    pub(crate) fn state_name(&self) -> &'static str {
        STATES[usize::from(self.state.load(Relaxed))]
    }

    pub(crate) fn last_command(&self) -> Seconds {
        self.last_command.load(Relaxed)
    }

    pub(crate) fn commanded(&self, now: Seconds) {
        self.last_command.store(now, Relaxed);
    }
}

impl From<State> for AtomicU8 {
    fn from(state: State) -> AtomicU8 {
        AtomicU8::new(state as u8)
    }
}

/// All connections of a server, by descriptor.
#[derive(Default)]
pub struct Conns(Mutex<ranks::Conns, BTreeMap<u32, Arc<ConnInfo>>>);

impl Conns {
    pub fn enter(&self, info: &Arc<ConnInfo>) {
        self.0.lock().insert(info.fd, Arc::clone(info));
    }

    /// The descriptor may be another connection's by now.
    pub fn leave(&self, info: &Arc<ConnInfo>) {
        let mut infos = self.0.lock();
        if infos.get(&info.fd).is_some_and(|entered| Arc::ptr_eq(entered, info)) {
            infos.remove(&info.fd);
        }
    }

    /// The lines of `stats conns`, asked by `asker`.
    pub(crate) fn tell(&self, asker: &ConnInfo, now: Seconds, out: &mut Vec<u8>) {
        for info in self.0.lock().values() {
            let mut line = |name: &str, value: &str| {
                out.extend_from_slice(b"STAT ");
                push_u64(out, info.fd.into());
                for part in [":", name, " ", value, "\r\n"] {
                    out.extend_from_slice(part.as_bytes());
                }
            };
            if let Endpoint::Udp(_) = info.peer {
                line("UDP", "UDP");
            }
            line("addr", &text(&info.peer));
            if let Some(here) = &info.here {
                line("listen_addr", &text(here));
            }
            let state = match info.fd == asker.fd {
                true => State::Parsing as u8,
                false => info.state.load(Relaxed),
            };
            line("state", STATES[usize::from(state)]);
            let idle = now.saturating_sub(info.last_command());
            line("secs_since_last_cmd", &idle.to_string());
        }
    }
}

/// `tcp:127.0.0.1:11211`, `tcp6:[::1]:11211`, `unix:/path`
fn text(endpoint: &Endpoint) -> String {
    let of = |name: &str, address: &SocketAddr| {
        let six = if address.is_ipv6() { "6" } else { "" };
        format!("{name}{six}:{address}")
    };
    match endpoint {
        Endpoint::Tcp(address) => of("tcp", address),
        Endpoint::Udp(address) => of("udp", address),
        Endpoint::Unix(path) => format!("unix:{path}"),
    }
}
