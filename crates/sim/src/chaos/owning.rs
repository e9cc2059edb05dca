//! Servers that own by leases: etcd, the thread of each server that renews its lease there, and the coordinator's that looks at their keys.
//! What `server/owning.rs` and `coordinator/watching.rs` are in a server.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_control::api::{Incarnation, LeaseTold};
use mbal_control::{Leases, Request, Response};
use mbal_election::{KeySeen, OwnerNext, OwnerRequest, OwnerResponse, Ownership, Terms};
use mbal_member::Outside;
use mbal_model::{Instant, ServerId};

use super::control::{Caller, Heard};
use super::coverage::Sight;
use super::etcd;
use super::history::Micros;
use super::hosts::host_of;
use super::world::{Happening, World};

const MILLI: Micros = 1_000;
const ANSWERS_WITHIN: Micros = 700 * MILLI;
/// Between two looks of a coordinator at servers' keys.
const LOOK_EVERY: Micros = 200 * MILLI;

/// Of a thousand questions to etcd.
const LOST_PER_MILLE: usize = 20;
const ELECTS_PER_MILLE: usize = 2;
const REVOKES_PER_MILLE: usize = 10;

/// etcd, and until when it is silent.
#[derive(Default)]
pub struct Etcd {
    model: etcd::Etcd,
    silent_until: Micros,
}

/// A server's thread that renews its lease.
pub struct Owning {
    ownership: Ownership,
    terms: Terms,
    call: u64,
    /// When the thread goes on, if that is in the queue.
    wakes_at: Option<Micros>,
    /// When it got the lease that it has, or had last.
    since: Micros,
    /// For the checkers its items are gone.
    is_lost: bool,
    /// What it had is being given up.
    fences_off: bool,
}

impl Owning {
    /// As the member has it.
    pub fn outside(&mut self, now: Instant) -> Outside {
        Outside {
            owns: now < self.ownership.until(),
            lease_is_over: self.ownership.is_over(now),
            wants_word: self.ownership.wants_word(),
            ..Outside::default()
        }
    }
}

/// What a coordinator knows of them.
pub fn leases(lease: Micros) -> Leases {
    // One coordinator leads whenever it is there: nobody owns on without etcd.
    let terms = Terms { lease: Duration::from_micros(lease), grace: Some(Duration::ZERO) };
    Leases { terms, etcd: vec!["http://etcd:2379".into()], address: "http://c:7070".into() }
}

impl World {
    /// A server that has registered is to have a lease before it owns.
    pub fn own_by(&mut self, host: usize, told: &LeaseTold) {
        let terms = Terms {
            lease: Duration::from_millis(told.lease_ms),
            grace: told.grace_ms.map(Duration::from_millis),
        };
        let this = &mut self.hosts[host];
        this.server.own_until(Instant::ZERO);
        // What was asked for an earlier lease is not heard any more.
        let call = this.member.owning.as_ref().map_or(0, |owning| owning.call + 1);
        let ownership = Ownership::new(terms);
        let (wakes_at, since) = (None, self.now);
        this.member.owning = Some(Owning {
            ownership,
            terms,
            call,
            wakes_at,
            since,
            is_lost: true,
            fences_off: false,
        });
        self.owner_sleeps(host, 1);
    }

    fn owner_sleeps(&mut self, host: usize, pause: Micros) {
        let (life, at) = (self.hosts[host].life, self.now + pause);
        let Some(owning) = &mut self.hosts[host].member.owning else { return };
        owning.wakes_at = Some(at);
        self.at(at, Happening::OwnerWakes { host, life, at });
    }

    /// True if a process owns what it has.
    pub fn owns(&self, host: usize) -> bool {
        let this = &self.hosts[host];
        let now = this.clock.lease_now(self.now);
        this.member.owning.as_ref().is_none_or(|owning| now < owning.ownership.until())
    }

    /// True if it was without a lease at some moment since then, and is to have one.
    pub fn has_lapsed(&self, host: usize, since: Micros) -> bool {
        match &self.hosts[host].member.owning {
            Some(owning) => owning.since >= since || !self.owns(host),
            // What its process said before it ended may still be on its way.
            None => self.profile.ownership.is_some(),
        }
    }

    pub fn owner_wakes(&mut self, host: usize, at: Micros) {
        let life = self.hosts[host].life;
        let now = self.hosts[host].clock.lease_now(self.now);
        let Some(owning) = &mut self.hosts[host].member.owning else { return };
        if owning.fences_off || owning.wakes_at != Some(at) {
            return;
        }
        owning.wakes_at = None;
        match owning.ownership.next(now) {
            OwnerNext::Over => {}
            OwnerNext::Wait(until) => {
                let pause = (until - now).as_micros() as Micros;
                self.owner_sleeps(host, pause.max(1));
            }
            OwnerNext::Ask(question) => {
                owning.call += 1;
                let call = owning.call;
                let at = self.arrives(host, self.hosts.len());
                if !self.is_lost() {
                    self.at(at, Happening::EtcdAsked { host, life, call, question });
                }
                let answer = OwnerResponse::Nothing;
                let late = Happening::EtcdAnswered { host, life, call, answer };
                self.after(ANSWERS_WITHIN, late);
            }
        }
    }

    fn is_lost(&mut self) -> bool {
        !self.is_calm() && self.dice.below(1_000) < LOST_PER_MILLE
    }

    pub fn etcd_asked(&mut self, host: usize, life: u32, call: u64, question: OwnerRequest) {
        if self.now < self.etcd.silent_until {
            return;
        }
        let now = Instant::from_millis(self.now / MILLI);
        self.etcd.model.tick(now);
        if !self.is_calm() {
            match self.dice.below(1_000) {
                elects if elects < ELECTS_PER_MILLE => {
                    self.coverage.meet(Sight::EtcdElects);
                    self.etcd.model.change_leader(now);
                }
                revokes if revokes < ELECTS_PER_MILLE + REVOKES_PER_MILLE => {
                    self.coverage.meet(Sight::LeaseRevoked);
                    let key_alone = self.dice.percent(50);
                    self.etcd.model.revoke(host, key_alone);
                }
                _ => {}
            }
        }
        let luck = self.dice.percent(50);
        let this = &self.hosts[host];
        let Some(owning) = this.member.owning.as_ref().filter(|_| this.life == life) else {
            return;
        };
        let lasts = owning.terms.key_lasts();
        let incarnation = self.incarnation(host);
        let answer = self.etcd.model.ask(now, host, incarnation, question, lasts, luck);
        let at = self.arrives(self.hosts.len(), host);
        if !self.is_lost() {
            self.at(at, Happening::EtcdAnswered { host, life, call, answer });
        }
    }

    pub fn etcd_answered(&mut self, host: usize, call: u64, answer: OwnerResponse) {
        let now = self.hosts[host].clock.lease_now(self.now);
        let Some(owning) = &mut self.hosts[host].member.owning else { return };
        if owning.call != call || owning.fences_off {
            return;
        }
        owning.call += 1;
        if answer == OwnerResponse::Nothing {
            self.coverage.meet(Sight::EtcdSilent);
        }
        owning.ownership.answered(now, answer);
        self.publish(host);
        self.owner_sleeps(host, 0);
    }

    /// A coordinator has accepted a heartbeat.
    pub fn accepted(&mut self, host: usize, sent: Instant) {
        let now = self.hosts[host].clock.lease_now(self.now);
        let Some(owning) = &mut self.hosts[host].member.owning else { return };
        owning.ownership.accepted(now, sent);
        self.publish(host);
    }

    /// Workers look at it before each event.
    fn publish(&mut self, host: usize) {
        let this = &mut self.hosts[host];
        let Some(owning) = &mut this.member.owning else { return };
        let until = owning.ownership.until();
        this.server.own_until(until);
        if until == Instant::ZERO {
            return self.loses(host);
        }
        if std::mem::take(&mut owning.is_lost) {
            owning.since = self.now;
            self.coverage.meet(Sight::LeaseWord);
            this.claims.has_a_lease(&this.server.store);
        }
        let life = self.hosts[host].life;
        let at = self.hosts[host].clock.when(until);
        self.at(at.max(self.now), Happening::LeaseEnds { host, life });
    }

    pub fn lease_ends(&mut self, host: usize, life: u32) {
        let this = &self.hosts[host];
        if this.life != life || !this.is_up {
            return;
        }
        let now = this.clock.lease_now(self.now);
        let Some(owning) = &this.member.owning else { return };
        if owning.ownership.until() <= now {
            self.loses(host);
        }
    }

    /// What it has is nobody's.
    fn loses(&mut self, host: usize) {
        let owning = self.hosts[host].member.owning.as_mut().expect("it owns by a lease");
        if std::mem::replace(&mut owning.is_lost, true) {
            return;
        }
        self.tell(|| format!("the lease of server {host} is over"));
        self.coverage.meet(Sight::LeaseOver);
        let this = &mut self.hosts[host];
        this.claims.has_no_lease(&this.server.store);
        self.begin_flux_at(host);
        self.lose_items(host);
    }

    /// The server has heard that its lease is over, or that another process is in its place.
    pub fn lease_is_over(&mut self, host: usize) {
        self.loses(host);
        let this = &mut self.hosts[host];
        this.server.own_until(Instant::ZERO);
        this.member.owning.as_mut().expect("it owns by a lease").fences_off = true;
    }

    /// The coordinator's thread.
    pub fn look_at_keys(&mut self) {
        self.after(LOOK_EVERY, Happening::LookAtKeys);
        if self.control.runs() {
            self.called(Caller::Watcher, Request::Owners);
        }
    }

    pub fn watcher_hears(&mut self, heard: Heard) {
        let Ok(Response::Owners(owners)) = heard else { return };
        if owners.servers.is_empty() || self.now < self.etcd.silent_until {
            return;
        }
        let now = Instant::from_millis(self.now / MILLI);
        self.etcd.model.tick(now);
        let seen = |(server, (incarnation, _)): (&ServerId, &(Incarnation, bool))| {
            let unrenewed = self.etcd.model.unrenewed(now, host_of(*server), incarnation.0);
            let key = match unrenewed {
                None => KeySeen::Absent,
                Some(unrenewed) => KeySeen::Present { unrenewed },
            };
            (*server, (*incarnation, key))
        };
        let keys = owners.servers.iter().map(seen).collect();
        let longest = self.profile.call_delay;
        let delay = self.dice.skewed(1..=longest);
        let life = self.control.life;
        self.after(delay, Happening::KeysSeen { life, at: owners.at, keys });
    }

    pub fn keys_seen(
        &mut self,
        life: u32,
        at: mbal_model::Instant,
        keys: BTreeMap<ServerId, (Incarnation, KeySeen)>,
    ) {
        if self.control.life == life && self.control.runs() {
            self.called(Caller::Watcher, Request::KeysSeen(at, keys));
        }
    }

    /// etcd answers nobody for a while.
    pub fn silence_etcd(&mut self, until: Micros) {
        self.etcd.silent_until = until.max(self.etcd.silent_until);
    }

    pub fn etcd_speaks(&mut self) {
        self.etcd.silent_until = 0;
    }
}
