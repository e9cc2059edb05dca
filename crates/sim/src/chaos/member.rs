//! A server's thread that is in touch with the coordinator: registers, says how the server is, follows the map and then the word on moves.
//! What `server/membership.rs` and `server/moving.rs` are in a server.

use std::sync::Arc;

use mbal_control::api::{self, Heartbeat, MoveNews, News, Progress, Registered, Registration};
use mbal_control::{Answer, Ask};
use mbal_migration::{Incarnation, Order, State};
use mbal_model::{Cluster, Instant, MoveId, Prefix, ServerId, WorkerId};
use mbal_worker::{Event, MoveDecision, MoveTold};

use super::control::{Caller, Failed, Heard, copies};
use super::coverage::Sight;
use super::history::{Micros, SECOND};
use super::hosts::{Host, host_of, id_of};
use super::letters::Letter;
use super::owning::Owning;
use super::world::{Happening, World};

/// A coordinator that does not answer for so long is asked again later.
const ANSWERS_WITHIN: Micros = 2 * SECOND;
/// Between two heartbeats of a server that takes part in a move.
const EPOCH_OF_MOVES: Micros = SECOND / 10;
/// Between two attempts to register.
const PAUSES: [Micros; 2] = [SECOND / 20, SECOND];

#[derive(Default)]
pub struct Member {
    /// The call that is waited for, if one is; older ones are not heard.
    call: u64,
    waits: bool,
    pub is_registered: bool,
    /// How often it has begun anew, since its lease was over.
    pub lives: u64,
    pub owning: Option<Owning>,
    /// It is to say that what it was before has ended.
    pub farewell: Option<api::Incarnation>,
    /// When the last call was sent, by the clock of leases.
    pub sent: Instant,
    /// The next heartbeat, unless one is wanted sooner.
    pub beats_at: Micros,
    tries: u32,
    pub map_version: u64,
    /// Since when it follows that map.
    pub followed: Micros,
    /// The map, which changes are of.
    pub cluster: Option<Arc<Cluster>>,
    /// Servers of the newest map that it follows.
    pub peers: Vec<ServerId>,
}

impl World {
    /// Drawn by the process at its start, and whenever it begins anew.
    pub fn incarnation(&self, host: usize) -> u64 {
        let Host { life, member, .. } = &self.hosts[host];
        ((host as u64 + 1) << 32) + (u64::from(*life) << 12) + member.lives + 1
    }

    pub fn begin_member(&mut self, host: usize) {
        let life = self.hosts[host].life;
        let pause = self.dice.skewed(1..=2_000);
        self.after(pause, Happening::MemberWakes { host, life });
    }

    pub fn member_wakes(&mut self, host: usize) {
        if self.member_rests(host) {
            return;
        }
        let ask = match &self.hosts[host].member {
            Member { farewell: Some(before), .. } => Ask::Leave(id_of(host), *before),
            Member { is_registered: false, .. } => Ask::Register(self.registration(host)),
            _ => Ask::Heartbeat(id_of(host), self.heartbeat(host)),
        };
        let this = &mut self.hosts[host];
        this.member.sent = this.clock.lease_now(self.now);
        this.member.call += 1;
        this.member.waits = true;
        let (life, call) = (this.life, this.member.call);
        let copies = if self.is_calm() { 1 } else { copies(&mut self.dice) };
        if copies != 1 {
            self.coverage.meet(if copies == 0 { Sight::CallLost } else { Sight::CallTwice });
        }
        for _ in 0..copies {
            let at = self.arrives(host, self.hosts.len());
            let caller = Caller::Member { host, life, call };
            self.at(at, Happening::Called { caller, ask: Box::new(ask.clone()) });
        }
        self.after(ANSWERS_WITHIN, Happening::MemberTimesOut { host, life, call });
    }

    fn registration(&self, host: usize) -> Registration {
        let number = id_of(host).0;
        Registration {
            id: Some(number),
            incarnation: self.incarnation(host).into(),
            cluster: "mbal".into(),
            client: format!("h{number}:11211"),
            link: format!("h{number}:11311"),
            workers: (0..self.profile.workers)
                .map(|at| format!("h{number}:{}", 11300 + at))
                .collect(),
            memory_bytes: self.profile.memory_bytes as u64,
            moves: true,
            leases: true,
            ..Registration::default()
        }
    }

    fn heartbeat(&mut self, host: usize) -> Heartbeat {
        let server = Arc::clone(&self.hosts[host].server);
        let moves: Vec<api::MoveReport> = server.move_reports().iter().map(report).collect();
        moves.iter().for_each(|report| self.count_progress(report));
        let hot = self.hot_reports(host);
        let ages = self.ages(host);
        Heartbeat {
            incarnation: self.incarnation(host).into(),
            map_version: self.hosts[host].member.map_version,
            takes_changes: self.hosts[host].member.cluster.is_some(),
            flush_number: server.store.flushed(),
            moves,
            hot,
            ages,
            ..self.hosts[host].balancing.heartbeat()
        }
    }

    fn count_progress(&mut self, report: &api::MoveReport) {
        if report.slices_gone > 0 && report.part_gone < 1.0 {
            self.coverage.meet(Sight::MovePartly);
        }
        if report.slices_again > 0 {
            self.coverage.meet(Sight::SliceThawed);
        }
        match report.progress {
            Progress::Sealed => self.coverage.meet(Sight::MoveSealed),
            Progress::Back => self.coverage.meet(Sight::MoveBack),
            Progress::Refused => self.coverage.meet(Sight::MoveRefused),
            Progress::TooLate => self.coverage.meet(Sight::MoveTooLate),
            Progress::Asking | Progress::Moving => {}
        }
        if report.progress == Progress::Sealed {
            self.moved += 1;
        }
    }

    pub fn member_times_out(&mut self, host: usize, call: u64) {
        let member = &self.hosts[host].member;
        if member.waits && member.call == call {
            self.coverage.meet(Sight::CallTimedOut);
            self.member_hears(host, call, Err(Failed::Silent));
        }
    }

    pub fn member_hears(&mut self, host: usize, call: u64, heard: Heard) {
        let member = &mut self.hosts[host].member;
        if !member.waits || member.call != call {
            return;
        }
        member.waits = false;
        match heard {
            Ok(Answer::Registered(registered)) => self.is_registered(host, registered),
            Ok(Answer::News(news)) => self.hears_news(host, news),
            Ok(Answer::Done) | Err(Failed::Refused(_)) if member.farewell.is_some() => {
                member.farewell = None;
                return self.member_sleeps(host, 1);
            }
            Err(Failed::Refused(_)) if member.is_registered && member.owning.is_some() => {
                return self.lease_is_over(host);
            }
            Err(Failed::Refused(_)) if member.is_registered => {
                // Somebody else is this server now: the process ends.
                return self.fail(5, format!("server {host} is refused, though it is alone"));
            }
            Err(failed) if !member.is_registered => {
                if failed != Failed::Silent && member.farewell.is_none() {
                    self.coverage.meet(Sight::LeaseAwaited);
                }
                let member = &mut self.hosts[host].member;
                // As another incarnation: this one may have been said to be dead.
                member.lives += u64::from(failed != Failed::Silent && member.farewell.is_none());
                let pause = (PAUSES[0] << member.tries.min(5)).min(PAUSES[1]);
                member.tries += 1;
                return self.member_sleeps(host, pause);
            }
            Err(_) => {}
            Ok(other) => panic!("no answer to a member: {other:?}"),
        }
        let this = &self.hosts[host];
        let is_busy = this.server.moves_under_way() > 0 || this.ages.is_asked();
        let heartbeat = self.profile.heartbeat;
        let epoch = if is_busy { heartbeat.min(EPOCH_OF_MOVES) } else { heartbeat };
        self.member_sleeps(host, epoch);
    }

    /// Its lease was over: it says that what it was has ended, and registers as a new incarnation.
    pub fn begin_anew(&mut self, host: usize) {
        let before = self.incarnation(host);
        let member = &mut self.hosts[host].member;
        (member.is_registered, member.waits, member.tries) = (false, false, 0);
        member.map_version = 0;
        member.cluster = None;
        member.lives += 1;
        member.farewell = Some(before.into());
        self.member_sleeps(host, 1);
    }

    pub fn member_sleeps(&mut self, host: usize, pause: Micros) {
        let life = self.hosts[host].life;
        self.hosts[host].member.beats_at = self.now + pause;
        let pause = self.looks_at_lease_after(host, pause);
        self.after(pause, Happening::MemberWakes { host, life });
    }

    fn is_registered(&mut self, host: usize, registered: Registered) {
        let server = Arc::clone(&self.hosts[host].server);
        server.store.know_flush(registered.flush_number);
        server.set_incarnation(Incarnation(self.incarnation(host)));
        self.hosts[host].member.is_registered = true;
        self.obey(host, registered.hot.as_ref());
        match registered.lease {
            Some(told) => self.own_by(host, &told),
            None => self.follow(host, &News { map: registered.map, ..News::default() }),
        }
    }

    fn hears_news(&mut self, host: usize, news: News) {
        let server = Arc::clone(&self.hosts[host].server);
        server.store.know_flush(news.flush_number);
        self.obey(host, news.hot.as_ref());
        if !self.may_own(host) {
            return;
        }
        self.follow(host, &news);
        // After the map: it says what became of moves that are not heard of any more.
        let map_version = server.map_version();
        let here = Incarnation(self.incarnation(host));
        self.asked_for_ages(host, news.ages);
        self.keep(host, news.keep.as_ref());
        let read = |news| {
            let told = read(here, news, map_version);
            MoveTold { age_thresholds: self.age_thresholds(host, news), ..told }
        };
        let told: Vec<MoveTold> = news.moves.iter().map(read).collect();
        let now = self.hosts[host].clock.at(self.now);
        let workers = server.moves_told(now, &told, news.moves_ever);
        self.carry(host, workers);
        self.look_at_owners(host);
        self.look_at_places(false);
    }

    fn follow(&mut self, host: usize, news: &News) {
        let this = &mut self.hosts[host];
        let newer = news.newer(this.member.cluster.as_deref());
        let Some(cluster) = newer.expect("a coordinator's document, or what changed in it") else {
            return;
        };
        let cluster = Arc::new(cluster);
        if !news.changes.is_empty() {
            self.coverage.meet(Sight::ChangesFollowed);
        }
        let this = &mut self.hosts[host];
        this.member.cluster = Some(Arc::clone(&cluster));
        this.member.map_version = cluster.map.version();
        this.member.followed = self.now;
        this.member.peers = cluster.servers.keys().copied().collect();
        this.claims.map = this.claims.map.max(cluster.map.version());
        let second = this.second(self.now);
        self.hosts[host].server.follow(id_of(host), Arc::clone(&cluster), second);
        self.tell(|| format!("server {host} follows map {}", cluster.map.version()));
        self.coverage.meet(Sight::MapFollowed);
        for seat in self.hosts[host].seats.clone() {
            self.post(seat, Letter::Mapped { cluster: Arc::clone(&cluster) });
        }
        self.look_at_owners(host);
        self.look_at_places(true);
    }

    /// Workers are told that a move that they carry has heard something.
    pub fn carry(&mut self, host: usize, workers: impl IntoIterator<Item = WorkerId>) {
        for worker in workers {
            self.post_to(host, worker, Letter::Tell(Event::Carry));
        }
    }

    /// The server knows another one, and is known by it: a link may come up.
    pub fn know_each_other(&self, one: usize, other: usize) -> bool {
        let knows = |here: usize, peer: usize| {
            let host = &self.hosts[here];
            host.runs() && host.member.is_registered && host.member.peers.contains(&id_of(peer))
        };
        // Who accepts has heard of a map: before, nobody listens.
        let accepts = &self.hosts[other];
        knows(one, other) && accepts.runs() && accepts.member.map_version > 0
    }
}

/// As `server/moving.rs` reads it.
fn read(here: Incarnation, news: &MoveNews, map_version: u64) -> MoveTold {
    let order = Order {
        id: MoveId(news.number),
        prefix: Prefix::parse(news.prefix.as_bytes()).expect("a coordinator's prefix"),
        source: here,
        destination: Incarnation(news.to_incarnation.0),
        worker: WorkerId(news.worker),
        generation: map_version as u16 & 0x7fff,
    };
    let word = match news.word {
        api::MoveDecision::Go => MoveDecision::Go,
        api::MoveDecision::Cancel => MoveDecision::Cancel,
        api::MoveDecision::DestinationLost => MoveDecision::DestinationLost,
    };
    debug_assert!(host_of(ServerId(news.from)) < 8);
    MoveTold { order, from: ServerId(news.from), to: ServerId(news.to), word, age_thresholds: None }
}

/// As `server/moving.rs` tells it.
fn report(one: &mbal_worker::MoveReport) -> api::MoveReport {
    let &mbal_worker::MoveReport { id, state, progress, part_gone } = one;
    let said = match state {
        State::Back(_) => Progress::Back,
        State::Sealed | State::HandedOver => Progress::Sealed,
        State::Asking | State::Moving if progress.refused.is_some() => Progress::Refused,
        State::Asking | State::Moving if progress.cancelled_too_late => Progress::TooLate,
        State::Asking => Progress::Asking,
        State::Moving => Progress::Moving,
    };
    api::MoveReport {
        number: id.0,
        progress: said,
        slices_gone: progress.slices,
        part_gone,
        slices_again: progress.again,
        bytes: progress.bytes,
        ..api::MoveReport::default()
    }
}
