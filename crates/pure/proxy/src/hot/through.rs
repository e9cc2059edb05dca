//! Values that are written, on their way to the proxy's own cache: what the home has stored last is what reads are answered with.
//!
//! A key's writes follow each other on one connection, and so do their replies. So the reply to a write says that its value is there,
//! and that no later one is known to anybody: reads of the home are answered on the same connection, behind it.

use std::collections::BTreeMap;

use super::{CACHE_BYTES_MAX, Hot, HotTable, Left, State};
use crate::Nanos;

/// A request on a connection: which one, and how many had been asked there when it was.
pub(crate) type AskId = (u32, u64);

/// A write whose reply has not come.
#[derive(Debug)]
pub(crate) struct Through {
    pub ask: AskId,
    /// Who writes: its reads come behind it.
    pub client: u32,
    /// The reply to `get`.
    pub reply: Vec<u8>,
    pub until: Nanos,
}

/// All writes whose values may be kept.
#[derive(Default)]
pub(super) struct UnderWay {
    /// The key's hash, and the bytes of the value. Also of those that count no more.
    asks: BTreeMap<AskId, (u64, usize)>,
    bytes: usize,
}

impl UnderWay {
    pub fn clear(&mut self) {
        *self = UnderWay::default();
    }

    fn ended(&mut self, ask: AskId) -> Option<u64> {
        let (hash, bytes) = self.asks.remove(&ask)?;
        self.bytes -= bytes;
        Some(hash)
    }
}

impl HotTable {
    /// True if a value that is written to this key may be kept. `bytes`: of the reply to `get`.
    pub fn takes_writes(&self, hash: u64, key: &[u8], bytes: usize, now: Nanos) -> bool {
        let hot = self.keys.get(&hash).filter(|hot| hot.key == key);
        hot.is_some_and(|hot| hot.often_written && hot.wanted > 1)
            && self.suspended_until <= now
            && self.under_way.bytes + bytes <= CACHE_BYTES_MAX
    }

    /// The key is about to be written. Reads are answered with what was there until the reply comes. After [`HotTable::takes_writes`].
    pub fn write_through(&mut self, hash: u64, through: Through, left: &mut Vec<Left>) {
        let epoch = self.epoch();
        let hot = self.keys.get_mut(&hash).expect("it takes writes");
        hot.writes += 1;
        if matches!(hot.state, State::Copied { .. }) {
            hot.end(epoch, left);
        }
        self.under_way.bytes += through.reply.len();
        self.under_way.asks.insert(through.ask, (hash, through.reply.len()));
        hot.through.push_back(through);
    }

    /// True if replies to writes are waited for.
    pub fn awaits_writes(&self) -> bool {
        !self.under_way.asks.is_empty()
    }

    /// The reply to a write has come: the home has `stored` the value, or not. True if it is kept.
    pub fn wrote(&mut self, ask: AskId, stored: bool, left: &mut Vec<Left>) -> bool {
        let Some(hash) = self.under_way.ended(ask) else { return false };
        let epoch = self.epoch();
        let Some(hot) = self.keys.get_mut(&hash) else { return false };
        // Else something else has written it since.
        if hot.through.front().is_none_or(|first| first.ask != ask) {
            return false;
        }
        let through = hot.through.pop_front().expect("it was looked at");
        let is_kept = stored && self.cached(hash, through.reply, through.until);
        if !is_kept {
            self.keys.get_mut(&hash).expect("it was looked at").end(epoch, left);
        }
        is_kept
    }

    /// A read that may overtake the replies to writes.
    pub fn read_elsewhere(&mut self, hash: u64, key: &[u8], left: &mut Vec<Left>) {
        let epoch = self.epoch();
        if let Some(hot) = self.find(hash, key).filter(|hot| !hot.through.is_empty()) {
            hot.end(epoch, left);
        }
    }
}

impl Hot {
    /// True if a read of this client would overtake a write of its own.
    pub(super) fn is_written_by(&self, client: u32) -> bool {
        self.through.iter().any(|through| through.client == client)
    }
}
