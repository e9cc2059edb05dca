//! A cachelet that arrives from another server, part by part.

use mbal_model::{Key, Seconds, WorkerId};

use crate::cachelet::Locked;
use crate::item::{Access, Item};
use crate::part::{Broken, Fields, Heading, Part, Record, marks};
use crate::routes::Way;
use crate::shim::Ordering::*;
use crate::store::Store;
use crate::types::{Draft, Full};

/// Records of one step.
const STEP_RECORDS: usize = 48;
/// Bytes after which a step ends.
const STEP_BYTES: usize = 16 << 10;

/// What the destination of a move knows of the slice that is arriving.
#[derive(Default)]
pub struct Arriving {
    slice: u32,
    /// The next part's.
    number: u32,
    /// An item whose value is still to come.
    begun: Option<Begun>,
}

struct Begun {
    fields: Fields,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// What to do about a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Import it.
    Now,
    /// It has been imported before; acknowledge it again.
    Over,
    /// One before it is missing.
    Early,
}

impl Arriving {
    /// Each part is imported once, in order. For the first part of a slice that is sent again what had begun is forgotten.
    pub fn turn_of(&mut self, heading: &Heading) -> Turn {
        let (slice, number) = (heading.slice, heading.number);
        if slice > self.slice && number == 0 {
            (self.slice, self.number, self.begun) = (slice, 0, None);
        }
        if (slice, number) < (self.slice, self.number) {
            return Turn::Over;
        }
        if (slice, number) > (self.slice, self.number) {
            return Turn::Early;
        }
        self.number += 1;
        Turn::Now
    }
}

impl Store {
    /// Stores some of the items of a part, whose [`Arriving::turn_of`] has come; false when that was all of it. Called by worker
    /// `worker`, which has entered. O(48 items), no more than 16 KiB and an item of that length; a longer value is stored at once.
    ///
    /// An item never replaces one that is here: what this server has got by itself since is newer. One of an older flush number is
    /// dropped, and so is one that finds no room, as if evicted. A cachelet that has given no cas yet goes on with the source's
    /// generation and counter, so that no cas is given twice.
    ///
    /// # Errors
    /// [`Broken`] if a value's pieces do not make it up. What was stored stays.
    pub fn import(
        &self,
        worker: WorkerId,
        arriving: &mut Arriving,
        part: &mut Part<'_>,
        now: Seconds,
    ) -> Result<bool, Broken> {
        let mut bytes = 0;
        for _ in 0..STEP_RECORDS {
            match part.next().expect("it was read whole") {
                None => return Ok(false),
                Some(Record::Item { fields, key, value }) => {
                    if arriving.begun.is_some() {
                        return Err(Broken);
                    }
                    if value.len() == fields.value_bytes as usize {
                        self.import_item(worker, &part.heading, &key, &fields, value, now);
                    } else if fields.value_bytes as usize <= self.options().item_bytes_max {
                        let mut begun = Begun { fields, key: key.bytes().to_vec(), value: vec![] };
                        begun.value.extend_from_slice(value);
                        arriving.begun = Some(begun);
                    } else {
                        return Err(Broken);
                    }
                    bytes += key.bytes().len() + value.len();
                }
                Some(Record::Further(piece)) => {
                    let mut begun = arriving.begun.take().ok_or(Broken)?;
                    if piece.is_empty() {
                        continue;
                    }
                    begun.value.extend_from_slice(piece);
                    bytes += piece.len();
                    let whole = begun.fields.value_bytes as usize;
                    if begun.value.len() > whole {
                        return Err(Broken);
                    }
                    if begun.value.len() < whole {
                        arriving.begun = Some(begun);
                        continue;
                    }
                    let Begun { fields, key, value } = begun;
                    let key = Key::new(&key).expect("it was one");
                    self.import_item(worker, &part.heading, &key, &fields, &value, now);
                }
            }
            if bytes >= STEP_BYTES {
                break;
            }
        }
        Ok(true)
    }

    fn import_item(
        &self,
        worker: WorkerId,
        heading: &Heading,
        key: &Key<'_>,
        fields: &Fields,
        value: &[u8],
        now: Seconds,
    ) {
        let hash = key.hash();
        self.reserve(worker, hash, value.len(), now);
        // The source sends what it likes; only what has a place here is taken.
        let Way::Here(_) = self.routes.of(hash) else { return };
        let mut locked = self.lock(hash, now);
        if locked.heeds(heading) && locked.find(key).is_none() {
            // No room: as if evicted.
            locked.take_in(key, fields, value).ok();
        }
    }
}

impl Locked<'_> {
    /// Goes by what the source says of the cachelet; false if what it sends was flushed here.
    fn heeds(&mut self, heading: &Heading) -> bool {
        let known = self.inner.flush_number;
        if heading.flush_number < known {
            return false;
        }
        if heading.flush_number > known {
            self.flush();
            self.inner.flush_number = heading.flush_number;
        }
        if heading.flush_in != 0 {
            let flush_at = self.now.saturating_add(heading.flush_in);
            self.cachelet.flush_at.store(flush_at, Relaxed);
        }
        let generation = u32::from(heading.generation);
        if self.inner.counter == self.inner.counter_at_birth {
            self.cachelet.generation.store(generation, Relaxed);
            (self.inner.counter, self.inner.counter_at_birth) = (heading.counter, 0);
        }
        if self.cachelet.generation.load(Relaxed) == generation {
            self.inner.counter = self.inner.counter.max(heading.counter);
        }
        true
    }

    fn take_in(&mut self, key: &Key<'_>, fields: &Fields, value: &[u8]) -> Result<(), Full> {
        let has = |mark: u8| fields.marks & mark != 0;
        let deadline = match fields.remaining {
            0 => 0,
            remaining => self.now.saturating_add(remaining),
        };
        let draft = Draft {
            flags: fields.flags,
            deadline,
            parts: &[value],
            cas: Some(fields.cas),
            stale: has(marks::STALE),
            win: has(marks::WIN),
            binary_key: has(marks::BINARY_KEY),
        };
        let counter = self.inner.counter;
        let stored = self.put(key, &draft);
        // It has been stored once already, and has its cas.
        self.inner.stats.total_items -= 1;
        self.inner.counter = counter;
        stored?;
        let last = self.now.saturating_sub(fields.idle);
        let (frequency, era) = (u32::from(fields.frequency), self.store.era());
        let access = Access::new(last, frequency, has(marks::FETCHED), era);
        let place = self.place_of(key).expect("stored just now");
        Item::at(&self.store.memory, place.offset).set_access(access.0);
        Ok(())
    }
}
