//! What callers say that cannot be meant, and what servers say of their links.

mod rig;

use std::time::Duration;

use mbal_control::api::{
    Heartbeat, LinkReport, LostCall, Registration, RemedyReport, Status, WorkerReport,
};
use mbal_control::{Coordinator, Refusal, Request, Response, Settings};
use mbal_model::{Came, Instant, Owner, ServerId, WorkerId};
use rig::{Rig, registration};
use serde_json::{Value, json};

const MINUTE: u64 = 60_000_000;

/// With servers 1 to `servers`, which have just been heard.
fn heard(servers: u16) -> Rig {
    let mut rig = Rig::with(servers, Settings::default(), bare);
    rig.now = Instant::from_micros(MINUTE);
    (1..=servers).for_each(|id| drop(rig.register(bare(id)).expect("it may come")));
    rig.said.clear();
    rig
}

fn bare(id: u16) -> Registration {
    Registration { workers: Vec::new(), memory_bytes: 0, ..registration(id, id.into()) }
}

impl Rig {
    fn beat(&mut self, id: u16, links: &[(u16, u64, &str)]) {
        let link = |(server, down_ms, why): &(u16, u64, &str)| LinkReport {
            server: *server,
            down_ms: *down_ms,
            why: (*why).into(),
        };
        let links = links.iter().map(link).collect();
        let beat = Heartbeat { map_version: 1, links, ..Heartbeat::default() };
        self.beats(id, beat).expect("it is known");
    }

    fn states(&mut self) -> Vec<String> {
        self.status().servers.into_iter().map(|server| server.state).collect()
    }

    fn pass(&mut self, ms: u64) {
        self.now += Duration::from_micros(ms * 1000);
    }
}

#[test]
fn numbers_that_are_none_and_texts_without_an_end_are_refused() {
    let mut rig = heard(1);
    let before = rig.status();
    let long = "a".repeat(100_000);
    let cachelets = json!(vec![json!({ "prefix": "0000/1" }); 40_000]);
    let beats = [
        json!({ "workers": [{ "fixed": 1e308 }, { "fixed": 1e308 }] }),
        json!({ "workers": [{ "fixed": -1e308 }] }),
        json!({ "workers": [{ "cachelets": [{ "prefix": "0000/1", "load": 1e300 }] }] }),
        json!({ "workers": [{ "cachelets": [{ "prefix": "0000/1", "bytes": u64::MAX }] }] }),
        json!({ "workers": [{ "cachelets": [{ "prefix": long }] }] }),
        json!({ "workers": [{ "cachelets": cachelets }] }),
        json!({ "workers": [{ "rest": { "load": 1e19 } }] }),
        json!({ "workers": [{ "reads": u64::MAX }, { "writes": 1 }] }),
        json!({ "workers": vec![json!({}); 40_000] }),
        json!({ "requests": 1e308 }),
        json!({ "requests": -1.0 }),
        json!({ "memory_bytes": u64::MAX }),
        json!({ "version": long }),
        json!({ "moves": [{ "number": 1, "part_gone": 1e308 }] }),
        json!({ "moves": [{ "number": 1, "why": long }] }),
        json!({ "links": [{ "server": 2, "why": long }] }),
        json!({ "curve": { "counted": 1e308 } }),
        json!({ "curve": { "points": vec![0; 40_000] } }),
        json!({ "ages": { "used_bytes": u64::MAX } }),
        json!({ "ages": { "classes": [{ "bytes": u64::MAX }] } }),
    ];
    for mut beat in beats {
        beat["incarnation"] = json!(format!("{:016x}", 1));
        let beat: Heartbeat = serde_json::from_value(beat).expect("it is one");
        let said = format!("{beat:?}");
        let answer = rig.ask(Request::Heartbeat(ServerId(1), beat));
        assert!(matches!(answer, Err(Refusal::Senseless(_))), "{answer:?}: {:.200}", said);
    }
    assert_eq!(rig.status(), before, "nothing is kept of them");
    let read: Result<Status, _> =
        serde_json::from_str(&serde_json::to_string(&before).expect("it is JSON"));
    assert!(read.is_ok(), "whoever asks can read it");
}

#[test]
fn who_has_no_possible_address_does_not_register() {
    let mut rig = heard(1);
    let host = |bytes: usize| format!("{}:1", "h".repeat(bytes));
    let with = |more: Value| {
        let mut one = serde_json::to_value(bare(2)).expect("it is JSON");
        one.as_object_mut()
            .expect("it is one")
            .extend(more.as_object().expect("it is one").clone());
        Request::Register(serde_json::from_value(one).expect("it is one"))
    };
    for more in [
        json!({ "client": host(100_000) }),
        json!({ "client": host(254) }),
        json!({ "link": host(254) }),
        json!({ "workers": [host(254)] }),
        json!({ "workers": vec![host(1); 40_000] }),
        json!({ "coordinators": ["http://".to_owned() + &host(2000)] }),
        json!({ "coordinators": vec![host(1); 65] }),
        json!({ "cluster": host(1000) }),
        json!({ "memory_bytes": u64::MAX }),
    ] {
        let Err(Refusal::Senseless(why)) = rig.ask(with(more.clone())) else {
            panic!("{more:.100}")
        };
        assert!(why.len() < 400, "what is too long is not said again: {why:.500}");
    }
    rig.ask(with(json!({ "client": host(253) }))).expect("the longest name that there is");
    let call = |servers| {
        Request::Scale(serde_json::from_value(json!({ "servers": servers })).expect("it is one"))
    };
    assert!(matches!(rig.ask(call(usize::MAX)), Err(Refusal::Senseless(_))));
}

#[test]
fn a_server_that_lives_is_not_dead_because_somebody_says_so() {
    let mut rig = heard(2);
    let said =
        |force| Request::SaidLost(ServerId(2), LostCall { incarnation: Some(2.into()), force });
    rig.beat(2, &[]);
    rig.pass(400);
    let Err(Refusal::Conflict(why)) = rig.ask(said(false)) else { panic!("it lives") };
    assert!(
        why.starts_with("server 2 lives: it was heard 0.4 s ago. ") && why.contains("--force"),
        "{why}"
    );
    assert_eq!(rig.states(), ["starting", "serving"], "nothing was heard of the first");
    // Of a process that is there no more.
    let other =
        Request::SaidLost(ServerId(2), LostCall { incarnation: Some(7.into()), force: true });
    assert!(matches!(rig.ask(other), Err(Refusal::Conflict(_))));
    rig.pass(4_000);
    assert_eq!(rig.states()[1], "silent");
    assert_eq!(rig.ask(said(false)), Ok(Response::Done));
    assert_eq!(rig.states()[1], "lost");
    assert_eq!(rig.ask(said(false)), Ok(Response::Done), "saying it twice changes nothing");
    let mut rig = heard(2);
    assert_eq!(
        rig.ask(Request::SaidLost(ServerId(2), LostCall { incarnation: None, force: true })),
        Ok(Response::Done)
    );
    // One that has just begun does not know who lives.
    let state = heard(2).coordinator.state().clone();
    let resumed = Coordinator::resume(Settings::default(), state).expect("it is its own");
    let mut rig = Rig::of(resumed);
    rig.now = Instant::from_micros(1);
    let Err(Refusal::Conflict(why)) = rig.ask(said(false)) else { panic!("it may live") };
    assert!(why.starts_with("server 2 may live"), "{why}");
    rig.pass(20_000);
    assert_eq!(rig.ask(said(false)), Ok(Response::Done));
}

#[test]
fn a_link_that_is_broken_is_named_with_what_to_do() {
    let mut rig = heard(3);
    let secret = "its secret is another";
    for id in 1..=3 {
        rig.beat(id, &[]);
    }
    // It may be coming up.
    rig.beat(3, &[(1, 900, secret), (2, 900, secret)]);
    assert_eq!((rig.states().join(" "), rig.said.len()), ("serving serving serving".into(), 0));
    rig.beat(3, &[(1, 3_000, secret), (2, 4_000, secret)]);
    assert_eq!(
        rig.said,
        [
            "server 3 has no link to server 1: its secret is another; give all servers the same --cluster-secret",
            "server 3 has no link to server 2: its secret is another; give all servers the same --cluster-secret",
        ]
    );
    let status = rig.status();
    let broken = &status.broken_links[1];
    assert_eq!((broken.from, broken.to, broken.seconds), (3, 2, 4));
    assert_eq!(
        (broken.why.as_str(), broken.mend.as_str()),
        (secret, "give all servers the same --cluster-secret")
    );
    assert_eq!(rig.states().join(" "), "serving serving unlinked", "who misses most others");
    rig.beat(3, &[(1, 5_000, secret), (2, 6_000, secret)]);
    assert_eq!(rig.said.len(), 2, "said once");
    // Of who is silent, that is said.
    rig.pass(4_000);
    rig.beat(1, &[]);
    rig.beat(3, &[(1, 9_000, secret), (2, 10_000, "Connection refused")]);
    assert_eq!(rig.status().broken_links.len(), 1);
    rig.beat(2, &[(3, 2_000, "")]);
    rig.beat(3, &[]);
    assert_eq!(rig.said[2..], ["server 3 is linked to server 1 again"]);
    assert_eq!(
        (rig.status().broken_links, rig.states().join(" ")),
        (vec![], "serving serving serving".into())
    );
}

#[test]
fn of_two_servers_without_a_link_neither_is_said_to_serve() {
    let mut rig = heard(2);
    rig.beat(1, &[]);
    rig.beat(2, &[(1, 3_000, "it refuses: of us it says that its secret is another")]);
    assert_eq!(rig.states(), ["unlinked", "unlinked"]);
    for (why, mend) in [
        ("it speaks versions 9 to 9 of the protocol", "upgrade"),
        ("it belongs to another cluster", "--cluster-name"),
        ("it is, or wants, server 7", "--server-id"),
        ("TLS: corrupt message", "-Z"),
        ("it does not speak the protocol of links", "-Z"),
        ("Connection refused (os error 111)", "--link-port"),
        ("no handshake in time", "--link-port"),
    ] {
        rig.beat(2, &[(1, 3_000, why)]);
        let status = rig.status();
        assert!(status.broken_links[0].mend.contains(mend), "{:?}", status.broken_links);
    }
}

#[test]
fn a_server_whose_figures_are_beyond_bounds_is_heard() {
    let mut rig = heard(1);
    let at = Owner { server: ServerId(1), worker: WorkerId(0) };
    for figure in [4e6, -7.0, f64::INFINITY, f64::NAN] {
        let came = Some((figure, Came::Worse));
        let remedy = RemedyReport::of_server(1, at, (figure, figure), 1, came);
        let cachelets = ["0000/1", "8000/1"].map(|prefix| (prefix.into(), figure, 0));
        let worker = WorkerReport::new(figure, cachelets.into(), 1);
        let (workers, remedies) = (vec![worker], vec![remedy]);
        rig.beats(1, Heartbeat { workers, remedies, ..Heartbeat::default() }).expect("it is heard");
    }
}
