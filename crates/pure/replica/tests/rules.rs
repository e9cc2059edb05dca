//! The rules of `docs/design/hotkeys.md`, one at a time: a home, its shadows, and words that the test carries.

use std::time::Duration;

use mbal_model::{Instant, ReplicaVersion, ServerId};
use mbal_replica::{
    Grant, Held, Hold, HoldWhat, Home, HomeState, Item, Kept, Newborn, Outcome, Say, Shadow, Stamp,
    Terms, Version, What, newborn_rests, over_after,
};

const LEASE: Duration = Duration::from_millis(750);
/// Servers of two shadows; their processes have the same numbers.
const A: ServerId = ServerId(2);
const B: ServerId = ServerId(3);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(100_000 + millis)
}

/// A shadow with what stands in its place.
struct Place {
    server: ServerId,
    shadow: Shadow,
    value: Option<u64>,
}

impl Place {
    fn new(server: ServerId) -> Place {
        Place { server, shadow: Shadow::unknown(), value: None }
    }

    fn takes(&mut self, now: Instant, say: &Say, value: u64, ttl: Option<u32>) -> Held {
        let bytes = value.to_le_bytes();
        let item =
            Item { flags: 0, cas: value, ttl, binary_key: false, flush_number: 0, value: &bytes };
        let what = match say.what {
            What::Keep => HoldWhat::Keep,
            What::Invalidate => HoldWhat::Invalidate,
            What::Drop => HoldWhat::Drop,
            What::Item => HoldWhat::Item(item),
        };
        let (grant, version, stamp) = (say.grant, say.version, say.stamp);
        let hold = Hold { grant, version, stamp, lease_ms: say.lease_ms, key: b"k", what };
        match self.shadow.take(now, self.server.0, &hold, true) {
            Kept::Same => {}
            Kept::New => self.value = Some(value),
            Kept::Nothing => self.value = None,
        }
        self.shadow.held(now, self.server.0, 0, false)
    }

    fn reads(&self, now: Instant) -> Option<u64> {
        self.value.filter(|_| self.shadow.may_answer(now, ReplicaVersion::default()))
    }
}

/// A home with two shadows, at the end of an exchange without losses.
struct Key {
    home: Home,
    value: u64,
    places: [Place; 2],
}

impl Key {
    fn new(atomic: bool) -> Key {
        let terms = Terms { atomic, lease: LEASE };
        let home = Home::new(terms, Grant::new(1, 0), &[(1, A), (2, B)]);
        Key { home, value: 1, places: [Place::new(A), Place::new(B)] }
    }

    fn hot(atomic: bool) -> Key {
        let mut key = Key::new(atomic);
        key.exchange(at(10), &[A, B]);
        assert_eq!(key.home.state(at(10)), HomeState::Hot);
        key
    }

    fn said(&mut self, now: Instant) -> Vec<Say> {
        let mut said = Vec::new();
        self.home.say(now, |say| said.push(say));
        said
    }

    /// Everything that is said to these is heard and answered until there is no more; to others it is lost.
    fn exchange(&mut self, now: Instant, heard: &[ServerId]) {
        for _ in 0..8 {
            for say in self.said(now) {
                let place = self.places.iter_mut().find(|place| place.server == say.to);
                match place.filter(|place| heard.contains(&place.server)) {
                    Some(place) => {
                        let held = place.takes(now, &say, self.value, None);
                        self.home.heard(now, say.to, &held);
                    }
                    None => self.home.failed(now, say.to),
                }
            }
        }
    }

    fn suffixes(&self, now: Instant) -> Option<Vec<u8>> {
        self.home.told(now).map(|told| told.suffixes)
    }
}

#[test]
fn only_hot_tells_clients_of_copies() {
    let mut key = Key::new(false);
    assert_eq!((key.home.state(at(0)), key.suffixes(at(0))), (HomeState::HotPending, None));
    key.exchange(at(10), &[A, B]);
    assert_eq!((key.home.state(at(10)), key.suffixes(at(10))), (HomeState::Hot, Some(vec![1, 2])));
    key.home.written(true);
    let named = |key: &Key, now| key.home.told(now).and_then(|told| told.newest);
    let version = |version| Some(ReplicaVersion { grant: Grant::new(1, 0).0, version });
    // Who says what it has seen may know of both, whichever has the newest version.
    assert_eq!(key.home.state(at(11)), HomeState::HotPending);
    assert_eq!((key.suffixes(at(11)), named(&key, at(11))), (Some(vec![1, 2]), version(2)));
    key.exchange(at(12), &[A]);
    assert_eq!((key.suffixes(at(12)), named(&key, at(12))), (Some(vec![1, 2]), version(2)));
    assert_eq!(key.home.state(at(12)), HomeState::HotPending, "one of them has the older version");
    key.exchange(at(80), &[A, B]);
    assert_eq!(key.suffixes(at(80)), Some(vec![1, 2]));
    key.home.cools();
    assert_eq!((key.home.state(at(81)), key.suffixes(at(81))), (HomeState::ColdPending, None));
}

#[test]
fn a_silent_shadow_is_waited_out_then_left_out() {
    let mut key = Key::hot(false);
    key.home.written(true);
    (1..80).for_each(|nth| key.exchange(at(10 + 10 * nth), &[A]));
    assert_eq!(key.home.state(at(800)), HomeState::HotPending);
    let over = at(10) + over_after(LEASE);
    key.exchange(over, &[A]);
    assert_eq!(key.suffixes(over), Some(vec![1]));
    key.exchange(over + ms(100), &[A, B]);
    assert_eq!(key.suffixes(over + ms(100)), Some(vec![1, 2]), "it is back");
}

#[test]
fn a_key_is_cold_when_its_shadows_have_let_go_or_their_leases_are_over() {
    let mut key = Key::hot(false);
    key.home.cools();
    key.exchange(at(20), &[A]);
    assert!(!key.home.is_over(at(20)));
    assert!(key.home.is_over(at(10) + over_after(LEASE)));
    key.exchange(at(100), &[B]);
    assert!(key.home.is_over(at(100)));
    assert_eq!([key.places[0].reads(at(100)), key.places[1].reads(at(100))], [None, None]);
}

#[test]
fn an_atomic_write_waits_for_all_and_each_lease_once() {
    let mut key = Key::hot(true);
    assert!(!key.home.invalidates(at(20)));
    key.exchange(at(20), &[A]);
    assert!(!key.home.invalidates(at(21)), "one has not answered");
    assert_eq!((key.places[0].reads(at(21)), key.places[1].reads(at(21))), (None, Some(1)));
    let over = at(10) + over_after(LEASE);
    assert!(!key.home.invalidates(over - ms(1)));
    assert!(key.home.invalidates(over));
    key.home.written(true);
    key.exchange(over, &[A]);
    assert!(!key.home.invalidates(over + ms(1)));
    key.exchange(over + ms(1), &[A]);
    assert!(key.home.invalidates(over + ms(2)), "who is silent got no other lease");
}

#[test]
fn shadows_get_the_item_again_when_nobody_waits_for_them_to_let_go() {
    let mut key = Key::hot(true);
    assert!(!key.home.invalidates(at(20)));
    key.exchange(at(20), &[A, B]);
    key.exchange(at(800), &[A, B]);
    assert_eq!(key.home.state(at(800)), HomeState::HotPending);
    key.exchange(at(20) + over_after(LEASE), &[A, B]);
    assert_eq!(key.home.state(at(20) + over_after(LEASE)), HomeState::Hot);
}

#[test]
fn a_read_that_finds_nothing_is_told_so_when_shadows_have_let_go() {
    let mut key = Key::hot(true);
    assert!(!key.home.missed(at(20)));
    key.exchange(at(20), &[A, B]);
    assert!(key.home.missed(at(21)));
    let mut key = Key::hot(false);
    assert!(key.home.missed(at(20)), "async: what shadows have is no older than a lease");
    assert_eq!(key.suffixes(at(20)), None);
}

#[test]
fn a_lower_version_is_answered_with_what_is_there() {
    let mut key = Key::new(false);
    let old = key.said(at(1));
    key.home.written(true);
    key.value = 2;
    key.exchange(at(2), &[A, B]);
    let held = key.places[0].takes(at(3), &old[0], 1, None);
    assert_eq!((held.version, held.outcome), (Version(2), Outcome::Has));
    assert_eq!(key.places[0].value, Some(2));
}

#[test]
fn a_copy_does_not_answer_who_has_seen_a_newer_one() {
    let mut key = Key::hot(false);
    let now = at(100);
    key.home.written(true);
    // One of two shadows hears of the write.
    key.exchange(now, &[A]);
    let [newer, older] = &key.places;
    let seen = newer.shadow.replica_version();
    let may_answer = |seen| [newer, older].map(|place| place.shadow.may_answer(now, seen));
    assert_eq!(may_answer(seen), [true, false]);
    assert_eq!(may_answer(older.shadow.replica_version()), [true, true]);
}

#[test]
fn a_copy_that_was_dropped_does_not_come_back_by_what_was_sent_before() {
    let mut key = Key::hot(false);
    key.home.written(true);
    let late = key.said(at(20));
    key.home.cools();
    key.exchange(at(21), &[A, B]);
    key.places[0].takes(at(22), &late[0], 2, None);
    assert_eq!(key.places[0].reads(at(22)), None);
    // It is forgotten a lease later. What comes then has no lease any more.
    let forgotten = at(21) + LEASE;
    assert!(key.places[0].shadow.is_over(forgotten));
    key.places[0].shadow = Shadow::unknown();
    key.places[0].takes(forgotten, &late[0], 2, None);
    assert_eq!(key.places[0].reads(forgotten), None);
}

#[test]
fn a_lease_ends_at_the_stamp_and_a_lease_whenever_the_word_comes() {
    let mut key = Key::hot(false);
    let late = {
        let due = at(10) + LEASE / 3;
        let said = key.said(due);
        assert!(said.iter().all(|say| say.what == What::Keep));
        said
    };
    let place = &mut key.places[0];
    place.takes(at(700), &late[0], 1, None);
    assert_eq!(place.reads(at(10) + LEASE - ms(1)), Some(1));
    assert_eq!(place.reads(at(10) + LEASE), None);
    let other = Stamp::new(77, at(700));
    place.takes(at(701), &Say { stamp: other, ..late[0] }, 1, None);
    assert_eq!(place.reads(at(760)), None, "another process took that stamp");
}

#[test]
fn a_shadow_that_began_again_is_sent_the_item() {
    let mut key = Key::hot(false);
    key.places[0] = Place::new(A);
    key.exchange(at(300), &[A, B]);
    assert_eq!(
        key.home.state(at(300)),
        HomeState::HotPending,
        "A has answered that it has nothing"
    );
    key.exchange(at(400), &[A, B]);
    assert_eq!((key.places[0].reads(at(400)), key.suffixes(at(400))), (Some(1), Some(vec![1, 2])));
}

#[test]
fn a_shadow_that_knows_a_newer_grant_is_left_alone() {
    let mut key = Key::hot(false);
    let newer = Held {
        grant: Grant::new(2, 0),
        version: Version(1),
        stamp: Stamp::new(A.0, at(20)),
        reads: 0,
        outcome: Outcome::Has,
    };
    key.home.heard(at(20), A, &newer);
    assert_eq!(key.home.shadows().collect::<Vec<_>>(), [(2, B)]);
    assert_eq!(key.suffixes(at(20)), Some(vec![2]));
}

#[test]
fn what_dies_is_kept_only_with_a_stamp_and_dies_no_later() {
    let mut key = Key::new(false);
    let first = key.said(at(0));
    let place = &mut key.places[0];
    let held = place.takes(at(5_000), &first[0], 1, Some(Item::ttl_told(10)));
    assert_eq!(held.outcome, Outcome::Invalidate);
    key.home.heard(at(5_000), A, &held);
    let again = key.said(at(5_000));
    let say = again.iter().find(|say| say.to == A).expect("it is said again at once");
    assert_eq!((say.what, say.stamp), (What::Item, held.stamp));
    assert_eq!(key.places[0].takes(at(5_001), say, 1, Some(8)).outcome, Outcome::Has);
    assert_eq!([0, 1, 2, 12, 111].map(Item::ttl_told), [0, 0, 0, 9, 99]);
}

#[test]
fn a_later_owner_gives_higher_grants_and_an_atomic_one_rests_first() {
    assert!(Grant::new(1, u32::MAX) < Grant::new(2, 0));
    // The shadows' part of a client's lease is over by any clock.
    let lease = LEASE * 4 / 3;
    assert!(over_after(LEASE) < newborn_rests(lease) - ms(1_000));
    assert_eq!(newborn_rests(lease), ms(2_000));
}

#[test]
fn what_an_earlier_owner_says_after_a_fence_brings_no_copy_back() {
    let mut key = Key::hot(true);
    key.value = 2;
    key.home.written(true);
    let late = key.said(at(20));
    let say = late.iter().find(|say| say.to == A).expect("it has news");
    let place = &mut key.places[0];
    assert_eq!(place.reads(at(21)), Some(1));
    assert!(place.shadow.fence(Grant::new(2, 0)));
    assert_eq!(place.reads(at(21)), None);
    // It is remembered as long as a stamp counts that was given before.
    let over = at(10) + LEASE;
    for now in [at(22), over - ms(1)] {
        assert!(!place.shadow.is_over(now));
        assert_eq!(place.takes(now, say, 2, None).grant, Grant::new(2, 0));
        assert_eq!(place.reads(now), None);
    }
    assert!(!place.shadow.fence(Grant::new(2, 0)), "once is enough");
}

#[test]
fn a_newborn_serves_when_all_have_fenced_or_leases_are_over() {
    let fence = Grant::new(2, 0);
    let asked = |newborn: &mut Newborn, now| {
        let mut all = Vec::new();
        newborn.ask(now, |server| {
            all.push(server);
            server != B || now > at(5)
        });
        all
    };
    let mut newborn = Newborn::new(fence, [A, B], ms(1_000), at(0));
    assert_eq!(asked(&mut newborn, at(0)), [A, B]);
    assert_eq!(asked(&mut newborn, at(1)), [B], "it could not be asked");
    newborn.heard(at(2), A, Some(&Held::fenced(fence)));
    newborn.heard(at(2), A, None);
    assert_eq!(asked(&mut newborn, at(6)), [B]);
    let other = Held::fenced(Grant::new(1, 0));
    newborn.heard(at(7), B, Some(&other));
    assert!(!newborn.is_over(at(7)), "that was another one's");
    assert_eq!(asked(&mut newborn, at(8)), []);
    assert_eq!(asked(&mut newborn, at(57)), [B]);
    newborn.heard(at(58), B, Some(&Held::fenced(fence)));
    assert!(newborn.is_over(at(58)));
    let silent = Newborn::new(fence, [A], ms(1_000), at(0));
    assert_eq!([at(1_999), at(2_000)].map(|now| silent.is_over(now)), [false, true]);
    assert!(Newborn::new(fence, [], ms(1_000), at(0)).is_over(at(0)), "nobody else is there");
}
