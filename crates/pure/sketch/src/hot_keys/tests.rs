//! A key's way through the tracker: cold, hot, cool, released.

use super::Access::{Read, Write};
use super::*;

// One set: its least recent key is the tracker's.
fn tracker() -> HotKeys {
    HotKeys::new(HotKeysConfig {
        capacity: 8,
        hot_score: 10.0,
        cool_score: 5.0,
        ..HotKeysConfig::default()
    })
}

fn read(keys: &mut HotKeys, hash: u64, times: usize) -> Observed {
    (0..times).map(|_| keys.observe(hash, Read)).last().expect("read at least once")
}

fn tick(keys: &mut HotKeys) -> Vec<Change> {
    let mut changes = Vec::new();
    keys.tick(&mut changes);
    changes
}

#[test]
fn a_spike_turns_a_key_hot_within_its_epoch() {
    let mut keys = tracker();
    assert_eq!(read(&mut keys, 1, 19), Observed::Tracked(0));
    assert_eq!(keys.observe(1, Read), Observed::TurnedHot(0));
    assert_eq!(keys.hot().collect::<Vec<_>>(), [0]);
}

#[test]
fn a_steady_key_turns_hot_over_epochs_and_cools_late() {
    let mut keys = tracker();
    let mut changes = Vec::new();
    for reads in [12, 12, 12, 12, 8, 6, 4, 2, 0] {
        let mut change = '-';
        for _ in 0..reads {
            if let Observed::TurnedHot(_) = keys.observe(1, Read) {
                change = 'H';
            }
        }
        if tick(&mut keys) == [Change::Cool(0)] {
            change = 'C';
        }
        changes.push(change);
    }
    assert_eq!(String::from_iter(changes), "--H----C-");
}

#[test]
fn a_read_turns_a_key_hot_exactly_when_its_score_is() {
    let mut keys = tracker();
    let mut bits = crate::Random::new(6);
    for _ in 0..200_000 {
        let (hash, chance) = (bits.word() % 6, bits.word() % 100);
        let access = if chance < 3 { Write } else { Read };
        let was_hot = keys.find(hash).is_some_and(|slot| keys.hot().any(|hot| hot == slot));
        match keys.observe(hash, access) {
            Observed::TurnedHot(slot) => assert!(keys.score(slot) >= 9.999),
            Observed::Tracked(slot) if access == Read && !was_hot => {
                assert!(keys.score(slot) < 10.001, "{}", keys.score(slot));
            }
            _ => {}
        }
        if chance == 99 {
            for change in tick(&mut keys) {
                if let Change::Cool(slot) = change {
                    keys.release(slot);
                }
            }
        }
    }
}

#[test]
fn nine_reads_per_write_weigh_nothing() {
    let mut keys = tracker();
    for _ in 0..50 {
        keys.observe(1, Write);
        for _ in 0..9 {
            assert_eq!(keys.observe(1, Read), Observed::Tracked(0));
        }
    }
    assert_eq!(keys.score(0), 0.0);
    assert_eq!(keys.write_hot().collect::<Vec<_>>(), [0]);
    assert_eq!(tick(&mut keys), []);
}

fn smoothed(smoothing: f32) -> HotKeys {
    let config = HotKeysConfig { capacity: 8, smoothing, ..HotKeysConfig::default() };
    HotKeys::new(HotKeysConfig { hot_score: f32::INFINITY, ..config })
}

fn assert_near(value: f32, expected: f32) {
    assert!((value - expected).abs() < 1e-3, "{value}, not {expected}");
}

#[test]
fn right_after_a_tick_the_averages_have_the_epoch_that_ended() {
    let mut keys = smoothed(0.3);
    for reads in [30, 20, 40] {
        keys.observe(1, Write);
        read(&mut keys, 1, reads);
        tick(&mut keys);
    }
    // 31, 21 and 41 requests: 9.3, 12.81 and 21.267.
    assert_near(keys.rate(0), 21.267);
    let writes = 0.3 * (1.0 + 0.7 + 0.49);
    assert_near(keys.score(0), 21.267 - writes - 9.0 * writes);
}

#[test]
fn within_an_epoch_the_averages_rise_once_the_epoch_is_busier_than_them() {
    let mut keys = smoothed(0.3);
    read(&mut keys, 1, 10);
    assert_near(keys.rate(0), 3.0);
    tick(&mut keys);
    for (reads, expected) in [(1, 3.0), (2, 3.0), (1, 3.3), (9, 6.0)] {
        read(&mut keys, 1, reads);
        assert_near(keys.rate(0), expected);
        assert_near(keys.score(0), expected);
    }
    keys.observe(1, Write);
    assert_near(keys.rate(0), 6.3);
    assert_near(keys.score(0), 3.3);
    keys.observe(1, Write);
    assert_near(keys.score(0), 3.0);
    tick(&mut keys);
    assert_near(keys.rate(0), 6.6);
    assert_near(keys.score(0), 6.0 - 9.0 * 0.6);
}

#[test]
fn right_after_a_tick_a_key_is_still_hot_by_writes() {
    let mut keys = tracker();
    (0..21).for_each(|_| assert_ne!(keys.observe(1, Write), Observed::Full));
    tick(&mut keys);
    assert_eq!(keys.write_hot().collect::<Vec<_>>(), [0]);
}

#[test]
fn a_key_that_is_asked_no_more_falls_asleep() {
    for (smoothing, epochs_most) in [(0.1, 117), (0.3, 35), (0.5, 18), (1.0, 1)] {
        let mut keys = smoothed(smoothing);
        read(&mut keys, 1, 200);
        tick(&mut keys);
        let asleep = (1..1_000).find(|_| {
            tick(&mut keys);
            keys.sets[0].awake == 0
        });
        assert!(asleep.is_some_and(|epochs| epochs <= epochs_most), "{smoothing}: {asleep:?}");
        assert_eq!((keys.rate(0), keys.score(0)), (0.0, 0.0));
    }
}

#[test]
fn a_key_that_is_asked_once_in_an_epoch_stays_awake() {
    for smoothing in [1e-3, 0.1, 0.5, 1.0] {
        let mut keys = smoothed(smoothing);
        for _ in 0..100 {
            keys.observe(1, Read);
            tick(&mut keys);
            assert_eq!(keys.sets[0].awake, 1);
        }
        assert_near(keys.rate(0), 1.0 - (1.0 - smoothing).powi(100));
    }
}

#[test]
fn only_cold_keys_are_evicted_and_the_least_recent_first() {
    let mut keys = tracker();
    read(&mut keys, 1, 20);
    (2..=8)
        .for_each(|hash| assert_eq!(read(&mut keys, hash, 1), Observed::Admitted(hash as u32 - 1)));
    read(&mut keys, 2, 1);
    assert_eq!(keys.observe(9, Read), Observed::Admitted(2), "3 was least recent");
    assert_eq!((keys.find(1), keys.find(2), keys.find(3)), (Some(0), Some(1), None));
}

#[test]
fn the_order_of_a_set_is_that_of_its_samples() {
    let mut set = EMPTY;
    let mut order: Vec<usize> = (0..WAYS).rev().collect();
    let mut bits = crate::Random::new(4);
    for _ in 0..10_000 {
        let way = bits.word() as usize % WAYS;
        order.retain(|other| *other != way);
        if bits.word() % 4 == 0 {
            set.freed(way);
            order.push(way);
        } else {
            set.sampled(way);
            order.insert(0, way);
        }
        let places: Vec<u32> = order.iter().map(|way| set.ways_before(*way)).collect();
        assert_eq!(places, [7, 6, 5, 4, 3, 2, 1, 0]);
        assert_eq!(set.oldest(), order[WAYS - 1]);
    }
}

#[test]
fn when_all_are_hot_nothing_is_admitted() {
    let mut keys = tracker();
    (1..=8).for_each(|hash| {
        assert_eq!(read(&mut keys, hash, 20), Observed::TurnedHot(hash as u32 - 1))
    });
    assert_eq!(keys.observe(9, Read), Observed::Full);
    tick(&mut keys);
    let changes: Vec<Change> = [tick(&mut keys), tick(&mut keys)].concat();
    assert_eq!(changes, (0..8).map(Change::Cool).collect::<Vec<_>>());
    assert_eq!(keys.observe(9, Read), Observed::Full, "leases may still be out");
    keys.release(3);
    assert_eq!(keys.observe(9, Read), Observed::Admitted(3));
}

#[test]
fn reads_that_shadows_report_keep_a_key_hot() {
    let mut keys = tracker();
    read(&mut keys, 1, 20);
    for _ in 0..20 {
        keys.report(1, 12);
        assert_eq!(tick(&mut keys), []);
    }
    keys.report(77, 5);
    assert_eq!(keys.find(77), None);
}

#[test]
fn heat_moves_with_the_cachelet() {
    let (mut home, mut next_home) = (tracker(), tracker());
    read(&mut home, 1, 20);
    read(&mut home, 2, 3);
    for hash in [1, 2] {
        let slot = home.find(hash).expect("tracked");
        let score = home.score(slot);
        let heat = home.hand_over(slot);
        let slot = next_home.take_over(heat).expect("room");
        assert_eq!(next_home.score(slot), score);
    }
    assert_eq!(next_home.hot().collect::<Vec<_>>(), [0]);
    assert_eq!((home.find(1), tick(&mut home)), (None, vec![]));
    assert_eq!(home.observe(5, Read), Observed::Admitted(1), "its place is free");
    (10..16).for_each(|hash| {
        read(&mut next_home, hash, 20);
    });
    assert_eq!(read(&mut next_home, 16, 1), Observed::Admitted(1), "only key 2 was cold");
    assert!(next_home.find(1).is_some(), "a hot key is pinned where it went");
}

#[test]
fn keys_that_share_a_tag_are_told_apart() {
    let mut keys = tracker();
    let (one, other) = (5, 5 | 1 << 60);
    read(&mut keys, one, 1);
    read(&mut keys, other, 1);
    assert_eq!((keys.find(one), keys.find(other)), (Some(0), Some(1)));
    assert_eq!(keys.find(5 | 1 << 61), None);
}

#[test]
fn memory_is_bounded_whatever_comes() {
    let mut keys = HotKeys::new(HotKeysConfig { capacity: 64, ..HotKeysConfig::default() });
    let mut bits = crate::Random::new(3);
    for _ in 0..100_000 {
        keys.observe(bits.word() >> (bits.word() % 60), Read);
    }
    assert_eq!(keys.keys.len(), 64);
    assert!(keys.keys.iter().all(|key| keys.find(key.hash).is_some()));
}
