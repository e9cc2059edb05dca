//! A cachelet that arrives from another server, part by part.
//!
//! ```text
//!   hashes of the cachelet:   | served here ....... | arriving | its source's ....... |
//!   Store::route says:          Own or Neighbour      Peer       Peer
//! ```
//!
//! A slice is served here once the source has said that it is gone there, since only then the source never serves it again.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Elsewhere, Key, Prefix, Seconds, ServerId, WorkerId};

use crate::access::Access;
use crate::cachelet::Cachelet;
use crate::index::hash_of;
use crate::locked::Locked;
use crate::memory::{Offset, prefetch};
use crate::part::{Broken, Fields, Heading, Part, Record, marks};
use crate::routes::Way;
use crate::shim::Ordering::*;
use crate::slice::Slice;
use crate::store::Store;
use crate::types::{Birth, Draft, Full};

/// Records of one step.
const STEP_RECORDS: usize = 48;
/// The index, or another worker, may have taken the room that was made for an item: then it is made again, so often.
const TRIES: usize = 16;
/// Bytes after which a step ends.
const STEP_BYTES: usize = 16 << 10;

/// What the destination of a move knows of the slice that is arriving.
pub struct Arriving {
    prefix: Prefix,
    slice: u32,
    /// The next part's.
    number: u32,
    /// The slice's hashes.
    first: u64,
    last: u64,
    /// Hashes from here on have items of an earlier attempt, which go first.
    left: Option<u64>,
    /// The part's heading has been heeded by every cachelet.
    heeded: bool,
    /// The index has a slice for what arrives.
    has_way: bool,
    begun: Option<Begun>,
}

/// An item whose value is still to come.
struct Begun {
    fields: Fields,
    key: Vec<u8>,
    /// Nothing of one that is longer than an item may be here.
    value: Vec<u8>,
    bytes_left: usize,
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
    /// worker `owner`, see [`Store::serve_until`]. False as for [`Store::adopt`].
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
        let _changes = self.changes();
        let Some(cachelet) = self.present(prefix).filter(|cachelet| cachelet.arrives()) else {
            return;
        };
        cachelet.have_arrived(u128::from(last) + 1);
        if last >= prefix.last_hash() {
            cachelet.set_away(None);
            self.version.fetch_add(1, Release);
        }
    }

    /// Stores some of the items of a part, whose [`Arriving::due`] has come; false when that was all of it. Called by worker
    /// `worker`, which has entered. O(48 items), no more than 16 KiB and an item of that length; a longer value is stored at once.
    ///
    /// An item never replaces one that is here: what this server has got by itself since is newer. One of an older flush number is
    /// dropped, and so is one that finds no room, or is longer than an item may be here, as if evicted. A cachelet that has given no
    /// cas yet goes on with the source's generation and counter, so that no cas is given twice. What comes before the part's slice
    /// is gone at the source, and so served here.
    ///
    /// # Errors
    /// [`Broken`] if a value's pieces do not make it up, or an item belongs elsewhere. What was stored stays.
    pub fn import(
        &self,
        worker: WorkerId,
        arriving: &mut Arriving,
        part: &mut Part<'_>,
        now: Seconds,
    ) -> Result<bool, Broken> {
        if arriving.left.is_some() {
            self.remove_left(arriving, now);
            return Ok(true);
        }
        if !arriving.heeded {
            self.heed(arriving.prefix, &part.heading, now);
            arriving.heeded = true;
        }
        let (mut items, mut count, mut bytes) = ([None; STEP_RECORDS], 0, 0);
        let mut more = true;
        while count < STEP_RECORDS && bytes < STEP_BYTES {
            let Some(record) = part.next().expect("it was read whole") else {
                more = false;
                break;
            };
            match record {
                Record::Item { fields, key, value } => {
                    if arriving.begun.is_some() {
                        return Err(Broken);
                    }
                    let key = Key::new(key).expect("a part has keys of valid lengths");
                    if !arriving.prefix.contains(key.hash()) {
                        return Err(Broken);
                    }
                    bytes += key.bytes().len() + value.len();
                    if value.len() == fields.value_bytes as usize {
                        self.prefetch_bucket(key.hash());
                        items[count] = Some((fields, key, value));
                        count += 1;
                        continue;
                    }
                    let whole = fields.value_bytes as usize;
                    let fits = whole <= self.options().item_bytes_max;
                    let first = if fits { value.to_vec() } else { Vec::new() };
                    let (key, bytes_left) = (key.bytes().to_vec(), whole - value.len());
                    arriving.begun = Some(Begun { fields, key, value: first, bytes_left });
                }
                Record::Further(piece) => {
                    let begun = arriving.begun.as_mut().ok_or(Broken)?;
                    bytes += piece.len();
                    begun.bytes_left = begun.bytes_left.checked_sub(piece.len()).ok_or(Broken)?;
                    if begun.fields.value_bytes as usize <= self.options().item_bytes_max {
                        begun.value.extend_from_slice(piece);
                    }
                    if !piece.is_empty() && begun.bytes_left > 0 {
                        continue;
                    }
                    let Begun { fields, key, value, .. } =
                        arriving.begun.take().expect("it was there");
                    if value.len() == fields.value_bytes as usize {
                        let item = (fields, Key::new(&key).expect("it was one"), value.as_slice());
                        self.import_item(worker, arriving, &part.heading, item, now);
                    }
                }
            }
        }
        for item in items.into_iter().take(count).flatten() {
            self.import_item(worker, arriving, &part.heading, item, now);
        }
        Ok(more)
    }

    fn import_item(
        &self,
        worker: WorkerId,
        arriving: &mut Arriving,
        heading: &Heading,
        (fields, key, value): (Fields, Key<'_>, &[u8]),
        now: Seconds,
    ) {
        let hash = key.hash();
        for _ in 0..TRIES {
            self.reserve(worker, hash, value.len(), now);
            // Only what has a place here is taken.
            if !self.takes(hash) {
                return;
            }
            let mut locked = self.lock(hash, now);
            if !locked.heeds(heading) {
                return;
            }
            if !arriving.has_way {
                let (low, high) = locked.hashes_around(hash);
                let (low, high) = (heading.first.max(low), heading.last.min(high));
                if (low..=high).contains(&hash) {
                    locked.make_way(low, high, usize::from(heading.blocks));
                }
                arriving.has_way = true;
            }
            if locked.arrive(&key, &fields, value) != Err(Full::OutOfMemory) {
                return;
            }
        }
        // As if evicted.
        self.lock(hash, now).inner.stats.evictions += 1;
    }

    /// True of a key that is served here, or will be when its cachelet has arrived.
    fn takes(&self, hash: u64) -> bool {
        let Way::Here(slot) = self.routes.of(hash) else { return false };
        let cachelet = self.at(slot);
        cachelet.arrives() || cachelet.away(hash).is_none()
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
    fn remove_left(&self, arriving: &mut Arriving, now: Seconds) {
        let last = arriving.prefix.last_hash();
        let from = arriving.left.and_then(|from| self.routes.next_here(from));
        let Some(from) = from.filter(|from| *from <= last) else {
            arriving.left = None;
            return;
        };
        let Way::Here(slot) = self.routes.of(from) else { return };
        let (mut locked, end) = self.lock_slice(slot, from, now);
        let slice = locked.slice_at(locked.entry(from));
        let offsets: Vec<Offset> = slice.into_iter().flat_map(Slice::offsets).collect();
        offsets.iter().for_each(|offset| prefetch(self.memory.at(*offset)));
        let hashed = offsets.into_iter().map(|offset| (hash_of(&self.memory, offset), offset));
        let left: Vec<(u64, Offset)> = hashed
            .filter(|(hash, _)| (u128::from(from)..end).contains(&u128::from(*hash)))
            .collect();
        for &(hash, offset) in left.iter().take(STEP_RECORDS) {
            let place = locked.place_at(hash, offset).expect("nobody moved it under this lock");
            locked.unlink(hash, place);
        }
        if left.len() <= STEP_RECORDS {
            arriving.left = u64::try_from(end).ok().filter(|end| *end <= last);
        }
    }

    /// Every cachelet of the prefix goes by what the source says, be there no item for it.
    fn heed(&self, prefix: Prefix, heading: &Heading, now: Seconds) {
        let last = prefix.last_hash();
        let mut next = self.routes.next_here(prefix.first_hash());
        while let Some(hash) = next.filter(|hash| *hash <= last) {
            next = hash.checked_add(1 << (64 - Prefix::BITS_MAX));
            let Way::Here(slot) = self.routes.of(hash) else { continue };
            let mut locked = self.lock_cachelet(self.at(slot), now);
            let Some(whole) = locked.cachelet.prefix().filter(|_| !locked.cachelet.is_away())
            else {
                continue;
            };
            locked.heeds(heading);
            if whole == prefix && locked.cachelet.arrives() {
                locked.cachelet.have_arrived(heading.first.into());
            }
            if locked.inner.splits {
                self.lock_cachelet(self.child(locked.cachelet), now).heeds(heading);
            }
            let behind = whole.last_hash().checked_add(1).filter(|hash| *hash <= last);
            next = behind.and_then(|hash| self.routes.next_here(hash));
        }
    }
}

impl Locked<'_> {
    /// Goes by what the source says of the cachelet; false if what it sends was flushed here.
    fn heeds(&mut self, heading: &Heading) -> bool {
        let generation = u32::from(heading.generation);
        if self.inner.counter == self.inner.counter_at_birth {
            self.cachelet.generation.store(generation, Relaxed);
            (self.inner.counter, self.inner.counter_at_birth) = (heading.counter, 0);
        }
        if self.cachelet.generation.load(Relaxed) == generation {
            self.inner.counter = self.inner.counter.max(heading.counter);
        }
        let known = self.inner.flush_number;
        if heading.flush_number < known && !is_planted(Fault::FlushNumberIgnored) {
            return false;
        }
        if heading.flush_number > known {
            self.flush(heading.flush_number);
        }
        if heading.flush_in != 0 && heading.flush_next > self.inner.flush_number {
            let flush_at = self.now.saturating_add(heading.flush_in);
            self.cachelet.flush_at.store(flush_at, Relaxed);
            self.inner.flush_next = heading.flush_next;
        }
        true
    }

    fn arrive(&mut self, key: &Key<'_>, fields: &Fields, value: &[u8]) -> Result<(), Full> {
        let has = |mark: u8| fields.marks & mark != 0;
        let deadline = match fields.remaining {
            0 => 0,
            remaining => self.now.saturating_add(remaining),
        };
        let draft = Draft {
            flags: fields.flags,
            deadline,
            parts: &[value],
            cas: None,
            stale: has(marks::STALE),
            win: has(marks::WIN),
            binary_key: has(marks::BINARY_KEY),
        };
        let last = self.now.saturating_sub(fields.idle);
        let (frequency, era) = (u32::from(fields.frequency), self.store.era());
        let access = Access::new(last, frequency, has(marks::FETCHED), era);
        self.take_in(key, &draft, fields.cas, access)
    }
}

/// Of a cachelet that arrives. The boundary is kept halved: the end of all hashes has 65 bits.
impl Cachelet {
    pub(crate) fn begin_to_arrive(&self, first: u64, from: ServerId) {
        self.arrived.store(first >> 1, Relaxed);
        self.set_partly_away(Elsewhere::Peer(from));
    }

    fn have_arrived(&self, end: u128) {
        self.arrived.fetch_max((end >> 1) as u64, Release);
    }
}
