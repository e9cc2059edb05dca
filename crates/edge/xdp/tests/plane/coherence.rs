//! An answer is never older than a write that was acknowledged before the question, and never a mixture.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;

use mbal_routing::ketama::KeyHash;
use mbal_xdp::{Plane, Rule};

use crate::hot::FOREVER;
use crate::packet::*;

/// The whole value says which write it is of.
fn value(version: u64) -> Vec<u8> {
    format!("{version:08}").repeat(100).into_bytes()
}

/// Of the answer; nothing if the packet went on to the upstream.
fn version(packet: &[u8]) -> Result<Option<u64>, String> {
    if packet[..6] != CLIENT_MAC {
        return Ok(None);
    }
    let head = packet[50..].windows(2).position(|two| two == b"\r\n").unwrap() + 52;
    let words: Vec<&[u8]> = packet[head..head + 800].chunks(8).collect();
    if words.iter().any(|word| *word != words[0]) || !checksums_hold(packet) {
        return Err(format!("a mixture: {}", String::from_utf8_lossy(&packet[head..head + 800])));
    }
    Ok(Some(std::str::from_utf8(words[0]).unwrap().parse().unwrap()))
}

/// Reads on two threads while `write` writes versions 1, 2, ...; it tells what it has acknowledged.
fn readers_and_a_writer(
    plane: &Plane,
    writes: u64,
    write: impl Fn(u64, &AtomicU64),
) -> Result<u64, String> {
    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let packet = get(b"foobar").bytes();
    thread::scope(|scope| {
        let read = || {
            let mut answers = 0;
            while !stop.load(SeqCst) {
                let least = acknowledged.load(SeqCst);
                let got = version(&plane.run(&packet, 1).unwrap().packet)?;
                answers += u64::from(got.is_some());
                if got.is_some_and(|got| got < least) {
                    return Err(format!("{got:?} after {least}"));
                }
            }
            Ok(answers)
        };
        let readers = [scope.spawn(read), scope.spawn(read)];
        for version in 1..=writes {
            write(version, &acknowledged);
            if readers.iter().any(|reader| reader.is_finished()) {
                break;
            }
        }
        stop.store(true, SeqCst);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    })
}

fn put(plane: &Plane, version: u64) {
    let rule = Rule::Answer { flags: 0, value: &value(version), until_ns: FOREVER };
    plane.put(b"foobar", rule).unwrap();
}

/// What docs/design/xdp.md asks of a write coordinator.
fn coordinate(plane: &Plane, version: u64, acknowledged: &AtomicU64) {
    plane.remove(b"foobar").unwrap();
    acknowledged.store(version, SeqCst);
    put(plane, version);
}

#[test]
fn an_answer_is_as_new_as_the_last_acknowledged_write() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    let answers = readers_and_a_writer(&plane, 200, |version, acknowledged| {
        coordinate(&plane, version, acknowledged);
        thread::yield_now();
    });
    assert!(answers.unwrap() > 0);
}

#[test]
fn values_that_change_quickly_are_not_mixed() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    let answers = readers_and_a_writer(&plane, 50_000, |version, _| put(&plane, version));
    assert!(answers.unwrap() > 1000);
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use mbal_xdp::planted::SLOW;

    #[test]
    fn a_write_that_is_acknowledged_before_the_rule_is_gone_is_found() {
        let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
        let found = readers_and_a_writer(&plane, 100_000, |version, acknowledged| {
            acknowledged.store(version, SeqCst);
            thread::yield_now();
            put(&plane, version);
        });
        println!("{}", found.unwrap_err());
    }

    #[test]
    fn memory_that_is_used_again_too_early_is_found() {
        let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
        let found = readers_and_a_writer(&plane, 10_000_000, |version, _| {
            put(&plane, version);
            plane.settle_without_waiting();
        });
        println!("{}", &found.unwrap_err()[..100]);
    }

    /// Removes the rule while a program is about to answer by it. Fails if the program still runs afterwards.
    fn remove_waits(remove: impl Fn(&Plane)) -> Result<(), String> {
        let plane = match Plane::load_program(SLOW, service(KeyHash::Murmur)) {
            Ok(plane) => with_ring(plane, 1),
            Err(error) => return Err(format!("SKIPPED, NOT TESTED: {error}")),
        };
        put(&plane, 1);
        thread::scope(|scope| {
            let reader = scope.spawn(|| plane.run(&get(b"foobar").bytes(), 1).unwrap());
            while plane.counters().unwrap().by_rule == 0 {
                thread::yield_now();
            }
            remove(&plane);
            let answered = plane.counters().unwrap().answered;
            assert_eq!(version(&reader.join().unwrap().packet), Ok(Some(1)));
            match answered {
                1 => Ok(()),
                _ => Err("it was about to answer when the rule was said to be gone".to_owned()),
            }
        })
    }

    #[test]
    fn a_rule_is_gone_when_no_program_is_about_to_answer_by_it() {
        let Some(_) = plane(service(KeyHash::Murmur), 1) else { return };
        remove_waits(|plane| assert!(plane.remove(b"foobar").unwrap())).unwrap();
        // On a busy machine the program may have ended before its mark is seen.
        let found = (0..400).find_map(|_| {
            let gone = remove_waits(|plane| {
                assert!(plane.retract(b"foobar"));
                plane.settle_without_waiting();
            });
            gone.err()
        });
        println!("{}", found.unwrap());
    }
}
