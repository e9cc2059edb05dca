//! A coordinator, and servers that say what a test has them say.

#![allow(dead_code, reason = "each test uses some of it")]

use mbal_control::api::{Heartbeat, News, Registered, Registration, Status};
use mbal_control::{Coordinator, Refusal, Request, Response, Settings, State};
use mbal_model::{Instant, Prefix, ServerId};

pub struct Rig {
    pub coordinator: Coordinator,
    pub now: Instant,
    /// What was said since somebody has looked.
    pub said: Vec<String>,
}

/// Of a server with two workers.
pub fn registration(id: u16, incarnation: u64) -> Registration {
    Registration {
        id: Some(id),
        incarnation: incarnation.into(),
        cluster: "mbal".into(),
        client: format!("10.0.0.{id}:11211"),
        link: format!("10.0.0.{id}:11311"),
        workers: (0..2).map(|worker| format!("10.0.0.{id}:{}", 11300 + worker)).collect(),
        memory_bytes: 64 << 20,
        moves: true,
        ..Registration::default()
    }
}

impl Rig {
    pub fn of(coordinator: Coordinator) -> Rig {
        Rig { coordinator, now: Instant::ZERO, said: Vec::new() }
    }

    /// With servers 1 to so many, whose incarnations are their numbers; what was said of them is forgotten.
    pub fn with(servers: u16, settings: Settings, of: impl Fn(u16) -> Registration) -> Rig {
        let settings = Settings { servers_first: servers.into(), ..settings };
        let mut rig = Rig::of(Coordinator::new(settings));
        for id in 1..=servers {
            rig.register(of(id)).expect("nobody is in the way");
        }
        rig.said.clear();
        rig
    }

    pub fn ask(&mut self, ask: Request) -> Result<Response, Refusal> {
        let before = self.coordinator.state().clone();
        let done = self.coordinator.handle(self.now, ask);
        let state = self.coordinator.state();
        assert_eq!(done.before.is_some(), *state != before, "what is saved is what changed");
        assert!(done.answer.is_ok() || done.before.is_none(), "a refusal changes nothing");
        // Whatever is asked, the state can be read again.
        assert_eq!(State::from_json(&state.to_json()).as_ref(), Ok(state));
        self.said.extend(done.said);
        done.answer
    }

    pub fn register(&mut self, registration: Registration) -> Result<Registered, Refusal> {
        match self.ask(Request::Register(registration))? {
            Response::Registered(registered) => Ok(registered),
            other => panic!("{other:?}"),
        }
    }

    /// A heartbeat of the process that is known.
    pub fn beats(&mut self, id: u16, beat: Heartbeat) -> Result<News, Refusal> {
        let incarnation = self.coordinator.state().members[&ServerId(id)].incarnation;
        self.beats_as(id, Heartbeat { incarnation, ..beat })
    }

    pub fn beats_as(&mut self, id: u16, beat: Heartbeat) -> Result<News, Refusal> {
        match self.ask(Request::Heartbeat(ServerId(id), beat))? {
            Response::News(news) => Ok(news),
            other => panic!("{other:?}"),
        }
    }

    pub fn status(&mut self) -> Status {
        match self.ask(Request::Status) {
            Ok(Response::Status(status)) => status,
            other => panic!("{other:?}"),
        }
    }

    /// Of the map.
    pub fn version(&self) -> u64 {
        self.coordinator.state().map.as_ref().map_or(0, |map| map.version())
    }

    /// The cachelets of a server.
    pub fn held(&self, id: u16) -> Vec<Prefix> {
        let map = self.coordinator.state().map.as_ref().expect("there is one");
        let held = map.cachelets().iter().filter(|(_, owner)| owner.server.0 == id);
        held.map(|(prefix, _)| *prefix).collect()
    }
}
