//! Transcripts: what happens to a member, and what it does.

use std::sync::Arc;
use std::time::Duration;

use mbal_cachelet::{Memory, Options, Store};
use mbal_control::api::{Heartbeat, Incarnation, LeaseTold, News, Registered};
use mbal_member::balancing::Loads;
use mbal_member::{Action, Call, Event, Heard, Member, Outside, Terms, Time};
use mbal_model::{Instant, ServerId};
use mbal_worker::{Now, Settings, Shared};

const BYTES: usize = 64 << 20;

struct Rig {
    member: Member,
    shared: Arc<Shared>,
    outside: Outside,
    now: Instant,
}

impl Rig {
    fn new() -> Rig {
        let options = Options {
            memory_bytes: BYTES,
            workers: 1,
            cachelets: 16,
            item_bytes_max: 1 << 20,
            evict: true,
            generation: 0,
        };
        let store = Store::vacant(options, Memory::heap(BYTES)).expect("there is memory");
        let settings = Settings { workers: 1, memory_bytes: BYTES as u64, ..Settings::default() };
        let shared = Arc::new(Shared::new(settings, store));
        let terms = Terms { cluster: "mbal".into(), ..Terms::default() };
        let mut drawn = 0;
        let draw = move || {
            drawn += 1;
            Incarnation(drawn)
        };
        let member = Member::new(terms, Arc::clone(&shared), Box::new(draw));
        let outside = Outside { is_open: true, ..Outside::default() };
        Rig { member, shared, outside, now: Instant::from_secs(100) }
    }

    fn time(&self) -> Time {
        let (second, micros) =
            (self.now.as_secs() as u32, (self.now.as_micros() % 1_000_000) as u32);
        Time { lease: self.now, worker: Now { second, unix: 1_700_000_000, micros } }
    }

    fn handle(&mut self, event: Event) -> Vec<String> {
        let (time, mut actions) = (self.time(), Vec::new());
        self.member.handle(time, event, &mut actions);
        let told = |action| match action {
            Action::Mapped(cluster) => {
                self.shared.follow(ServerId(7), Arc::clone(&cluster), time.worker.second);
                format!("map {}", cluster.map.version())
            }
            Action::Call(Call::Leave(server, one)) => format!("leave {} {}", server.0, one.0),
            Action::Call(Call::Register(id, one)) => {
                format!("register {:?} {}", id.map(|id| id.0), one.0)
            }
            Action::Call(Call::Beat(_)) => "beat".into(),
            Action::Joined(server, one, lease) => {
                format!(
                    "joined {} {}{}",
                    server.0,
                    one.0,
                    if lease.is_some() { " by lease" } else { "" }
                )
            }
            Action::Accepted(_) => "accepted".into(),
            Action::Unfit(_) => "unfit".into(),
            Action::Carry(_) => "carry".into(),
            Action::HotTerms(_) => "hot terms".into(),
            Action::Balance(mode) => format!("balance {mode:?}"),
            Action::Drained(..) => "drained".into(),
            Action::Fence => "fence".into(),
            Action::Usurped => "usurped".into(),
            Action::Ends => "ends".into(),
        };
        actions.into_iter().map(told).collect()
    }

    /// Woken after so many milliseconds.
    fn after(&mut self, ms: u64) -> Vec<String> {
        self.now += Duration::from_millis(ms);
        self.handle(Event::Woken(self.outside))
    }

    fn hears(&mut self, heard: Heard) -> Vec<String> {
        self.handle(Event::Heard(heard))
    }

    fn heartbeat(&mut self) -> Heartbeat {
        self.member.heartbeat(self.time(), &self.outside, Loads::default())
    }

    /// How long it sleeps, in milliseconds.
    fn sleeps(&self) -> Option<u64> {
        self.member.next_wake(self.now).map(|at| (at - self.now).as_millis() as u64)
    }

    fn registered(&mut self, lease: bool, map: Option<String>) -> Vec<String> {
        let told = LeaseTold { lease_ms: 3_000, ..LeaseTold::default() };
        let lease = lease.then_some(told);
        let registered = Registered { id: 7, epoch_ms: 1_000, lease, map, ..Registered::default() };
        self.hears(Heard::Registered(registered))
    }
}

/// All of it is server 7's.
fn map(version: u64) -> String {
    format!("cluster mbal\nversion {version}\nserver 7 link a:1 client a:2 workers a:3\nequal 0\n")
}

fn news(map: Option<String>) -> Heard {
    Heard::News(News { map, ..News::default() })
}

#[test]
fn who_is_refused_tries_again_as_another_process_and_less_and_less_often() {
    let mut rig = Rig::new();
    assert_eq!(rig.after(0), ["register None 1"]);
    assert_eq!(rig.sleeps(), None, "it waits for the answer");
    assert_eq!((rig.hears(Heard::Refused).len(), rig.sleeps()), (0, Some(50)));
    assert_eq!(rig.after(49).len(), 0);
    assert_eq!(rig.after(1), ["register None 2"]);
    assert_eq!((rig.hears(Heard::Silent).len(), rig.sleeps()), (0, Some(100)));
    for pause in [100, 200, 400, 800, 1_000, 1_000] {
        assert_eq!(rig.sleeps(), Some(pause));
        assert_eq!(rig.after(pause), ["register None 2"], "silence says nothing of it");
        assert_eq!(rig.hears(Heard::Silent).len(), 0);
    }
}

#[test]
fn heartbeats_come_often_until_there_is_a_map_and_clients_are_let_in() {
    let mut rig = Rig::new();
    rig.outside.is_open = false;
    rig.after(0);
    assert_eq!(rig.registered(false, None), ["joined 7 1"]);
    assert_eq!(rig.after(0).len(), 0);
    assert_eq!(rig.after(99).len(), 0);
    assert_eq!(rig.after(1), ["beat"]);
    assert!(rig.heartbeat().starting);
    assert_eq!(rig.hears(news(Some(map(4)))), ["drained"]);
    assert_eq!(rig.after(0), ["map 4"]);
    assert_eq!(rig.after(0), ["carry"], "moves are told after the map");
    assert_eq!(rig.after(100), ["beat"], "no client is let in yet");
    rig.hears(news(None));
    rig.after(0);
    rig.after(0);
    rig.outside.is_open = true;
    assert_eq!(rig.after(21), ["beat"], "they are now, and it says so");
    rig.hears(news(None));
    rig.after(0);
    rig.after(0);
    assert_eq!(rig.sleeps(), Some(1_000));
    let told = rig.heartbeat();
    assert_eq!((told.map_version, told.takes_changes, told.starting), (4, true, false));
}

#[test]
fn changes_that_do_not_fit_have_the_next_map_asked_for_whole() {
    let mut rig = Rig::new();
    rig.after(0);
    assert_eq!(rig.registered(false, Some(map(4))), ["joined 7 1", "map 4"]);
    rig.after(0);
    assert_eq!(rig.after(1_000), ["beat"]);
    let changes = vec!["of nothing".to_owned()];
    rig.hears(Heard::News(News { changes, ..News::default() }));
    assert_eq!(rig.after(0), ["unfit"]);
    let told = rig.heartbeat();
    assert_eq!((told.map_version, told.takes_changes), (4, false));
}

#[test]
fn who_owns_by_a_lease_follows_nothing_before_it_has_one() {
    let mut rig = Rig::new();
    rig.after(0);
    assert_eq!(rig.registered(true, Some(map(4))), ["joined 7 1 by lease"]);
    rig.after(0);
    assert_eq!(rig.after(100), ["beat"]);
    assert_eq!(rig.hears(news(Some(map(4)))), ["accepted", "drained"]);
    assert_eq!(rig.after(0).len(), 0, "it does not own");
    rig.outside.owns = true;
    assert_eq!(rig.after(100), ["beat"]);
    assert_eq!(rig.hears(news(Some(map(4)))), ["accepted", "drained"]);
    assert_eq!(rig.after(0), ["map 4"]);
}

/// With a coordinator that is gone, and refuses connections, it would call without a pause.
#[test]
fn a_key_that_a_coordinator_is_to_hear_of_is_told_soon_and_not_without_a_pause() {
    let mut rig = Rig::new();
    rig.after(0);
    rig.registered(true, None);
    rig.after(0);
    rig.outside.wants_word = true;
    assert_eq!(rig.after(20), ["beat"]);
    assert_eq!(rig.hears(Heard::Silent).len(), 0);
    assert_eq!(rig.after(0).len(), 0);
    assert_eq!((rig.sleeps(), rig.after(0).len()), (Some(20), 0));
    assert_eq!(rig.after(20), ["beat"]);
}

#[test]
fn whose_lease_is_over_drops_all_and_says_that_it_has_ended_before_it_registers_anew() {
    let mut rig = Rig::new();
    rig.outside.owns = true;
    rig.after(0);
    rig.registered(true, None);
    rig.after(0);
    rig.after(100);
    rig.hears(news(Some(map(4))));
    assert_eq!(rig.after(0), ["map 4"]);
    assert_eq!(rig.after(0), ["carry"]);
    rig.outside = Outside { is_open: true, lease_is_over: true, ..Outside::default() };
    assert_eq!(rig.after(5), ["fence"]);
    while rig.member.fences_off() {
        rig.after(2);
    }
    assert!(rig.shared.store.prefixes().is_empty());
    assert_eq!(rig.after(0), ["leave 7 1"]);
    rig.hears(Heard::Silent);
    assert_eq!(rig.after(50), ["leave 7 1"], "whoever is silent is asked for both again");
    rig.hears(Heard::Left);
    assert_eq!(rig.after(0), ["register Some(7) 2"]);
    assert_eq!(rig.registered(true, None), ["joined 7 2 by lease"]);
}

#[test]
fn who_is_refused_ends_and_by_a_lease_begins_anew() {
    for (lease, action) in [(false, "usurped"), (true, "fence")] {
        let mut rig = Rig::new();
        rig.after(0);
        rig.registered(lease, None);
        rig.after(0);
        assert_eq!(rig.after(100), ["beat"]);
        assert_eq!(rig.hears(Heard::Refused), [action]);
    }
}

#[test]
fn who_is_to_be_empty_soon_speaks_more_often_and_at_once() {
    let mut rig = Rig::new();
    rig.after(0);
    rig.registered(false, Some(map(4)));
    rig.after(0);
    assert_eq!(rig.sleeps(), Some(1_000));
    rig.outside.is_ending = true;
    rig.outside.time_left = Some(Duration::from_millis(800));
    assert_eq!(rig.after(30), ["beat"]);
    assert!(rig.heartbeat().ending);
    rig.hears(news(None));
    rig.after(0);
    rig.after(0);
    assert_eq!(rig.sleeps(), Some(50));
}
