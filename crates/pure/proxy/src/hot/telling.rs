//! What is told of hot keys.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use mbal_model::Instant;

use super::{Copy, Hot, HotTable, State};
use crate::stats::Copies;

/// One hot key.
pub(crate) struct HotKey {
    /// Virtual copies, its home included.
    pub wanted: u32,
    /// Since the last interval began.
    pub reads: u64,
    pub writes: u64,
    pub often_written: bool,
    pub state: HotKeyState,
}

pub(crate) enum HotKeyState {
    Cold,
    Filling,
    /// By virtual copy: its connection, its name if it is not at home, and whether it has the value; and since when.
    Copied(Vec<(u32, Option<u64>, bool)>, Instant),
    /// Until then.
    Cached(Instant),
}

/// What `stats hot` tells of a key.
pub(crate) struct Hottest {
    pub key: Vec<u8>,
    /// In the interval before.
    pub reads: u64,
    pub writes: u64,
    pub state: &'static str,
    /// Items beside the home's; the proxy's own is one.
    pub copies: usize,
}

/// Copies that have the value: virtual ones on one upstream are one item.
fn items(copies: &[Copy]) -> usize {
    let conns = copies.iter().filter(|copy| copy.name.is_some() && copy.stored);
    conns.map(|copy| copy.conn).collect::<BTreeSet<u32>>().len()
}

impl HotTable {
    /// Keys by state, and items of copies.
    pub fn tell(&self) -> Copies {
        let mut told = Copies { keys: self.keys.len(), ..Copies::default() };
        for hot in self.keys.values() {
            match &hot.state {
                State::Copied { copies, .. } => {
                    told.copied += 1;
                    told.items += items(copies);
                }
                State::Cached { .. } => told.cached += 1,
                State::Cold | State::Filling => {}
            }
        }
        told
    }

    /// Those with the most requests in the interval before, the hottest first.
    pub fn hottest(&self, count: usize) -> Vec<Hottest> {
        let mut all: Vec<&Hot> = self.keys.values().collect();
        all.sort_by_key(|hot| (Reverse(hot.reads_before + hot.writes_before), hot.key.as_slice()));
        let told = |hot: &Hot| {
            let (state, copies) = match &hot.state {
                State::Cold => ("cold", 0),
                State::Filling => ("pending", 0),
                State::Copied { copies, .. } => ("hot", items(copies)),
                State::Cached { .. } => ("cached", 1),
            };
            let (reads, writes) = (hot.reads_before, hot.writes_before);
            Hottest { key: hot.key.clone(), reads, writes, state, copies }
        };
        all.into_iter().take(count).map(told).collect()
    }

    /// `None`: it is not hot.
    pub fn tell_of(&self, hash: u64, key: &[u8]) -> Option<HotKey> {
        let hot = self.keys.get(&hash).filter(|hot| hot.key == key)?;
        Some(HotKey {
            wanted: hot.wanted,
            reads: hot.reads,
            writes: hot.writes,
            often_written: hot.often_written,
            state: match &hot.state {
                State::Cold => HotKeyState::Cold,
                State::Filling => HotKeyState::Filling,
                State::Copied { copies, since } => HotKeyState::Copied(
                    copies.iter().map(|copy| (copy.conn, copy.name, copy.stored)).collect(),
                    *since,
                ),
                State::Cached { until, .. } => HotKeyState::Cached(*until),
            },
        })
    }
}
