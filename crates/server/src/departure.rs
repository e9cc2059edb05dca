//! The end of a server of a cluster: at SIGTERM it is emptied first, and serves meanwhile.
//!
//! ```text
//!   main thread              mbal-departure            mbal-member             coordinator
//!     | SIGTERM: begin() ------>| until the time is over    |                        |
//!     |                         |                           |-- heartbeat: ending -->|  moves its cachelets away
//!     |                         |                           |<- drained -------------|  all others know
//!     |                         |<---------- heard() -------|
//!     |<- Shutdown, a little later                          |
//!     | workers have ended      |
//!     |-- DELETE ------------------------------------------------------------------->|  it is dead for certain
//! ```
//! A second signal ends it at once. `docs/design/cluster.md`.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mbal_control::api::{Drain, Incarnation, Leaving};
use mbal_locks::{Condvar, Mutex, MutexGuard, ranks};
use mbal_model::ServerId;
use mbal_reactor::{Mailbox, Request};
use mbal_worker::{Rescued, Shared};

use crate::calling::{CallFailed, Caller};
use crate::{CoordinatorConfig, log};

/// An empty server forwards for so long: smart clients ask for a newer map once a second, and then know the new owners.
const LINGERS: Duration = Duration::from_secs(2);
/// A coordinator that does not answer by then is not told of the end.
const FAREWELL_WITHIN: Duration = Duration::from_secs(1);

/// Shared by the main thread, which hears signals, and the one that is in touch with the coordinator.
pub(crate) struct Departure {
    config: CoordinatorConfig,
    main: Mailbox<Request>,
    shared: Arc<Shared>,
    state: Mutex<ranks::Departure, State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    member: Option<(ServerId, Incarnation)>,
    stage: Stage,
    until: Option<Instant>,
    /// No other server has room for what is left here, by the coordinator's last word.
    no_room: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Serving,
    /// Its cachelets are on their way.
    Draining,
    /// Nothing more is to be waited for.
    Emptied(Drain),
    /// It serves nothing any more.
    Ended,
}

impl Departure {
    pub(crate) fn new(
        config: CoordinatorConfig,
        main: Mailbox<Request>,
        shared: Arc<Shared>,
    ) -> Arc<Departure> {
        let (state, changed) = Default::default();
        Arc::new(Departure { config, main, shared, state, changed })
    }

    fn state(&self) -> MutexGuard<'_, ranks::Departure, State> {
        self.state.lock()
    }

    /// The coordinator knows this process by these names.
    pub(crate) fn registered(&self, server: ServerId, incarnation: Incarnation) {
        self.state().member = Some((server, incarnation));
    }

    /// A signal wants the server to end. True: it serves on, and its main thread will be told when to end. False: it is to
    /// end at once, since it is no member yet, may not take any time, or was told before.
    pub(crate) fn begin(self: &Arc<Departure>) -> bool {
        let timeout = self.config.drain_timeout;
        let mut state = self.state();
        let Some((server, _)) = state.member else { return false };
        if timeout.is_zero() || state.stage != Stage::Serving {
            return false;
        }
        let departure = Arc::clone(self);
        let until = Instant::now() + timeout;
        let waits = thread::Builder::new()
            .name("mbal-departure".into())
            .spawn(move || departure.wait_until_empty(until));
        if waits.is_err() {
            return false;
        }
        (state.stage, state.until) = (Stage::Draining, Some(until));
        self.shared.takes_no_more_moves();
        self.changed.notify_all();
        let text = format!(
            "mbal: server {} gives its cachelets away, and ends in {} s at most; a second signal ends it at once",
            server.0,
            timeout.as_secs_f64()
        );
        log::info("draining", &text);
        true
    }

    fn wait_until_empty(&self, until: Instant) {
        let draining = |state: &mut State| state.stage == Stage::Draining;
        let left = until.saturating_duration_since(Instant::now());
        let (stage, no_room) = {
            let state = self.changed.wait_timeout_while(self.state(), left, draining);
            (state.stage, state.no_room)
        };
        match stage {
            Stage::Emptied(Drain::Drained) => {
                let text = format!("mbal: this server is empty, and ends: {}", self.rescued());
                log::info("drained", &text);
                thread::sleep(LINGERS.min(until.saturating_duration_since(Instant::now())));
            }
            Stage::Emptied(_) => {
                log::warn("not_drained", "mbal: no other server takes what this one has: it ends");
            }
            Stage::Serving | Stage::Draining => {
                let why = match no_room || self.shared.moves_find_no_room() {
                    true => ", there is no room at the others",
                    false => "",
                };
                let rescued = self.rescued();
                let text =
                    format!("mbal: the time is over{why}: what is left here is lost: {rescued}");
                log::warn("not_drained", &text);
            }
            Stage::Ended => {}
        }
        self.main.post(Request::Shutdown { graceful: false });
    }

    /// What has become of its items.
    fn rescued(&self) -> String {
        let Rescued { bytes, left_behind, left, cut } = self.shared.rescued();
        let mut text = format!("{bytes} bytes went, {left} items did not");
        if left_behind > 0 {
            text += &format!(", {left_behind} were left behind");
            if let Some(age) = cut {
                text += &format!(", the last ones unused for {age} s");
            }
        }
        text
    }

    /// The next heartbeat is to say that this process is about to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.state().stage != Stage::Serving
    }

    /// How much time there is to give cachelets away, once the process is to end.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let until = self.state().until;
        until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// The coordinator's word.
    pub(crate) fn heard(&self, drain: Option<Drain>, no_room: bool) {
        let mut state = self.state();
        let is_new = no_room && !state.no_room && state.stage == Stage::Draining;
        state.no_room = no_room;
        if is_new {
            let text = "mbal: no other server has room for what is left here: it waits for some";
            log::warn("no_room", text);
        }
        if let (Stage::Draining, Some(drain @ (Drain::Drained | Drain::Nobody))) =
            (state.stage, drain)
        {
            state.stage = Stage::Emptied(drain);
            self.changed.notify_all();
        }
    }

    /// Waits for so long, or until the server is to be emptied.
    pub(crate) fn pause(&self, pause: Duration) {
        let serving = |state: &mut State| state.stage == Stage::Serving;
        let state = self.state();
        if state.stage == Stage::Serving {
            drop(self.changed.wait_timeout_while(state, pause, serving));
        } else {
            drop(state);
            thread::sleep(pause);
        }
    }

    /// The process serves nothing any more: whoever is told by the coordinator that it is dead is right.
    pub(crate) fn has_ended(&self) -> bool {
        self.state().stage == Stage::Ended
    }

    /// Workers have ended: says goodbye, so that others get at once what was not given away.
    pub(crate) fn farewell(&self) {
        let member = {
            let mut state = self.state();
            state.stage = Stage::Ended;
            self.changed.notify_all();
            state.member
        };
        let Some((server, incarnation)) = member else { return };
        let caller = Caller::new(&self.config.urls, self.config.token.clone(), FAREWELL_WITHIN);
        let said = caller.map_err(CallFailed::Silent).and_then(|caller| {
            caller.call(
                "DELETE",
                &format!("/v1/servers/{}", server.0),
                Some(&Leaving { incarnation }),
            )
        });
        match said {
            Ok(_) => {}
            // Another process is that server now.
            Err(CallFailed::Refused(409, _)) => {}
            Err(CallFailed::Refused(_, why) | CallFailed::Silent(why)) => {
                let text = format!(
                    "mbal: the coordinator was not told that server {} ends: {why}",
                    server.0
                );
                log::warn("no_farewell", &text);
            }
        }
    }
}
