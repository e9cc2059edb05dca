//! Links of moves: one from each server to each other one, that carries what the two sides of moves say to each other. Each server has the
//! decisions that a process has; here are the network, and what a link loses. What `reactor/{linker,migrator}.rs` are in a server.
//!
//! ```text
//!   Action::TellMove ── frame, in order ──► the other end: move_asked, or move_answered ──► Event::Carry
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use mbal_link::{Dials, Kind, MoveLinkDue, MoveLinks, Taken};
use mbal_model::{MoveId, MoveLink, ServerId};
use mbal_worker::{BrokenLink, MoveMessage};

use super::coverage::Sight;
use super::history::{Micros, NEVER};
use super::hosts::{Host, host_of, id_of};
use super::profile::Profile;
use super::world::{Happening, World};

/// Who dials, of a server's parts: links of workers are in `links.rs`.
const MIGRATOR: usize = 0;

/// A server's own part.
pub struct Migrator {
    links: MoveLinks,
    dials: Dials,
    /// When it is woken, if that is in the queue.
    wakes_at: Option<Micros>,
}

impl Migrator {
    pub fn new(profile: &Profile) -> Migrator {
        let links = MoveLinks::new(profile.link_timeout * 1_000);
        Migrator { links, dials: Dials::new(vec![MIGRATOR]), wakes_at: None }
    }
}

/// The network between two servers' links.
#[derive(Default)]
pub struct Wires {
    all: Vec<Wire>,
    /// Between these, whose first one dials, a worker has broken a link once.
    refused: BTreeSet<(usize, usize)>,
}

/// A connection: of whoever dials first.
struct Wire {
    ends: [End; 2],
}

struct End {
    host: usize,
    /// Of the process that has it.
    life: u32,
    /// While it has it.
    link: Option<MoveLink>,
    /// What comes to it last; and what would arrive later than that is lost.
    last: Micros,
    cut: Micros,
}

pub struct Frame {
    kind: Kind,
    id: MoveId,
    payload: Vec<u8>,
}

impl World {
    /// A server follows a map: these are the others.
    pub fn move_links_know(&mut self, host: usize) {
        let here = id_of(host);
        let peers = self.hosts[host].member.peers.iter().filter(|server| **server != here);
        let peers: Vec<(ServerId, String)> =
            peers.map(|server| (*server, format!("h{}:11311", server.0))).collect();
        self.hosts[host].migrator.dials.know(&peers, self.now * 1_000);
        self.wake_migrator(host);
    }

    fn wake_migrator(&mut self, host: usize) {
        let Host { migrator, life, .. } = &mut self.hosts[host];
        let next =
            migrator.dials.next_wake().into_iter().fold(migrator.links.next_wake(), u64::min);
        let (at, life) = (next.div_ceil(1_000).max(self.now + 1), *life);
        if migrator.wakes_at.is_none_or(|known| at < known) {
            migrator.wakes_at = Some(at);
            self.at(at, Happening::MigratorWakes { host, life });
        }
    }

    /// The threads that dial, and that have links for moves.
    pub fn migrator_wakes(&mut self, host: usize) {
        let wakes_at = &mut self.hosts[host].migrator.wakes_at;
        *wakes_at = wakes_at.filter(|at| self.now < *at);
        self.dial_for_moves(host);
        while let Some(due) = self.hosts[host].migrator.links.due(self.now * 1_000) {
            match due {
                MoveLinkDue::Ping(link) => {
                    self.send_by(host, link, Kind::Ping, MoveId(0), Vec::new());
                }
                MoveLinkDue::Broken(link, _) => self.close_link(host, link),
            }
        }
        self.wake_migrator(host);
    }

    fn dial_for_moves(&mut self, host: usize) {
        let now_ns = self.now * 1_000;
        while let Some(at) = self.hosts[host].migrator.dials.due(now_ns) {
            let other = host_of(self.hosts[host].migrator.dials.at(at).server);
            let parted = self.is_silent(host, other) || self.is_silent(other, host);
            if parted || !self.know_each_other(host, other) {
                let jitter = self.dice.bits();
                self.hosts[host].migrator.dials.failed(at, now_ns, jitter);
                continue;
            }
            self.hosts[host].migrator.dials.up(at);
            self.link_for_moves(host, other);
        }
    }

    fn link_for_moves(&mut self, dials: usize, accepts: usize) {
        self.coverage.meet(Sight::MoveLinkUp);
        let (wire, now) = (self.wires.all.len(), self.now);
        let life = |host: usize| self.hosts[host].life;
        let end = |host: usize| End { host, life: life(host), link: None, last: now, cut: NEVER };
        let ends = [end(dials), end(accepts)];
        self.wires.all.push(Wire { ends });
        // Who accepts knows it first.
        for end in [1, 0] {
            let (host, other) = if end == 0 { (dials, accepts) } else { (accepts, dials) };
            let (server, is_dialed) = (id_of(other), end == 0);
            if let Some(older) = self.hosts[host].migrator.links.older(server, is_dialed) {
                self.close_link(host, older);
            }
            let link = self.hosts[host].migrator.links.up(now * 1_000, server, is_dialed);
            self.wires.all[wire].ends[end].link = Some(link);
            if is_dialed {
                let clock = self.hosts[host].clock.at(now);
                let server = Arc::clone(&self.hosts[host].server);
                let workers = server.move_link_up(clock, id_of(accepts), link);
                self.carry(host, workers);
            }
            self.wake_migrator(host);
        }
    }

    /// One end closes, and its server is told; the other end hears of it later.
    fn close_link(&mut self, host: usize, link: MoveLink) {
        let Some(down) = self.hosts[host].migrator.links.down(link) else { return };
        self.coverage.meet(Sight::MoveLinkBroken);
        let (wire, end) = self.end_of(host, link).expect("it has been up");
        self.wires.all[wire].ends[end].link = None;
        self.send_frame(wire, 1 - end, None);
        let clock = self.hosts[host].clock.at(self.now);
        let server = Arc::clone(&self.hosts[host].server);
        let workers = server.move_link_down(clock, link);
        self.carry(host, workers);
        if down.is_dialed {
            let (now_ns, jitter) = (self.now * 1_000, self.dice.bits());
            self.hosts[host].migrator.dials.lost(MIGRATOR, down.server, now_ns, jitter);
            self.wake_migrator(host);
        }
    }

    fn end_of(&self, host: usize, link: MoveLink) -> Option<(usize, usize)> {
        let life = self.hosts[host].life;
        let is_it = |end: &End| (end.host, end.life, end.link) == (host, life, Some(link));
        let wires = self.wires.all.iter().enumerate().rev();
        wires.filter_map(|(at, wire)| Some((at, wire.ends.iter().position(is_it)?))).next()
    }

    fn send_by(&mut self, host: usize, link: MoveLink, kind: Kind, id: MoveId, payload: Vec<u8>) {
        if let Some((wire, end)) = self.end_of(host, link) {
            self.send_frame(wire, 1 - end, Some(Frame { kind, id, payload }));
        }
    }

    /// Nothing is that the other end has closed.
    fn send_frame(&mut self, wire: usize, to: usize, frame: Option<Frame>) {
        let ends = &self.wires.all[wire].ends;
        let arrives = self.arrives_by_link(ends[1 - to].host, ends[to].host);
        let last = &mut self.wires.all[wire].ends[to].last;
        *last = arrives.max(*last + 1);
        let at = *last;
        self.at(at, Happening::Framed { wire, to, frame });
    }

    /// A frame comes to an end.
    pub fn framed(&mut self, wire: usize, to: usize, frame: Option<Frame>) {
        let End { host, life, link, cut, .. } = self.wires.all[wire].ends[to];
        let Some(link) = link.filter(|_| self.now <= cut) else { return };
        let happening = Happening::Framed { wire, to, frame };
        let Some(Happening::Framed { frame, .. }) = self.may_do(host, life, happening) else {
            return;
        };
        let Some(Frame { kind, id, payload }) = frame else { return self.close_link(host, link) };
        self.hosts[host].migrator.links.heard(self.now * 1_000, link);
        let taken = match self.hosts[host].migrator.links.take(link, kind) {
            Ok(taken) => taken,
            Err(why) => return self.fail(5, format!("server {host} closes on its like: {why}")),
        };
        let (Taken::Asked(from) | Taken::Answered(from), Kind::Move(kind)) = (taken, kind) else {
            if taken == Taken::Ping {
                self.send_by(host, link, Kind::Pong, id, payload);
            }
            return;
        };
        let server = Arc::clone(&self.hosts[host].server);
        let clock = self.hosts[host].clock.at(self.now);
        let message = MoveMessage { from, link, id, kind, payload: &payload };
        let heard = match taken {
            Taken::Answered(_) => server.move_answered(clock, &message),
            _ => server.move_asked(clock, &message),
        };
        match heard {
            Ok(heard) => {
                self.carry(host, heard.worker);
                if let Some((kind, payload)) = heard.answer {
                    self.send_by(host, link, Kind::Move(kind), id, payload);
                }
            }
            Err(BrokenLink) => {
                self.fail(5, format!("server {host} was told by {from:?} what cannot be"));
            }
        }
    }

    /// A worker says something of a move.
    pub fn tell_move(
        &mut self,
        host: usize,
        link: MoveLink,
        id: MoveId,
        kind: u8,
        payload: Vec<u8>,
    ) {
        self.send_by(host, link, Kind::Move(kind), id, payload);
    }

    pub fn break_move_link_of(&mut self, host: usize, link: MoveLink) {
        let Some((wire, end)) = self.end_of(host, link) else { return };
        let [dials, accepts] = [0, 1].map(|end| self.wires.all[wire].ends[end].host);
        // A link that is dialed again loses nothing: the source begins with what has not come. Where that does not help it is a fault.
        if self.wires.refused.insert((dials, accepts)) {
            return self.break_move_links(dials, accepts);
        }
        self.fail(5, format!("a worker of server {host} breaks a link of moves, end {end}"));
    }

    /// The network breaks links of moves between two servers: some of what is on its way is lost.
    pub fn break_move_links(&mut self, one: usize, other: usize) {
        for wire in 0..self.wires.all.len() {
            let ends = &self.wires.all[wire].ends;
            let hosts = [ends[0].host, ends[1].host];
            if ![[one, other], [other, one]].contains(&hosts) || ends.iter().all(End::is_closed) {
                continue;
            }
            let longest = self.profile.link_delay;
            for end in 0..2 {
                let until = self.now + self.dice.skewed(1..=2 * longest);
                let cut = &mut self.wires.all[wire].ends[end].cut;
                *cut = until.min(*cut);
            }
            for end in self.dice.pick(&[[0, 1], [1, 0]]) {
                let End { host, link, life, .. } = self.wires.all[wire].ends[end];
                let is_it = self.hosts[host].is_up && self.hosts[host].life == life;
                if let Some(link) = link.filter(|_| is_it) {
                    self.close_link(host, link);
                }
            }
        }
    }

    /// A process is gone, and the kernel closes its links.
    pub fn move_links_die(&mut self, host: usize) {
        for wire in 0..self.wires.all.len() {
            for end in 0..2 {
                let this = &mut self.wires.all[wire].ends[end];
                if this.host == host && this.link.take().is_some() {
                    self.send_frame(wire, 1 - end, None);
                }
            }
        }
        self.hosts[host].migrator = Migrator::new(&self.profile);
    }

    /// All are up, of those between processes that know each other.
    pub fn move_links_are_up(&self) -> bool {
        let up = self.wires.all.iter().filter(|wire| wire.ends.iter().all(|end| !end.is_closed()));
        let count = self.hosts.len();
        up.count() == count * (count - 1)
    }
}

impl End {
    fn is_closed(&self) -> bool {
        self.link.is_none()
    }
}
