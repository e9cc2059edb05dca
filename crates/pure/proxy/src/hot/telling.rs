//! What is told of hot keys.

use std::collections::BTreeSet;

use super::{HotTable, State};
use crate::Nanos;
use crate::stats::Copies;

/// One hot key.
pub(crate) struct Told {
    /// Virtual copies, its home included.
    pub wanted: u32,
    /// Since the last interval began.
    pub reads: u64,
    pub writes: u64,
    pub often_written: bool,
    pub state: ToldState,
}

pub(crate) enum ToldState {
    Cold,
    Filling,
    /// By virtual copy: its connection, its name if it is not at home, and whether it has the value; and since when.
    Copied(Vec<(u32, Option<u64>, bool)>, Nanos),
    /// Until then.
    Cached(Nanos),
}

impl HotTable {
    /// Keys by state, and items of copies.
    pub fn tell(&self) -> Copies {
        let mut told = Copies { keys: self.keys.len(), ..Copies::default() };
        for hot in self.keys.values() {
            match &hot.state {
                State::Copied { copies, .. } => {
                    told.copied += 1;
                    let conns = copies.iter().filter(|copy| copy.name.is_some() && copy.stored);
                    let conns: BTreeSet<u32> = conns.map(|copy| copy.conn).collect();
                    told.items += conns.len();
                }
                State::Cached { .. } => told.cached += 1,
                State::Cold | State::Filling => {}
            }
        }
        told
    }

    /// `None`: it is not hot.
    pub fn tell_of(&self, hash: u64, key: &[u8]) -> Option<Told> {
        let hot = self.keys.get(&hash).filter(|hot| hot.key == key)?;
        Some(Told {
            wanted: hot.wanted,
            reads: hot.reads,
            writes: hot.writes,
            often_written: hot.often_written,
            state: match &hot.state {
                State::Cold => ToldState::Cold,
                State::Filling => ToldState::Filling,
                State::Copied { copies, since } => ToldState::Copied(
                    copies.iter().map(|copy| (copy.conn, copy.name, copy.stored)).collect(),
                    *since,
                ),
                State::Cached { until, .. } => ToldState::Cached(*until),
            },
        })
    }
}
