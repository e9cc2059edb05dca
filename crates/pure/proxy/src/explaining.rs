//! `stats explain KEY`: where a key is, why, and who reads and writes it there.

use std::collections::BTreeMap;

use mbal_model::{Instant, KEY_BYTES_MAX, Key};
use mbal_routing::ketama::KeyHash;
use mbal_wire::{push_readable, unescaped};

use crate::backend::Backend;
use crate::hot::{HotKey, HotKeyState};
use crate::ledger::Ledger;
use crate::naming::{SUFFIX_BYTES, push_name};
use crate::pool::Distribution;
use crate::upstreams::Health;

const NO_KEY: &[u8] =
    b"CLIENT_ERROR stats explain KEY: a key has 1 to 250 bytes, special ones as %XX\r\n";

/// `written` is the key as `mbal top` writes it. Each sentence is a `STAT explain` line.
pub(crate) fn explain(written: &[u8], backend: &Backend, ledger: &Ledger) -> Vec<u8> {
    let bytes = unescaped(written);
    let Some(key) = Key::new(&bytes) else { return NO_KEY.to_vec() };
    let mut reply = Vec::new();
    for sentence in (Explainer { backend, ledger }).sentences(&key) {
        reply.extend_from_slice(format!("STAT explain {sentence}\r\n").as_bytes());
    }
    reply.extend_from_slice(b"END\r\n");
    reply
}

struct Explainer<'a> {
    backend: &'a Backend,
    ledger: &'a Ledger,
}

impl Explainer<'_> {
    fn sentences(&self, key: &Key<'_>) -> Vec<String> {
        let bytes = key.bytes();
        let Backend { upstreams, placing, hot, peering, .. } = self.backend;
        let now = self.ledger.now;
        let Some(home) = placing.home(bytes) else {
            return vec!["there are no upstreams".into()];
        };
        let mut said = vec![
            format!("key {}: {}", readable(bytes), self.why(bytes)),
            format!("home {}", self.of_upstream(home)),
        ];
        if !upstreams.get(home).serves() {
            said.push(self.stand_in(bytes));
        }
        if let Some(peers) = peering.peers() {
            let member = peers.coordinator(key.hash());
            said.push(match member == peers.peers.own {
                true => "coordinated by this proxy: it alone copies the key".into(),
                false => format!(
                    "coordinated by the proxy at {}: it alone copies the key, and gets its requests while it does",
                    peers.peers.names[member]
                ),
            });
        }
        let text = upstreams.conn(upstreams.conn_of(home, bytes));
        if let Some(doubt) = text.doubts.end(now) {
            let until = match doubt {
                Instant::MAX => "until it answers over a new connection, and a while more".into(),
                at => format!("for {:.1} s", (at - now).as_secs_f64()),
            };
            said.push(format!(
                "a write to its home has no known outcome: it is not copied {until}"
            ));
        }
        match (hot.control(), hot.table.tell_of(key.hash(), bytes)) {
            _ if upstreams.is_mapped() => {
                let copies = self.backend.copied.of(bytes).iter();
                let names: Vec<String> =
                    copies.map(|number| upstreams.get(*number).name.clone()).collect();
                said.push(match names.is_empty() {
                    true => "no copies in its cluster that are read here".into(),
                    false => format!("read by turns at {}", names.join(" ")),
                });
            }
            (None, _) => said.push("no key is copied: --imbalance-target is not given".into()),
            (Some(control), told) => {
                let threshold = control.threshold_per_second();
                let t = threshold.map_or("nothing was hot yet".into(), |threshold| {
                    format!("T is {:.0} requests/s", threshold.requests_per_copy)
                });
                match told {
                    None => said.push(format!("not hot; {t}")),
                    Some(told) => said.extend(self.of_hot(bytes, &told, &t)),
                }
                said.push(
                    "writes: this proxy coordinates them; each goes home, and ends the copies when it arrives"
                        .into(),
                );
            }
        }
        said
    }

    /// The key's hash, and how the pool is searched by it.
    fn why(&self, key: &[u8]) -> String {
        let hashed = |hash: KeyHash| format!("{:08x}", hash.place(key));
        let (order, settings) = (self.backend.placing.order(), &self.ledger.settings);
        let count = order.len();
        if let Some(hash) =
            Key::new(key).map(|key| key.hash()).filter(|_| self.backend.upstreams.is_mapped())
        {
            return format!("hash {hash:016x}, by its cluster's map among {count} workers");
        }
        match settings.distribution {
            Distribution::Modula(hash) => {
                let weights: u64 =
                    order.iter().map(|at| u64::from(settings.servers[*at].weight)).sum();
                format!(
                    "hash {} {}, its remainder by {weights} among {count} upstreams in the order of their names",
                    hash.name(),
                    hashed(hash)
                )
            }
            Distribution::Ketama(dialect, hash) => {
                let hash = hash.unwrap_or(dialect.hash());
                format!(
                    "hash {} {}, the next point on the ring of {} among {count} upstreams",
                    hash.name(),
                    hashed(hash),
                    dialect.label()
                )
            }
        }
    }

    /// An upstream, and how it is.
    fn of_upstream(&self, number: usize) -> String {
        let (upstream, told) =
            (self.backend.upstreams.get(number), self.backend.upstreams.stats(number));
        let state = match (upstream.health, told.connections) {
            (Health::Ejected, _) => "left out until it has deleted what it has missed",
            (Health::Gone, _) => "leaving",
            (Health::Serves, 0) => "down",
            (Health::Serves, _) => "up",
        };
        let failures = match upstream.failures {
            0 => String::new(),
            count => format!(", {count} failures in a row"),
        };
        let server = &self.ledger.settings.servers[number];
        let name = server.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        format!("{}{name}: {state}, {} requests not answered{failures}", told.name, told.waiting)
    }

    /// Where a key is while its home is left out.
    fn stand_in(&self, key: &[u8]) -> String {
        match self.backend.placing.stand_in(key) {
            None => "nobody stands in: no upstream serves".into(),
            Some(_) if KEY_BYTES_MAX < key.len() + SUFFIX_BYTES => {
                "nobody stands in: the key is too long for another name".into()
            }
            Some(there) => format!(
                "meanwhile {} stands in, under the name {}; what is stored there ends with its return",
                self.backend.upstreams.get(there).name,
                named(key, self.backend.placing.epoch())
            ),
        }
    }

    fn of_hot(&self, key: &[u8], told: &HotKey, t: &str) -> Vec<String> {
        let HotKey { wanted, reads, writes, often_written, state } = told;
        let mut said = vec![format!(
            "hot: {reads} reads and {writes} writes in this interval; {t}: {wanted} virtual copies, home included"
        )];
        match state {
            HotKeyState::Cold if *wanted < 2 => {
                said.push("read at home: one copy is enough".into())
            }
            HotKeyState::Cold => said.push("read at home; the next read has it copied".into()),
            HotKeyState::Filling => said.push("read at home, which is asked for the value".into()),
            HotKeyState::Cached(until) if self.ledger.now < *until => said.push(format!(
                "get of this key alone is answered from the proxy's memory, for {:.0} s{}",
                (*until - self.ledger.now).as_secs_f64(),
                if *often_written { ": it is written too often for copies" } else { "" }
            )),
            HotKeyState::Cached(_) => {
                said.push("read at home: what the proxy has is too old".into())
            }
            HotKeyState::Copied(copies, since) => {
                let age = (self.ledger.now - *since).as_secs_f64();
                said.push(format!(
                    "copied for {age:.1} s; a read goes to the idler of two of these"
                ));
                said.extend(self.of_copies(key, copies));
            }
        }
        said
    }

    /// Where copies are, once for each item.
    fn of_copies(&self, key: &[u8], copies: &[(u32, Option<u64>, bool)]) -> Vec<String> {
        let mut items: BTreeMap<(u32, Option<u64>), (usize, bool)> = BTreeMap::new();
        for (conn, name, stored) in copies {
            items.entry((*conn, *name)).or_insert((0, *stored)).0 += 1;
        }
        let all = copies.len();
        let one = |((conn, name), (count, stored)): ((u32, Option<u64>), (usize, bool))| {
            let upstreams = &self.backend.upstreams;
            let upstream = &upstreams.get(upstreams.conn(conn as usize).upstream).name;
            let name =
                name.map_or("home".into(), |name| format!("under the name {}", named(key, name)));
            let waits = if stored { "" } else { "; it has not said STORED, home is read instead" };
            format!("copy on {upstream}, {name}: {count} of {all}{waits}")
        };
        items.into_iter().map(one).collect()
    }
}

fn readable(key: &[u8]) -> String {
    let mut written = Vec::new();
    push_readable(&mut written, key);
    String::from_utf8_lossy(&written).into_owned()
}

fn named(key: &[u8], epoch: u64) -> String {
    let mut name = Vec::new();
    push_name(&mut name, key, epoch);
    readable(&name)
}
