//! Copies what was chosen, sees whether it was written meanwhile, and takes back what it has copied.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::thread;
use std::time::Instant;

use mbal_elastic::pool::{Listing, Plan, Resize};
use mbal_wire::is_meta_key;

use crate::connection::{Added, Connection, Dial, Failed, TTL_RELATIVE_MAX, Value};
use crate::counts::Counts;
use crate::pace::Pace;
use crate::survey::{Surveyed, list};
use crate::sweeping::delete_all;

/// A batch has at most so many bytes, unless its first item has more.
const BATCH_BYTES: u64 = 1 << 20;

/// One resize under way.
pub struct Move<'a> {
    members: &'a [Surveyed],
    resize: &'a Resize,
    dial: Dial<'a>,
    pace: &'a Pace,
    sources: Vec<Source>,
    pub counts: Counts,
}

/// What was copied from a server. The listings are the survey's, and one more of each check.
#[derive(Default)]
struct Source {
    later: Vec<Listing>,
    copies: Vec<Copy>,
}

#[derive(Clone, Copy)]
struct Copy {
    /// 0 is the survey's.
    listing: u16,
    destination: u16,
    item: u32,
    cas: u64,
}

/// What a thread has done, also where it failed.
#[derive(Default)]
struct Done {
    copies: Vec<Copy>,
    counts: Counts,
    failed: Option<Failed>,
}

impl<'a> Move<'a> {
    pub fn new(
        members: &'a [Surveyed],
        resize: &'a Resize,
        dial: Dial<'a>,
        pace: &'a Pace,
    ) -> Move<'a> {
        let sources = members.iter().map(|_| Source::default()).collect();
        Move { members, resize, dial, pace, sources, counts: Counts::default() }
    }

    /// Copies that are at their destinations now.
    pub fn copies(&self) -> u64 {
        self.sources.iter().map(|source| source.copies.len() as u64).sum()
    }

    /// Deletes the strays, which an add would take for newer values.
    pub fn clear(&mut self, plan: &Plan) -> Result<(), Failed> {
        self.pace.progress.begin(plan.strays.iter().map(|strays| strays.len() as u64).sum());
        for (member, strays) in self.members.iter().zip(&plan.strays) {
            if strays.is_empty() {
                continue;
            }
            let mut connection = Connection::open(self.dial, &member.server)?;
            let listing = &member.listing;
            let keys = strays.iter().map(|&item| listing.key(&listing.items()[item as usize]));
            self.counts.strays += delete_all(&mut connection, keys, Some(self.pace))?;
        }
        Ok(())
    }

    /// Copies what the plan says, all sources at once. What was copied before a failure is known to [`undo`](Move::undo).
    pub fn carry(&mut self, plan: &Plan) -> Result<(), Failed> {
        self.pace.progress.begin(plan.carried.iter().map(|items| items.len() as u64).sum());
        let all: Vec<_> = plan.carried.iter().map(|items| (0, &items[..])).collect();
        let done = self.copy_all(&all);
        self.book(done)
    }

    /// `what` is, by source, the number of a listing and items of it with their destinations.
    fn copy_all(&self, what: &[(u16, &[(u32, u16)])]) -> Vec<Done> {
        thread::scope(|scope| {
            let threads: Vec<_> = what
                .iter()
                .enumerate()
                .map(|(source, &(listing, items))| {
                    scope.spawn(move || self.copy_from(source, listing, items))
                })
                .collect();
            let done = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
            done.collect()
        })
    }

    fn book(&mut self, done: Vec<Done>) -> Result<(), Failed> {
        let mut result = Ok(());
        for (source, done) in self.sources.iter_mut().zip(done) {
            source.copies.extend(done.copies);
            self.counts += done.counts;
            if let Some(failed) = done.failed {
                result = Err(failed);
            }
        }
        result
    }

    fn listing(&self, source: usize, number: u16) -> &Listing {
        match number.checked_sub(1) {
            None => &self.members[source].listing,
            Some(later) => &self.sources[source].later[usize::from(later)],
        }
    }

    fn copy_from(&self, source: usize, listing: u16, items: &[(u32, u16)]) -> Done {
        let mut done = Done::default();
        if !items.is_empty() {
            done.failed = self.try_copy(source, listing, items, &mut done).err();
        }
        done
    }

    fn try_copy(
        &self,
        source: usize,
        number: u16,
        items: &[(u32, u16)],
        done: &mut Done,
    ) -> Result<(), Failed> {
        let listing = self.listing(source, number);
        let key = |item: u32| listing.key(&listing.items()[item as usize]);
        let mut from = Connection::open(self.dial, &self.members[source].server)?;
        let mut to: BTreeMap<u16, Connection> = BTreeMap::new();
        let mut rest = items;
        while !rest.is_empty() && !self.pace.is_stopped() {
            let count = batch(
                rest.iter().map(|&(item, _)| listing.items()[item as usize].bytes),
                self.pace.batch_items(),
            );
            let (batch, after) = rest.split_at(count);
            rest = after;
            let sayable: Vec<(u32, u16)> =
                batch.iter().copied().filter(|&(item, _)| is_meta_key(key(item))).collect();
            done.counts.refused += (batch.len() - sayable.len()) as u64;
            sayable.iter().for_each(|&(item, _)| from.ask(key(item)));
            let values = from.values(sayable.len())?;
            let mut sent: BTreeMap<u16, Vec<(u32, u64, u64)>> = BTreeMap::new();
            for (&(item, destination), value) in sayable.iter().zip(&values) {
                let Some(value) = value.as_ref().filter(|value| value.ttl != Some(0)) else {
                    // A later listing has it again if it is being fetched.
                    done.counts.gone += u64::from(number == 0);
                    continue;
                };
                let connection = match to.entry(destination) {
                    std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
                    std::collections::btree_map::Entry::Vacant(place) => {
                        let server = &self.members[usize::from(destination)].server;
                        place.insert(Connection::open(self.dial, server)?)
                    }
                };
                connection.add(key(item), value, self.ttl(destination, value));
                let bytes = (key(item).len() + value.bytes.len()) as u64;
                sent.entry(destination).or_default().push((item, value.cas, bytes));
            }
            let mut bytes = 0;
            let mut failed = None;
            for (destination, sent) in sent {
                let connection = to.get_mut(&destination).expect("it was opened above");
                match connection.added(sent.len()) {
                    Ok(added) => {
                        for (&(item, cas, size), added) in sent.iter().zip(added) {
                            match added {
                                Added::Stored => {
                                    let copy = Copy { listing: number, destination, item, cas };
                                    done.copies.push(copy);
                                    done.counts.copied += 1;
                                    bytes += size;
                                }
                                Added::There => done.counts.there += 1,
                                Added::Refused => done.counts.refused += 1,
                            }
                        }
                    }
                    Err(error) => {
                        // Any of them may have been stored: all are taken back.
                        let copy = |&(item, cas, _): &(u32, u64, u64)| Copy {
                            listing: number,
                            destination,
                            item,
                            cas,
                        };
                        done.copies.extend(sent.iter().map(copy));
                        failed = Some(error);
                    }
                }
            }
            done.counts.bytes += bytes;
            self.pace.progress.add(batch.len() as u64, bytes);
            if let Some(failed) = failed {
                return Err(failed);
            }
            self.pace.take(bytes);
        }
        Ok(())
    }

    /// What is left of a value's time to live, as its destination reads it; 0 is forever.
    fn ttl(&self, destination: u16, value: &Value) -> i64 {
        let Some(ttl) = value.ttl else { return 0 };
        if ttl <= TTL_RELATIVE_MAX {
            return ttl;
        }
        let clock = self.members[usize::from(destination)].clock;
        ttl.saturating_add_unsigned(clock.at(Instant::now()))
    }

    /// Lists the sources again. Copies of what was written or deleted since it was copied are deleted; with `again`, what was written or
    /// read since the survey and is not copied is copied. How many were.
    pub fn check(&mut self, plan: &Plan, again: bool) -> Result<u64, Failed> {
        self.pace.progress.begin(0);
        let checked: Vec<Result<Checked, Failed>> = thread::scope(|scope| {
            let this = &*self;
            let threads: Vec<_> = (0..self.members.len())
                .map(|source| {
                    let carries = !plan.carried[source].is_empty();
                    scope.spawn(move || match carries {
                        true => this.look_again(source, again),
                        false => Ok(Checked::default()),
                    })
                })
                .collect();
            let checked = threads.into_iter();
            checked.map(|thread| thread.join().expect("it does not panic")).collect()
        });
        let mut what = Vec::new();
        for (source, checked) in checked.into_iter().enumerate() {
            let Checked { outdated, fresh, items } = checked?;
            self.counts.outdated += outdated.len() as u64;
            self.delete_copies(source, &outdated)?;
            let kept = &mut self.sources[source];
            let mut numbers = outdated.into_iter().peekable();
            let mut number = 0;
            kept.copies.retain(|_| {
                number += 1;
                numbers.next_if_eq(&(number - 1)).is_none()
            });
            kept.later.push(fresh);
            what.push((kept.later.len() as u16, items));
        }
        let items: u64 = what.iter().map(|(_, items)| items.len() as u64).sum();
        self.pace.progress.begin(items);
        let what: Vec<_> = what.iter().map(|(listing, items)| (*listing, &items[..])).collect();
        let done = self.copy_all(&what);
        self.book(done)?;
        Ok(items)
    }

    fn look_again(&self, source: usize, again: bool) -> Result<Checked, Failed> {
        let Source { copies, .. } = &self.sources[source];
        let mut unseen: HashMap<&[u8], usize> = HashMap::with_capacity(copies.len());
        for (number, copy) in copies.iter().enumerate() {
            let listing = self.listing(source, copy.listing);
            unseen.insert(listing.key(&listing.items()[copy.item as usize]), number);
        }
        let surveyed = &self.members[source];
        // A listing by LRU lists passes over items that memcached moves from one to another meanwhile: hot ones.
        let listed = surveyed.listing.items().iter();
        let listed = listed.filter(|item| self.resize.owner_after(item.place) != source);
        let known: HashSet<&[u8]> = listed.map(|item| surveyed.listing.key(item)).collect();
        let mut checked = Checked::default();
        let mut connection = Connection::open(self.dial, &surveyed.server)?;
        list(&mut connection, (self.pace, self.members.len()), |line| {
            let copied = unseen.remove(&line.key[..]);
            let stays = copied.is_some_and(|number| copies[number].cas == line.cas);
            if let (Some(number), false) = (copied, stays) {
                checked.outdated.push(number);
            }
            let is_new = line.last_access >= surveyed.now || !known.contains(&line.key[..]);
            if stays || !again || !is_new {
                return;
            }
            let place = self.resize.new.hash().place(&line.key);
            let destination = self.resize.owner_after(place);
            if self.resize.owner_before(place) == source && destination != source {
                let item = checked.fresh.items().len() as u32;
                checked.fresh.push(&line, surveyed.now, self.resize.new.hash());
                if checked.fresh.items().len() as u32 > item {
                    checked.items.push((item, destination as u16));
                }
            }
        })?;
        let unseen: Vec<(&[u8], usize)> = unseen.into_iter().collect();
        for batch in unseen.chunks(self.pace.batch_items()) {
            batch.iter().for_each(|(key, _)| connection.ask(key));
            let values = connection.values(batch.len())?;
            for (value, &(_, number)) in values.iter().zip(batch) {
                if value.as_ref().is_none_or(|value| value.cas != copies[number].cas) {
                    checked.outdated.push(number);
                }
            }
        }
        checked.outdated.sort_unstable();
        Ok(checked)
    }

    /// Deletes the copies of those numbers; goes on with the other destinations where one cannot be reached.
    fn delete_copies(&self, source: usize, numbers: &[usize]) -> Result<(), Failed> {
        let mut by_destination: BTreeMap<u16, Vec<&[u8]>> = BTreeMap::new();
        for &number in numbers {
            let copy = self.sources[source].copies[number];
            let listing = self.listing(source, copy.listing);
            let key = listing.key(&listing.items()[copy.item as usize]);
            by_destination.entry(copy.destination).or_default().push(key);
        }
        let mut result = Ok(());
        for (destination, keys) in by_destination {
            let server = &self.members[usize::from(destination)].server;
            let deleted = Connection::open(self.dial, server)
                .and_then(|mut connection| delete_all(&mut connection, keys.into_iter(), None));
            if let Err(failed) = deleted {
                result = Err(failed);
            }
        }
        result
    }

    /// Deletes all copies: the pool is what it was. `give_up` is asked between servers. What could not be deleted stays known.
    pub fn undo(&mut self, give_up: &dyn Fn() -> bool) -> Result<(), Failed> {
        let mut result = Ok(());
        self.pace.progress.begin(self.copies());
        for source in 0..self.sources.len() {
            if give_up() {
                break;
            }
            let numbers: Vec<usize> = (0..self.sources[source].copies.len()).collect();
            match self.delete_copies(source, &numbers) {
                Ok(()) => {
                    self.pace.progress.add(numbers.len() as u64, 0);
                    self.sources[source].copies.clear();
                }
                Err(failed) => result = Err(failed),
            }
        }
        result
    }
}

/// What a source's second listing showed.
#[derive(Default)]
struct Checked {
    /// Numbers of copies, ascending.
    outdated: Vec<usize>,
    fresh: Listing,
    items: Vec<(u32, u16)>,
}

/// How many items make the next batch.
fn batch(sizes: impl Iterator<Item = u32>, most: usize) -> usize {
    let mut bytes = 0;
    let fits = sizes.take(most).take_while(|&size| {
        bytes += u64::from(size);
        bytes <= BATCH_BYTES
    });
    fits.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_bounded_by_items_and_by_bytes() {
        assert_eq!(batch([100; 500].into_iter(), 128), 128);
        assert_eq!(batch([400_000; 500].into_iter(), 128), 2);
        assert_eq!(batch([2_000_000; 500].into_iter(), 128), 1);
    }
}
