//! How many servers there are to be: who retires, what moves carry, and what ends it.

mod rig;

use mbal_control::api::{
    AgesReport, ClassAges, Drain, Heartbeat, Incarnation, MoveCall, MoveDecision, MoveReport, News,
    Progress, Registration, ScaleCall, ScaleState, ScaleStatus,
};
use mbal_control::{Coordinator, Refusal, Request, Response, Settings, State, choose};
use mbal_model::{ClusterPlan, Instant, Move, Owner, PlannedMove, ServerId, Why, WorkerId};
use rig::{Rig, registration};

fn of_one_worker(id: u16, incarnation: u64) -> Registration {
    let workers = vec![format!("10.0.0.{id}:11300")];
    Registration { workers, memory_bytes: 100_000, ..registration(id, incarnation) }
}

/// Server 3 is the coldest; servers are as full as they can be.
fn ages(id: u16, number: u32) -> AgesReport {
    let first = [10, 20, 500, 30][usize::from(id) - 1];
    let ages: Vec<u32> = (0..100).map(|at| first + at).collect();
    let class = ClassAges { class: 5, items: 1_000, bytes: 100_000, ages };
    AgesReport { number, memory_bytes: 100_000, used_bytes: 100_000, classes: vec![class] }
}

impl Rig {
    /// Four servers with a worker each, and their map.
    fn four() -> Rig {
        Rig::with(4, Settings::default(), |id| of_one_worker(id, id.into()))
    }

    fn comes(&mut self, id: u16, incarnation: u64) {
        self.register(of_one_worker(id, incarnation)).expect("nobody is in the way");
    }

    fn beat(&mut self, id: u16, ages: Option<AgesReport>, moves: Vec<MoveReport>) -> News {
        let map_version = self.version();
        let beat = Heartbeat { map_version, ages, moves, ..Heartbeat::default() };
        self.beats(id, beat).expect("it is known")
    }

    fn scale(&mut self, servers: usize, dry_run: bool) -> Result<ScaleStatus, Refusal> {
        self.scale_as(ScaleCall { servers, dry_run, ..ScaleCall::default() })
    }

    fn scale_as(&mut self, call: ScaleCall) -> Result<ScaleStatus, Refusal> {
        match self.ask(Request::Scale(call))? {
            Response::Scale(status) => Ok(*status),
            other => panic!("{other:?}"),
        }
    }

    /// Servers that the autoscaler is to stop.
    fn stopping(&mut self) -> Vec<u16> {
        match self.ask(Request::AutoscaleStatus) {
            Ok(Response::Autoscale(status)) => status.stopping,
            other => panic!("{other:?}"),
        }
    }

    fn scaling(&mut self) -> ScaleStatus {
        match self.ask(Request::Scaling) {
            Ok(Response::Scale(status)) => *status,
            other => panic!("{other:?}"),
        }
    }

    /// Servers tell their ages, and a planner chooses.
    fn choose(&mut self) {
        for id in 1..=4 {
            if !self.coordinator.state().members[&ServerId(id)].is_alive() {
                continue;
            }
            if let Some(asked) = self.beat(id, None, Vec::new()).ages {
                assert_eq!(self.beat(id, Some(ages(id, asked.number)), Vec::new()).ages, None);
            }
        }
        let Ok(Response::Inventory(Some(inventory))) = self.ask(Request::Inventory) else {
            panic!("all have told what they have")
        };
        let plan = choose(&inventory);
        assert_eq!(self.ask(Request::Resized(inventory.number, plan)), Ok(Response::Done));
    }

    fn retiring(&self) -> Vec<u16> {
        self.coordinator.state().draining.iter().map(|id| id.0).collect()
    }

    fn begin_move(&mut self, from: u16, to: u16) -> u32 {
        let prefix = self.held(from)[0].to_string();
        match self.ask(Request::Move(MoveCall { prefix, server: to, worker: None })) {
            Ok(Response::Move(number)) => number,
            other => panic!("{other:?}"),
        }
    }

    /// All that a server has goes to server 1.
    fn empty(&mut self, from: u16) {
        while !self.held(from).is_empty() {
            let number = self.begin_move(from, 1);
            let sealed = MoveReport {
                number,
                progress: Progress::Sealed,
                bytes: 1_000,
                ..MoveReport::default()
            };
            self.beat(from, None, vec![sealed]);
        }
        // Others may send it requests until they have said that they know the map.
        let all: Vec<ServerId> = self.coordinator.state().members.keys().copied().collect();
        all.iter().for_each(|id| drop(self.beat(id.0, None, Vec::new())));
        self.beat(from, None, Vec::new());
    }
}

#[test]
fn the_coldest_retires_and_its_moves_carry_what_was_chosen() {
    let mut rig = Rig::four();
    let status = rig.scale(3, false).expect("it begins");
    assert_eq!((status.state, status.awaited.len()), (ScaleState::Asking, 4));
    rig.choose();
    assert_eq!(rig.retiring(), [3]);
    let status = rig.scaling();
    assert_eq!((status.state, status.serving), (ScaleState::Moving, 3));
    let plan = status.plan.expect("it was chosen");
    assert_eq!((plan.retiring[0].server, plan.retiring[0].score), (3, 550));
    let number = rig.begin_move(3, 1);
    let news = rig.beat(1, None, Vec::new());
    let one = news.moves.iter().find(|one| one.number == number).expect("it takes part");
    let selected = one.selected.as_ref().expect("not everything fits");
    // Nothing of server 3 is as young as anything of the others, whose oldest make room.
    assert_eq!(news.keep.expect("it stays").classes[0].younger_than, 89);
    assert_eq!(selected.classes[0].younger_than, 89);
    let sealed =
        MoveReport { number, progress: Progress::Sealed, bytes: 5_000, ..MoveReport::default() };
    rig.beat(3, None, vec![sealed]);
    rig.empty(3);
    let status = rig.scaling();
    assert_eq!(
        (status.state, status.part_done, &status.retired[..]),
        (ScaleState::Done, 1.0, &[3][..])
    );
    assert!(status.bytes >= 5_000);
    assert_eq!(rig.beat(3, None, Vec::new()).drain, Some(Drain::Drained));
}

#[test]
fn nothing_comes_to_a_server_before_it_knows_what_stays() {
    let mut rig = Rig::four();
    rig.scale(3, false).expect("it begins");
    rig.choose();
    let map = rig.coordinator.state().map.clone().expect("there is a map");
    let held = map.cachelets().iter().find(|(_, owner)| owner.server == ServerId(3));
    let (cachelet, from) = *held.expect("it has some");
    let to = Owner { server: ServerId(1), worker: WorkerId(0) };
    let step = Move { cachelet, from, to };
    let (load, bytes) = (0.1, 1_000);
    let one = PlannedMove { step, why: Why::Drain, load, bytes, from_load: 0.2, to_load: 0.1 };
    let plan = ClusterPlan { moves: vec![one], ..ClusterPlan::default() };
    assert_eq!(rig.ask(Request::Planned(plan.clone())), Ok(Response::Done));
    assert!(rig.coordinator.state().moves.is_empty());
    assert!(rig.beat(1, None, Vec::new()).keep.is_some());
    assert_eq!(rig.ask(Request::Planned(plan)), Ok(Response::Done));
    assert_eq!(rig.coordinator.state().moves.len(), 1);
}

#[test]
fn a_dry_run_says_who_would_retire_and_changes_nothing() {
    let mut rig = Rig::four();
    rig.scale(2, true).expect("it begins");
    rig.choose();
    let status = rig.scaling();
    let retiring = status.plan.expect("it was chosen").retiring;
    assert_eq!((status.dry_run, status.state, retiring.len()), (true, ScaleState::Done, 2));
    assert!(rig.retiring().is_empty() && rig.coordinator.state().scaling.is_none());
}

#[test]
fn senseless_numbers_and_a_second_scaling_are_refused() {
    let mut rig = Rig::four();
    assert!(matches!(rig.scale(0, false), Err(Refusal::Senseless(_))));
    let begun = rig.scale(3, false).expect("it begins");
    assert_eq!(rig.scale(3, false).expect("the same again").number, begun.number);
    assert!(
        matches!(rig.scale(2, false), Err(Refusal::Conflict(why)) if why.contains("cancel it first"))
    );
}

#[test]
fn a_coordinator_that_begins_anew_goes_on() {
    let mut rig = Rig::four();
    rig.scale(3, false).expect("it begins");
    let begin_anew = |rig: &mut Rig| {
        let state = State::from_json(&rig.coordinator.state().to_json()).expect("it was saved");
        rig.coordinator =
            Coordinator::resume(Settings::default(), state).expect("the same cluster");
    };
    // Nobody has told anything that the new one knows: it asks again.
    begin_anew(&mut rig);
    rig.choose();
    assert_eq!(rig.retiring(), [3]);
    begin_anew(&mut rig);
    assert_eq!(rig.scaling().state, ScaleState::Moving);
    rig.begin_move(3, 2);
    let news = rig.beat(3, None, Vec::new());
    assert!(news.moves[0].selected.is_some() && news.ages.is_none());
    rig.beat(3, None, vec![]);
}

#[test]
fn a_cancelled_one_leaves_everybody_serving() {
    let mut rig = Rig::four();
    rig.scale(2, false).expect("it begins");
    rig.choose();
    let number = rig.begin_move(3, 1);
    assert_eq!(rig.ask(Request::EndScaling), Ok(Response::Done));
    assert!(rig.retiring().is_empty());
    let news = rig.beat(3, None, Vec::new());
    assert_eq!(
        (news.moves[0].number, news.moves[0].word, news.drain),
        (number, MoveDecision::Cancel, None)
    );
    assert_eq!(rig.scaling().state, ScaleState::Idle);
    assert!(matches!(rig.ask(Request::EndScaling), Err(Refusal::Unknown(_))));
}

#[test]
fn if_a_server_dies_that_was_to_stay_one_stays_that_was_to_retire() {
    let mut rig = Rig::four();
    rig.scale(2, false).expect("it begins");
    rig.choose();
    let chosen: Vec<u16> =
        rig.scaling().plan.expect("it was chosen").retiring.iter().map(|one| one.server).collect();
    let stays = (1..=4).find(|id| !chosen.contains(id)).expect("two stay");
    assert_eq!(rig.ask(Request::Lost(ServerId(stays))), Ok(Response::Done));
    assert_eq!(rig.retiring(), [chosen[0]], "the coldest retires still");
}

#[test]
fn who_was_to_retire_and_comes_back_before_it_was_empty_retires_still() {
    let mut rig = Rig::four();
    rig.scale(3, false).expect("it begins");
    rig.choose();
    rig.comes(3, 33);
    assert_eq!(rig.retiring(), [3]);
    rig.empty(3);
    // After that it is a server that somebody has started.
    rig.comes(3, 34);
    assert!(rig.retiring().is_empty());
}

#[test]
fn more_servers_are_told_of_and_those_that_are_empty_serve_again() {
    let mut rig = Rig::four();
    rig.scale(3, false).expect("it begins");
    rig.choose();
    rig.empty(3);
    let status = rig.scale(6, false).expect("it begins");
    assert_eq!((status.state, status.serving, status.more), (ScaleState::Growing, 4, 2));
    assert!(rig.retiring().is_empty(), "server 3 is still there");
    (5..=6).for_each(|id| rig.comes(id, u64::from(id)));
    assert_eq!(rig.scaling().state, ScaleState::Done);
}

#[test]
fn what_is_done_stays_done_and_chooses_no_more() {
    let mut rig = Rig::four();
    rig.scale(3, false).expect("it begins");
    rig.choose();
    rig.empty(3);
    rig.beat(3, None, Vec::new());
    // Somebody starts it again, it gets its share, and is emptied by hand.
    rig.comes(3, 33);
    let number = rig.begin_move(1, 3);
    rig.beat(
        1,
        None,
        vec![MoveReport { number, progress: Progress::Sealed, ..Default::default() }],
    );
    assert_eq!(rig.ask(Request::Drain(ServerId(3), true)), Ok(Response::Done));
    rig.begin_move(3, 1);
    assert!(rig.beat(3, None, Vec::new()).moves.iter().all(|one| one.selected.is_none()));
    assert_eq!(rig.scaling().state, ScaleState::Done);
    rig.scale(2, false).expect("nothing is under way");
}

#[test]
fn a_server_that_tells_nothing_is_not_waited_for() {
    let mut rig = Rig::four();
    rig.scale(3, false).expect("it begins");
    for id in 1..=3 {
        let asked = rig.beat(id, None, Vec::new()).ages.expect("it is asked");
        rig.beat(id, Some(ages(id, asked.number)), Vec::new());
    }
    assert_eq!(rig.ask(Request::Inventory), Ok(Response::Inventory(None)));
    rig.now = Instant::from_micros(10_000_000);
    let Ok(Response::Inventory(Some(inventory))) = rig.ask(Request::Inventory) else {
        panic!("it is")
    };
    assert_eq!((inventory.count, inventory.servers.len()), (1, 3));
}

/// As of a StatefulSet, which can stop no other pod.
#[test]
fn who_is_named_retires_however_warm_and_what_travels_is_chosen() {
    let mut rig = Rig::four();
    let named = |servers, retire: &[u16]| ScaleCall {
        servers,
        retire: retire.to_vec(),
        ..ScaleCall::default()
    };
    for (servers, retire) in
        [(3, &[2, 1][..]), (2, &[1]), (2, &[1, 1]), (3, &[9]), (usize::MAX, &[1])]
    {
        let refused = rig.scale_as(named(servers, retire));
        assert!(refused.is_err(), "{servers} {retire:?}: {refused:?}");
    }
    rig.scale_as(named(2, &[4, 1])).expect("it begins");
    assert!(rig.scale_as(named(2, &[1, 2])).is_err(), "another one is under way");
    rig.choose();
    assert_eq!(rig.retiring(), [1, 4]);
    assert_eq!(rig.stopping(), [0; 0], "an operator stops them");
    let plan = rig.scaling().plan.expect("it was chosen");
    let retiring = plan.retiring.iter().map(|one| (one.server, one.carried_bytes < one.bytes));
    assert_eq!(retiring.collect::<Vec<_>>(), [(4, true), (1, true)]);
    assert!(plan.cuts.iter().any(|cut| (cut.from, cut.server) == (1, 3)));
    // Server 3 was the coldest: its items make room.
    let kept = |server| plan.cuts.iter().find(|cut| cut.server == server).expect("it stays");
    assert!(kept(3).kept_items < kept(2).kept_items, "{:?}", plan.cuts);
    // The first one that was named retires in any case.
    assert_eq!(rig.ask(Request::Lost(ServerId(2))), Ok(Response::Done));
    assert_eq!(rig.retiring(), [4]);
}

#[test]
fn who_is_named_and_silent_retires_with_all_that_it_has() {
    let mut rig = Rig::four();
    let call = ScaleCall { servers: 3, retire: vec![4], ..ScaleCall::default() };
    rig.scale_as(call).expect("it begins");
    for id in 1..=3 {
        let asked = rig.beat(id, None, Vec::new()).ages.expect("it is asked");
        rig.beat(id, Some(ages(id, asked.number)), Vec::new());
    }
    rig.now = Instant::from_micros(10_000_000);
    let Ok(Response::Inventory(Some(inventory))) = rig.ask(Request::Inventory) else {
        panic!("it is")
    };
    assert_eq!(rig.ask(Request::Resized(inventory.number, choose(&inventory))), Ok(Response::Done));
    assert_eq!(rig.retiring(), [4]);
    rig.begin_move(4, 1);
    let news = rig.beat(4, None, Vec::new());
    assert!(news.moves[0].selected.is_none(), "everything travels");
}

#[test]
fn what_the_autoscaler_has_retired_is_to_be_stopped_until_it_is_gone_or_stays() {
    let mut rig = Rig::four();
    let call = |servers| ScaleCall { servers, stops: true, ..ScaleCall::default() };
    rig.scale_as(call(3)).expect("it begins");
    assert_eq!(rig.stopping(), [0; 0], "nobody was chosen");
    rig.choose();
    assert_eq!((rig.retiring(), rig.stopping()), (vec![3], vec![3]));
    assert_eq!(rig.coordinator.autoscaled().changes, [0, 1]);
    // A process that begins before it was empty.
    rig.comes(3, 33);
    assert_eq!(rig.stopping(), [3]);
    rig.empty(3);
    // An operator's next scaling does not make it forgotten.
    rig.beat(3, None, Vec::new());
    rig.scale(3, false).expect("the first is done");
    assert_eq!(rig.stopping(), [3]);
    rig.scale(4, false).expect("the second is done");
    assert_eq!(rig.stopping(), [0; 0], "it serves again");
    rig.scale_as(call(3)).expect("four serve");
    rig.choose();
    assert_eq!(rig.stopping(), [3]);
    assert_eq!(rig.ask(Request::Leave(ServerId(3), Incarnation(33))), Ok(Response::Done));
    assert_eq!(rig.stopping(), [0; 0]);
    // Somebody starts another one of that number, and empties it.
    rig.comes(3, 34);
    assert_eq!(rig.ask(Request::Drain(ServerId(3), true)), Ok(Response::Done));
    assert_eq!(rig.stopping(), [0; 0], "an operator's drain stops nothing");
}
