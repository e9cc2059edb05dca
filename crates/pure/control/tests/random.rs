//! Whatever is asked in whatever order, what holds for every map and every move holds.

use std::sync::Arc;

use mbal_control::api::{
    Heartbeat, Incarnation, MoveCall, MoveDecision, MoveReport, Progress, Registration,
};
use mbal_control::{Coordinator, Member, Request, Response, Settings, State};
use mbal_model::{Cluster, Instant, ServerId};
use mbal_random::Random;

const SERVERS: u64 = 5;
const SEEDS: u64 = 100;
const STEPS: u64 = 300;

struct World {
    random: Random,
    coordinator: Coordinator,
    now: u64,
    /// The last incarnation of each server, which may be dead.
    incarnations: [u64; SERVERS as usize],
    /// The map that it follows.
    followed: [Option<Cluster>; SERVERS as usize],
    /// Maps that were made of older ones.
    changed: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let coordinator = Coordinator::new(settings());
        World {
            random: Random::new(seed),
            coordinator,
            now: 0,
            incarnations: [0; SERVERS as usize],
            followed: Default::default(),
            changed: 0,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn server(&mut self) -> u16 {
        self.below(SERVERS) as u16
    }

    fn ask(&mut self) -> Request {
        let id = self.server();
        let at = usize::from(id);
        match self.below(20) {
            0..4 => {
                // The same process again, or a new one.
                if self.incarnations[at] == 0 || self.below(2) == 0 {
                    self.incarnations[at] = self.now + 1;
                }
                Request::Register(Registration {
                    id: Some(id),
                    incarnation: Incarnation(self.incarnations[at]),
                    cluster: "shop".into(),
                    // Now and then it is elsewhere, though it is the same process.
                    client: format!("10.0.0.{id}:{}", 11_211 + u64::from(self.below(9) == 0)),
                    link: format!("10.0.0.{id}:11311"),
                    workers: vec![format!("10.0.0.{id}:11300"); 1 + at % 3],
                    memory_bytes: 1 << 20,
                    moves: true,
                    ..Registration::default()
                })
            }
            4..11 => {
                let count = self.coordinator.state().moves_ever;
                let reports = (0..self.below(3)).map(|_| MoveReport {
                    number: 1 + self.random.below(u64::from(count) + 1) as u32,
                    progress: [
                        Progress::Asking,
                        Progress::Moving,
                        Progress::Sealed,
                        Progress::Back,
                        Progress::Refused,
                        Progress::TooLate,
                    ][self.random.below(6) as usize],
                    ..MoveReport::default()
                });
                let moves = reports.collect();
                // Now and then of a process that was before.
                let late = self.below(8) == 0;
                let incarnation = Incarnation(
                    self.incarnations[at] - u64::from(late && self.incarnations[at] > 0),
                );
                let map_version = self.followed[at].as_ref().map_or(0, |map| map.map.version());
                let takes_changes = map_version > 0 && self.below(4) > 0;
                let known = Heartbeat { map_version, takes_changes, ..Heartbeat::default() };
                Request::Heartbeat(ServerId(id), Heartbeat { incarnation, moves, ..known })
            }
            11..17 => {
                let held = self.coordinator.state().map.clone();
                let prefix = held.map_or_else(
                    || "0000/1".to_owned(),
                    |map| map.at(self.random.word()).0.to_string(),
                );
                Request::Move(MoveCall { prefix, server: id, worker: None })
            }
            17 => Request::CancelMove(1 + self.below(8) as u32),
            18 => Request::Lost(ServerId(id)),
            _ => Request::Leave(ServerId(id), Incarnation(self.incarnations[at])),
        }
    }
}

impl World {
    /// A server hears an answer: the map that it follows then is the coordinator's.
    fn hears(&mut self, id: u16, answer: &Response) {
        let at = usize::from(id);
        match answer {
            Response::Registered(registered) => {
                let parsed = registered.map.as_ref().map(|map| Cluster::parse(map));
                self.followed[at] = parsed.transpose().expect("a document");
            }
            Response::News(news) => {
                let newer = news.newer(self.followed[at].as_ref()).expect("it fits");
                self.changed += news.changes.len() as u64;
                if newer.is_some() {
                    self.followed[at] = newer;
                    assert_eq!(self.followed[at], self.coordinator.state().document());
                }
            }
            _ => {}
        }
    }
}

fn settings() -> Settings {
    Settings { cluster: "shop".into(), servers_first: 2, ..Settings::default() }
}

/// What holds of every state, and between one and the next.
fn check(before: &State, after: &State) -> Result<(), String> {
    if let (Some(old), Some(new)) = (&before.map, &after.map) {
        if new.version() < old.version() {
            return Err("a map's version went back".into());
        }
        if new.version() == old.version() && new != old {
            return Err("two maps of one version".into());
        }
    }
    if before.map.is_some() && after.map.is_none() {
        return Err("the map is gone".into());
    }
    let alive = |id: &ServerId| after.members.get(id).is_some_and(Member::is_alive);
    let anybody = after.members.keys().any(alive);
    for (prefix, owner) in after.map.iter().flat_map(|map| map.cachelets()) {
        if anybody && !alive(&owner.server) {
            return Err(format!("{prefix} is with a dead server, though another lives"));
        }
        if owner.worker.0 >= after.members[&owner.server].workers() && alive(&owner.server) {
            return Err(format!("{prefix} is with a worker that there is not"));
        }
    }
    let mut moving = std::collections::BTreeSet::new();
    for (number, one) in &after.moves {
        if !moving.insert(one.prefix) {
            return Err(format!("{} moves twice", one.prefix));
        }
        let map = after.map.as_ref().ok_or("a move without a map")?;
        let owner = map.cachelets().iter().find(|(held, _)| *held == one.prefix);
        if owner.is_none_or(|(_, owner)| owner.server != one.from.server) {
            return Err(format!("move {} is from a server that has not its cachelet", number.0));
        }
        let is_same = after.members[&one.to.server].incarnation == one.to_incarnation;
        if !is_same && one.word != MoveDecision::DestinationLost {
            return Err(format!("move {} goes to a process that is gone", number.0));
        }
    }
    Ok(())
}

#[test]
fn maps_and_moves_are_right_after_every_step() {
    let mut changed = 0;
    for seed in 1..=SEEDS {
        let mut world = World::new(seed);
        let (mut refused, mut restarted) = (0, 0);
        for step in 0..STEPS {
            world.now += 1 + world.below(1000);
            let ask = world.ask();
            let before = world.coordinator.state().clone();
            let done = world.coordinator.handle(Instant::from_micros(world.now), ask.clone());
            refused += u64::from(done.answer.is_err());
            let after = world.coordinator.state().clone();
            if let Err(why) = check(&before, &after) {
                panic!("seed {seed}, step {step}, {ask:?}: {why}");
            }
            assert_eq!(
                State::from_json(&after.to_json()).as_ref(),
                Ok(&after),
                "seed {seed}, step {step}"
            );
            let (by, chance) = (ask_by(&ask), world.below(30));
            if let (Some(id), Ok(answer)) = (by.filter(|_| chance > 0), &done.answer) {
                world.hears(id, answer);
            }
            match chance {
                // Nobody hears of what could not be saved.
                0 => world.coordinator.restore(Arc::new(before)),
                1 => {
                    restarted += 1;
                    let resumed = Coordinator::resume(settings(), after);
                    world.coordinator = resumed.expect("it is the same cluster");
                }
                _ => {}
            }
        }
        assert!(refused < STEPS && restarted > 0, "seed {seed} does something");
        changed += world.changed;
    }
    assert!(changed > 5 * SEEDS, "{changed} changes were told");
}

/// Which server asks.
fn ask_by(ask: &Request) -> Option<u16> {
    match ask {
        Request::Register(registration) => registration.id,
        Request::Heartbeat(server, _) => Some(server.0),
        _ => None,
    }
}
