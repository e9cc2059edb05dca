//! A member of a coordinated cluster: registers, says each epoch how it is, and follows the map.
//!
//! ```text
//!   mbal-member ── POST /v1/servers, heartbeats ──► coordinator
//!        │  newer map, moves
//!        ├──Event::Mapped, Event::Carry──► workers
//!        └──LinkNote::Peers──► linker
//! ```
//! A coordinator that is silent changes nothing: the server goes on with the last map. `docs/design/cluster.md`.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mbal_control::api::{
    AgesAsked, AgesReport, CurveReport, Heartbeat, Incarnation, LeaseTold, Leaving, LinkReport,
    MoveNews, News, Registered, Registration,
};
use mbal_model::{Cluster, ServerId};
use mbal_reactor::watchdog::{self, Pulse};
use mbal_reactor::{Clock, Letter, LinkNote, LinksSeen, Mailbox};
use mbal_worker::{CurveTold, Event};

use crate::balancing::Balanced;
use crate::calling::{CallFailed, Caller};
use crate::departure::Departure;
use crate::linking::{Linking, peers};
use crate::moving::Moving;
use crate::owning::Owning;
use crate::{CoordinatorConfig, cluster, hot_keys, log};

/// A coordinator that does not answer for so long is asked again later.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Pauses after failures: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

/// Between two heartbeats of a server that takes part in a move, or is emptied: each step at the coordinator waits for one.
const EPOCH_OF_MOVES: Duration = Duration::from_millis(100);
/// While it is emptied within a time so many in what is left of it, down to [`EPOCH_LEAST`]: its moves begin and end with them.
const HURRIED_BEATS: u32 = 16;
const EPOCH_LEAST: Duration = Duration::from_millis(10);
/// Likewise where the CPU quota is small and nothing hurries: a heartbeat costs as much as a slice of a move.
const EPOCH_OF_MOVES_IN_SMALL_QUOTA: Duration = Duration::from_millis(300);

/// Between two words on the hit ratio by size.
const CURVE_EVERY: Duration = Duration::from_secs(5);

/// So often who waits looks whether clients are let in now, the lease is over, or its key is to be told of.
const LOOKS_EVERY: Duration = Duration::from_millis(20);
/// While batches end and moves are given up, before that is looked at again.
const FENCE_OFF_PAUSE: Duration = Duration::from_millis(2);

/// Of why a link is missing, in a heartbeat.
const WHY_CHARACTERS_MAX: usize = 200;

/// What has not worked for so long is said again.
const REMINDS_EVERY: Duration = Duration::from_secs(30);
/// Without a map for so long, why is said.
const MAP_AWAITED: Duration = Duration::from_secs(5);

/// Exit code of a server that is one no more.
const EX_UNAVAILABLE: i32 = 69;

pub(crate) struct Member {
    pub config: CoordinatorConfig,
    pub caller: Arc<Caller>,
    /// Without its id and incarnation.
    pub addresses: Registration,
    pub workers: Arc<[Mailbox<Letter>]>,
    pub balanced: Arc<Balanced>,
    pub moving: Moving,
    pub incarnation: Incarnation,
    pub departure: Arc<Departure>,
    /// Whether clients are let in.
    pub is_open: Arc<AtomicBool>,
    pub links: LinksSeen,
    /// By which links are timed.
    pub clock: Clock,
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

impl Member {
    /// Starts the thread that is in touch with the coordinator, for the life of the process.
    pub(crate) fn start(self, linking: Linking) -> io::Result<()> {
        thread::Builder::new().name("mbal-member".into()).spawn(move || self.run(linking))?;
        Ok(())
    }

    fn run(mut self, linking: Linking) {
        let inbox = linking.inbox.clone();
        let (mut said, mut linking) = (Said::default(), Some(linking));
        let mut ended = None;
        while let Some(here) = self.live(&mut said, &mut linking, &inbox, ended) {
            self.fence_off();
            ended = Some((here, self.incarnation));
            (self.config.id, self.incarnation) = (Some(here), incarnation());
        }
    }

    /// One incarnation. Returns which server it was, when its lease is over; and nothing, when the process has said farewell.
    fn live(
        &mut self,
        said: &mut Said,
        linking: &mut Option<Linking>,
        inbox: &Mailbox<LinkNote>,
        ended: Option<(ServerId, Incarnation)>,
    ) -> Option<ServerId> {
        let registered = self.register(said, ended);
        let here = ServerId(registered.id);
        self.departure.registered(here, self.incarnation);
        log::info(
            "registered",
            &format!("mbal: server {} of cluster {}", here.0, self.config.cluster),
        );
        let epoch = Duration::from_millis(registered.epoch_ms.clamp(10, 60_000));
        let shared = Arc::clone(&self.moving.shared);
        shared.store.know_flush(registered.flush_number);
        shared.set_incarnation(mbal_migration::Incarnation(self.incarnation.0));
        hot_keys::obey(&shared, registered.hot.as_ref(), self.config.replica_memory);
        let owning = self.own_by(here, registered.lease.as_ref());
        let mut version = 0;
        let mut map_awaited = Instant::now() + MAP_AWAITED;
        // Who needs a lease owns nothing before it has one.
        let map = registered.map.filter(|_| owning.is_none());
        let mut news = News { map, ..News::default() };
        let mut followed: Option<Arc<Cluster>> = None;
        let mut moves: Option<(Vec<MoveNews>, u32)> = None;
        let (mut soon, mut hurries) = (false, false);
        let mut ages: Option<AgesReport> = None;
        let mut curve_due = Instant::now();
        // Nobody rings it: it sleeps and calls for less than a minute each, and says so.
        let pulse = watchdog::watch(|| {});
        loop {
            pulse.beat();
            if let Some(cluster) = self.newer(&std::mem::take(&mut news), &mut followed, said) {
                version = cluster.map.version();
                // Workers are told first: once links are up, clients are let in. Who serves names may be silent for long.
                let cluster = Arc::new(cluster);
                followed = Some(Arc::clone(&cluster));
                let resolved = pulse.rests(|| cluster::resolved(&cluster));
                self.tell(here, &resolved);
                match linking.take() {
                    Some(linking) => {
                        linking
                            .start(here, &cluster)
                            .expect("threads and epolls can be had at the start");
                    }
                    None => inbox.post(LinkNote::Peers(peers(&cluster, here))),
                }
            }
            if version == 0 && map_awaited <= Instant::now() {
                map_awaited = Instant::now() + REMINDS_EVERY;
                let text = "mbal: no map yet, so no client is let in: the coordinator waits for as many servers as its --servers says";
                log::info("map_awaited", text);
            }
            // After the map: it says what became of moves that are not heard of any more.
            if let Some((moves, ever)) = moves.take() {
                self.moving.told(here, self.incarnation, &moves, ever);
            }
            // Until there is a map nobody can be served, and other servers' links wait for it too.
            let is_busy = version == 0
                || !self.is_open.load(Ordering::Acquire)
                || soon
                || shared.moves_under_way() > 0
                || self.departure.is_ending();
            let pause = match self.departure.time_left() {
                Some(left) => (left / HURRIED_BEATS).clamp(EPOCH_LEAST, EPOCH_OF_MOVES),
                None if !is_busy => epoch,
                None if shared.has_small_quota() => EPOCH_OF_MOVES_IN_SMALL_QUOTA,
                None => EPOCH_OF_MOVES,
            };
            pulse.rests(|| self.pause(pause.min(epoch), owning.as_deref()));
            if let Some(owning) = owning.as_ref().filter(|owning| owning.is_over()) {
                owning.end();
                return (!self.departure.has_ended()).then_some(here);
            }
            if let Some(left) = self.departure.time_left().filter(|_| !hurries) {
                hurries = true;
                self.moving.hurry(left);
            }
            let sent = owning.as_ref().map(|owning| owning.now());
            let tells_curve = curve_due <= Instant::now();
            if tells_curve {
                curve_due = Instant::now() + CURVE_EVERY;
            }
            let follows = (version, followed.is_some());
            let beaten = self.beat(&pulse, here, follows, tells_curve, ages.clone());
            match beaten {
                Ok(told) => {
                    said.worked();
                    shared.store.know_flush(told.flush_number);
                    hot_keys::obey(&shared, told.hot.as_ref(), self.config.replica_memory);
                    soon = told.soon;
                    ages = self.ages(ages.take(), told.ages);
                    self.moving.keep(told.keep.as_ref());
                    if let (Some(owning), Some(sent)) = (&owning, sent) {
                        owning.accepted(sent);
                    }
                    if owning.as_ref().is_none_or(|owning| owning.owns()) {
                        news = News { map: told.map, changes: told.changes, ..News::default() };
                        moves = Some((told.moves, told.moves_ever));
                    }
                    self.departure.heard(told.drain, told.no_room);
                }
                // By its own farewell.
                Err(CallFailed::Refused(409, _)) if self.departure.has_ended() => return None,
                Err(CallFailed::Refused(409, why)) => {
                    // Somebody else is this server now: whatever is served here would be stale.
                    let text = format!("mbal: the coordinator refuses this server: {why}");
                    log::error("not_a_member", &text);
                    let Some(owning) = owning else { std::process::exit(EX_UNAVAILABLE) };
                    owning.end();
                    return Some(here);
                }
                Err(CallFailed::Refused(status, why)) => {
                    said.failed(&format!("the coordinator refuses this server ({status}): {why}"));
                }
                Err(CallFailed::Silent(why)) => {
                    said.failed(&format!("no coordinator, the last map is used: {why}"));
                }
            }
        }
    }

    /// The lease by which it owns, if the coordinator wants one.
    fn own_by(&self, here: ServerId, told: Option<&LeaseTold>) -> Option<Arc<Owning>> {
        let shared = Arc::clone(&self.moving.shared);
        let Some(told) = told else {
            if shared.owns_by_lease() {
                shared.own_until(mbal_model::Instant::MAX);
            }
            return None;
        };
        let text = format!("mbal: owns by leases of {} ms in etcd", told.lease_ms);
        log::info("owns_by_lease", &text);
        let (member, caller) = ((here, self.incarnation), Arc::clone(&self.caller));
        let clock = self.moving.started.lease_clock;
        let owning = Owning::start(told, &self.config.cluster, member, caller, shared, clock);
        Some(owning.expect("a thread can be had, and the coordinator uses the same etcd"))
    }

    /// Waits for so long, or until a heartbeat is wanted sooner.
    fn pause(&self, pause: Duration, owning: Option<&Owning>) {
        let was_open = self.is_open.load(Ordering::Acquire);
        if owning.is_none() && was_open {
            return self.departure.pause(pause);
        }
        let until = Instant::now() + pause;
        let was_ending = self.departure.is_ending();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let is_wanted = self.is_open.load(Ordering::Acquire) != was_open
                || owning.is_some_and(|owning| owning.is_over() || owning.wants_word());
            if left.is_zero() || is_wanted || self.departure.is_ending() != was_ending {
                return;
            }
            self.departure.pause(left.min(LOOKS_EVERY));
        }
    }

    /// Drops all that is here. Nobody is served any of it: the lease is over.
    fn fence_off(&self) {
        let text = "mbal: the lease is over: drops what is here, and registers anew";
        log::warn("lease_over", text);
        while let Some(wake) = self.moving.shared.fence_off(self.moving.now()) {
            self.moving.wake(wake);
            thread::sleep(FENCE_OFF_PAUSE);
        }
    }

    /// Until it has worked. Refusals are tried again, too: an operator may mend what they say. `ended` is what this process was before:
    /// nobody has to wait for its lease.
    fn register(
        &mut self,
        said: &mut Said,
        mut ended: Option<(ServerId, Incarnation)>,
    ) -> Registered {
        let mut registration = Registration {
            id: self.config.id.map(|id| id.0),
            incarnation: self.incarnation,
            cluster: self.config.cluster.clone(),
            coordinators: self.caller.urls().to_vec(),
            ..self.addresses.clone()
        };
        let mut pause = PAUSES[0];
        loop {
            if let Some((server, incarnation)) = ended {
                let path = format!("/v1/servers/{}", server.0);
                match self.caller.call("DELETE", &path, Some(&Leaving { incarnation })) {
                    Ok(_) | Err(CallFailed::Refused(..)) => ended = None,
                    Err(CallFailed::Silent(_)) => {}
                }
            }
            match self.post("/v1/servers", &registration) {
                Ok(registered) => {
                    said.worked();
                    return registered;
                }
                Err(failed) => {
                    said.failed(&unregistered(&failed, self.config.token.is_some()));
                    if let CallFailed::Refused(..) = failed {
                        // It may have been said to be dead, after it had registered and did not hear of it.
                        self.incarnation = incarnation();
                        registration.incarnation = self.incarnation;
                    }
                }
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    /// What is told of items as long as it is asked for.
    fn ages(&self, told: Option<AgesReport>, asked: Option<AgesAsked>) -> Option<AgesReport> {
        let asked = asked?;
        let told = told.filter(|told| told.number == asked.number);
        Some(told.unwrap_or_else(|| self.moving.ages(&asked)))
    }

    fn beat(
        &self,
        pulse: &Pulse,
        here: ServerId,
        (map_version, takes_changes): (u64, bool),
        tells_curve: bool,
        ages: Option<AgesReport>,
    ) -> Result<News, CallFailed> {
        let curve = tells_curve.then(|| self.moving.shared.curve(self.moving.now().second));
        let heartbeat = Heartbeat {
            incarnation: self.incarnation,
            map_version,
            starting: !self.is_open.load(Ordering::Acquire),
            takes_changes,
            flush_number: self.moving.shared.store.flushed(),
            room_bytes: self.moving.shared.store.room_bytes(),
            moves: self.moving.reports(),
            hot: hot_keys::reports(&self.moving.shared, self.moving.started.lease_clock.now()),
            curve: curve.flatten().map(curve_report),
            ending: self.departure.is_ending(),
            version: env!("CARGO_PKG_VERSION").into(),
            link_versions: [*mbal_link::VERSIONS.start(), *mbal_link::VERSIONS.end()],
            ages,
            links: self.links_missing(),
            ..self.balanced.heartbeat()
        };
        let path = format!("/v1/servers/{}/heartbeat", here.0);
        pulse.rests(|| self.post(&path, &heartbeat))
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

    /// A newer map. Where changes do not fit the one that is `followed`, the next one is asked for whole.
    fn newer(
        &self,
        news: &News,
        followed: &mut Option<Arc<Cluster>>,
        said: &mut Said,
    ) -> Option<Cluster> {
        match news.newer(followed.as_deref()) {
            Ok(Some(cluster)) if cluster.name != self.config.cluster => {
                said.failed(&format!(
                    "a map of cluster {}, not {}",
                    cluster.name, self.config.cluster
                ));
                None
            }
            Ok(newer) => newer,
            Err(why) => {
                *followed = None;
                said.failed(&format!("a map that is none: {why}"));
                None
            }
        }
    }

    fn tell(&self, here: ServerId, cluster: &Arc<Cluster>) {
        let text = format!("mbal: follows map {}", cluster.map.version());
        log::info("map_followed", &text);
        let second = self.moving.now().second;
        self.moving.shared.follow(here, Arc::clone(cluster), second);
        for worker in self.workers.iter() {
            worker.post(Letter::Tell(Event::Mapped { here, cluster: Arc::clone(cluster) }));
        }
    }
}

fn curve_report(told: CurveTold) -> CurveReport {
    CurveReport {
        reads: told.reads,
        hits: told.hits,
        counted: told.curve.requests().round(),
        points: told.curve.points(),
        state_bytes: told.state_bytes,
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
