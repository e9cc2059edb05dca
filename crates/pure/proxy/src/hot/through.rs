//! Values that are written, on their way to the proxy's own cache, and the reads that wait for them.

use std::collections::BTreeMap;

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};

use super::{CACHE_BYTES_MAX, HotTable};
use crate::keeping::{Kept, Shape};

/// A request on a connection: which one, and how many had been asked there before.
pub(crate) type AskId = (u32, u64);

/// A read that a write's value answers.
#[derive(Debug)]
pub(crate) struct Reader {
    pub client: u32,
    /// Of its reply.
    pub number: u32,
    pub shape: Shape,
}

/// A write whose reply has not come.
#[derive(Debug)]
pub(crate) struct Through {
    pub key: Box<[u8]>,
    hash: u64,
    epoch: u64,
    pub kept: Kept,
    until: Instant,
    pub readers: Vec<Reader>,
}

/// All of them.
#[derive(Default)]
pub(super) struct UnderWay {
    writes: BTreeMap<AskId, Through>,
    bytes: usize,
}

impl UnderWay {
    fn end(&mut self, ask: AskId) -> Option<Through> {
        let through = self.writes.remove(&ask)?;
        self.bytes -= through.kept.value.len();
        Some(through)
    }
}

impl HotTable {
    /// True if a value of so many bytes that is written to this key may be kept.
    pub fn takes_writes(&self, hash: u64, key: &[u8], bytes: usize, now: Instant) -> bool {
        let hot = self.keys.get(&hash).filter(|hot| hot.key == key);
        hot.is_some_and(|hot| hot.often_written && hot.wanted > 1)
            && !self.is_suspended(now)
            && self.under_way.bytes + bytes <= CACHE_BYTES_MAX
    }

    /// The key is about to be written by request `ask`; its other copies have ended. Later reads wait for the reply. After
    /// [`HotTable::takes_writes`].
    pub fn write_through(&mut self, hash: u64, ask: AskId, kept: Kept, until: Instant) {
        let hot = self.keys.get_mut(&hash).expect("it takes writes");
        hot.last_write = Some(ask);
        let (key, epoch) = (hot.key.as_slice().into(), hot.epoch);
        self.under_way.bytes += kept.value.len();
        let through = Through { key, hash, epoch, kept, until, readers: Vec::new() };
        self.under_way.writes.insert(ask, through);
    }

    /// True if replies to writes are waited for.
    pub fn awaits_writes(&self) -> bool {
        !self.under_way.writes.is_empty()
    }

    /// A read waits for a write.
    pub fn wait(&mut self, ask: AskId, reader: Reader) {
        self.under_way.writes.get_mut(&ask).expect("it is under way").readers.push(reader);
    }

    /// The reply to a write has come: the home has `stored` the value, or not. What was written, and whether it is kept.
    pub fn wrote(&mut self, ask: AskId, stored: bool) -> Option<(Through, bool)> {
        let through = self.under_way.end(ask)?;
        let Some(hot) = self.keys.get_mut(&through.hash) else { return Some((through, false)) };
        let is_last = hot.epoch == through.epoch || is_planted(Fault::KeptThoughOvertaken);
        if !is_last {
            return Some((through, false));
        }
        hot.last_write = None;
        let is_kept = stored && self.cached(through.hash, through.kept.clone(), through.until);
        Some((through, is_kept))
    }

    /// A connection is gone, and nobody will hear what became of its writes.
    pub fn lost(&mut self, conn: u32) -> Vec<Reader> {
        let of_conn = self.under_way.writes.range((conn, 0)..=(conn, u64::MAX));
        let asks: Vec<AskId> = of_conn.map(|(ask, _)| *ask).collect();
        let ended = asks.into_iter().filter_map(|ask| self.under_way.end(ask));
        ended.flat_map(|through| through.readers).collect()
    }
}
