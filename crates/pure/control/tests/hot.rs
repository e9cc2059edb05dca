//! Hot keys: what servers report, what T is computed by, what servers, operators and the log hear of it.

mod rig;

use std::time::Duration;

use mbal_control::api::{
    HOT_KEYS_LISTED, Heartbeat, HotCall, HotMode, HotReport, HotState, HotStatus, HotTold,
    Registration, WorkerReport,
};
use mbal_control::{Coordinator, Rates, Request, Response, Settings, State};
use mbal_model::{Instant, Key, ServerId};
use rig::{Rig, registration};

const SECOND: u64 = 1_000_000;

/// Three servers that have registered.
fn three(hot_keys: HotMode) -> Rig {
    let settings = Settings { hot_keys, ..Settings::default() };
    let mut rig = Rig::with(3, settings, of_no_worker);
    rig.now = Instant::from_micros(SECOND);
    rig
}

fn of_no_worker(id: u16) -> Registration {
    Registration { workers: Vec::new(), memory_bytes: 0, ..registration(id, id.into()) }
}

impl Rig {
    fn comes(&mut self, id: u16) -> HotTold {
        self.register(of_no_worker(id)).expect("it may").hot.expect("it is told")
    }

    fn beat(&mut self, id: u16, requests: f64, hot: Vec<HotReport>) -> HotTold {
        let beat = Heartbeat {
            map_version: 1,
            workers: vec![WorkerReport::default()],
            requests,
            hot,
            ..Heartbeat::default()
        };
        self.beats(id, beat).expect("it is known").hot.expect("it is told")
    }

    fn rates(&mut self) -> Option<Rates> {
        match self.ask(Request::Rates) {
            Ok(Response::Rates(rates)) => rates,
            other => panic!("{other:?}"),
        }
    }

    fn threshold(&mut self, threshold: f64) -> Option<f64> {
        self.ask(Request::Threshold(threshold)).expect("it is taken");
        self.hot().told.threshold
    }

    fn hot(&mut self) -> HotStatus {
        self.status().hot.expect("it is told")
    }

    /// Server and name of each key, as `GET /v1/hotkeys` tells them.
    fn keys(&mut self) -> Vec<(u16, String)> {
        match self.ask(Request::HotKeys) {
            Ok(Response::HotKeys(told)) => {
                told.keys.into_iter().map(|key| (key.server, key.report.key)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// What was said since the last look.
    fn new_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
    }
}

fn key(name: &str, reads: f64, writes: f64) -> HotReport {
    HotReport { key: name.into(), reads, writes, ..HotReport::default() }
}

fn copied(name: &str, reads: f64, copies: &[u16]) -> HotReport {
    let state = Some(HotState::Hot);
    HotReport { state, copies: copies.to_vec(), copied_ms: 1, ..key(name, reads, 2.0) }
}

#[test]
fn mode_and_lease_are_told_at_once_and_t_when_all_servers_have_reported() {
    let mut rig = three(HotMode::Atomic);
    let told = HotTold { mode: HotMode::Atomic, lease_ms: 1000, threshold: None };
    assert_eq!(rig.comes(1), told);
    rig.beat(1, 900.0, vec![key("a", 500.0, 1.0)]);
    rig.beat(2, 50.0, vec![]);
    assert_eq!(rig.rates(), None, "server 3 may have hot keys, too");
    assert_eq!(rig.beat(1, 900.0, vec![key("a", 500.0, 1.0)]), told, "the last T stands");
    rig.beat(3, 50.0, vec![key("b", 80.0, 0.0), key("written", 90.0, 10.0)]);
    let hottest = vec![501.0, 100.0, 80.0];
    let rates = Rates { servers: 3, requests: 1000.0, hottest, target: 1.25 };
    assert_eq!(rig.rates(), Some(rates), "by T it is known that a key is hot by writes");
    rig.ask(Request::Threshold(200.0)).expect("it is taken");
    let told = HotTold { threshold: Some(200.0), ..told };
    assert_eq!(rig.beat(2, 50.0, vec![]), told);
    assert_eq!(rig.comes(2), told);
}

#[test]
fn who_is_silent_is_not_waited_for_for_ever_and_does_not_count() {
    let mut rig = three(HotMode::Async);
    rig.now = Instant::from_micros(10 * SECOND);
    rig.beat(1, 100.0, vec![key("a", 60.0, 0.0)]);
    rig.beat(2, 20.0, vec![]);
    let rates = Rates { servers: 2, requests: 120.0, hottest: vec![60.0], target: 1.25 };
    assert_eq!(rig.rates(), Some(rates));
}

#[test]
fn an_operator_says_how_hot_keys_are_copied_and_that_outlives_the_process() {
    let mut rig = three(HotMode::Atomic);
    rig.ask(Request::CopyHotKeys(HotMode::Atomic)).expect("it is so");
    assert_eq!((rig.hot().told.mode, rig.new_lines()), (HotMode::Atomic, Vec::new()));
    rig.ask(Request::CopyHotKeys(HotMode::Off)).expect("it is taken");
    assert_eq!(rig.beat(2, 50.0, vec![]).mode, HotMode::Off);
    assert_eq!(rig.new_lines(), ["hot keys are not copied any more"]);
    let saved = rig.coordinator.state().to_json();
    let state = State::from_json(&saved).expect("it was written by itself");
    let settings = Settings { hot_keys: HotMode::Atomic, ..Settings::default() };
    rig.coordinator = Coordinator::resume(settings, state).expect("it is of this cluster");
    assert_eq!(rig.hot().told.mode, HotMode::Off);
    let call = |mode: &str| serde_json::from_str(&format!(r#"{{"mode":"{mode}"}}"#)).ok();
    assert_eq!(call("async"), Some(HotCall { mode: HotMode::Async }));
    assert_eq!(call("quantum"), None::<HotCall>);
}

#[test]
fn nothing_is_computed_where_nothing_is_copied() {
    let mut rig = three(HotMode::Off);
    for id in 1..=3 {
        rig.beat(id, 100.0, vec![]);
    }
    assert_eq!(rig.rates(), None);
    assert_eq!(rig.hot().told.mode, HotMode::Off);
}

#[test]
fn t_follows_what_is_felt_and_copies_go_when_four_epochs_have_wanted_none() {
    let mut rig = three(HotMode::Async);
    let told = [
        (f64::INFINITY, Some(0.0)),
        (1000.0, Some(1000.0)),
        (1090.0, Some(1000.0)),
        (910.0, Some(1000.0)),
        (1101.0, Some(1101.0)),
        (500.0, Some(500.0)),
        (f64::NAN, Some(500.0)),
        (0.0, Some(500.0)),
        (f64::INFINITY, Some(500.0)),
        (f64::INFINITY, Some(500.0)),
        (f64::INFINITY, Some(500.0)),
        (480.0, Some(500.0)),
        (f64::INFINITY, Some(500.0)),
        (f64::INFINITY, Some(500.0)),
        (f64::INFINITY, Some(500.0)),
        (f64::INFINITY, Some(0.0)),
    ];
    for (computed, expected) in told {
        assert_eq!(rig.threshold(computed), expected, "{computed}");
    }
}

#[test]
fn each_change_of_copies_is_told_once_with_what_it_was_decided_on() {
    let mut rig = three(HotMode::Async);
    rig.beat(1, 900.0, vec![key("a", 500.0, 1.0)]);
    assert_eq!(rig.new_lines(), [""; 0], "it has no copies");
    rig.beat(1, 900.0, vec![copied("a", 500.0, &[2, 3])]);
    rig.ask(Request::Threshold(200.4)).expect("it is taken");
    rig.beat(1, 900.0, vec![copied("a", 510.0, &[3, 2])]);
    rig.beat(1, 900.0, vec![copied("a", 320.0, &[2])]);
    let pending = HotReport { state: Some(HotState::HotPending), ..copied("a", 320.0, &[2]) };
    rig.beat(1, 900.0, vec![pending]);
    let cooling = HotReport { state: Some(HotState::ColdPending), ..copied("a", 20.0, &[2]) };
    rig.beat(1, 900.0, vec![cooling.clone()]);
    rig.beat(1, 900.0, vec![cooling]);
    rig.beat(1, 900.0, vec![key("a", 20.0, 2.0)]);
    rig.beat(2, 900.0, vec![copied("b", 250.0, &[1])]);
    rig.beat(2, 900.0, vec![]);
    rig.beat(3, 900.0, vec![copied("c", 250.0, &[1])]);
    rig.beat(3, 900.0, vec![key("c", 250.0, 2.0)]);
    let said = [
        "key a of server 1 is hot: 500 reads/s, 2 writes/s, T is that of another coordinator, 3 servers; 2 copies on servers 2, 3",
        "key a of server 1 goes from 2 copies to 1: 320 reads/s, 2 writes/s, T is 200/s, 3 servers; a copy on server 2",
        "key a of server 1 cools: 20 reads/s, 2 writes/s, T is 200/s, 3 servers",
        "key b of server 2 is hot: 250 reads/s, 2 writes/s, T is 200/s, 3 servers; a copy on server 1",
        "key b of server 2 cools: it is hardly asked for, T is 200/s, 3 servers",
        "key c of server 3 is hot: 250 reads/s, 2 writes/s, T is 200/s, 3 servers; a copy on server 1",
        "key c of server 3 is hot and has no copies any more: 250 reads/s, 2 writes/s, T is 200/s, 3 servers",
    ];
    assert_eq!(rig.new_lines(), said);
}

#[test]
fn an_epoch_has_sixteen_changes_one_by_one_and_the_number_of_the_others() {
    let mut rig = three(HotMode::Async);
    let hot = |copies: &[u16]| -> Vec<HotReport> {
        (0..20).map(|at| copied(&format!("key{at}"), 100.0, copies)).collect()
    };
    rig.beat(1, 900.0, hot(&[2]));
    assert_eq!(rig.new_lines().len(), 16);
    rig.rates();
    assert_eq!(rig.new_lines(), ["4 more hot keys have changed"]);
    rig.rates();
    assert_eq!(rig.new_lines(), [""; 0]);
    rig.beat(1, 900.0, hot(&[2, 3]));
    assert_eq!(rig.new_lines().len(), 16, "another epoch");
}

#[test]
fn a_heartbeat_with_ten_thousand_keys_counts_for_its_hottest() {
    let mut rig = three(HotMode::Async);
    let many = (0..10_000).map(|at| key(&format!("key{at}"), f64::from(at), 0.0)).collect();
    rig.beat(1, 1e6, many);
    let keys = rig.keys();
    assert_eq!(keys.len(), HOT_KEYS_LISTED);
    assert_eq!(keys[0], (1, "key9999".into()));
}

#[test]
fn what_no_server_can_mean_is_left_out() {
    let mut rig = three(HotMode::Async);
    let long = "k".repeat(751);
    let names = ["", "two words", "new\nline", "\u{fffd}", &long, "good%20key"];
    let mut hot: Vec<HotReport> = names.map(|name| copied(name, 10.0, &[2])).into();
    hot.push(HotReport { reads: f64::INFINITY, writes: -5.0, ..key("wild", f64::NAN, 0.0) });
    hot.push(copied("many", 5.0, &[2; 1000]));
    rig.beat(1, 0.0, hot);
    let keys = rig.keys();
    let keys: Vec<&str> = keys.iter().map(|(_, key)| key.as_str()).collect();
    assert_eq!(keys, ["good%20key", "many", "wild"]);
    assert_eq!((rig.hot().copies, rig.hot().requests), (1 + 255, 0.0));
}

#[test]
fn keys_are_told_hottest_first_of_those_that_are_heard_of() {
    let mut rig = three(HotMode::Async);
    rig.beat(1, 300.0, vec![copied("a", 100.0, &[2, 3]), key("c", 50.0, 0.0)]);
    rig.beat(2, 300.0, vec![copied("b", 200.0, &[1])]);
    assert_eq!(rig.keys(), [(2, "b".into()), (1, "a".into()), (1, "c".into())]);
    let status = rig.hot();
    assert_eq!((status.copied, status.copies, status.requests), (2, 3, 600.0));
    rig.now = Instant::from_micros(3 * SECOND);
    rig.beat(2, 300.0, vec![copied("b", 200.0, &[1])]);
    rig.now = Instant::from_micros(5 * SECOND);
    assert_eq!(rig.keys(), [(2, "b".into())], "server 1 is silent");
    rig.ask(Request::Lost(ServerId(2))).expect("it is taken");
    assert_eq!(rig.keys(), []);
}

#[test]
fn terms_that_no_coordinator_can_mean_are_known() {
    let sane = HotTold { mode: HotMode::Atomic, lease_ms: 1000, threshold: Some(7.0) };
    assert!(sane.is_sane());
    let lease = |lease_ms| HotTold { lease_ms, ..sane };
    let threshold = |threshold| HotTold { threshold: Some(threshold), ..sane };
    let cases = [lease(0), lease(99), lease(10_001), lease(u64::MAX), threshold(-1.0)];
    for told in cases.into_iter().chain([threshold(f64::NAN), threshold(f64::INFINITY)]) {
        assert!(!told.is_sane(), "{told:?}");
    }
    let read: HotTold = serde_json::from_str(r#"{"mode":"quantum","lease_ms":1000}"#)
        .expect("a newer coordinator's mode is no error");
    assert_eq!(read.mode, HotMode::Off);
    assert_eq!(Settings::default().copy_lease, Duration::from_secs(1));
}

#[test]
fn what_has_copied_keys_stays_where_it_is() {
    let mut rig = three(HotMode::Async);
    let hash = Key::new(b"a-key").expect("a key").hash();
    let pinned = |rig: &mut Rig| {
        let Ok(Response::Outlook(outlook)) = rig.ask(Request::Outlook(1)) else {
            panic!("an outlook")
        };
        let workers = outlook.servers.into_iter().flat_map(|server| server.workers);
        let all: Vec<_> = workers.flat_map(|worker| worker.cachelets).collect();
        assert!(all.len() >= 3);
        let pinned = all.iter().filter(|held| held.pinned).map(|held| held.cachelet);
        pinned.collect::<Vec<_>>()
    };
    for id in 1..=3 {
        rig.beat(id, 1_000.0, vec![key("a-key", 500.0, 0.0)]);
    }
    assert_eq!(pinned(&mut rig), [], "it is hot, and has no copies");
    // Any server may say so: it is the map that counts.
    rig.beat(2, 1_000.0, vec![copied("a-key", 500.0, &[1, 3])]);
    let found = pinned(&mut rig);
    assert!(matches!(found[..], [prefix] if prefix.contains(hash)), "{found:?}");
    rig.beat(2, 1_000.0, vec![key("a-key", 500.0, 0.0)]);
    assert_eq!(pinned(&mut rig), []);
}
