//! What a move of phase 2 costs: a cachelet with a million items changes its owner, back and forth.
//!
//!     cargo run --release -p mbal-bench --example move_cost
//!
//! CPU time of the thread that gives; the one that gets does nothing at all.

use mbal_cachelet::{Draft, Options, Store};
use mbal_model::{Key, Prefix, WorkerId};
use rustix::time::{ClockId, clock_gettime};

const ITEMS: u64 = 1_000_000;
const MOVES: u64 = 100_000;
const ROUNDS: usize = 5;

fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn main() {
    let store = Store::new(Options {
        memory_bytes: 256 << 20,
        workers: 2,
        cachelets: 1,
        item_bytes_max: 1 << 20,
        evict: true,
        generation: 1,
    });
    let worker = WorkerId(0);
    for number in 0..ITEMS {
        let text = format!("key-{number:012}");
        let key = Key::new(text.as_bytes()).expect("a valid key");
        store.enter(worker);
        let _room = store.reserve(worker, key.hash(), 32, 2);
        let draft = Draft { parts: &[&[7; 32]], ..Draft::default() };
        store.lock(key.hash(), 2).put(&key, &draft).expect("there is room");
        store.leave(worker);
    }
    let before = store.stats();
    for round in 1..=ROUNDS {
        let start = thread_ns();
        for _ in 0..MOVES {
            let owner = store.owner(Prefix::ALL).expect("it is here");
            assert!(store.give(Prefix::ALL, owner, WorkerId(1 - owner.0), store.version()));
        }
        let each = (thread_ns() - start) as f64 / MOVES as f64;
        let copied = store.stats().copied_bytes - before.copied_bytes;
        println!(
            "round {round}: {} items, {each:.0} ns a move, {copied} bytes copied",
            before.items
        );
    }
}
