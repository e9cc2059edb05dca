//! How the parts of a slice are stored where it arrives, step by step.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Key, Prefix, Seconds, WorkerId};

use crate::access::Access;
use crate::arriving::{Arriving, Begun, STEP_RECORDS};
use crate::locked::Locked;
use crate::part::{Broken, CLOCKS_DIFFER, Fields, Heading, Part, Record, marks};
use crate::records::Arrival;
use crate::room::Room;
use crate::routes::Way;
use crate::site::Site;
use crate::store::Store;
use crate::types::{Draft, Full};

/// The index, or another worker, may have taken the room that was made for an item: then it is made again, so often. What
/// finds none then is tried again at a later turn.
const TRIES: usize = 4;
/// Bytes after which a step ends.
const STEP_BYTES: usize = 16 << 10;

/// What came of a step of [`Store::import`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportStep {
    /// There is more of the part.
    More,
    All,
    /// There is no room for the item, or the piece, that the part begins with now. What was before it is stored.
    NoRoom,
}

/// What an import does about an item that finds no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowded {
    /// [`ImportStep::NoRoom`]: it is tried again at a later turn.
    Waits,
    /// It is dropped, as if evicted; where nothing may be evicted it waits all the same.
    Drops,
}

/// What came of storing one item, or a piece of one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Placed<R> {
    Stored(R),
    /// It has no place here, was flushed, is too long, or was dropped for want of room.
    Lost,
    NoRoom,
}

impl Store {
    /// Stores some of the items of a part, for which [`Arriving::due`] has said so. Called by worker `worker`, which has entered.
    /// O(48 items), no more than 16 KiB and an item of that length; of a value that comes in pieces the last step writes less than a
    /// page more. For each item a bounded number of parts of pages is cleaned.
    ///
    /// An item never replaces one that is here: what this server has got by itself since is newer. One of an older flush number is
    /// dropped. A cachelet that has given no cas yet goes on with the source's generation and counter, so that no cas is given twice.
    /// What comes before the part's slice is gone at the source, and so served here.
    ///
    /// Nobody waits for room here: what finds none says so, or is dropped as `crowded` wants it. Where nothing is evicted nothing
    /// is dropped for want of room: an item that is longer than one may be here finds none either, and stays where it is.
    ///
    /// # Errors
    /// [`Broken`] if a value's pieces do not make it up, or an item belongs elsewhere. What was stored stays.
    pub fn import(
        &self,
        worker: WorkerId,
        arriving: &mut Arriving,
        part: &mut Part<'_>,
        now: Seconds,
        crowded: Crowded,
    ) -> Result<ImportStep, Broken> {
        if arriving.left.is_some() {
            self.remove_left(arriving, now);
            return Ok(ImportStep::More);
        }
        if !arriving.heeded {
            self.heed(arriving.prefix, &part.heading, now);
            arriving.heeded = true;
        }
        let pages = &self.shared.pages;
        pages.eras.judge_later(pages.pool.limit());
        let (mut items, mut count, mut bytes) = ([None; STEP_RECORDS], 0, 0);
        let mut step = ImportStep::More;
        while count < STEP_RECORDS && bytes < STEP_BYTES {
            let before = *part;
            let Some(record) = part.next().expect("it was read whole") else {
                step = ImportStep::All;
                break;
            };
            let comes_in_pieces = match record {
                Record::Item { fields, value, .. } => value.len() < fields.value_bytes as usize,
                Record::Further(_) => true,
            };
            if comes_in_pieces && count > 0 {
                // Records are stored in their order: so what finds no room is where the part goes on.
                *part = before;
                break;
            }
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
                        items[count] = Some((before, fields, key, value));
                        count += 1;
                        continue;
                    }
                    let is_lost = fields.value_bytes as usize > self.options().item_bytes_max;
                    if is_lost && !self.options().evict {
                        *part = before;
                        return Ok(ImportStep::NoRoom);
                    }
                    let key = key.bytes().to_vec();
                    let begun = Begun { fields, key, done: 0, is_lost };
                    let heading = &part.heading;
                    if !self.import_piece(worker, arriving, heading, begun, value, now, crowded) {
                        arriving.begun = None;
                        *part = before;
                        return Ok(ImportStep::NoRoom);
                    }
                }
                Record::Further(piece) => {
                    let begun = arriving.begun.take().ok_or(Broken)?;
                    bytes += piece.len();
                    if piece.len() > begun.bytes_left() {
                        return Err(Broken);
                    }
                    if piece.is_empty() {
                        // It has gone at the source.
                        self.lose(&begun, now);
                    } else {
                        let heading = &part.heading;
                        if !self.import_piece(worker, arriving, heading, begun, piece, now, crowded)
                        {
                            *part = before;
                            return Ok(ImportStep::NoRoom);
                        }
                    }
                }
            }
        }
        for (before, fields, key, value) in items.into_iter().take(count).flatten() {
            let item = (fields, key, value);
            if !self.import_item(worker, arriving, &part.heading, item, now, crowded) {
                *part = before;
                return Ok(ImportStep::NoRoom);
            }
        }
        Ok(step)
    }

    /// Whether a part may be asked for, of about so many bytes: a store that evicts makes room as it comes.
    pub fn has_room_to_come(
        &self,
        worker: WorkerId,
        hash: u64,
        bytes: usize,
        now: Seconds,
    ) -> bool {
        if self.options().evict {
            return true;
        }
        self.enter(worker);
        let room = self.reserve(worker, hash, bytes, now);
        self.leave(worker);
        matches!(room, Room::There | Room::Made)
    }

    /// False: there is no room.
    fn import_item(
        &self,
        worker: WorkerId,
        arriving: &mut Arriving,
        heading: &Heading,
        (fields, key, value): (Fields, Key<'_>, &[u8]),
        now: Seconds,
        crowded: Crowded,
    ) -> bool {
        let (room, is_chosen) = (value.len(), arriving.is_chosen);
        let mut store = |locked: &mut Locked<'_>| {
            let parts = [value];
            let arrival = arrival_of(&locked.site, heading, &fields, &parts, is_chosen);
            locked.take_in(&key, &arrival)
        };
        let hash = key.hash();
        let placed =
            self.with_room(worker, arriving, heading, hash, room, now, crowded, &mut store);
        !matches!(placed, Placed::NoRoom)
    }

    /// The next piece of a value; with the last one the item is stored. False: there is no room, and nothing has changed but that
    /// what is known of the value may have more of this piece already.
    #[allow(clippy::too_many_arguments)]
    fn import_piece(
        &self,
        worker: WorkerId,
        arriving: &mut Arriving,
        heading: &Heading,
        mut begun: Begun,
        piece: &[u8],
        now: Seconds,
        crowded: Crowded,
    ) -> bool {
        let key = Key::new(&begun.key).expect("it was one");
        let (hash, start, fields) = (key.hash(), begun.done, begun.fields);
        let bytes = fields.value_bytes as usize;
        let is_last = piece.len() == begun.bytes_left();
        // What was kept of it is less than a page.
        let room = piece.len() + if is_last { self.shared.pages.bytes } else { 0 };
        let (mut is_first, is_chosen) = (start == 0, arriving.is_chosen);
        let mut store = |locked: &mut Locked<'_>| {
            if std::mem::take(&mut is_first) {
                locked.drop_value();
                locked.inner.unfinished.begin(hash, bytes);
            }
            let unfinished = &mut locked.inner.unfinished;
            let goes_on = unfinished.add_piece(&locked.site, (hash, bytes), start, piece)?;
            if goes_on && is_last {
                let arrival = arrival_of(&locked.site, heading, &fields, &[], is_chosen);
                locked.finish_value(&key, &arrival)?;
            }
            Ok(goes_on)
        };
        if !begun.is_lost {
            let placed =
                self.with_room(worker, arriving, heading, hash, room, now, crowded, &mut store);
            if matches!(placed, Placed::NoRoom) {
                arriving.begun = Some(begun);
                return false;
            }
            begun.is_lost = !matches!(placed, Placed::Stored(true));
            if begun.is_lost {
                self.lose(&begun, now);
            }
        }
        begun.done += piece.len();
        arriving.begun = Some(begun).filter(|begun| begun.bytes_left() > 0);
        true
    }

    /// What has come of a value is given up.
    fn lose(&self, begun: &Begun, now: Seconds) {
        let hash = Key::new(&begun.key).expect("it was one").hash();
        if self.takes(hash) {
            self.lock(hash, now).drop_value();
        }
    }

    /// Has an item, or a piece of one, stored in the cachelet of `hash`, which has got room for so many bytes.
    #[allow(clippy::too_many_arguments)]
    fn with_room<R>(
        &self,
        worker: WorkerId,
        arriving: &mut Arriving,
        heading: &Heading,
        hash: u64,
        bytes: usize,
        now: Seconds,
        crowded: Crowded,
        mut store: impl FnMut(&mut Locked<'_>) -> Result<R, Full>,
    ) -> Placed<R> {
        let evicts = self.options().evict || is_planted(Fault::ImportDropsWhatFindsNoRoom);
        let mut room = Room::Nowhere;
        for _ in 0..TRIES {
            room = self.reserve(worker, hash, bytes, now);
            // Only what has a place here is taken.
            if !self.takes(hash) {
                return Placed::Lost;
            }
            let mut locked = self.lock(hash, now);
            if !locked.heeds(heading) {
                return Placed::Lost;
            }
            if !arriving.has_way {
                let (low, high) = locked.site.hashes_around(hash);
                let (low, high) = (heading.first.max(low), heading.last.min(high));
                if (low..=high).contains(&hash) {
                    locked.make_way(low, high, usize::from(heading.blocks));
                }
                arriving.has_way = true;
            }
            match store(&mut locked) {
                Ok(done) => return Placed::Stored(done),
                Err(Full::TooLarge) if evicts => return Placed::Lost,
                Err(Full::TooLarge) => return Placed::NoRoom,
                Err(Full::OutOfMemory) => {}
            }
            if matches!(room, Room::InUse | Room::Nowhere) {
                break;
            }
        }
        let may_come = crowded == Crowded::Waits && room != Room::Nowhere;
        if may_come || !evicts {
            return Placed::NoRoom;
        }
        self.lock(hash, now).inner.items.counts.lost(1);
        Placed::Lost
    }

    /// True of a key that is served here, or will be when its cachelet has arrived.
    fn takes(&self, hash: u64) -> bool {
        let Way::Here(slot) = self.routes.of(hash) else { return false };
        let away = &self.at(slot).front.away;
        away.arrives() || away.of(hash).is_none()
    }

    /// Every cachelet of the prefix goes by what the source says, be there no item for it.
    fn heed(&self, prefix: Prefix, heading: &Heading, now: Seconds) {
        let last = prefix.last_hash();
        let mut next = self.routes.next_here(prefix.first_hash());
        while let Some(hash) = next.filter(|hash| *hash <= last) {
            next = hash.checked_add(1 << (64 - Prefix::BITS_MAX));
            let Way::Here(slot) = self.routes.of(hash) else { continue };
            let mut locked = self.lock_cachelet(self.at(slot), now);
            let front = locked.site.front;
            let Some(whole) = front.prefix().filter(|_| !front.away.is_all()) else { continue };
            locked.heeds(heading);
            if whole == prefix && front.away.arrives() {
                let gone = match is_planted(Fault::ServedWhileItComes) {
                    true => u128::from(heading.last) + 1,
                    false => heading.first.into(),
                };
                front.away.have_arrived(gone);
            }
            if locked.inner.split.is_under_way() {
                self.lock_half(self.child(front), now).heeds(heading);
            }
            let behind = whole.last_hash().checked_add(1).filter(|hash| *hash <= last);
            next = behind.and_then(|hash| self.routes.next_here(hash));
        }
    }
}

impl Locked<'_> {
    /// Goes by what the source says of the cachelet; false if what it sends was flushed here.
    fn heeds(&mut self, heading: &Heading) -> bool {
        let front = self.site.front;
        self.inner.items.counter.follow(front, heading.generation, heading.counter);
        let known = self.inner.flushed.number();
        if heading.flush_number < known && !is_planted(Fault::FlushNumberIgnored) {
            return false;
        }
        if heading.flush_number > known {
            self.flush(heading.flush_number);
        }
        let flushed = &mut self.inner.flushed;
        let next = flushed.next().max(flushed.number());
        // One number for the last flush and for the next: two servers gave it, one of which did not know the other yet.
        let shares_number = heading.flush_next == heading.flush_number;
        if heading.flush_in != 0 && (heading.flush_next > next || shares_number) {
            let flush_at = sent_at(&self.site, heading).saturating_add(heading.flush_in);
            flushed.await_next(front, flush_at, heading.flush_next);
        }
        true
    }
}

/// When a part was sent, by this server's clock.
fn sent_at(site: &Site, heading: &Heading) -> Seconds {
    let since = site.shared.clock.unix_at(site.now).wrapping_sub(heading.unix) as i64;
    let seems = if since.unsigned_abs() <= CLOCKS_DIFFER { since as i32 } else { 0 };
    site.now.saturating_add_signed(-seems)
}

fn arrival_of<'d>(
    site: &Site,
    heading: &Heading,
    fields: &Fields,
    parts: &'d [&'d [u8]],
    is_chosen: bool,
) -> Arrival<'d> {
    let has = |mark: u8| fields.marks & mark != 0;
    let deadline = match fields.remaining {
        0 => 0,
        remaining => sent_at(site, heading).saturating_add(remaining),
    };
    let last = site.now.saturating_sub(fields.idle);
    Arrival {
        draft: Draft {
            flags: fields.flags,
            deadline,
            parts,
            cas: None,
            stale: has(marks::STALE),
            win: has(marks::WIN),
            binary_key: has(marks::BINARY_KEY),
        },
        cas: fields.cas,
        access: Access::new(last, fields.frequency.into(), has(marks::FETCHED), site.era()),
        is_chosen,
    }
}
