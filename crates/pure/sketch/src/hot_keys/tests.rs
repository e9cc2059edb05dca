//! What a tracker keeps, forgets and tells.

use super::Access::{Read, Write};
use super::*;

/// One set: its least recent key is the tracker's.
fn tracker(smoothing: f32) -> HotKeys {
    HotKeys::new(8, smoothing)
}

fn observe(keys: &mut HotKeys, hash: u64, access: Access, times: usize) {
    (0..times).for_each(|_| keys.observe(hash, format!("k{hash}").as_bytes(), access));
}

fn assert_near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-3, "{value}, not {expected}");
}

#[test]
fn averages_have_the_epoch_that_ended() {
    let mut keys = tracker(0.3);
    let mut last = BTreeMap::new();
    for reads in [30, 20, 40] {
        observe(&mut keys, 1, Write, 1);
        observe(&mut keys, 1, Read, reads);
        last = keys.rates(0.5, 2.0 * (reads + 1) as f64, 0.0, |_| false);
    }
    // Each sample stands for two requests, in half a second. 30, 20 and 40 reads: 9, 12.3 and 20.61.
    let KeyRates { key, rates } = &last[&1];
    assert_eq!(&**key, b"k1");
    assert_near(rates.reads, 4.0 * 20.61);
    assert_near(rates.writes, 4.0 * 0.3 * (1.0 + 0.7 + 0.49));
    assert_near(rates.sample, 4.0 * 0.3);
}

#[test]
fn what_is_known_fades_in_an_epoch_without_samples() {
    let mut keys = tracker(0.5);
    observe(&mut keys, 1, Read, 8);
    assert_eq!(keys.rates(0.5, 80.0, 0.0, |_| true)[&1].rates.reads, 80.0);
    assert_eq!(keys.rates(0.5, 0.0, 0.0, |_| true)[&1].rates.reads, 40.0);
}

#[test]
fn a_key_is_told_of_by_its_share_and_its_samples_unless_it_counts_anyway() {
    let told = |share_least, counts: u64| {
        let mut keys = tracker(1.0);
        for (hash, times) in [(1, 90), (2, 8), (3, 2), (4, 1)] {
            observe(&mut keys, hash, Read, times);
        }
        let told = keys.rates(1.0, 101.0, share_least, |hash| hash == counts);
        told.into_keys().collect::<Vec<u64>>()
    };
    assert_eq!(told(0.5, 0), [1]);
    assert_eq!(told(0.05, 0), [1, 2]);
    assert_eq!(told(0.05, 4), [1, 2, 4]);
    let mut keys = tracker(0.5);
    observe(&mut keys, 1, Read, 1);
    observe(&mut keys, 2, Read, 2);
    let told: Vec<u64> = keys.rates(1.0, 3.0, 0.0, |_| false).into_keys().collect();
    assert_eq!(told, [2], "chance samples a key once");
}

#[test]
fn a_key_that_is_asked_no_more_falls_asleep() {
    for (smoothing, epochs_most) in [(0.1, 117), (0.3, 35), (0.5, 18), (1.0, 1)] {
        let mut keys = tracker(smoothing);
        observe(&mut keys, 1, Read, 200);
        keys.tick();
        let asleep = (1..1_000).find(|_| {
            keys.tick();
            keys.sets[0].awake == 0
        });
        assert!(asleep.is_some_and(|epochs| epochs <= epochs_most), "{smoothing}: {asleep:?}");
        assert_eq!(keys.sampled(0, Read), (0.0, 0));
    }
}

#[test]
fn a_key_that_is_asked_once_in_an_epoch_stays_awake() {
    for smoothing in [1e-3, 0.1, 0.5, 1.0] {
        let mut keys = tracker(smoothing);
        for _ in 0..100 {
            observe(&mut keys, 1, Read, 1);
            keys.tick();
            assert_eq!(keys.sets[0].awake, 1);
        }
        assert_near(keys.sampled(0, Read).0.into(), f64::from(1.0 - (1.0 - smoothing).powi(100)));
    }
}

#[test]
fn the_least_recent_key_makes_room_and_its_counts_go_with_it() {
    let mut keys = tracker(0.5);
    (1..=8).for_each(|hash| observe(&mut keys, hash, Write, 5));
    keys.tick();
    observe(&mut keys, 1, Read, 1);
    observe(&mut keys, 9, Read, 1);
    assert_eq!((keys.find(1), keys.find(2), keys.find(9)), (Some(0), None, Some(1)));
    assert_eq!((keys.name(1), keys.sampled(1, Write), keys.samples()), (&b"k9"[..], (0.0, 0), 2));
}

#[test]
fn the_order_of_a_set_is_that_of_its_samples() {
    let mut set = EMPTY;
    let mut order: Vec<usize> = (0..WAYS).rev().collect();
    let mut bits = crate::Random::new(4);
    for _ in 0..10_000 {
        let way = bits.word() as usize % WAYS;
        order.retain(|other| *other != way);
        set.sampled(way);
        order.insert(0, way);
        assert_eq!(set.oldest(), order[WAYS - 1]);
    }
}

#[test]
fn keys_that_share_a_tag_are_told_apart() {
    let mut keys = tracker(0.5);
    let (one, other) = (5, 5 | 1 << 60);
    observe(&mut keys, one, Read, 1);
    observe(&mut keys, other, Read, 1);
    assert_eq!((keys.find(one), keys.find(other)), (Some(0), Some(1)));
    assert_eq!(keys.find(5 | 1 << 61), None);
}

#[test]
fn memory_is_bounded_whatever_comes() {
    let mut keys = HotKeys::new(256, 0.5);
    let mut bits = crate::Random::new(3);
    for _ in 0..100_000 {
        let hash = bits.word() >> (bits.word() % 60);
        keys.observe(hash, &[b'k'; 250], Read);
    }
    assert_eq!(keys.tracked().count(), 256);
    assert!(keys.keys.iter().all(|key| keys.find(key.hash).is_some()));
    assert!(size_of::<HotKeys>() + keys.bytes() <= 100 << 10, "{} bytes", keys.bytes());
}
