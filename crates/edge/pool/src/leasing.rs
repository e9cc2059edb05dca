//! Copies keys while clients write them, by leases at their new places ([`Batch`]).

use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;

use mbal_elastic::pool::{Plan, Resize};
use mbal_elastic::switch::{Batch, BatchCounts, Side};
use mbal_routing::ketama::RingServer;

use crate::connection::{Connection, Dial, Failed};
use crate::counts::Counts;
use crate::pace::Pace;
use crate::survey::Surveyed;
use crate::sweeping::delete_all;

/// One resize under way, of these servers, behind proxies.
pub struct Leases<'a> {
    ways: Ways<'a>,
    resize: &'a Resize,
    /// What these keys' new places may have of them: by destination.
    copied: BTreeMap<usize, Vec<Vec<u8>>>,
    /// Kept for keys that are written again and again.
    connections: BTreeMap<usize, Connection>,
    pub counts: Counts,
}

/// How servers are reached, and how fast.
#[derive(Clone, Copy)]
struct Ways<'a> {
    servers: &'a [RingServer],
    dial: Dial<'a>,
    pace: &'a Pace,
}

/// What a thread has done, also where it failed.
#[derive(Default)]
struct Done {
    copied: BTreeMap<usize, Vec<Vec<u8>>>,
    there: Vec<Vec<u8>>,
    counts: Counts,
    failed: Option<Failed>,
}

impl Ways<'_> {
    fn open(&self, server: usize) -> Result<Connection, Failed> {
        Connection::open(self.dial, &self.servers[server])
    }

    fn carry_from(&self, source: usize, members: &[Surveyed], plan: &Plan) -> Done {
        let mut done = Done::default();
        let mut connections = BTreeMap::new();
        let listing = &members[source].listing;
        let mut rest = &plan.carried[source][..];
        while !rest.is_empty() && !self.pace.is_stopped() && done.failed.is_none() {
            let (some, after) = rest.split_at(self.pace.batch_items().min(rest.len()));
            rest = after;
            let mut keys: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
            for &(item, destination) in some {
                let key = listing.key(&listing.items()[item as usize]).to_vec();
                keys.entry(destination.into()).or_default().push(key);
            }
            for (destination, keys) in keys {
                // They count as copied before they are: any of them may be.
                done.copied.entry(destination).or_default().extend(keys.iter().cloned());
                let clock = members[destination].clock.at(Instant::now());
                let batch = Batch::new(keys, false, clock);
                match self.exchange(&mut connections, (source, destination), batch) {
                    Ok((counts, there)) => {
                        done.there.extend(there);
                        self.pace.progress.add(0, counts.bytes);
                        self.pace.take(counts.bytes);
                        done.counts += counts.into();
                    }
                    Err(failed) => done.failed = Some(failed),
                }
            }
            self.pace.progress.add(some.len() as u64, 0);
        }
        done
    }

    fn exchange(
        &self,
        connections: &mut BTreeMap<usize, Connection>,
        (source, destination): (usize, usize),
        mut batch: Batch,
    ) -> Result<(BatchCounts, Vec<Vec<u8>>), Failed> {
        while let Some((side, requests)) = batch.ask() {
            let at = if side == Side::Source { source } else { destination };
            let connection = match connections.entry(at) {
                std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
                std::collections::btree_map::Entry::Vacant(place) => place.insert(self.open(at)?),
            };
            connection.exchange(&requests, |input| {
                let used = batch.hear(input)?;
                Ok((used, batch.is_heard()))
            })?;
        }
        let there = batch.take_there();
        Ok((batch.counts(), there))
    }
}

impl<'a> Leases<'a> {
    pub fn new(
        servers: &'a [RingServer],
        resize: &'a Resize,
        dial: Dial<'a>,
        pace: &'a Pace,
    ) -> Leases<'a> {
        let (copied, connections) = (BTreeMap::new(), BTreeMap::new());
        let ways = Ways { servers, dial, pace };
        Leases { ways, resize, copied, connections, counts: Counts::default() }
    }

    /// Copies what the plan says, all sources at once.
    pub fn carry(&mut self, members: &[Surveyed], plan: &Plan) -> Result<(), Failed> {
        self.ways.pace.progress.begin(plan.carried.iter().map(|items| items.len() as u64).sum());
        let ways = self.ways;
        let all: Vec<Done> = thread::scope(|scope| {
            let threads: Vec<_> = (0..members.len())
                .map(|source| scope.spawn(move || ways.carry_from(source, members, plan)))
                .collect();
            let done = threads.into_iter().map(|one| one.join().expect("it does not panic"));
            done.collect()
        });
        let (mut there, mut failed) = (Vec::new(), None);
        for done in all {
            self.counts += done.counts;
            there.extend(done.there);
            failed = failed.or(done.failed);
            for (destination, keys) in done.copied {
                self.copied.entry(destination).or_default().extend(keys);
            }
        }
        match failed {
            Some(failed) => Err(failed),
            None => self.copy_again(there),
        }
    }

    /// Copies keys that were written meanwhile; what is no more at its old place goes at the new one.
    pub fn copy_again(&mut self, keys: Vec<Vec<u8>>) -> Result<(), Failed> {
        let mut groups: BTreeMap<(usize, usize), Vec<Vec<u8>>> = BTreeMap::new();
        for key in keys {
            let place = self.resize.old.hash().place(&key);
            let (from, to) = (self.resize.owner_before(place), self.resize.owner_after(place));
            groups.entry((from, to)).or_default().push(key);
        }
        let mut connections = std::mem::take(&mut self.connections);
        for ((from, to), keys) in groups {
            for keys in keys.chunks(self.ways.pace.batch_items()) {
                if self.ways.pace.is_stopped() {
                    return Ok(());
                }
                self.copied.entry(to).or_default().extend(keys.iter().cloned());
                // Items that live for more than 30 days are told by the calendar.
                let clock = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
                let batch = Batch::new(keys.to_vec(), true, clock);
                let (counts, _) = self.ways.exchange(&mut connections, (from, to), batch)?;
                self.counts += counts.into();
            }
        }
        self.connections = connections;
        Ok(())
    }

    /// Deletes these at their new places.
    pub fn drop_keys(&mut self, keys: &[Vec<u8>]) -> Result<(), Failed> {
        let mut by_destination: BTreeMap<usize, Vec<&[u8]>> = BTreeMap::new();
        for key in keys {
            let place = self.resize.old.hash().place(key);
            by_destination.entry(self.resize.owner_after(place)).or_default().push(key);
        }
        for (destination, keys) in by_destination {
            let mut connection = self.ways.open(destination)?;
            delete_all(&mut connection, keys.into_iter(), None)?;
        }
        Ok(())
    }

    /// Keys that may have copies.
    pub fn copies(&self) -> u64 {
        self.copied.values().map(|keys| keys.len() as u64).sum()
    }

    /// Deletes all copies: the pool is what it was. What could not be deleted stays known.
    pub fn undo(&mut self) -> Result<(), Failed> {
        let mut result = Ok(());
        for (destination, keys) in std::mem::take(&mut self.copied) {
            let deleted = self.ways.open(destination).and_then(|mut connection| {
                delete_all(&mut connection, keys.iter().map(Vec::as_slice), None)
            });
            if let Err(failed) = deleted {
                self.copied.insert(destination, keys);
                result = Err(failed);
            }
        }
        result
    }
}

impl From<BatchCounts> for Counts {
    fn from(counts: BatchCounts) -> Counts {
        let BatchCounts { copied, bytes, gone, refused } = counts;
        Counts { copied, bytes, gone, refused, ..Counts::default() }
    }
}
