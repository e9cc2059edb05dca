//! Which copy a client may ask: SPORE's client-side metadata (CSM) cache (§3.2).

use std::collections::{BTreeMap, VecDeque};

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, ReplicaVersion};

use crate::message::Announcement;

/// Where a read of a hot key goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Home,
    /// To the place of this suffix, marked. What is older than `seen` is not to answer.
    Copy {
        suffix: u8,
        seen: ReplicaVersion,
    },
}

#[derive(Clone, Debug)]
struct Lease {
    until: Instant,
    suffixes: Vec<u8>,
    /// The newest that a copy has answered with, or that its home has told of.
    seen: ReplicaVersion,
    /// When either has said so last.
    shown: Instant,
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
    without: Vec<Instant>,
    /// What homes have shown in answers that gave no lease, and when: a lease begins with no less.
    shown: BTreeMap<u64, (ReplicaVersion, Instant)>,
    /// All are of this map.
    map_version: u64,
}

/// One of `count`, chosen by random bits.
fn one_of(count: usize, random: u32) -> usize {
    ((u64::from(random) * count as u64) >> 32) as usize
}

/// One of so many places of a key, by random bits: of those that are asked for other keys anyway, if any are. There a read costs a key, at another
/// place a turn.
pub fn choose_place(count: usize, is_asked: impl Fn(usize) -> bool, random: u32) -> usize {
    let asked = (0..count).filter(|place| is_asked(*place));
    match asked.clone().count() {
        0 => one_of(count, random),
        among => asked.clone().nth(one_of(among, random)).expect("it is one of them"),
    }
}

impl Lease {
    fn saw(&mut self, version: ReplicaVersion, now: Instant) {
        self.seen = self.seen.max(version);
        self.shown = self.shown.max(now);
    }

    fn choose(&self, random: u32) -> Choice {
        match one_of(self.suffixes.len() + 1, random) {
            0 => Choice::Home,
            at => Choice::Copy { suffix: self.suffixes[at - 1], seen: self.seen },
        }
    }
}

impl Leases {
    /// `keys_max`: hot keys that it remembers at a time. `marks`: a power of two; few of them refuse leases that would count. Of the map that
    /// the client follows since that moment: what was asked for before counts no more.
    pub fn new(keys_max: usize, marks: usize, map_version: u64, since: Instant) -> Leases {
        assert!(marks.is_power_of_two(), "bits of a hash choose one of {marks}");
        let (leases, order, shown) = (BTreeMap::new(), VecDeque::new(), BTreeMap::new());
        Leases { keys_max, leases, order, without: vec![since; marks], shown, map_version }
    }

    /// Of a client that holds leases for itself: 1,024 hot keys, and 8 KiB of marks.
    pub fn of_client() -> Leases {
        Leases::new(1024, 1024, 0, Instant::ZERO)
    }

    /// Leases of an earlier map end. Its places may not be those of this one; and who holds leases for others may have owned a key
    /// meanwhile, and has told them of newer values than a copy has.
    pub fn follow(&mut self, map_version: u64, now: Instant) {
        if self.map_version == map_version || is_planted(Fault::LeasesOutliveMap) {
            return;
        }
        self.map_version = map_version;
        self.leases.clear();
        self.order.clear();
        self.shown.clear();
        self.without.fill(now);
    }

    /// Where a read of this key goes now. O(log of the keys remembered).
    pub fn route(&mut self, hash: u64, now: Instant, random: u32) -> Choice {
        self.lease(hash, now).map_or(Choice::Home, |lease| lease.choose(random))
    }

    /// What a copy must not be older than of which a client with a lease of this key asks at this moment. `None`: it has no lease.
    pub fn seen(&mut self, hash: u64, now: Instant) -> Option<ReplicaVersion> {
        self.lease(hash, now).map(|lease| lease.seen)
    }

    /// What this client has been shown of a key, as far as it is remembered.
    pub fn shown(&self, hash: u64) -> ReplicaVersion {
        self.leases.get(&hash).map_or_else(ReplicaVersion::default, |lease| lease.seen)
    }

    /// Suffixes of the copies of which one may be asked now, and what it must not be older than. `None`: it has no lease.
    pub fn copies(&mut self, hash: u64, now: Instant) -> Option<(&[u8], ReplicaVersion)> {
        self.lease(hash, now).map(|lease| (lease.suffixes.as_slice(), lease.seen))
    }

    fn lease(&mut self, hash: u64, now: Instant) -> Option<&Lease> {
        if self.leases.is_empty() {
            return None;
        }
        let &Lease { until, shown, .. } = self.leases.get(&hash)?;
        if until <= now && !is_planted(Fault::ClientKeepsLease) {
            self.without(hash, until.max(shown));
            return None;
        }
        self.leases.get(&hash)
    }

    /// The home has answered a read that was sent at `asked`, `by_lease` if it was for a copy, which has passed it on; and what the home has told of
    /// copies. If no copy is ever older than its home, the one that was asked is none any more.
    pub fn answered(
        &mut self,
        hash: u64,
        (asked, by_lease): (Instant, bool),
        told: Option<&Announcement>,
        now: Instant,
    ) {
        if told.is_none_or(|told| by_lease && told.newest.is_none()) {
            self.without(hash, now);
        }
        if let Some(told) = told {
            self.told(hash, asked, told, now);
        }
    }

    /// The home has told of copies, in its answer to a request that was sent at `asked`.
    fn told(&mut self, hash: u64, asked: Instant, told: &Announcement, now: Instant) {
        let is_old = asked <= self.without[self.mark(hash)] && told.newest.is_some();
        let is_old = is_old && !is_planted(Fault::OldLeaseTaken);
        let (until, suffixes) = (asked + told.lease, told.suffixes.clone());
        let newest = told.newest.filter(|_| !is_planted(Fault::LeaseForgetsNewest));
        let newest = newest.unwrap_or_default();
        if let Some(lease) = self.leases.get_mut(&hash) {
            lease.saw(newest, now);
            if lease.until < until && !is_old {
                (lease.until, lease.suffixes) = (until, suffixes);
            }
            return;
        }
        let shown = self.shown.remove(&hash);
        let newest = shown.map_or(newest, |(shown, _)| newest.max(shown));
        if is_old {
            self.shown.insert(hash, (newest, now));
            // One too many: nothing counts of it that was asked for before now.
            let first = *self.shown.first_entry().expect("there is one").key();
            if self.shown.len() > self.keys_max {
                self.without(first, now);
            }
            return;
        }
        if self.leases.len() >= self.keys_max {
            if let Some(oldest) = self.order.front().copied() {
                self.without(oldest, now);
            }
        }
        self.leases.insert(hash, Lease { until, suffixes, seen: newest, shown: now });
        self.order.push_back(hash);
    }

    /// A copy has answered with this.
    pub fn saw(&mut self, hash: u64, replica_version: ReplicaVersion, now: Instant) {
        match self.leases.get_mut(&hash) {
            Some(lease) => lease.saw(replica_version, now),
            // It is not remembered, so copies that were told of before may be older.
            None => self.without(hash, now),
        }
    }

    /// The home has answered, and told of no copies; or what copies have shown until then is forgotten.
    pub fn without(&mut self, hash: u64, now: Instant) {
        let mark = self.mark(hash);
        self.without[mark] = self.without[mark].max(now);
        if self.shown.get(&hash).is_some_and(|(_, at)| *at <= now) {
            self.shown.remove(&hash);
        }
        if !self.leases.is_empty() && !is_planted(Fault::LeaseNotTaken) {
            self.forget(hash);
        }
    }

    /// True if the home has told of no copies since that moment. `false` is sure; some answers for other keys count, too, and leases that ended.
    pub fn was_without(&self, hash: u64, since: Instant) -> bool {
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

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn told() -> Announcement {
        let newest = Some(ReplicaVersion::default());
        Announcement { lease: Duration::from_secs(1), newest, suffixes: vec![1, 4] }
    }

    fn replica_version(version: u64) -> ReplicaVersion {
        ReplicaVersion { grant: 9, version }
    }

    /// Of random bits those that choose the copy with this place among the home and two copies.
    fn choosing(place: u32) -> u32 {
        u32::MAX / 3 * place + 9
    }

    fn copy(suffix: u8) -> Choice {
        Choice::Copy { suffix, seen: ReplicaVersion::default() }
    }

    fn told_at_10() -> Leases {
        let mut leases = Leases::new(8, 16, 3, Instant::ZERO);
        leases.told(KEY, at(10), &told(), at(12));
        leases
    }

    #[test]
    fn each_read_chooses_anew_until_the_lease_is_over_that_counts_from_its_request() {
        let mut leases = Leases::new(8, 16, 3, Instant::ZERO);
        assert_eq!(leases.route(KEY, at(10), 0), Choice::Home);
        leases.told(KEY, at(10), &told(), at(500));
        let choices = [0, 1, 2].map(|place| leases.route(KEY, at(1_009), choosing(place)));
        assert_eq!(choices, [Choice::Home, copy(1), copy(4)]);
        assert_eq!(leases.route(KEY, at(1_010), choosing(1)), Choice::Home);
    }

    #[test]
    fn of_the_places_those_that_are_asked_anyway_are_chosen_from() {
        let chosen = |asked: &[usize]| {
            let at = |part: u32| choose_place(4, |place| asked.contains(&place), part << 29);
            (0..8).map(at).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&[]), [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(chosen(&[2]), [2; 8]);
        assert_eq!(chosen(&[0, 3]), [0, 0, 0, 0, 3, 3, 3, 3]);
    }

    #[test]
    fn a_lease_is_prolonged_by_what_is_told_later_and_counts_the_copies_that_it_names() {
        let mut leases = told_at_10();
        leases.told(KEY, at(500), &Announcement { suffixes: vec![2], ..told() }, at(501));
        leases.told(KEY, at(400), &told(), at(502));
        assert_eq!(leases.route(KEY, at(1_400), u32::MAX), copy(2));
        assert_eq!(leases.route(KEY, at(1_500), u32::MAX), Choice::Home);
    }

    #[test]
    fn the_newest_that_was_seen_is_said_to_each_copy_and_outlives_the_lease_that_is_prolonged() {
        let mut leases = told_at_10();
        for (version, newest) in [(3, 3), (2, 3), (5, 5)] {
            leases.saw(KEY, replica_version(version), at(20));
            let chosen = Choice::Copy { suffix: 4, seen: replica_version(newest) };
            assert_eq!(leases.route(KEY, at(21), choosing(2)), chosen);
        }
        leases.told(KEY, at(900), &told(), at(901));
        let chosen = Choice::Copy { suffix: 1, seen: replica_version(5) };
        assert_eq!(leases.route(KEY, at(1_500), choosing(1)), chosen);
    }

    #[test]
    fn a_lease_begins_with_what_its_home_has_and_goes_on_when_a_copy_passes_a_read_on() {
        let newest = |version| Announcement { newest: Some(replica_version(version)), ..told() };
        let mut leases = Leases::new(8, 16, 3, Instant::ZERO);
        assert_eq!(leases.seen(KEY, at(9)), None);
        leases.told(KEY, at(10), &newest(4), at(12));
        assert_eq!(leases.seen(KEY, at(13)), Some(replica_version(4)));
        leases.answered(KEY, (at(13), true), Some(&newest(6)), at(14));
        assert_eq!(leases.seen(KEY, at(1_012)), Some(replica_version(6)));
        leases.answered(KEY, (at(11), false), Some(&newest(5)), at(15));
        assert_eq!(leases.seen(KEY, at(1_012)), Some(replica_version(6)), "it comes late");
        assert_eq!(leases.seen(KEY, at(1_013)), None);
        let atomic = Announcement { newest: None, ..told() };
        leases.answered(KEY, (at(1_020), false), Some(&atomic), at(1_021));
        assert_eq!(leases.seen(KEY, at(1_022)), Some(ReplicaVersion::default()));
        leases.answered(KEY, (at(1_022), true), None, at(1_023));
        assert_eq!(leases.seen(KEY, at(1_024)), None);
    }

    #[test]
    fn what_an_answer_has_shown_that_gives_no_lease_is_not_forgotten() {
        let newest = |version| Announcement { newest: Some(replica_version(version)), ..told() };
        // Another key of the same mark is told of no copies.
        let mut leases = Leases::new(8, 1, 3, Instant::ZERO);
        leases.without(KEY + 1, at(20));
        leases.told(KEY, at(19), &newest(5), at(30));
        assert_eq!(leases.seen(KEY, at(30)), None, "it was asked before that");
        leases.told(KEY, at(25), &newest(4), at(31));
        assert_eq!(leases.seen(KEY, at(32)), Some(replica_version(5)));
        leases.without(KEY + 1, at(40));
        leases.told(KEY, at(39), &newest(6), at(41));
        assert_eq!(leases.seen(KEY, at(42)), Some(replica_version(6)));
        // The lease is over when something newer is shown.
        leases.saw(KEY, replica_version(7), at(1_050));
        assert_eq!(leases.seen(KEY, at(1_060)), None);
        leases.told(KEY, at(1_040), &newest(6), at(1_061));
        assert_eq!(leases.seen(KEY, at(1_062)), None);
    }

    #[test]
    fn what_was_told_before_something_newer_was_seen_and_forgotten_counts_no_more() {
        let asked_before = |leases: &mut Leases, asked, now| {
            leases.told(KEY, at(asked), &told(), at(now));
            leases.route(KEY, at(now), choosing(1))
        };
        // The lease ends.
        let mut leases = told_at_10();
        assert_eq!(leases.route(KEY, at(1_020), 0), Choice::Home);
        assert_eq!(asked_before(&mut leases, 1_009, 1_030), Choice::Home);
        assert_eq!(asked_before(&mut leases, 1_020, 1_040), copy(1));
        // A copy answers after that.
        let mut leases = told_at_10();
        assert_eq!(leases.route(KEY, at(1_020), 0), Choice::Home);
        leases.saw(KEY, replica_version(3), at(1_050));
        assert_eq!(asked_before(&mut leases, 1_030, 1_060), Choice::Home);
    }

    #[test]
    fn an_answer_without_copies_ends_the_lease_and_refuses_what_was_asked_before_it() {
        let mut leases = told_at_10();
        leases.without(KEY, at(20));
        assert_eq!(leases.route(KEY, at(21), choosing(1)), Choice::Home);
        leases.told(KEY, at(20), &told(), at(22));
        assert_eq!(leases.route(KEY, at(22), choosing(1)), Choice::Home, "it was asked before");
        leases.told(KEY, at(21), &told(), at(23));
        assert_eq!(leases.route(KEY, at(23), choosing(1)), copy(1));
    }

    #[test]
    fn a_newer_map_ends_all_leases_and_refuses_what_was_asked_before_it() {
        let mut leases = told_at_10();
        leases.follow(3, at(20));
        assert_eq!(leases.route(KEY, at(20), choosing(1)), copy(1));
        leases.follow(4, at(21));
        leases.told(KEY, at(21), &told(), at(22));
        assert_eq!(leases.route(KEY, at(22), choosing(1)), Choice::Home);
        leases.told(KEY, at(22), &told(), at(23));
        assert_eq!(leases.route(KEY, at(23), choosing(1)), copy(1));
    }

    #[test]
    fn what_was_asked_for_before_the_map_of_the_first_leases_does_not_count() {
        let mut leases = Leases::new(8, 16, 3, at(10));
        leases.told(KEY, at(9), &told(), at(12));
        assert_eq!(leases.route(KEY, at(13), choosing(1)), Choice::Home);
        leases.told(KEY, at(11), &told(), at(14));
        assert_eq!(leases.route(KEY, at(15), choosing(1)), copy(1));
    }

    #[test]
    fn the_key_that_was_told_of_first_is_forgotten_for_one_too_many() {
        let mut leases = Leases::new(2, 16, 3, Instant::ZERO);
        for key in 1..=3 {
            leases.told(key, at(key), &told(), at(key));
        }
        let choices = [1, 2, 3].map(|key| leases.route(key, at(9), choosing(1)));
        assert_eq!(choices, [Choice::Home, copy(1), copy(1)]);
        leases.told(1, at(2), &told(), at(10));
        assert_eq!(leases.route(1, at(10), choosing(1)), Choice::Home, "asked before that");
    }
}
