//! Servers that own by leases: when another process may take a server's place, and when one is dead.

mod rig;

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_control::api::{Heartbeat, Registration};
use mbal_control::{Coordinator, Leases, Refusal, Request, Response, Settings};
use mbal_election::{KeySeen, Terms};
use mbal_model::{Instant, ServerId};
use rig::{Rig, registration};

const HERE: &str = "http://10.0.0.9:11210";

fn settings(grace: Option<Duration>) -> Settings {
    let terms = Terms { lease: Duration::from_secs(3), grace };
    let etcd = vec!["http://10.0.0.8:2379".into()];
    let leases = Some(Leases { terms, etcd, address: HERE.into() });
    Settings { leases, ..Settings::default() }
}

fn nameless(host: u16, incarnation: u64) -> Registration {
    let coordinators = vec![HERE.into()];
    Registration { id: None, leases: true, coordinators, ..registration(host, incarnation) }
}

fn three() -> Rig {
    Rig::with(3, settings(None), |host| nameless(host, host.into()))
}

impl Rig {
    fn beat(&mut self, id: u16) -> bool {
        self.beats(id, Heartbeat::default()).expect("it is known").soon
    }

    /// Ten seconds pass, in which all but server 2 are heard of, and a look each quarter shows its key so.
    fn pass(&mut self, of_two: impl Fn(u64) -> KeySeen) -> Option<u64> {
        let begun = self.now.as_micros();
        for quarter in 1..40 {
            self.now = Instant::from_micros(begun + quarter * 250_000);
            self.beat(1);
            self.beat(3);
            let Ok(Response::Owners(owners)) = self.ask(Request::Owners) else {
                panic!("it answers")
            };
            let mut keys = BTreeMap::new();
            for (server, (incarnation, _)) in owners.servers {
                let key = match server.0 {
                    2 => of_two(quarter * 250),
                    _ => KeySeen::Present { unrenewed: Duration::ZERO },
                };
                keys.insert(server, (incarnation, key));
            }
            self.ask(Request::KeysSeen(owners.at, keys)).expect("it is no question");
            if !self.coordinator.state().members[&ServerId(2)].is_alive() {
                return Some(quarter * 250);
            }
        }
        None
    }
}

/// Whole seconds, as etcd tells them.
fn unrenewed(ms: u64) -> KeySeen {
    KeySeen::Present { unrenewed: Duration::from_secs((ms / 1_000).saturating_sub(1)) }
}

#[test]
fn a_server_that_can_hold_a_lease_is_told_of_it() {
    let mut rig = three();
    let told = rig.register(nameless(1, 1)).expect("it asks again").lease.expect("a lease");
    assert_eq!((told.lease_ms, told.grace_ms), (3_000, None));
    assert_eq!(told.etcd, ["http://10.0.0.8:2379"]);
    let old = Registration { leases: false, ..nameless(4, 4) };
    assert_eq!(rig.register(old).expect("it may").lease, None);
}

#[test]
fn a_server_whose_lease_is_not_renewed_is_dead_and_others_begin_its_cachelets() {
    let mut rig = three();
    let at = rig.pass(unrenewed).expect("it is found");
    assert!((4_000..=4_750).contains(&at), "{at}: lease, drift, and what etcd rounds off");
    assert_eq!(rig.held(2).len(), 0);
}

#[test]
fn a_key_that_is_gone_is_waited_for_as_long() {
    let at = three().pass(|_| KeySeen::Absent).expect("it is found");
    assert_eq!(at, 3_750, "from the first look that missed it");
}

#[test]
fn a_process_that_was_said_to_be_dead_and_has_not_heard_of_it_begins_anew() {
    let mut rig = three();
    rig.ask(Request::Lost(ServerId(2))).expect("an operator may say so");
    let refused = rig.register(nameless(2, 2));
    assert!(matches!(refused, Err(Refusal::Conflict(_))), "{refused:?}");
    rig.register(nameless(2, 7)).expect("it is another incarnation");
    assert!(rig.register(nameless(2, 2)).is_err(), "a call that comes late");
}

#[test]
fn a_server_that_renews_is_not_dead_however_silent_it_is() {
    let mut rig = three();
    assert_eq!(rig.pass(|_| KeySeen::Present { unrenewed: Duration::ZERO }), None);
}

#[test]
fn a_server_that_does_not_know_this_coordinator_is_not_dead_by_its_lease() {
    let mut rig = three();
    rig.ask(Request::Lost(ServerId(2))).expect("it is known");
    let coordinators = vec!["http://10.0.0.7:11210".into()];
    let other = Registration { coordinators, ..nameless(2, 22) };
    rig.register(other).expect("the one before is dead");
    assert_eq!(rig.pass(|_| KeySeen::Absent), None);
    rig.ask(Request::Lost(ServerId(2))).expect("an operator may say so");
    assert!(!rig.coordinator.state().members[&ServerId(2)].is_alive());
}

#[test]
fn another_process_takes_the_place_of_one_that_owns_nothing_any_more() {
    let mut rig = three();
    assert!(matches!(rig.register(nameless(2, 22)), Err(Refusal::Conflict(_))));
    rig.pass(unrenewed).expect("it is found");
    let registered = rig.register(nameless(2, 22)).expect("it is dead");
    assert_eq!((registered.id, rig.held(2).len()), (2, 0));
}

#[test]
fn one_that_says_that_it_has_ended_may_begin_anew_at_once() {
    let mut rig = three();
    rig.ask(Request::Leave(ServerId(2), 2.into())).expect("it is the one");
    assert_eq!(rig.register(nameless(2, 22)).expect("it has ended").id, 2);
}

#[test]
fn servers_are_asked_to_come_sooner_while_one_may_be_about_to_be_dead() {
    let mut rig = three();
    assert!(!rig.beat(1));
    rig.now = Instant::from_micros(2_000_000);
    assert!(rig.beat(1), "2 and 3 have not been heard of");
    rig.now = Instant::from_micros(60_000_000);
    assert!(!rig.beat(1), "they renew, whatever keeps them from coordinators");
}

#[test]
fn a_new_leader_waits_as_long() {
    let rig = three();
    let state = rig.coordinator.state().clone();
    let coordinator = Coordinator::resume(settings(None), state).expect("it is its state");
    let mut rig = Rig::of(coordinator);
    let absent = rig.pass(|_| KeySeen::Present { unrenewed: Duration::from_secs(5) });
    assert_eq!(absent, Some(3_750), "from its first look");
}
