//! A cachelet that arrives from another server, part by part.
//!
//! ```text
//!   hashes of the cachelet:   | served here ....... | arriving | its source's ....... |
//!   Store::route says:          Own or Neighbour      Peer       Peer
//! ```
//!
//! A slice is served here once the source has said that it is gone there, since only then the source never serves it again.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Prefix, Seconds, ServerId, WorkerId};

use crate::cachelet::Cachelet;
use crate::memory::{Offset, prefetch};
use crate::part::{Fields, Heading};
use crate::routes::Way;
use crate::shim::Ordering::*;
use crate::slice::Slice;
use crate::store::Store;
use crate::types::Birth;

/// Records of one step of an import.
pub(crate) const STEP_RECORDS: usize = 48;

/// What the destination of a move knows of the slice that is arriving.
pub struct Arriving {
    pub(crate) prefix: Prefix,
    slice: u32,
    /// The next part's.
    number: u32,
    /// The slice's hashes.
    first: u64,
    last: u64,
    /// Hashes from here on have items of an earlier attempt, which go first.
    pub(crate) left: Option<u64>,
    /// The part's heading has been heeded by every cachelet.
    pub(crate) heeded: bool,
    /// The index has a slice for what arrives.
    pub(crate) has_way: bool,
    pub(crate) begun: Option<Begun>,
    /// Its source sends only what was chosen: that is worth protecting.
    pub is_chosen: bool,
}

/// An item whose value is still to come.
pub(crate) struct Begun {
    pub fields: Fields,
    pub key: Vec<u8>,
    /// Bytes of its value that have come.
    pub done: usize,
    /// It is not stored: longer than an item may be here, flushed, or out of memory. The rest of it is passed over.
    pub is_lost: bool,
}

impl Begun {
    pub fn bytes_left(&self) -> usize {
        self.fields.value_bytes as usize - self.done
    }
}

/// What to do about a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Import it.
    Now,
    /// It has been imported before; acknowledge it again.
    Over,
    /// One before it is missing.
    Early,
}

impl Arriving {
    /// Of a move of this cachelet.
    pub fn new(prefix: Prefix) -> Arriving {
        Arriving {
            prefix,
            slice: 0,
            number: 0,
            first: prefix.first_hash(),
            last: prefix.first_hash(),
            left: None,
            heeded: false,
            has_way: false,
            begun: None,
            is_chosen: false,
        }
    }

    /// Each part is imported once, in order. For the first part of a slice that is sent again what has arrived of it is forgotten.
    pub fn due(&mut self, heading: &Heading) -> Due {
        let (slice, number) = (heading.slice, heading.number);
        if slice > self.slice && number == 0 {
            let came_before = self.number > 0 && heading.first <= self.first;
            if came_before && !is_planted(Fault::KeepsWhatArrived) {
                self.left = Some(heading.first);
            }
            (self.slice, self.number, self.begun) = (slice, 0, None);
        }
        if (slice, number) < (self.slice, self.number) {
            if is_planted(Fault::ImportAgain) || is_planted(Fault::ImportOverNewer) {
                return Due::Now;
            }
            return Due::Over;
        }
        if (slice, number) > (self.slice, self.number) {
            return Due::Early;
        }
        if number == 0 {
            (self.first, self.last) = (heading.first, heading.last);
            self.has_way = false;
        }
        self.heeded = false;
        self.number += 1;
        Due::Now
    }

    /// The last hash of the slice that is on its way: for [`Store::serve_until`], as soon as the source has said that it is gone.
    pub fn last(&self) -> u64 {
        self.last
    }
}

impl Store {
    /// A cachelet begins to arrive from a server, which serves it meanwhile: a slice at a time is imported, and then served by
    /// worker `owner`, see [`Store::serve_until`]. False as for [`crate::Cachelets::adopt`].
    pub fn begin_to_arrive(
        &self,
        prefix: Prefix,
        owner: WorkerId,
        birth: Birth,
        from: ServerId,
    ) -> bool {
        self.bring(prefix, owner, birth, Some(from))
    }

    /// Every key of an arriving cachelet up to this hash is served here from now on: the source has said that it is gone there, be
    /// it by a request that it sent on. A part of the next slice says so too, see [`Store::import`]. After its last hash the
    /// cachelet is as any other.
    pub fn serve_until(&self, prefix: Prefix, last: u64) {
        let _changes = self.slots.changes();
        let arrives = |cachelet: &&Cachelet| cachelet.front.away.arrives();
        let Some(cachelet) = self.present(prefix).filter(arrives) else {
            return;
        };
        cachelet.front.away.have_arrived(u128::from(last) + 1);
        if last >= prefix.last_hash() {
            // Nothing more is to come.
            self.lock_cachelet(cachelet, 0).drop_value();
            self.becomes_whole(cachelet);
        }
    }

    /// A cachelet travels no more: all of it is served here.
    pub(crate) fn becomes_whole(&self, Cachelet { front, inner }: &Cachelet) {
        front.away.set(None);
        inner.lock().flushed.count_as_stored_since(front, self.shared.flushes.over());
        self.version.fetch_add(1, Release);
    }

    /// All of an arriving cachelet is served here from now on, though not all of it came: its source is dead. What came of a slice that
    /// was not gone there has been given up, see [`Store::give_up`]. The cas leap ahead of all that the source may have given since.
    pub fn inherit(&self, prefix: Prefix, now: Seconds) {
        if let Some(cachelet) = self.present(prefix).filter(|one| one.front.away.arrives()) {
            self.lock_cachelet(cachelet, now).inner.items.counter.leap();
        }
        self.serve_until(prefix, prefix.last_hash());
    }

    /// Gives up what has arrived of the slice that is on its way, since the source is to serve it again; true if there is more. Parts
    /// of it that are still to come are over.
    pub fn give_up(&self, arriving: &mut Arriving, now: Seconds) -> bool {
        if arriving.left.is_none() && arriving.number == 0 {
            return false;
        }
        if arriving.number > 0 {
            (arriving.slice, arriving.number, arriving.begun) = (arriving.slice + 1, 0, None);
            arriving.left = Some(arriving.first);
        }
        self.remove_left(arriving, now);
        arriving.left.is_some()
    }

    /// Removes some items of an earlier attempt: the source still has every hash from `arriving.left` on, so whatever is here came by it.
    pub(crate) fn remove_left(&self, arriving: &mut Arriving, now: Seconds) {
        let last = arriving.prefix.last_hash();
        let from = arriving.left.and_then(|from| self.routes.next_here(from));
        let Some(from) = from.filter(|from| *from <= last) else {
            arriving.left = None;
            return;
        };
        let Way::Here(slot) = self.routes.of(from) else { return };
        let (mut locked, end) = self.lock_slice(slot, from, now);
        locked.drop_value();
        let (site, memory) = (&locked.site, self.memory());
        let slice = site.slice_at(site.entry(from));
        let offsets: Vec<Offset> = slice.into_iter().flat_map(Slice::offsets).collect();
        offsets.iter().for_each(|offset| prefetch(memory.at(*offset)));
        let hashed = offsets.into_iter().map(|offset| (site.item(offset).hash(), offset));
        let left: Vec<(u64, Offset)> = hashed
            .filter(|(hash, _)| (u128::from(from)..end).contains(&u128::from(*hash)))
            .collect();
        for &(hash, offset) in left.iter().take(STEP_RECORDS) {
            let place = locked.site.place_at(hash, offset);
            locked.unlink(hash, place.expect("nobody moved it under this lock"));
        }
        if left.len() <= STEP_RECORDS {
            arriving.left = u64::try_from(end).ok().filter(|end| *end <= last);
        }
    }
}
