//! What a server knows of its hit ratio by size, from the requests of its workers.

use std::ops::Range;

use mbal_model::Key;
use mbal_sketch::{Random, StackDistances};
use mbal_worker::{CurveTold, Settings};

use crate::rig::{CONN, Rig};

fn rig(memory_bytes: u64) -> Rig {
    let settings = Settings { stack_distances: true, memory_bytes, ..Settings::default() };
    Rig::with(Settings { workers: 2, ..settings })
}

fn told(rig: &Rig) -> CurveTold {
    rig.server.curve(rig.now.second).expect("it is sampled")
}

fn hits(told: &CurveTold, bytes: u64) -> f64 {
    1.0 - told.curve.miss_ratio(bytes)
}

#[test]
fn a_server_that_is_not_to_know_knows_nothing() {
    assert!(Rig::new().server.curve(1).is_none());
}

#[test]
fn reads_and_writes_of_every_protocol_and_worker_are_one_stream() {
    let mut rig = rig(64 << 20);
    let mut other = rig.another_worker();
    other.open(CONN);
    for number in 0..20_000 {
        match number % 4 {
            0 => other.send(format!("set k{number} 0 0 1\r\nx\r\n").as_bytes()),
            1 => rig.send(format!("ms k{number} 1\r\nx\r\n").as_bytes()),
            _ => Vec::new(),
        };
    }
    for number in (0..20_000).step_by(2) {
        let next = number + 1;
        rig.send(format!("get k{number} k{next}\r\nmg none{number}\r\n").as_bytes());
    }
    let told = told(&rig);
    assert_eq!((told.reads, told.hits), (30_000, 10_000));
    assert!((hits(&told, 1 << 40) - 1.0 / 3.0).abs() < 0.04, "{}", hits(&told, 1 << 40));
    assert!(hits(&told, 100_000) < 0.05, "10,000 items of some 30 bytes were written since");
}

#[test]
fn what_is_deleted_expires_or_is_flushed_is_expected_to_miss() {
    for gone in ["delete KEY\r\n", "md KEY\r\n", "flush_all\r\n", ""] {
        let mut rig = rig(64 << 20);
        let exptime = if gone.is_empty() { 5 } else { 0 };
        for key in (0..4_000).map(|nth| format!("key{nth}")) {
            rig.send(format!("set {key} 0 {exptime} 1\r\nx\r\n").as_bytes());
            rig.send(gone.replace("KEY", &key).as_bytes());
            rig.now.second += 6;
            rig.now.unix += 6;
            rig.send(format!("get {key}\r\n").as_bytes());
        }
        assert!(hits(&told(&rig), 1 << 40) < 0.1, "{gone:?}");
    }
}

/// Half of the reads are for one key: its reads at once are not shown, and count as what they are.
#[test]
fn a_hot_key_does_not_crowd_out_the_others() {
    let mut rig = rig(64 << 20);
    let sampled = StackDistances::with_rate(16, 0.1).chosen();
    let is_sampled = |key: &String| sampled.has(Key::new(key.as_bytes()).expect("a key").hash());
    let hot = (0..).map(|nth| format!("hot{nth}")).find(is_sampled).expect("there is one");
    let mut bits = Random::new(1);
    rig.send(format!("set {hot} 0 0 1\r\nx\r\n").as_bytes());
    for _ in 0..20_000 {
        let key = 20_000.0 * bits.unit();
        rig.send(format!("get {hot}\r\nget other{key:.0}\r\n").as_bytes());
    }
    let told = told(&rig);
    assert_eq!(told.reads, 40_000);
    assert!((hits(&told, 1 << 40) - 0.5).abs() < 0.05, "{}", hits(&told, 1 << 40));
}

/// A look-aside cache that is a fifth of what it is asked for. The engine does better than the LRU list of its size.
#[test]
fn the_hit_ratio_is_that_of_a_list_of_the_same_size_or_better() {
    let mut rig = rig(8 << 20);
    let mut bits = Random::new(2);
    let value = "x".repeat(1_000);
    let mut since = (0, 0);
    for round in 0..200_000 {
        if round == 100_000 {
            let told = told(&rig);
            since = (told.reads, told.hits);
        }
        let key = (40_000.0 * bits.unit().powi(3)) as u64;
        if rig.send(format!("get k{key}\r\n").as_bytes()) == b"END\r\n" {
            rig.send(format!("set k{key} 0 0 1000\r\n{value}\r\n").as_bytes());
        }
    }
    let told = told(&rig);
    assert!(told.state_bytes <= 1 << 20, "{}", told.state_bytes);
    let measured = (told.hits - since.1) as f64 / (told.reads - since.0) as f64;
    let by_list = [4, 8, 16].map(|mib| hits(&told, mib << 20));
    assert!(by_list[0] + 0.05 < by_list[1] && by_list[1] < measured, "{measured} {by_list:?}");
    assert!(measured < by_list[2], "{measured} {by_list:?}");
}

/// Reads of keys that are all there, fifty at once; `key` says which by the read's number. A second has 2,500.
fn read_all(rig: &mut Rig, reads: Range<u64>, mut key: impl FnMut(u64) -> u64) {
    for first in reads.step_by(50) {
        let keys: Vec<String> = (first..first + 50).map(|nth| format!(" k{}", key(nth))).collect();
        rig.send(format!("get{}\r\n", keys.concat()).as_bytes());
        if first % 2_500 == 0 {
            rig.now.second += 1;
            rig.now.unix += 1;
        }
    }
}

fn filled(keys: u64) -> Rig {
    let mut rig = rig(64 << 20);
    (0..keys).for_each(|key| drop(rig.send(format!("set k{key} 0 0 1\r\nx\r\n").as_bytes())));
    rig
}

/// Two thirds of what is sampled is shown, in two bursts. Which keys are hot changes all the time.
#[test]
fn bursts_tell_what_all_reads_would() {
    const READS: u64 = 900_000;
    let mut rig = filled(20_000);
    let mut whole = StackDistances::new(65_535);
    let mut bits = Random::new(4);
    let item_bytes = 22 + 6 + 1;
    read_all(&mut rig, 0..READS, |nth| {
        let key = (nth / 60 + (16_000.0 * bits.unit().powi(3)) as u64) % 20_000;
        let text = format!("k{key}");
        whole.observe(Key::new(text.as_bytes()).expect("a key").hash(), item_bytes);
        key
    });
    let told = told(&rig);
    assert_eq!((told.reads, told.curve.requests()), (READS, READS as f64));
    let off: Vec<f64> = (1..40_u64)
        .map(|part| {
            let bytes = part * 20_000 * u64::from(item_bytes) / 40;
            told.curve.miss_ratio(bytes) - whole.by_bytes().miss_ratio(bytes)
        })
        .collect();
    let mean = off.iter().map(|off| off.abs()).sum::<f64>() / off.len() as f64;
    assert!(mean < 0.01, "{mean} {off:?}");
}

#[test]
fn what_comes_between_bursts_is_not_seen_and_not_taken_for_hits() {
    let mut rig = filled(4_000);
    let hits_at_any_size = |rig: &Rig| hits(&told(rig), 1 << 40);
    let misses = |rig: &mut Rig, reads: u64| {
        (0..reads).for_each(|nth| drop(rig.send(format!("get none{nth}\r\n").as_bytes())));
    };
    // All keys are sampled. Half of it misses, until the burst is over within a second.
    for round in 0..40 {
        misses(&mut rig, 2_000);
        read_all(&mut rig, 1..2_001, |nth| (round * 2_000 + nth) % 4_000);
    }
    let half = hits_at_any_size(&rig);
    assert!((half - 0.5).abs() < 0.01, "{half}");
    misses(&mut rig, 60_000);
    assert!((hits_at_any_size(&rig) - half).abs() < 0.001);
    rig.now.second += 300;
    rig.now.unix += 300;
    misses(&mut rig, 60_000);
    assert!(hits_at_any_size(&rig) < 0.4, "{}", hits_at_any_size(&rig));
}

/// The part of reads that any size hits, after minutes of reads that all miss, or that are of the same few keys.
fn after(minutes: &[(u32, bool)]) -> f64 {
    let mut rig = rig(64 << 20);
    for key in 0..2_000 {
        rig.send(format!("set k{key} 0 0 1\r\nx\r\n").as_bytes());
    }
    let mut number = 0;
    for &(minutes, misses) in minutes {
        for _ in 0..minutes {
            for key in 0..2_000 {
                number += 1;
                let nth = if misses { number + 2_000 } else { key };
                rig.send(format!("get k{nth}\r\n").as_bytes());
            }
            rig.now.second += 60;
            rig.now.unix += 60;
            told(&rig);
        }
    }
    hits(&told(&rig), 1 << 40)
}

#[test]
fn a_curve_forgets_its_first_minutes_soon_and_tells_of_an_hour_later() {
    let young = after(&[(5, true), (20, false)]);
    assert!(
        young > 0.90,
        "nine tenths a minute leave 5% of the misses, an hour's fading 17%: {young}"
    );
    let old = after(&[(90, false), (5, true)]);
    assert!((0.85..0.95).contains(&old), "one in ten, by ten minutes four: {old}");
}

#[test]
fn a_busy_server_samples_fewer_keys_and_a_sketch_has_successors() {
    let mut rig = rig(64 << 20);
    let mut bits = Random::new(3);
    let mut most = 0;
    for round in 0..30 {
        let requests = if round < 3 { 60_000 } else { 5_000 };
        for _ in 0..requests {
            let number = (100_000.0 * bits.unit()) as u64;
            rig.send(
                format!("set k{number} 0 0 1\r\nx\r\nget k{number} none{number}\r\n").as_bytes(),
            );
        }
        // A second that is busier than all is bound to be over; then hours pass in which nobody comes.
        let pause = if round < 3 { 1 } else { 1_800 };
        rig.now.second += pause;
        rig.now.unix += u64::from(pause);
        let told = told(&rig);
        most = most.max(told.state_bytes);
        assert!(told.state_bytes <= 1 << 20, "{}", told.state_bytes);
        assert!((hits(&told, 1 << 40) - 0.5).abs() < 0.1, "{round}: {}", hits(&told, 1 << 40));
    }
    assert!(most > told(&rig).state_bytes, "for a while there were two");
}
