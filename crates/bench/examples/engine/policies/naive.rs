//! Every policy once more, by its description and by linear search; both must agree on every request.

use std::collections::VecDeque;

use mbal_bench::{Popularity, Random};

use super::tiny_lfu::Sketch;
use super::{NAMES, named};

const KEYS: u64 = 300;

fn trace(seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    let zipf = Popularity::new(KEYS, 0.8);
    let mut scan = 0;
    let mut draw = || {
        if random.below(4) > 0 {
            return zipf.draw(&mut random) as u32;
        }
        scan += 1;
        (scan % KEYS) as u32
    };
    (0..6_000).map(|_| draw()).collect()
}

fn position(queue: &VecDeque<u32>, key: u32) -> Option<usize> {
    queue.iter().position(|&other| other == key)
}

/// Queues have their head at the front.
fn fifo(items: usize, key: u32, queue: &mut VecDeque<u32>) -> bool {
    let hit = queue.contains(&key);
    if !hit {
        queue.push_front(key);
        queue.truncate(items);
    }
    hit
}

fn lru(items: usize, key: u32, queue: &mut VecDeque<u32>) -> bool {
    let hit = position(queue, key).and_then(|at| queue.remove(at)).is_some();
    queue.push_front(key);
    queue.truncate(items);
    hit
}

/// As the textbooks draw it: a ring of frames with a hand.
#[derive(Default)]
struct Ring {
    frames: Vec<(u32, bool)>,
    hand: usize,
}

fn clock(items: usize, key: u32, ring: &mut Ring) -> bool {
    if let Some(frame) = ring.frames.iter_mut().find(|frame| frame.0 == key) {
        frame.1 = true;
        return true;
    }
    if ring.frames.len() < items {
        ring.frames.push((key, false));
        return false;
    }
    while std::mem::take(&mut ring.frames[ring.hand].1) {
        ring.hand = (ring.hand + 1) % items;
    }
    ring.frames[ring.hand] = (key, false);
    ring.hand = (ring.hand + 1) % items;
    false
}

#[derive(Default)]
struct Sieve {
    /// From old to new.
    queue: Vec<(u32, bool)>,
    hand: usize,
}

fn sieve(items: usize, key: u32, sieve: &mut Sieve) -> bool {
    if let Some(entry) = sieve.queue.iter_mut().find(|entry| entry.0 == key) {
        entry.1 = true;
        return true;
    }
    if sieve.queue.len() == items {
        loop {
            sieve.hand %= items;
            if !std::mem::take(&mut sieve.queue[sieve.hand].1) {
                break;
            }
            sieve.hand += 1;
        }
        sieve.queue.remove(sieve.hand);
        // The newest was evicted: the hand starts again at the oldest, not at who comes next.
        sieve.hand %= items - 1;
    }
    sieve.queue.push((key, false));
    false
}

#[derive(Default)]
struct S3 {
    small: VecDeque<(u32, u8)>,
    main: VecDeque<(u32, u8)>,
    ghost: VecDeque<u32>,
}

fn s3_fifo(items: usize, key: u32, s3: &mut S3) -> bool {
    let small_items = (items / 10).max(1);
    if let Some(entry) = s3.small.iter_mut().chain(&mut s3.main).find(|entry| entry.0 == key) {
        entry.1 = (entry.1 + 1).min(3);
        return true;
    }
    let known = position(&s3.ghost, key).and_then(|at| s3.ghost.remove(at)).is_some();
    while s3.small.len() + s3.main.len() >= items {
        if s3.small.len() >= small_items || s3.main.is_empty() {
            match s3.small.pop_back().unwrap() {
                (key, 2..) => s3.main.push_front((key, 0)),
                (key, _) => s3.ghost.push_front(key),
            }
            s3.ghost.truncate(items - small_items);
        } else if let (key, reads @ 1..) = s3.main.pop_back().unwrap() {
            s3.main.push_front((key, reads - 1));
        }
    }
    let queue = if known { &mut s3.main } else { &mut s3.small };
    queue.push_front((key, 0));
    false
}

#[derive(Default)]
struct Window {
    window: VecDeque<u32>,
    probation: VecDeque<u32>,
    protected: VecDeque<u32>,
}

fn tiny_lfu(items: usize, key: u32, w: &mut Window, sketch: &mut Sketch) -> bool {
    sketch.add(key);
    let main_items = items - (items / 100).max(1);
    for queue in [&mut w.window, &mut w.protected] {
        if let Some(at) = position(queue, key) {
            queue.remove(at);
            queue.push_front(key);
            return true;
        }
    }
    if let Some(at) = position(&w.probation, key) {
        w.probation.remove(at);
        w.protected.push_front(key);
        if w.protected.len() > main_items * 80 / 100 {
            w.probation.push_front(w.protected.pop_back().unwrap());
        }
        return true;
    }
    w.window.push_front(key);
    if w.window.len() > items - main_items {
        let candidate = w.window.pop_back().unwrap();
        if w.probation.len() + w.protected.len() < main_items {
            w.probation.push_front(candidate);
            return false;
        }
        let queue = if w.probation.is_empty() { &mut w.protected } else { &mut w.probation };
        if sketch.count(candidate) > sketch.count(*queue.back().unwrap()) {
            queue.pop_back();
            w.probation.push_front(candidate);
        }
    }
    false
}

fn belady(items: usize, at: usize, trace: &[u32], here: &mut Vec<u32>) -> bool {
    let hit = here.contains(&trace[at]);
    if !hit {
        here.push(trace[at]);
    }
    if here.len() > items {
        let rest = &trace[at + 1..];
        let due = |key: u32| rest.iter().position(|&k| k == key).unwrap_or(usize::MAX);
        // Those that never come again differ by nothing but their number, as in the other version.
        let last = here.iter().enumerate().max_by_key(|&(_, &key)| (due(key), key)).unwrap().0;
        here.swap_remove(last);
    }
    hit
}

fn naive(name: &str, items: usize, trace: &[u32]) -> Vec<bool> {
    let requests = trace.iter().copied();
    let mut queue = VecDeque::new();
    match name {
        "FIFO" => requests.map(|key| fifo(items, key, &mut queue)).collect(),
        "LRU" => requests.map(|key| lru(items, key, &mut queue)).collect(),
        "CLOCK" => {
            let mut ring = Ring::default();
            requests.map(|key| clock(items, key, &mut ring)).collect()
        }
        "SIEVE" => {
            let mut state = Sieve::default();
            requests.map(|key| sieve(items, key, &mut state)).collect()
        }
        "S3-FIFO" => {
            let mut state = S3::default();
            requests.map(|key| s3_fifo(items, key, &mut state)).collect()
        }
        "W-TinyLFU" => {
            let (mut state, mut sketch) = (Window::default(), Sketch::new(items));
            requests.map(|key| tiny_lfu(items, key, &mut state, &mut sketch)).collect()
        }
        "Belady" => {
            let mut here = Vec::new();
            (0..trace.len()).map(|at| belady(items, at, trace, &mut here)).collect()
        }
        other => panic!("{other} has no naive version"),
    }
}

#[test]
fn every_policy_hits_and_misses_as_its_naive_version() {
    for (seed, items) in [(1, 7), (2, 40), (3, 120)] {
        let trace = trace(seed);
        for name in NAMES {
            let mut policy = named(name, &trace, KEYS as usize, items);
            let fast: Vec<bool> = trace.iter().map(|&key| policy.request(key)).collect();
            let slow = naive(name, items, &trace);
            let first = fast.iter().zip(&slow).position(|(fast, slow)| fast != slow);
            assert_eq!(first, None, "{name}, {items} items, seed {seed}: request that differs");
        }
    }
}

#[test]
fn nobody_hits_more_than_belady() {
    let trace = trace(4);
    let hits = |name| super::hits(&mut *named(name, &trace, KEYS as usize, 30), &trace);
    let best = hits("Belady");
    assert!(NAMES.iter().all(|name| hits(name) <= best));
}
