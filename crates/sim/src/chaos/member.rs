//! A server's thread that is in touch with the coordinator: the driver that a server has, with letters for calls, and what checkers are to know
//! of it. What `server/membership.rs` is in a server.

use std::mem;
use std::sync::Arc;

use mbal_control::api::{self, Heartbeat, News, Progress, Registration};
use mbal_control::{Refusal, Request, Response};
use mbal_member::{Action, Call, Event, Heard, Outside, Terms, Time, balancing};
use mbal_model::{Cluster, ServerId, WorkerId};
use mbal_worker::Shared;

use super::control::{Caller, Failed, copies};
use super::coverage::Sight;
use super::history::{Micros, SECOND};
use super::hosts::id_of;
use super::letters::Letter;
use super::owning::Owning;
use super::profile::Profile;
use super::world::{Happening, World};

/// A coordinator that does not answer for so long is asked again later.
const ANSWERS_WITHIN: Micros = 2 * SECOND;

pub struct Member {
    pub driver: mbal_member::Member,
    /// The call that is waited for, if one is; older ones are not heard.
    call: u64,
    waits: bool,
    /// When it is woken, if that is in the queue.
    wakes_at: Option<Micros>,
    pub owning: Option<Owning>,
    /// Since when it follows its map.
    pub followed: Micros,
    /// Servers of the newest map that it follows.
    pub peers: Vec<ServerId>,
}

impl Member {
    pub fn new(profile: &Profile, host: usize, life: u32, server: &Arc<Shared>) -> Member {
        let terms = Terms {
            cluster: "mbal".into(),
            id: Some(id_of(host)),
            replica_memory: profile.hot.as_ref().map(|hot| hot.memory_bytes),
        };
        // Drawn at the start of a process, and whenever it begins anew.
        let mut last = ((host as u64 + 1) << 32) + (u64::from(life) << 12);
        let draw = move || {
            last += 1;
            api::Incarnation(last)
        };
        let driver = mbal_member::Member::new(terms, Arc::clone(server), Box::new(draw));
        let (wakes_at, owning) = (None, None);
        Member { driver, call: 0, waits: false, wakes_at, owning, followed: 0, peers: Vec::new() }
    }
}

impl World {
    pub fn incarnation(&self, host: usize) -> u64 {
        self.hosts[host].member.driver.incarnation().0
    }

    pub fn begin_member(&mut self, host: usize) {
        let pause = self.dice.skewed(1..=2_000);
        self.wake_member(host, self.now + pause);
    }

    fn wake_member(&mut self, host: usize, at: Micros) {
        let this = &mut self.hosts[host];
        if this.member.wakes_at.is_none_or(|known| at < known) {
            this.member.wakes_at = Some(at);
            let life = this.life;
            self.at(at, Happening::MemberWakes { host, life });
        }
    }

    pub fn member_wakes(&mut self, host: usize) {
        let member = &mut self.hosts[host].member;
        if member.wakes_at.is_some_and(|at| at <= self.now) {
            member.wakes_at = None;
        }
        let outside = self.outside(host);
        self.drive(host, Event::Woken(outside));
    }

    fn time(&self, host: usize) -> Time {
        let clock = &self.hosts[host].clock;
        Time { lease: clock.lease_now(self.now), worker: clock.at(self.now) }
    }

    fn outside(&mut self, host: usize) -> Outside {
        let this = &mut self.hosts[host];
        let now = this.clock.lease_now(self.now);
        // Before it has a map nobody is let in.
        let is_open = this.member.driver.map_version() > 0;
        match &mut this.member.owning {
            None => Outside { is_open, ..Outside::default() },
            Some(owning) => Outside { is_open, ..owning.outside(now) },
        }
    }

    fn drive(&mut self, host: usize, event: Event) {
        let time = self.time(host);
        let (mut actions, mut carries, mut is_mapped) = (Vec::new(), false, false);
        let fenced_off = self.hosts[host].member.driver.fences_off();
        self.hosts[host].member.driver.handle(time, event, &mut actions);
        for action in actions {
            carries |= matches!(action, Action::Carry(_));
            is_mapped |= matches!(action, Action::Mapped(_));
            self.act(host, action);
        }
        let driver = &self.hosts[host].member.driver;
        if fenced_off && !driver.fences_off() {
            self.hosts[host].coming.clear();
        }
        if carries || is_mapped || fenced_off {
            self.look_at_owners(host);
            self.look_at_places(is_mapped);
        }
        let this = &self.hosts[host];
        if let Some(at) = this.member.driver.next_wake(time.lease) {
            let at = this.clock.when(at).max(self.now + 1);
            self.wake_member(host, at);
        }
    }

    fn act(&mut self, host: usize, action: Action) {
        match action {
            Action::Call(call) => self.call(host, call),
            Action::Joined(_, _, lease) => {
                if let Some(told) = lease {
                    self.own_by(host, &told);
                }
            }
            Action::Accepted(sent) => self.accepted(host, sent),
            Action::Mapped(cluster) => self.is_mapped(host, cluster),
            Action::Unfit(why) => self.fail(2, format!("server {host} is told {why}")),
            Action::Carry(workers) => self.carry(host, workers),
            Action::Balance(mode) => self.drive_balancer(host, balancing::Event::Told(mode)),
            Action::HotTerms(_) | Action::Drained(..) => {}
            Action::Fence => self.lease_is_over(host),
            Action::Usurped => {
                self.fail(5, format!("server {host} is refused, though it is alone"));
            }
            Action::Ends => unreachable!("its process is killed"),
        }
    }

    fn call(&mut self, host: usize, call: Call) {
        let ask = match call {
            Call::Leave(server, before) => Request::Leave(server, before),
            Call::Register(..) => Request::Register(self.registration(host)),
            Call::Beat(here) => Request::Heartbeat(here, self.heartbeat(host)),
        };
        let this = &mut self.hosts[host];
        this.member.call += 1;
        this.member.waits = true;
        let (life, call) = (this.life, this.member.call);
        let copies = if self.is_calm() { 1 } else { copies(&mut self.dice) };
        if copies != 1 {
            self.coverage.meet(if copies == 0 { Sight::CallLost } else { Sight::CallTwice });
        }
        let mut ask = Some(Box::new(ask));
        for left in (0..copies).rev() {
            let at = self.arrives(host, self.hosts.len());
            let caller = Caller::Member { host, life, call };
            let ask = if left > 0 { ask.clone() } else { ask.take() };
            let ask = ask.expect("the last one takes it");
            self.at(at, Happening::Called { caller, ask });
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
        let (time, outside) = (self.time(host), self.outside(host));
        let this = &mut self.hosts[host];
        let loads = this.balancing.driver.loads().clone();
        let mut told = this.member.driver.heartbeat(time, &outside, loads);
        told.moves.iter().for_each(|report| self.count_progress(report));
        self.meet_reported(host);
        told.ages = told.ages.map(|report| self.hosts[host].ages.report(report));
        told
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

    pub fn member_hears(&mut self, host: usize, call: u64, heard: Result<Response, Failed>) {
        let member = &mut self.hosts[host].member;
        if !mem::take(&mut member.waits) || member.call != call {
            member.waits |= member.call != call;
            return;
        }
        let heard = match heard {
            Ok(Response::Registered(registered)) => Heard::Registered(registered),
            Ok(Response::News(news)) => {
                self.note_news(host, &news);
                Heard::News(news)
            }
            Ok(Response::Done) => Heard::Left,
            Ok(other) => panic!("no answer to a member: {other:?}"),
            Err(Failed::Refused(Refusal::Senseless(why))) => {
                return self.fail(5, format!("server {host} says what cannot be meant: {why}"));
            }
            Err(Failed::Refused(_)) => {
                if !member.driver.is_registered() {
                    self.coverage.meet(Sight::LeaseAwaited);
                }
                Heard::Refused
            }
            Err(Failed::Silent) => Heard::Silent,
        };
        self.drive(host, Event::Heard(heard));
    }

    /// What checkers are to know of it, before the server does.
    fn note_news(&mut self, host: usize, news: &News) {
        if !news.changes.is_empty() {
            self.coverage.meet(Sight::ChangesFollowed);
        }
        self.note_ages(host, news.ages.as_ref());
        news.moves.iter().for_each(|one| self.note_cut(host, one));
    }

    fn is_mapped(&mut self, host: usize, cluster: Arc<Cluster>) {
        let this = &mut self.hosts[host];
        this.member.followed = self.now;
        this.member.peers = cluster.servers.keys().copied().collect();
        this.claims.map = this.claims.map.max(cluster.map.version());
        let second = this.second(self.now);
        this.server.follow(id_of(host), Arc::clone(&cluster), second);
        self.tell(|| format!("server {host} follows map {}", cluster.map.version()));
        self.coverage.meet(Sight::MapFollowed);
        self.move_links_know(host);
        for seat in self.hosts[host].seats.clone() {
            self.post(seat, Letter::Mapped { cluster: Arc::clone(&cluster) });
        }
    }

    /// Workers are told that a move that they carry has heard something.
    pub fn carry(&mut self, host: usize, workers: impl IntoIterator<Item = WorkerId>) {
        for worker in workers {
            self.post_to(host, worker, Letter::Tell(mbal_worker::Event::Carry));
        }
    }

    /// The server knows another one, and is known by it: a link may come up.
    pub fn know_each_other(&self, one: usize, other: usize) -> bool {
        let knows = |here: usize, peer: usize| {
            let host = &self.hosts[here];
            host.runs()
                && host.member.driver.is_registered()
                && host.member.peers.contains(&id_of(peer))
        };
        // Who accepts has heard of a map: before, nobody listens.
        let accepts = &self.hosts[other];
        knows(one, other) && accepts.runs() && accepts.member.driver.map_version() > 0
    }
}
