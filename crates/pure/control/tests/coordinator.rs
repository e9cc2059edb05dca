//! What a coordinator answers, and what it remembers.

mod rig;

use mbal_control::api::{
    Drain, Heartbeat, Incarnation, MoveCall, MoveDecision, MoveReport, News, Progress,
    Registration, SplitCall, Status,
};
use mbal_control::{Coordinator, Refusal, Request, Response, Settings, State};
use mbal_model::{
    Cluster, ClusterPlan, Instant, Move, Owner, PlannedMove, Prefix, ServerId, Why, WorkerId,
};
use rig::{Rig, registration};

fn settings(servers_first: usize) -> Settings {
    Settings { servers_first, ..Settings::default() }
}

fn three() -> Rig {
    Rig::with(3, Settings::default(), |id| registration(id, id.into()))
}

/// The first cachelet of server 1 is ordered to server 2.
fn ordered() -> (Rig, Prefix, u32) {
    let mut rig = three();
    let prefix = rig.held(1)[0];
    let call = MoveCall { prefix: prefix.to_string(), server: 2, worker: Some(1) };
    match rig.ask(Request::Move(call)) {
        Ok(Response::Move(number)) => (rig, prefix, number),
        other => panic!("{other:?}"),
    }
}

impl Rig {
    fn beat(&mut self, id: u16, incarnation: u64, moves: Vec<MoveReport>) -> Result<News, Refusal> {
        let map_version = self.version();
        let incarnation = Incarnation(incarnation);
        self.beats_as(id, Heartbeat { incarnation, map_version, moves, ..Heartbeat::default() })
    }

    fn document(&self) -> Cluster {
        self.coordinator.state().document().expect("there is a map")
    }
}

fn report(number: u32, progress: Progress) -> Vec<MoveReport> {
    vec![MoveReport { number, progress, ..MoveReport::default() }]
}

#[test]
fn there_is_a_map_as_soon_as_enough_servers_are_there() {
    let mut rig = Rig::of(Coordinator::new(settings(3)));
    assert_eq!(rig.register(registration(1, 11)).expect("welcome").map, None);
    assert_eq!(rig.register(registration(2, 22)).expect("welcome").map, None);
    assert!(matches!(rig.ask(Request::Map), Err(Refusal::Conflict(why)) if why.contains("1 more")));
    let map = rig.register(registration(3, 33)).expect("welcome").map.expect("a map");
    let cluster = Cluster::parse(&map).expect("a map document");
    assert_eq!(
        (cluster.map.version(), cluster.map.cachelets().len(), cluster.servers.len()),
        (1, 128, 3)
    );
    // Those who came before hear of it by their heartbeat.
    let news = rig.ask(Request::Heartbeat(
        ServerId(1),
        Heartbeat { incarnation: Incarnation(11), ..Heartbeat::default() },
    ));
    assert!(matches!(news, Ok(Response::News(news)) if news.map == Some(map)));
    assert_eq!(
        rig.beat(2, 22, Vec::new()).expect("known").map,
        None,
        "who has the newest is told none"
    );
}

#[test]
fn without_an_id_a_server_gets_the_least_free_one_and_keeps_it() {
    let mut rig = Rig::of(Coordinator::new(settings(9)));
    rig.register(registration(1, 1)).expect("welcome");
    let nameless =
        |host: u16, incarnation| Registration { id: None, ..registration(host, incarnation) };
    let mut id_of = |registration| match rig.ask(Request::Register(registration)) {
        Ok(Response::Registered(registered)) => registered.id,
        other => panic!("{other:?}"),
    };
    assert_eq!(id_of(nameless(7, 70)), 2);
    assert_eq!(id_of(nameless(8, 80)), 3);
    assert_eq!(id_of(nameless(7, 71)), 2, "who comes back to its addresses is who it was");
}

#[test]
fn another_process_of_the_same_id_is_empty_and_the_old_one_is_refused() {
    let mut rig = three();
    let (version, held) = (rig.version(), rig.held(2));
    rig.register(registration(2, 2)).expect("the same process asks again");
    assert_eq!(rig.version(), version, "which is no news");
    rig.register(registration(2, 200)).expect("it was started again");
    assert_eq!(rig.version(), version + 1, "what is born now has cas of its own");
    assert_eq!(rig.held(2), held);
    assert!(matches!(rig.beat(2, 2, Vec::new()), Err(Refusal::Conflict(_))));
    assert!(rig.beat(2, 200, Vec::new()).is_ok());
}

#[test]
fn the_cachelets_of_a_dead_server_begin_elsewhere_and_it_returns_without_any() {
    let mut rig = three();
    rig.ask(Request::Lost(ServerId(3))).expect("it is known");
    assert_eq!(rig.held(3), []);
    assert_eq!(rig.held(1).len() + rig.held(2).len(), 128);
    assert!(!rig.document().servers.contains_key(&ServerId(3)));
    let version = rig.version();
    rig.ask(Request::Lost(ServerId(3))).expect("saying it twice changes nothing");
    assert_eq!(rig.version(), version);
    assert!(
        matches!(rig.beat(3, 3, Vec::new()), Err(Refusal::Conflict(_))),
        "it was said to be dead"
    );
    rig.register(registration(3, 300)).expect("it comes back");
    assert_eq!(rig.held(3), []);
    assert!(rig.document().servers.contains_key(&ServerId(3)), "so that clients may ask it");
}

#[test]
fn a_process_that_says_goodbye_is_dead_if_it_is_the_one() {
    let mut rig = three();
    assert!(matches!(
        rig.ask(Request::Leave(ServerId(3), Incarnation(4))),
        Err(Refusal::Conflict(_))
    ));
    assert_eq!(rig.ask(Request::Leave(ServerId(3), Incarnation(3))), Ok(Response::Done));
    assert_eq!(rig.held(3), []);
}

#[test]
fn the_status_of_a_move_that_its_source_has_told_of_can_be_read_again() {
    let (mut rig, _, number) = ordered();
    rig.beat(1, 1, report(number, Progress::Moving)).expect("known");
    let Ok(Response::Status(status)) = rig.ask(Request::Status) else { panic!("there is one") };
    let text = serde_json::to_string(&status).expect("it has a JSON form");
    let read: Status = serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
    assert_eq!(read, status);
    assert_eq!((read.moves[0].number, text.matches("\"number\"").count()), (number, 1));
}

/// What a heartbeat of a server that is to end is told.
fn ending(rig: &mut Rig, id: u16, map_version: u64, moves: Vec<MoveReport>) -> News {
    let incarnation = Incarnation(id.into());
    let beat = Heartbeat { incarnation, map_version, ending: true, moves, ..Heartbeat::default() };
    match rig.ask(Request::Heartbeat(ServerId(id), beat)) {
        Ok(Response::News(news)) => news,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_that_is_about_to_end_waits_for_no_epoch() {
    let mut rig = three();
    let mut presses = |id: u16, ending| {
        let incarnation = Incarnation(id.into());
        let beat = Heartbeat { incarnation, ending, ..Heartbeat::default() };
        rig.coordinator.handle(rig.now, Request::Heartbeat(ServerId(id), beat)).is_pressing
    };
    assert!(!presses(3, false));
    assert!(presses(3, true), "it says so for the first time");
    assert!(!presses(3, true) && !presses(1, false));
}

#[test]
fn a_server_that_ends_is_emptied_and_waits_until_all_others_know() {
    let mut rig = three();
    let before = rig.version();
    for (id, incarnation) in [(1, 1), (2, 2)] {
        rig.beat(id, incarnation, Vec::new()).expect("known");
    }
    let held = rig.held(3);
    assert_eq!(ending(&mut rig, 3, before, Vec::new()).drain, Some(Drain::Draining));
    assert!(rig.coordinator.state().draining.contains(&ServerId(3)));
    for prefix in held {
        let call = MoveCall { prefix: prefix.to_string(), server: 1, worker: None };
        let Ok(Response::Move(number)) = rig.ask(Request::Move(call)) else {
            panic!("it may move")
        };
        let version = rig.version();
        let news = ending(&mut rig, 3, version, report(number, Progress::Sealed));
        assert_eq!(news.drain, Some(Drain::Draining), "others follow an older map");
    }
    let now = rig.version();
    rig.beat(1, 1, Vec::new()).expect("known");
    assert_eq!(ending(&mut rig, 3, now, Vec::new()).drain, Some(Drain::Draining));
    rig.beat(2, 2, Vec::new()).expect("known");
    assert_eq!(ending(&mut rig, 3, now, Vec::new()).drain, Some(Drain::Drained));
    rig.ask(Request::Leave(ServerId(3), Incarnation(3))).expect("it is the one");
    assert_eq!(rig.version(), now + 1, "so that nobody asks it any more");
    assert!(!rig.document().servers.contains_key(&ServerId(3)));
}

#[test]
fn a_server_that_ends_hears_if_there_is_nobody_to_take_what_it_has() {
    let mut rig = three();
    let version = rig.version();
    assert_eq!(ending(&mut rig, 1, version, Vec::new()).drain, Some(Drain::Draining));
    assert_eq!(ending(&mut rig, 2, version, Vec::new()).drain, Some(Drain::Draining));
    assert_eq!(ending(&mut rig, 3, version, Vec::new()).drain, Some(Drain::Nobody));
    assert_eq!(ending(&mut rig, 1, version, Vec::new()).drain, Some(Drain::Nobody));
}

#[test]
fn a_split_puts_two_halves_in_the_place_of_a_cachelet_that_stays() {
    let (mut rig, moving, _) = ordered();
    let whole = rig.held(1)[1];
    let (low, high) = whole.halves().expect("it is wide");
    let (version, count) = (rig.version(), rig.document().map.cachelets().len());
    let split = |prefix: Prefix| Request::Split(SplitCall { prefix: prefix.to_string() });
    assert_eq!(rig.ask(split(whole)), Ok(Response::Done));
    let map = rig.document().map;
    assert_eq!((map.version(), map.cachelets().len()), (version + 1, count + 1));
    assert_eq!(map.at(high.first_hash()), (high, map.at(low.first_hash()).1), "one owner");
    assert!(matches!(rig.ask(split(whole)), Err(Refusal::Unknown(_))), "there is none any more");
    assert!(matches!(rig.ask(split(moving)), Err(Refusal::Conflict(_))), "it moves");
    let mut narrow = low;
    while let Some((half, _)) = narrow.halves() {
        assert_eq!(rig.ask(split(narrow)), Ok(Response::Done));
        narrow = half;
    }
    assert!(matches!(rig.ask(split(narrow)), Err(Refusal::Senseless(_))), "no half has a name");
    let half = MoveCall { prefix: high.to_string(), server: 2, worker: Some(0) };
    assert!(rig.ask(Request::Move(half)).is_ok());
}

#[test]
fn the_last_server_that_serves_is_not_emptied() {
    let mut rig = three();
    for id in 1..=3 {
        rig.beat(id, id.into(), vec![]).expect("it is known");
    }
    rig.ask(Request::Drain(ServerId(1), true)).expect("two others serve");
    rig.ask(Request::Drain(ServerId(2), true)).expect("one other serves");
    let refused = rig.ask(Request::Drain(ServerId(3), true));
    assert!(matches!(refused, Err(Refusal::Conflict(_))), "{refused:?}");
    // Who is to be emptied already is told so again.
    assert_eq!(rig.ask(Request::Drain(ServerId(2), true)), Ok(Response::Done));
}

#[test]
fn what_empties_a_server_begins_as_places_come_free() {
    let mut rig = three();
    rig.ask(Request::Drain(ServerId(3), true)).expect("it is alive");
    let step = |prefix| PlannedMove {
        step: Move {
            cachelet: prefix,
            from: Owner { server: ServerId(3), worker: WorkerId(0) },
            to: Owner { server: ServerId(1), worker: WorkerId(0) },
        },
        why: Why::Drain,
        load: 0.1,
        bytes: 1 << 30,
        from_load: 0.2,
        to_load: 0.3,
    };
    let steps: Vec<PlannedMove> = rig.held(3).into_iter().take(6).map(step).collect();
    let (moves, later) = (steps[..4].to_vec(), steps[4..].to_vec());
    rig.ask(Request::Planned(ClusterPlan { moves, later, ..ClusterPlan::default() }))
        .expect("a plan");
    assert_eq!(rig.beat(3, 3, Vec::new()).expect("known").moves.len(), 4);
    let news = rig.beat(3, 3, report(2, Progress::Sealed)).expect("known");
    let numbers: Vec<u32> = news.moves.iter().map(|one| one.number).collect();
    assert_eq!(numbers, [1, 3, 4, 5]);
    assert_eq!(news.moves[3].prefix, steps[4].step.cachelet.to_string());
}

#[test]
fn when_all_are_dead_whoever_comes_back_first_has_everything() {
    let mut rig = three();
    for id in 1..=3 {
        rig.ask(Request::Lost(ServerId(id))).expect("it is known");
    }
    assert_eq!(rig.held(3).len(), 128, "there is nobody else");
    rig.register(registration(1, 100)).expect("it comes back");
    assert_eq!(rig.held(1).len(), 128);
}

#[test]
fn nonsense_and_strangers_are_refused() {
    let mut rig = three();
    let good = registration(4, 4);
    let bad = [
        Registration { cluster: "other".into(), ..good.clone() },
        Registration { incarnation: Incarnation(0), ..good.clone() },
        Registration { client: "nowhere".into(), ..good.clone() },
        Registration { link: String::new(), ..good.clone() },
        Registration { workers: vec!["10.0.0.4".into()], ..good.clone() },
        Registration { id: Some(u16::MAX), ..good.clone() },
        Registration { client: "10.0.0.1:11211".into(), ..good.clone() },
        Registration { link: "10.0.0.2:11311".into(), ..good },
    ];
    for registration in bad {
        let answer = rig.ask(Request::Register(registration.clone()));
        assert!(
            matches!(answer, Err(Refusal::Conflict(_) | Refusal::Senseless(_))),
            "{registration:?}"
        );
    }
    assert!(matches!(rig.beat(4, 4, Vec::new()), Err(Refusal::Unknown(_))));
    assert!(matches!(rig.ask(Request::Lost(ServerId(4))), Err(Refusal::Unknown(_))));
    assert!(matches!(rig.ask(Request::CancelMove(1)), Err(Refusal::Unknown(_))));
    let mut order = |prefix: &str, server, worker| {
        rig.ask(Request::Move(MoveCall { prefix: prefix.into(), server, worker }))
    };
    assert!(matches!(order("0000", 2, None), Err(Refusal::Senseless(_))));
    assert!(
        matches!(order("0000/1", 2, None), Err(Refusal::Unknown(why)) if why.contains("0000/7"))
    );
    assert!(matches!(order("0000/7", 9, None), Err(Refusal::Unknown(_))));
    assert!(matches!(order("0000/7", 1, None), Err(Refusal::Conflict(_))), "it has it already");
    assert!(matches!(order("0000/7", 2, Some(2)), Err(Refusal::Senseless(_))));
}

#[test]
fn who_registers_hears_of_the_newest_flush_that_anybody_has_told_of() {
    let mut rig = ordered().0;
    for (id, flush_number) in [(1, 3), (2, 1)] {
        let incarnation = Incarnation(id.into());
        let beat = Heartbeat { incarnation, flush_number, ..Heartbeat::default() };
        let Ok(Response::News(news)) = rig.ask(Request::Heartbeat(ServerId(id), beat)) else {
            panic!("it is a member")
        };
        assert_eq!(news.flush_number, 3);
    }
    let saved = State::from_json(&rig.coordinator.state().to_json()).expect("as it was written");
    assert_eq!(saved.flush_number, 3);
}

#[test]
fn a_move_is_told_to_both_sides_until_the_source_has_sealed_it() {
    let (mut rig, prefix, number) = ordered();
    for id in [1, 2] {
        let news = rig.beat(id, id.into(), Vec::new()).expect("known");
        let told = &news.moves[0];
        assert_eq!(
            (told.number, told.from, told.to, told.worker, told.word),
            (number, 1, 2, 1, MoveDecision::Go)
        );
        assert_eq!((told.to_incarnation, news.moves_ever), (Incarnation(2), number));
    }
    assert_eq!(rig.beat(3, 3, Vec::new()).expect("known").moves, []);
    rig.beat(1, 1, report(number, Progress::Moving)).expect("known");
    let version = rig.version();
    rig.beat(2, 2, report(number, Progress::Sealed)).expect("known");
    assert_eq!(rig.version(), version, "only the source says so");
    rig.beat(1, 1, report(number, Progress::Sealed)).expect("known");
    assert_eq!(rig.version(), version + 1);
    assert!(rig.held(2).contains(&prefix));
    let news =
        rig.beat(1, 1, report(number, Progress::Sealed)).expect("saying it twice changes nothing");
    assert_eq!((news.moves, news.moves_ever, rig.version()), (Vec::new(), number, version + 1));
}

#[test]
fn a_cachelet_moves_once_at_a_time() {
    let (mut rig, prefix, _) = ordered();
    let again = MoveCall { prefix: prefix.to_string(), server: 3, worker: None };
    assert!(matches!(rig.ask(Request::Move(again)), Err(Refusal::Conflict(_))));
}

#[test]
fn a_cancelled_move_ends_when_its_source_serves_again_or_goes_on_if_that_is_too_late() {
    let (mut rig, prefix, number) = ordered();
    rig.ask(Request::CancelMove(number)).expect("it is under way");
    assert_eq!(
        rig.beat(1, 1, report(number, Progress::Moving)).expect("known").moves[0].word,
        MoveDecision::Cancel
    );
    let news = rig.beat(1, 1, report(number, Progress::TooLate)).expect("known");
    assert_eq!(news.moves[0].word, MoveDecision::Go);
    rig.ask(Request::CancelMove(number)).expect("it is under way");
    rig.beat(1, 1, report(number, Progress::Back)).expect("known");
    assert!(rig.held(1).contains(&prefix));
    assert!(rig.coordinator.state().moves.is_empty());
}

#[test]
fn what_moved_from_a_dead_server_is_the_destinations() {
    for comes_back in [false, true] {
        let (mut rig, prefix, _) = ordered();
        match comes_back {
            true => drop(rig.register(registration(1, 100)).expect("it was started again")),
            false => drop(rig.ask(Request::Lost(ServerId(1))).expect("it is known")),
        }
        assert!(rig.held(2).contains(&prefix), "it serves what it got, which must not vanish");
        assert!(rig.coordinator.state().moves.is_empty());
    }
}

#[test]
fn what_moved_to_a_dead_server_is_taken_back_whatever_was_sealed() {
    let (mut rig, prefix, number) = ordered();
    rig.register(registration(2, 200)).expect("it was started again");
    let news = rig.beat(1, 1, report(number, Progress::Sealed)).expect("known");
    assert_eq!(news.moves[0].word, MoveDecision::DestinationLost);
    assert!(rig.held(1).contains(&prefix), "that word was said before it was heard");
    rig.beat(1, 1, report(number, Progress::Back)).expect("known");
    assert!(rig.coordinator.state().moves.is_empty());
}

#[test]
fn a_state_of_another_cluster_form_or_kind_is_refused() {
    let (rig, ..) = ordered();
    let text = rig.coordinator.state().to_json();
    let state = State::from_json(&text).expect("it was written so");
    let other = Settings { cluster: "other".into(), ..Settings::default() };
    assert!(matches!(Coordinator::resume(other, state), Err(Refusal::Conflict(_))));
    for (from, to) in [
        ("\"format\": 1", "\"format\": 2"),
        ("cachelet 0000", "cachelet 8000"),
        ("{", "["),
        ("10.0.0.1:11211", "1"),
    ] {
        assert!(State::from_json(&text.replacen(from, to, 1)).is_err(), "{from} {to}");
    }
    let half = &text[..text.len() / 2];
    assert!(State::from_json(half).is_err());
}

#[test]
fn what_could_not_be_saved_did_not_happen() {
    let mut rig = three();
    let before = rig.coordinator.state().clone();
    rig.ask(Request::Lost(ServerId(1))).expect("it is known");
    rig.coordinator.restore(before.into());
    assert!(rig.beat(1, 1, Vec::new()).is_ok(), "it lives");
}

#[test]
fn a_coordinator_that_has_just_begun_waits_for_servers_before_it_calls_them_silent() {
    let mut rig = three();
    let state = rig.coordinator.state().clone();
    rig.coordinator = Coordinator::resume(settings(3), state).expect("it fits");
    let states = |rig: &mut Rig, ms: u64| {
        rig.now = Instant::from_micros(ms * 1000);
        match rig.ask(Request::Status).expect("it is answered") {
            Response::Status(status) => {
                assert!(status.servers.iter().all(|server| server.load.is_sign_positive()));
                status.servers.iter().map(|server| server.state.clone()).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(states(&mut rig, 0), ["awaited"; 3]);
    rig.now = Instant::from_micros(2_000_000);
    rig.beat(2, 2, Vec::new()).expect("it is known");
    assert_eq!(states(&mut rig, 4_000), ["awaited", "serving", "awaited"]);
    assert_eq!(
        states(&mut rig, 9_999),
        ["awaited", "silent", "awaited"],
        "who was heard and is not any more"
    );
    assert_eq!(states(&mut rig, 10_000), ["silent"; 3]);
}

#[test]
fn a_state_that_is_older_than_what_servers_follow_is_said_once() {
    let mut rig = three();
    let mut said = |map_version| {
        let beat = Heartbeat { incarnation: Incarnation(2), map_version, ..Heartbeat::default() };
        rig.coordinator.handle(Instant::from_micros(1), Request::Heartbeat(ServerId(2), beat)).said
    };
    assert_eq!(said(1), [""; 0]);
    let expected =
        "server 2 follows map 7, and the state has map 1: it is an old one. Start the server anew";
    assert_eq!(said(7), [expected]);
    assert_eq!(said(7), [""; 0]);
}

/// What is given to who has been told that it is empty ends with it.
#[test]
fn who_is_to_be_emptied_is_given_nothing() {
    let (mut rig, prefix, number) = ordered();
    rig.ask(Request::Drain(ServerId(2), true)).expect("it is known");
    let news = rig.beat(1, 1, Vec::new()).expect("known");
    assert_eq!(news.moves[0].word, MoveDecision::Cancel, "it was not given yet");
    let other = MoveCall { prefix: rig.held(1)[1].to_string(), server: 2, worker: None };
    let refused = Err(Refusal::Conflict("server 2 is to be emptied: it is given nothing".into()));
    assert_eq!(rig.ask(Request::Move(other.clone())), refused);
    rig.beat(1, 1, report(number, Progress::Back)).expect("known");
    assert!(rig.held(1).contains(&prefix) && rig.coordinator.state().moves.is_empty());
    rig.ask(Request::Drain(ServerId(2), false)).expect("it is known");
    rig.ask(Request::Move(other)).expect("it is to serve again");
}

#[test]
fn who_ends_is_given_nothing_whatever_operators_say_and_waits_for_what_cannot_be_withdrawn() {
    let (mut rig, prefix, number) = ordered();
    let version = rig.version();
    rig.beat(3, 3, Vec::new()).expect("known");
    for held in rig.held(2) {
        let call = MoveCall { prefix: held.to_string(), server: 3, worker: None };
        let Ok(Response::Move(away)) = rig.ask(Request::Move(call)) else { panic!("it may move") };
        ending(&mut rig, 2, version, report(away, Progress::Sealed));
    }
    assert_eq!(rig.held(2), []);
    rig.ask(Request::Drain(ServerId(2), false)).expect("it is known");
    let call = MoveCall { prefix: rig.held(1)[1].to_string(), server: 2, worker: None };
    let refused = rig.ask(Request::Move(call));
    assert!(matches!(refused, Err(Refusal::Conflict(_))), "it ends all the same: {refused:?}");
    let news = rig.beat(1, 1, report(number, Progress::TooLate)).expect("known");
    assert_eq!(news.moves[0].word, MoveDecision::Go);
    for id in [1, 3] {
        rig.beat(id, id.into(), Vec::new()).expect("known");
    }
    let version = rig.version();
    assert_eq!(ending(&mut rig, 2, version, Vec::new()).drain, Some(Drain::Draining));
    rig.beat(1, 1, report(number, Progress::Sealed)).expect("known");
    assert_eq!(rig.held(2), [prefix], "it came, and has to go");
    let version = rig.version();
    assert_eq!(ending(&mut rig, 2, version, Vec::new()).drain, Some(Drain::Draining));
}
