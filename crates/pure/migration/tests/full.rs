//! A cachelet that comes to a server whose memory is full: what does not fit stays, also where items are evicted, but the room is still in use.

use std::time::Duration;

use mbal_cachelet::{Birth, Draft, Memory, Options, Store};
use mbal_migration::{
    Advance, Arriver, Destination, Incarnation, Leaver, Order, Progress, Refusal, Request,
    Response, State, Why, destination, source,
};
use mbal_model::{Elsewhere, Instant, Key, MoveId, Prefix, ServerId, WorkerId};

const WORKER: WorkerId = WorkerId(0);
const SECOND: Duration = Duration::from_secs(1);
const VALUE: [u8; 2_000] = [7; 2_000];

fn store(evict: bool, workers: usize) -> Store {
    let options = Options {
        memory_bytes: 16 << 20,
        workers,
        cachelets: 2,
        item_bytes_max: 1 << 20,
        evict,
        generation: 7,
    };
    Store::vacant(options, Memory::heap(16 << 20)).expect("memory")
}

fn put(store: &Store, text: &str) -> bool {
    let key = Key::new(text.as_bytes()).expect("short");
    store.enter(WORKER);
    let _room = store.reserve_at_once(WORKER, key.hash(), VALUE.len(), 1);
    let draft = Draft { parts: &[&VALUE], ..Draft::default() };
    let is_stored = store.lock(key.hash(), 1).put(&key, &draft).is_ok();
    store.leave(WORKER);
    is_stored
}

fn remove(store: &Store, text: &str) {
    let key = Key::new(text.as_bytes()).expect("short");
    store.enter(WORKER);
    let mut locked = store.lock(key.hash(), 1);
    let found = locked.find(&key).expect("it is there");
    locked.remove(&found);
    drop(locked);
    store.leave(WORKER);
}

fn names_in(prefix: Prefix) -> impl Iterator<Item = String> {
    let names = (0..).map(|n| format!("key{n}"));
    names.filter(move |text| prefix.contains(Key::new(text.as_bytes()).expect("short").hash()))
}

/// Two servers and a move of the lower half of all keys between them, whose messages arrive at once.
struct Servers {
    source: Store,
    target: Store,
    leaver: Leaver,
    arriver: Option<Arriver>,
    now: Instant,
    /// Steps so far: work, not time.
    steps: u64,
    refusals: u32,
}

impl Servers {
    /// The source has so many items that move, the destination so many others.
    fn new(evict: bool, here: usize, there: usize) -> Servers {
        Servers::with(store(evict, 1), here, there)
    }

    fn with(target: Store, here: usize, there: usize) -> Servers {
        let [moves, stays] = [Prefix::nth(0, 1), Prefix::nth(1, 1)];
        let source = store(true, 1);
        let birth = Birth { generation: 7, flush_number: 0 };
        assert!(source.adopt(moves, WORKER, birth) && target.adopt(stays, WORKER, birth));
        assert!(names_in(moves).take(here).all(|text| put(&source, &text)));
        names_in(stays).take(there).for_each(|text| {
            put(&target, &text);
        });
        let order = Order {
            id: MoveId(1),
            prefix: moves,
            source: Incarnation(1),
            destination: Incarnation(2),
            worker: WORKER,
            generation: 8,
        };
        let mut leaver = Leaver::new(order);
        leaver.source.handle(Instant::ZERO, source::Event::LinkUp).expect("nothing was answered");
        let (arriver, now, steps, refusals) = (None, Instant::from_secs(1), 0, 0);
        Servers { source, target, leaver, arriver, now, steps, refusals }
    }

    fn hear(&mut self, kind: u8, payload: &[u8]) {
        let ask = Request::parse(kind, payload).expect("it reads");
        if let (Request::Begin(begin), None) = (&ask, &self.arriver) {
            let destination = Destination::new(self.now, MoveId(1), *begin);
            self.arriver = Some(Arriver::new(destination, ServerId(1)));
        }
        let arriver = self.arriver.as_mut().expect("it begins with a word");
        arriver.destination.handle(destination::Event::Asked(ask)).expect("it may be said");
    }

    /// Until both sides wait for so long at least, or the source is done.
    fn run(&mut self, quiet: Duration) {
        let until = |wait: Option<Instant>| wait.unwrap_or(Instant::MAX);
        loop {
            let now = self.now;
            let mut wait = Instant::MAX;
            match self.leaver.advance(now, &self.source, Elsewhere::Peer(ServerId(2))) {
                Advance::Say { kind, payload } => {
                    self.hear(kind, &payload);
                    continue;
                }
                Advance::Did(_) => {
                    self.steps += 1;
                    continue;
                }
                Advance::Wait(next) => wait = wait.min(until(next)),
            }
            if let Some(arriver) = &mut self.arriver {
                let owner = Elsewhere::Peer(ServerId(1));
                match arriver.advance(now, &self.target, WORKER, owner).expect("nothing breaks") {
                    Advance::Say { kind, payload } => {
                        let answer = Response::parse(kind, &payload).expect("it reads");
                        self.refusals += u32::from(matches!(answer, Response::Refused(_)));
                        let event = source::Event::Answer(answer);
                        self.leaver.source.handle(self.now, event).expect("it may be said");
                        continue;
                    }
                    Advance::Did(_) => {
                        self.steps += 1;
                        continue;
                    }
                    Advance::Wait(next) => wait = wait.min(until(next)),
                }
            }
            if self.leaver.source.state() == State::Sealed || wait > self.now + quiet {
                return;
            }
            self.now = wait;
        }
    }

    fn progress(&self) -> Progress {
        self.leaver.source.progress()
    }

    /// Each key that moves is served by exactly one of both, with its value.
    fn all_are_there(&self, count: usize) {
        for text in names_in(Prefix::nth(0, 1)).take(count) {
            let key = Key::new(text.as_bytes()).expect("short");
            let is_gone = self.leaver.source.gone().is_some_and(|last| key.hash() <= last);
            let serving = if is_gone { &self.target } else { &self.source };
            let mut value = Vec::new();
            serving.enter(WORKER);
            let hit = serving.read(&key, 1, false, &mut value, |view, out| view.copy_value(out));
            serving.leave(WORKER);
            assert!(hit.is_some() && value == VALUE, "{text} is missing, gone: {is_gone}");
        }
    }
}

#[test]
fn a_full_destination_refuses_what_it_has_no_room_for_and_nothing_is_lost() {
    let mut servers = Servers::new(false, 3_000, 20_000);
    servers.run(SECOND / 2);
    assert_eq!(servers.leaver.source.state(), State::Back(Why::Refused(Refusal::NoRoom)));
    servers.all_are_there(3_000);
    assert_eq!((servers.target.stats().evictions, servers.refusals), (0, 1));
}

#[test]
fn what_does_not_fit_waits_at_its_source_until_there_is_room() {
    // Some 7,500 fit in all.
    let mut servers = Servers::new(false, 4_000, 5_000);
    servers.run(SECOND / 2);
    let before = servers.progress();
    assert_eq!(servers.leaver.source.state(), State::Moving);
    assert_eq!(before.refused, Some(Refusal::NoRoom));
    assert!(before.slices > 2, "{before:?}");
    servers.all_are_there(4_000);
    assert_eq!(servers.target.stats().evictions, 0);
    // It is looked for room now and then, and nothing is sent in vain.
    let (steps, refusals) = (servers.steps, servers.refusals);
    let until = servers.now + 100 * SECOND;
    while servers.now < until {
        servers.now += SECOND;
        servers.run(Duration::ZERO);
    }
    assert!(servers.steps - steps <= 300, "{} steps in 100 s", servers.steps - steps);
    assert_eq!((servers.progress().parts, servers.refusals), (before.parts, refusals));
    names_in(Prefix::nth(1, 1)).take(4_000).for_each(|text| remove(&servers.target, &text));
    servers.run(2 * SECOND);
    assert_eq!((servers.leaver.source.state(), servers.progress().refused), (State::Sealed, None));
    servers.all_are_there(4_000);
    assert_eq!(servers.target.stats().evictions, 0);
}

#[test]
fn a_destination_that_evicts_makes_room() {
    let mut servers = Servers::new(true, 4_000, 20_000);
    servers.run(SECOND / 2);
    assert_eq!((servers.leaver.source.state(), servers.refusals), (State::Sealed, 0));
    assert!(servers.target.stats().evictions > 0);
}

/// A thread that has lost its core: what is made free is still seen by its batch.
#[test]
fn what_finds_no_room_since_a_batch_lasts_is_not_dropped_where_items_are_evicted() {
    let slow = WorkerId(1);
    let mut servers = Servers::with(store(true, 2), 4_000, 20_000);
    servers.target.enter(slow);
    servers.run(SECOND / 2);
    assert_eq!(servers.progress().refused, Some(Refusal::NoRoom));
    servers.all_are_there(4_000);
    servers.target.leave(slow);
    servers.run(2 * SECOND);
    let state = servers.leaver.source.state();
    assert!(
        matches!(state, State::Sealed | State::Back(Why::Refused(Refusal::NoRoom))),
        "{state:?}"
    );
    servers.all_are_there(4_000);
}

/// The checks of this file find a destination that drops what it has no room for, and calls it taken.
#[cfg(feature = "planted")]
#[test]
#[should_panic(expected = "is missing")]
fn what_is_dropped_for_want_of_room_is_found() {
    use mbal_model::planted::{Fault, plant};
    plant(Some(Fault::ImportDropsWhatFindsNoRoom));
    let mut servers = Servers::new(false, 4_000, 5_000);
    servers.run(SECOND / 2);
    servers.all_are_there(4_000);
}
