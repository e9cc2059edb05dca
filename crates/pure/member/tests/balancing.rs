//! What a balancer's driver does at the end of an epoch, and for an operator.

use std::sync::Arc;
use std::time::Duration;

use mbal_balance::{Mode, Thresholds};
use mbal_cachelet::{Memory, Options, Store};
use mbal_member::balancing::{Action, Balancing, Event};
use mbal_model::{Instant, WorkerId};
use mbal_worker::{Settings, Shared};

const BYTES: usize = 64 << 20;

fn balancing() -> (Balancing, Arc<Shared>) {
    let options = Options {
        memory_bytes: BYTES,
        workers: 2,
        cachelets: 16,
        item_bytes_max: 1 << 20,
        evict: true,
        generation: 1,
    };
    let store = Store::with_memory(options, Memory::heap(BYTES));
    let settings = Settings { workers: 2, memory_bytes: BYTES as u64, ..Settings::default() };
    let shared = Arc::new(Shared::new(settings, store));
    let epoch = Duration::from_secs(1);
    (Balancing::new(Mode::On, Thresholds::default(), epoch, Arc::clone(&shared)), shared)
}

#[test]
fn an_epoch_is_told_when_it_has_ended_and_a_late_one_is_followed_by_a_whole_one() {
    let (mut balancing, _shared) = balancing();
    let mut actions = Vec::new();
    // When it is woken, in milliseconds; how many workers its loads are of; when it wakes next.
    for (woken, workers, next) in [
        (100_000, 0, 101_000),
        (100_900, 0, 101_000),
        (101_003, 2, 102_000),
        (102_000, 2, 103_000),
        (105_500, 2, 106_500),
    ] {
        balancing.handle(Instant::from_millis(woken), Event::Woken, &mut actions);
        assert_eq!(balancing.loads().workers.len(), workers, "{woken}");
        assert_eq!(balancing.next_wake(), Instant::from_millis(next), "{woken}");
    }
    assert!(actions.is_empty(), "nobody is busy");
    assert_eq!(balancing.loads().memory_bytes, BYTES as u64);
}

#[test]
fn an_operators_move_is_ordered_of_the_worker_that_has_the_cachelet() {
    let (mut balancing, shared) = balancing();
    let mut actions = Vec::new();
    let now = Instant::from_secs(100);
    balancing.handle(now, Event::Woken, &mut actions);
    let is_first = |prefix: &_| shared.store.owner(*prefix) == Some(WorkerId(0));
    let cachelet = shared.store.prefixes().into_iter().find(is_first).expect("it has some");
    balancing.handle(now, Event::Asked { cachelet, to: WorkerId(1) }, &mut actions);
    assert!(
        matches!(actions[..], [Action::Order(_, WorkerId(0), _), Action::Decided(_)]),
        "an order, and what is told of it"
    );
}
