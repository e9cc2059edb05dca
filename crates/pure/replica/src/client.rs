//! Which copy a client may ask: SPORE's client-side metadata (CSM) cache (§3.2).

use std::collections::{BTreeMap, VecDeque};

use mbal_model::planted::{Fault, is_planted};

use crate::Moment;
use crate::message::Told;

/// Where a read of a hot key goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Home,
    /// To the place of this suffix, marked.
    Copy(u8),
}

#[derive(Clone, Debug)]
struct Lease {
    until: Moment,
    spread: bool,
    /// Who does not spread its reads keeps to this one.
    chosen: Choice,
    suffixes: Vec<u8>,
}

/// The leases of one client. What it has forgotten it asks the home for.
///
/// A client may have several requests under way, and hear of an older state of the home after a newer one. So a lease counts
/// only if its request was sent after the last answer of the home, for the same key, that told of no copies.
#[derive(Clone, Debug)]
pub struct Leases {
    keys_max: usize,
    /// By the key's hash.
    leases: BTreeMap<u64, Lease>,
    /// Those that were told of, the oldest first.
    order: VecDeque<u64>,
    /// By some bits of the hash: the last answer that told of no copies.
    without: Vec<Moment>,
    /// All are of this map.
    map_version: u64,
}

/// One of `count`, chosen by random bits.
fn one_of(count: usize, random: u32) -> usize {
    ((u64::from(random) * count as u64) >> 32) as usize
}

fn chosen(suffixes: &[u8], random: u32) -> Choice {
    match one_of(suffixes.len() + 1, random) {
        0 => Choice::Home,
        at => Choice::Copy(suffixes[at - 1]),
    }
}

impl Leases {
    /// `keys_max`: hot keys that it remembers at a time. `marks`: a power of two; few of them refuse leases that would count.
    pub fn new(keys_max: usize, marks: usize, map_version: u64) -> Leases {
        assert!(marks.is_power_of_two(), "bits of a hash choose one of {marks}");
        let (leases, order) = (BTreeMap::new(), VecDeque::new());
        Leases { keys_max, leases, order, without: vec![Moment::ZERO; marks], map_version }
    }

    /// Leases of an earlier map end. Its places may not be those of this one; and who holds leases for others may have owned a key
    /// meanwhile, and has told them of newer values than a copy has.
    pub fn follow(&mut self, map_version: u64, now: Moment) {
        if self.map_version == map_version || is_planted(Fault::LeasesOutliveMap) {
            return;
        }
        self.map_version = map_version;
        self.leases.clear();
        self.order.clear();
        self.without.fill(now);
    }

    /// Where a read of this key goes now. O(log of the keys remembered).
    pub fn route(&mut self, hash: u64, now: Moment, random: u32) -> Choice {
        if self.leases.is_empty() {
            return Choice::Home;
        }
        let Some(lease) = self.leases.get(&hash) else { return Choice::Home };
        if lease.until <= now && !is_planted(Fault::ClientKeepsLease) {
            self.forget(hash);
            return Choice::Home;
        }
        if lease.spread { chosen(&lease.suffixes, random) } else { lease.chosen }
    }

    /// The home has told of copies, in its answer to a request that was sent at `asked`.
    pub fn told(&mut self, hash: u64, asked: Moment, told: &Told, random: u32) {
        let is_old = asked <= self.without[self.mark(hash)] && !told.spread;
        if is_old && !is_planted(Fault::OldLeaseTaken) || told.suffixes.is_empty() {
            return;
        }
        let until = asked + told.lease;
        if let Some(lease) = self.leases.get_mut(&hash) {
            // One choice is kept until its lease is over.
            if lease.spread && told.spread && lease.until < until {
                (lease.until, lease.suffixes) = (until, told.suffixes.clone());
            }
            return;
        }
        if self.leases.len() >= self.keys_max {
            if let Some(oldest) = self.order.front().copied() {
                self.forget(oldest);
            }
        }
        let (suffixes, spread) = (told.suffixes.clone(), told.spread);
        let chosen = chosen(&suffixes, random);
        self.leases.insert(hash, Lease { until, spread, chosen, suffixes });
        self.order.push_back(hash);
    }

    /// The home has answered, and told of no copies.
    pub fn without(&mut self, hash: u64, now: Moment) {
        let mark = self.mark(hash);
        self.without[mark] = now;
        if !self.leases.is_empty() && !is_planted(Fault::LeaseNotTaken) {
            self.forget(hash);
        }
    }

    /// True if the home has told of no copies since that moment. `false` is sure; some answers for other keys count, too.
    pub fn was_without(&self, hash: u64, since: Moment) -> bool {
        since < self.without[self.mark(hash)]
    }

    /// True if no lease is remembered: all reads go home.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    fn forget(&mut self, hash: u64) {
        if self.leases.remove(&hash).is_some() {
            self.order.retain(|other| *other != hash);
        }
    }

    fn mark(&self, hash: u64) -> usize {
        hash as usize & (self.without.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const KEY: u64 = 7;

    fn at(millis: u64) -> Moment {
        Duration::from_millis(millis)
    }

    fn told(spread: bool) -> Told {
        Told { lease: at(1_000), spread, suffixes: vec![1, 4] }
    }

    /// Of random bits those that choose the copy with this place among the home and two copies.
    fn choosing(place: u32) -> u32 {
        u32::MAX / 3 * place + 9
    }

    #[test]
    fn a_client_keeps_to_its_choice_until_the_lease_that_counts_from_its_request_is_over() {
        let mut leases = Leases::new(8, 16, 3);
        assert_eq!(leases.route(KEY, at(10), 0), Choice::Home);
        leases.told(KEY, at(10), &told(false), choosing(2));
        for random in [0, choosing(1), u32::MAX] {
            assert_eq!(leases.route(KEY, at(1_009), random), Choice::Copy(4));
        }
        leases.told(KEY, at(900), &told(false), choosing(1));
        assert_eq!(leases.route(KEY, at(1_009), 0), Choice::Copy(4), "one choice, one lease");
        assert_eq!(leases.route(KEY, at(1_010), 0), Choice::Home);
        leases.told(KEY, at(1_010), &told(false), choosing(0));
        assert_eq!(leases.route(KEY, at(1_500), choosing(1)), Choice::Home, "the home was chosen");
    }

    #[test]
    fn who_may_spread_its_reads_chooses_anew_each_time_and_hears_of_longer_leases() {
        let mut leases = Leases::new(8, 16, 3);
        leases.told(KEY, at(10), &told(true), 0);
        leases.told(KEY, at(500), &told(true), 0);
        let choices = [0, 1, 2].map(|place| leases.route(KEY, at(1_400), choosing(place)));
        assert_eq!(choices, [Choice::Home, Choice::Copy(1), Choice::Copy(4)]);
    }

    #[test]
    fn an_answer_without_copies_ends_the_lease_and_refuses_what_was_asked_before_it() {
        let mut leases = Leases::new(8, 16, 3);
        leases.told(KEY, at(10), &told(false), choosing(1));
        leases.without(KEY, at(20));
        assert_eq!(leases.route(KEY, at(21), 0), Choice::Home);
        leases.told(KEY, at(20), &told(false), choosing(1));
        assert_eq!(leases.route(KEY, at(22), 0), Choice::Home, "it was asked before");
        leases.told(KEY, at(21), &told(false), choosing(1));
        assert_eq!(leases.route(KEY, at(23), 0), Choice::Copy(1));
    }

    #[test]
    fn a_newer_map_ends_all_leases_and_refuses_what_was_asked_before_it() {
        let mut leases = Leases::new(8, 16, 3);
        leases.told(KEY, at(5), &told(false), choosing(1));
        leases.follow(3, at(10));
        assert_eq!(leases.route(KEY, at(10), 0), Choice::Copy(1));
        leases.follow(4, at(11));
        leases.told(KEY, at(11), &told(false), choosing(1));
        assert_eq!(leases.route(KEY, at(12), 0), Choice::Home);
        leases.told(KEY, at(12), &told(false), choosing(1));
        assert_eq!(leases.route(KEY, at(13), 0), Choice::Copy(1));
    }

    #[test]
    fn the_key_that_was_told_of_first_is_forgotten_for_one_too_many() {
        let mut leases = Leases::new(2, 16, 3);
        for key in 1..=3 {
            leases.told(key, at(key), &told(false), choosing(1));
        }
        let choices = [1, 2, 3].map(|key| leases.route(key, at(9), 0));
        assert_eq!(choices, [Choice::Home, Choice::Copy(1), Choice::Copy(1)]);
    }
}
