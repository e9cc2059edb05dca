//! What this server owns by: a thread that renews its lease in etcd, and asks coordinators whether they lead where etcd is silent.
//!
//! ```text
//!   mbal-lease ── renew, look ──► etcd            workers: before each event, is the lease over?
//!       │  └───── who leads? ───► coordinators        ▲
//!       └──► mbal_election::Ownership ── until when ──┘
//!                    ▲ a heartbeat was accepted
//!               mbal-member
//! ```
//! `docs/design/cluster.md`, *Ownership leases*, has the rules.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mbal_control::api::{Incarnation, LeaseTold};
use mbal_election::{OwnerNext, OwnerRequest, OwnerResponse, Ownership, Terms, nobody_leads};
use mbal_etcd::{Etcd, OwnKey};
use mbal_locks::{Mutex, MutexGuard, ranks};
use mbal_model::{Instant, ServerId};
use mbal_reactor::LeaseClock;
use mbal_worker::Shared;

use crate::calling::Caller;
use crate::log;

/// One incarnation's lease.
pub(crate) struct Owning {
    state: Mutex<ranks::Ownership, State>,
    shared: Arc<Shared>,
    clock: LeaseClock,
    terms: Terms,
}

struct State {
    ownership: Ownership,
    /// Another incarnation has taken its place.
    has_ended: bool,
    /// etcd does not answer, which the log has.
    is_troubled: bool,
}

impl Owning {
    /// Starts the thread. Until it has a lease, this server owns nothing.
    pub(crate) fn start(
        told: &LeaseTold,
        cluster: &str,
        member: (ServerId, Incarnation),
        caller: Arc<Caller>,
        shared: Arc<Shared>,
        clock: LeaseClock,
    ) -> io::Result<Arc<Owning>> {
        let (server, incarnation) = member;
        let etcd = Etcd::new(&told.etcd, cluster).map_err(io::Error::other)?;
        let key = OwnKey::new(etcd, server, &incarnation.to_string());
        let terms = Terms {
            lease: Duration::from_millis(told.lease_ms),
            grace: told.grace_ms.map(Duration::from_millis),
        };
        let ownership = Ownership::new(terms);
        let state = State { ownership, has_ended: false, is_troubled: false };
        shared.own_until(Instant::ZERO);
        let owning = Arc::new(Owning { state: Mutex::new(state), shared, clock, terms });
        let own = Arc::clone(&owning);
        thread::Builder::new().name("mbal-lease".into()).spawn(move || own.run(&key, &caller))?;
        Ok(owning)
    }

    fn state(&self) -> MutexGuard<'_, ranks::Ownership, State> {
        self.state.lock()
    }

    /// With the state locked: whoever is later knows more.
    fn publish(&self, state: &State) {
        if !state.has_ended {
            self.shared.own_until(state.ownership.until());
        }
    }

    fn run(&self, key: &OwnKey, caller: &Caller) {
        loop {
            let mut state = self.state();
            if state.has_ended {
                return;
            }
            let now = self.clock.now();
            let next = state.ownership.next(now);
            self.publish(&state);
            drop(state);
            match next {
                OwnerNext::Over => return,
                OwnerNext::Wait(until) => thread::sleep(until - now),
                OwnerNext::Ask(question) => {
                    let answer = self.ask(question, key, caller);
                    let mut state = self.state();
                    state.ownership.answered(self.clock.now(), answer);
                    self.publish(&state);
                }
            }
        }
    }

    fn ask(&self, question: OwnerRequest, key: &OwnKey, caller: &Caller) -> OwnerResponse {
        if question == OwnerRequest::WhoLeads {
            return match nobody_leads(&caller.who_leads()) {
                true => OwnerResponse::NobodyLeads,
                false => OwnerResponse::Nothing,
            };
        }
        let asked = key.ask(question, self.terms);
        let mut state = self.state();
        match (&asked, state.is_troubled) {
            (Err(failed), false) => {
                log::warn("no_etcd", &format!("mbal: etcd cannot be used: {}", failed.why));
            }
            (Ok(_), true) => log::info("etcd", "mbal: etcd can be used again"),
            _ => {}
        }
        state.is_troubled = asked.is_err();
        asked.unwrap_or(OwnerResponse::Nothing)
    }

    /// A coordinator has accepted a heartbeat, which was sent at that moment.
    pub(crate) fn accepted(&self, sent: Instant) {
        let mut state = self.state();
        state.ownership.accepted(self.clock.now(), sent);
        self.publish(&state);
    }

    pub(crate) fn owns(&self) -> bool {
        self.clock.now() < self.state().ownership.until()
    }

    /// It has owned, and does so no more.
    pub(crate) fn is_over(&self) -> bool {
        self.state().ownership.is_over(self.clock.now())
    }

    /// Its key is there, and a coordinator is to hear of it.
    pub(crate) fn wants_word(&self) -> bool {
        self.state().ownership.wants_word()
    }

    /// It owns nothing any more, whatever etcd says; the thread ends.
    pub(crate) fn end(&self) {
        self.state().has_ended = true;
        self.shared.own_until(Instant::ZERO);
    }
}
