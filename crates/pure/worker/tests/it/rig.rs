//! A worker without sockets, for tables of what is sent and what comes back.

use std::sync::Arc;

use mbal_cachelet::{Options, Store};
use mbal_model::{Instant, WorkerId};
use mbal_worker::{Action, Actions, Authenticator, ConnId, Event, Now, Settings, Shared, Worker};

pub const CONN: ConnId = ConnId(0);
pub const START: Now = Now { second: 100, unix: 1_700_000_000, micros: 0 };

pub struct Rig {
    pub worker: Worker,
    pub server: Arc<Shared>,
    pub now: Now,
}

impl Rig {
    pub fn new() -> Rig {
        Rig::with(Settings::default())
    }

    pub fn with(settings: Settings) -> Rig {
        Rig::guarded_by(settings, Arc::new(|_, _| false))
    }

    pub fn guarded_by(settings: Settings, authenticator: Arc<Authenticator>) -> Rig {
        let options = Options {
            memory_bytes: settings.memory_bytes as usize,
            workers: settings.workers.into(),
            cachelets: 1,
            item_bytes_max: settings.item_bytes_max,
            evict: settings.evict,
            generation: 0,
        };
        let server = Shared::new(settings, Store::new(options)).guarded_by(authenticator);
        let server = Arc::new(server);
        let mut rig =
            Rig { worker: Worker::new(WorkerId(0), Arc::clone(&server)), server, now: START };
        rig.open(CONN);
        rig
    }

    /// Worker 1 of the same server.
    pub fn another_worker(&self) -> Rig {
        let server = Arc::clone(&self.server);
        Rig { worker: Worker::new(WorkerId(1), Arc::clone(&server)), server, now: self.now }
    }

    pub fn open(&mut self, conn: ConnId) {
        self.handle(Event::Opened { conn, own_port: false });
    }

    pub fn handle(&mut self, event: Event<'_>) -> Actions {
        let mut actions = Actions::default();
        self.worker.handle(self.now, event, &mut actions);
        actions
    }

    /// All replies to `input`, as a client that reads would get them.
    pub fn send(&mut self, input: &[u8]) -> Vec<u8> {
        let mut actions = self.handle(Event::Received { conn: CONN, bytes: input });
        let mut replies = actions.bytes.clone();
        loop {
            let stalls = actions.list.contains(&Action::Stall { conn: CONN });
            actions = match self.worker.next_wake() {
                Some(wake) => {
                    // What the wait is for may be done in the background.
                    let mut unheard = Actions::default();
                    self.worker.background(self.now, true, &mut unheard);
                    self.pass_until(wake);
                    self.handle(Event::Woken)
                }
                None if stalls => self.handle(Event::Drained { conn: CONN }),
                None => return replies,
            };
            replies.extend_from_slice(&actions.bytes);
        }
    }

    /// Time passes until then, if it has not yet.
    pub fn pass_until(&mut self, until: Instant) {
        let passes = until.left(self.now.instant());
        let micros = u64::from(self.now.micros) + passes.as_nanos().div_ceil(1_000) as u64;
        let seconds = micros / 1_000_000;
        self.now.second += seconds as u32;
        self.now.unix += seconds;
        self.now.micros = (micros % 1_000_000) as u32;
    }

    #[track_caller]
    pub fn check(&mut self, input: &str, replies: &str) {
        let got = self.send(input.as_bytes());
        assert_eq!(String::from_utf8_lossy(&got), replies, "after {input:?}");
    }
}
