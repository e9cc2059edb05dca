//! A member of a coordinated cluster: registers, says each epoch how it is, and follows the map.
//!
//! ```text
//!   mbal-member ── POST /v1/servers, heartbeats ──► coordinator
//!        │  newer map, moves
//!        ├──Event::Mapped, Event::Carry──► workers
//!        └──LinkNote::Peers──► linker
//! ```
//! What is done when, `mbal_member` says. A coordinator that is silent changes nothing: the server goes on with the last map.
//! `docs/design/cluster.md`.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{io, mem, thread};

use mbal_control::api::{Heartbeat, Incarnation, LeaseTold, Leaving, LinkReport, Registration};
use mbal_member::{Action, Call, Event, Heard, Member, Outside, Terms, Time};
use mbal_model::{Cluster, ServerId};
use mbal_reactor::watchdog::{self, Pulse};
use mbal_reactor::{Clock, Letter, LinkNote, LinksSeen, Mailbox};

use crate::balancing::{Balanced, Note};
use crate::calling::{CallFailed, Caller};
use crate::departure::Departure;
use crate::linking::{Linking, peers};
use crate::moving::Moving;
use crate::owning::Owning;
use crate::{CoordinatorConfig, cluster, hot_keys, log};

/// A coordinator that does not answer for so long is asked again later.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Of why a link is missing, in a heartbeat.
const WHY_CHARACTERS_MAX: usize = 200;

/// What has not worked for so long is said again.
const REMINDS_EVERY: Duration = Duration::from_secs(30);
/// Without a map for so long, why is said.
const MAP_AWAITED: Duration = Duration::from_secs(5);

/// Exit code of a server that is one no more.
const EX_UNAVAILABLE: i32 = 69;

pub(crate) struct Membership {
    pub config: CoordinatorConfig,
    pub caller: Arc<Caller>,
    /// Without its id and incarnation.
    pub addresses: Registration,
    pub workers: Arc<[Mailbox<Letter>]>,
    pub balanced: Arc<Balanced>,
    pub balancer: mpsc::Sender<Note>,
    pub moving: Moving,
    pub departure: Arc<Departure>,
    /// Whether clients are let in.
    pub is_open: Arc<AtomicBool>,
    pub links: LinksSeen,
    /// By which links are timed.
    pub clock: Clock,
}

/// What the thread has beside its member.
struct Edge {
    inbox: Mailbox<LinkNote>,
    linking: Option<Linking>,
    here: ServerId,
    owning: Option<Arc<Owning>>,
    said: Said,
    pulse: Pulse,
    /// When it is said why no client is let in, if there is no map by then.
    map_awaited: Option<Instant>,
}

impl Edge {
    fn remind_of_map(&mut self, map_version: u64) {
        let due = self.map_awaited.filter(|at| map_version == 0 && *at <= Instant::now());
        if due.is_some() {
            self.map_awaited = Some(Instant::now() + REMINDS_EVERY);
            let text = "mbal: no map yet, so no client is let in: the coordinator waits for as many servers as its --servers says";
            log::info("map_awaited", text);
        }
    }
}

/// What has been said in the log already: who tries every second says it once, and reminds of it now and then.
#[derive(Default)]
struct Said {
    why: String,
    at: Option<Instant>,
    times: u32,
}

impl Said {
    fn failed(&mut self, why: &str) {
        if self.why != why {
            *self = Said { why: why.to_owned(), at: Some(Instant::now()), times: 1 };
            log::warn("coordinator", &format!("mbal: {why}; tries again"));
            return;
        }
        self.times += 1;
        if self.at.is_none_or(|at| at.elapsed() >= REMINDS_EVERY) {
            self.at = Some(Instant::now());
            let text = format!("mbal: {why}; has tried {} times, tries again", self.times);
            log::warn("coordinator", &text);
        }
    }

    fn worked(&mut self) {
        if !std::mem::take(self).why.is_empty() {
            log::info("coordinator", "mbal: the coordinator answers again");
        }
    }
}

/// Why a server is not registered, and what mends it.
fn unregistered(failed: &CallFailed, has_token: bool) -> String {
    let (why, mends) = match failed {
        CallFailed::Silent(why) => {
            return format!("no coordinator: {why} (--coordinator says where it is)");
        }
        CallFailed::Refused(401, why) if has_token => {
            (why, "another token than in the file of --coordinator-token")
        }
        CallFailed::Refused(401, why) => (why, "--coordinator-token names a file with its token"),
        CallFailed::Refused(404 | 405, why) => (why, "is it a coordinator, as --coordinator says?"),
        CallFailed::Refused(409, why) if why.starts_with("this is cluster") => {
            (why, "--cluster-name is to be the same on both sides")
        }
        CallFailed::Refused(_, why) => {
            return format!("the coordinator refuses this server: {why}");
        }
    };
    format!("the coordinator refuses this server: {why} ({mends})")
}

impl Membership {
    /// Starts the thread that is in touch with the coordinator, for the life of the process.
    pub(crate) fn start(self, linking: Linking) -> io::Result<()> {
        thread::Builder::new().name("mbal-member".into()).spawn(move || self.run(linking))?;
        Ok(())
    }

    fn run(self, linking: Linking) {
        let terms = Terms {
            cluster: self.config.cluster.clone(),
            id: self.config.id,
            replica_memory: self.config.replica_memory,
        };
        let shared = Arc::clone(&self.moving.shared);
        let mut edge = Edge {
            inbox: linking.inbox.clone(),
            linking: Some(linking),
            here: ServerId(0),
            owning: None,
            said: Said::default(),
            // Nobody rings it: it sleeps and calls for less than a minute each, and says so.
            pulse: watchdog::watch(|| {}),
            map_awaited: None,
        };
        let mut member = Member::new(terms, shared, Box::new(incarnation));
        let mut actions = Vec::new();
        loop {
            edge.pulse.beat();
            let outside = self.outside(&edge);
            member.handle(self.time(), Event::Woken(outside), &mut actions);
            while !actions.is_empty() {
                for action in mem::take(&mut actions) {
                    match action {
                        Action::Ends => return,
                        Action::Call(call) => {
                            let Some(heard) = self.call(call, &mut member, &outside, &mut edge)
                            else {
                                return;
                            };
                            member.handle(self.time(), Event::Heard(heard), &mut actions);
                        }
                        other => self.act(other, &mut edge),
                    }
                }
            }
            edge.remind_of_map(member.map_version());
            let now = self.time().lease;
            let pause = member.next_wake(now).map(|at| at - now).unwrap_or_default();
            edge.pulse.rests(|| self.departure.pause(pause));
        }
    }

    fn time(&self) -> Time {
        Time { lease: self.moving.started.lease_clock.now(), worker: self.moving.now() }
    }

    fn outside(&self, edge: &Edge) -> Outside {
        let owning = edge.owning.as_deref();
        Outside {
            is_open: self.is_open.load(Ordering::Acquire),
            is_ending: self.departure.is_ending(),
            time_left: self.departure.time_left(),
            has_ended: self.departure.has_ended(),
            owns: owning.is_some_and(Owning::owns),
            lease_is_over: owning.is_some_and(Owning::is_over),
            wants_word: owning.is_some_and(Owning::wants_word),
        }
    }

    /// What came of a call; nothing, if the process has said farewell meanwhile.
    fn call(
        &self,
        call: Call,
        member: &mut Member,
        outside: &Outside,
        edge: &mut Edge,
    ) -> Option<Heard> {
        let Edge { said, pulse, .. } = edge;
        match call {
            Call::Leave(server, incarnation) => {
                let path = format!("/v1/servers/{}", server.0);
                let leaving = Leaving { incarnation };
                Some(match pulse.rests(|| self.caller.call("DELETE", &path, Some(&leaving))) {
                    Ok(_) => Heard::Left,
                    Err(CallFailed::Refused(..)) => Heard::Refused,
                    Err(CallFailed::Silent(_)) => Heard::Silent,
                })
            }
            Call::Register(id, incarnation) => {
                let registration = Registration {
                    id: id.map(|id| id.0),
                    incarnation,
                    cluster: self.config.cluster.clone(),
                    coordinators: self.caller.urls().to_vec(),
                    ..self.addresses.clone()
                };
                Some(match pulse.rests(|| self.post("/v1/servers", &registration)) {
                    Ok(registered) => {
                        said.worked();
                        Heard::Registered(registered)
                    }
                    Err(failed) => {
                        said.failed(&unregistered(&failed, self.config.token.is_some()));
                        match failed {
                            CallFailed::Refused(..) => Heard::Refused,
                            CallFailed::Silent(_) => Heard::Silent,
                        }
                    }
                })
            }
            Call::Beat(here) => {
                let heartbeat = Heartbeat {
                    version: env!("CARGO_PKG_VERSION").into(),
                    link_versions: crate::link_versions(),
                    links: self.links_missing(),
                    ..member.heartbeat(self.time(), outside, self.balanced.loads())
                };
                let path = format!("/v1/servers/{}/heartbeat", here.0);
                match pulse.rests(|| self.post(&path, &heartbeat)) {
                    Ok(news) => {
                        said.worked();
                        Some(Heard::News(news))
                    }
                    // By its own farewell.
                    Err(CallFailed::Refused(409, _)) if self.departure.has_ended() => None,
                    Err(CallFailed::Refused(409, why)) => {
                        // Somebody else is this server now: whatever is served here would be stale.
                        let text = format!("mbal: the coordinator refuses this server: {why}");
                        log::error("not_a_member", &text);
                        Some(Heard::Refused)
                    }
                    Err(CallFailed::Refused(status, why)) => {
                        said.failed(&format!(
                            "the coordinator refuses this server ({status}): {why}"
                        ));
                        Some(Heard::Silent)
                    }
                    Err(CallFailed::Silent(why)) => {
                        said.failed(&format!("no coordinator, the last map is used: {why}"));
                        Some(Heard::Silent)
                    }
                }
            }
        }
    }

    fn act(&self, action: Action, edge: &mut Edge) {
        match action {
            Action::Call(_) | Action::Ends => unreachable!("they are done where they are met"),
            Action::Joined(here, incarnation, lease) => {
                edge.here = here;
                edge.map_awaited = Some(Instant::now() + MAP_AWAITED);
                self.departure.registered(here, incarnation);
                let text = format!("mbal: server {} of cluster {}", here.0, self.config.cluster);
                log::info("registered", &text);
                edge.owning = self.own_by((here, incarnation), lease.as_ref());
            }
            Action::Accepted(sent) => {
                if let Some(owning) = &edge.owning {
                    owning.accepted(sent);
                }
            }
            Action::Mapped(cluster) => self.tell(&cluster, edge),
            Action::Unfit(why) => edge.said.failed(&why),
            Action::Carry(workers) => self.moving.wake(workers),
            Action::HotTerms(terms) => hot_keys::log_terms(&terms),
            // A balancer that has gone lends nothing.
            Action::Balance(mode) => drop(self.balancer.send(Note::Told(mode))),
            Action::Drained(drain, no_room) => self.departure.heard(drain, no_room),
            Action::Fence => {
                let text = "mbal: the lease is over: drops what is here, and registers anew";
                log::warn("lease_over", text);
                if let Some(owning) = edge.owning.take() {
                    owning.end();
                }
            }
            Action::Usurped => std::process::exit(EX_UNAVAILABLE),
        }
    }

    /// The lease by which it owns, if the coordinator wants one.
    fn own_by(
        &self,
        member: (ServerId, Incarnation),
        told: Option<&LeaseTold>,
    ) -> Option<Arc<Owning>> {
        let shared = Arc::clone(&self.moving.shared);
        let Some(told) = told else {
            if shared.owns_by_lease() {
                shared.own_until(mbal_model::Instant::MAX);
            }
            return None;
        };
        let text = format!("mbal: owns by leases of {} ms in etcd", told.lease_ms);
        log::info("owns_by_lease", &text);
        let (caller, clock) = (Arc::clone(&self.caller), self.moving.started.lease_clock);
        let owning = Owning::start(told, &self.config.cluster, member, caller, shared, clock);
        Some(owning.expect("a thread can be had, and the coordinator uses the same etcd"))
    }

    /// Workers are told first: once links are up, clients are let in. Who serves names may be silent for long.
    fn tell(&self, cluster: &Arc<Cluster>, edge: &mut Edge) {
        let text = format!("mbal: follows map {}", cluster.map.version());
        log::info("map_followed", &text);
        let here = edge.here;
        let resolved = edge.pulse.rests(|| cluster::resolved(cluster));
        self.moving.shared.follow(here, Arc::clone(&resolved), self.moving.now().second);
        for worker in self.workers.iter() {
            worker.post(Letter::Tell(mbal_worker::Event::Mapped {
                here,
                cluster: Arc::clone(&resolved),
            }));
        }
        match edge.linking.take() {
            Some(linking) => {
                linking.start(here, cluster).expect("threads and epolls can be had at the start");
            }
            None => edge.inbox.post(LinkNote::Peers(peers(cluster, here))),
        }
    }

    fn links_missing(&self) -> Vec<LinkReport> {
        let now = self.clock.now_ns();
        let seen = self.links.lock();
        let missing = seen.iter().filter_map(|(server, link)| {
            let down_ms = now.saturating_sub(link.down_since_ns?) / 1_000_000;
            let why: String = link.why.chars().take(WHY_CHARACTERS_MAX).collect();
            Some(LinkReport { server: server.0, down_ms, why })
        });
        missing.collect()
    }

    fn post<A: serde::Serialize, B: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        body: &A,
    ) -> Result<B, CallFailed> {
        let text = self.caller.call("POST", path, Some(body))?;
        serde_json::from_str(&text).map_err(|error| CallFailed::Silent(error.to_string()))
    }
}

/// The address by which this host reaches a coordinator, and so the one by which it can be reached from there: of the
/// first of these URLs to which there is a way.
pub(crate) fn own_host(urls: &str) -> io::Result<String> {
    let mut none = io::Error::other("there is no URL");
    for url in urls.split(',') {
        match own_host_towards(url) {
            Ok(host) => return Ok(host),
            Err(error) => none = error,
        }
    }
    Err(none)
}

fn own_host_towards(url: &str) -> io::Result<String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // Nothing is sent: the kernel says by which way it would be.
    socket.connect(authority)?;
    Ok(socket.local_addr()?.ip().to_string())
}

/// A number that no other process has drawn, nor this one before.
pub(crate) fn incarnation() -> Incarnation {
    use ring::rand::SecureRandom;
    let mut bytes = [0; 8];
    ring::rand::SystemRandom::new().fill(&mut bytes).expect("the kernel has random bytes");
    Incarnation(u64::from_le_bytes(bytes).max(1))
}
