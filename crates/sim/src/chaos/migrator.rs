//! Links of moves: one from each server to each other one, that carries what the two sides of moves say to each other.
//! What `reactor/migrator.rs` is in a server.
//!
//! ```text
//!   Action::TellMove ── frame, in order ──► the other end: move_asked, or move_answered ──► Event::Carry
//! ```

use std::sync::Arc;

use mbal_link::{Due, Waiting};
use mbal_model::MoveId;
use mbal_worker::{BrokenLink, MoveLink, MoveMessage};

use super::coverage::Sight;
use super::history::{Micros, NEVER, SECOND};
use super::hosts::id_of;
use super::world::{Happening, World};

/// A link of another server of which nothing was heard for so long has broken.
const UNUSED_MAX: Micros = 30 * SECOND;

/// To the destination of moves, and back.
const THERE: usize = 0;
const BACK: usize = 1;

#[derive(Default)]
pub struct MoveLinks {
    all: Vec<Link>,
    /// Names are not used twice.
    named: u64,
}

/// From the server that dials, the source of moves, to another one.
struct Link {
    /// By way: who is at the end that it leads to is `ends[way]`.
    dials: usize,
    accepts: usize,
    /// Counts its lives.
    life: u64,
    /// The name that it has at both ends, while that end has it: of the dialing one, of the accepting one.
    names: [Option<MoveLink>; 2],
    waiting: Waiting,
    /// When it is next looked whether it is idle: once a second.
    next_tick: Micros,
    heard: Micros,
    last: [Micros; 2],
    /// What would arrive later is lost.
    cut: [Micros; 2],
    /// A worker has broken it once.
    was_refused: bool,
    tries: u32,
    is_dialing: bool,
}

pub enum Frame {
    Say {
        id: MoveId,
        kind: u8,
        payload: Vec<u8>,
    },
    Ping,
    Pong,
    /// The other end has closed.
    End,
}

impl World {
    pub fn begin_move_links(&mut self) {
        let count = self.hosts.len();
        let pairs = (0..count).flat_map(|one| (0..count).map(move |other| (one, other)));
        for (dials, accepts) in pairs.filter(|(one, other)| one != other) {
            self.move_links.all.push(Link {
                dials,
                accepts,
                life: 0,
                names: [None; 2],
                waiting: Waiting::new(0),
                next_tick: 0,
                heard: 0,
                last: [0; 2],
                cut: [NEVER; 2],
                was_refused: false,
                tries: 0,
                is_dialing: false,
            });
        }
    }

    /// A process that begins dials all others.
    pub fn move_links_begin(&mut self, host: usize) {
        for link in 0..self.move_links.all.len() {
            if self.move_links.all[link].dials == host {
                self.dial_for_moves(link);
            }
        }
    }

    fn dial_for_moves(&mut self, link: usize) {
        let this = &mut self.move_links.all[link];
        if std::mem::replace(&mut this.is_dialing, true) {
            return;
        }
        let most = (20_000u64 << this.tries.min(6)).min(SECOND).min(self.profile.outage.max(5_000));
        this.tries += 1;
        let pause = self.dice.between(1..=most);
        self.after(pause, Happening::DialedForMoves { link });
    }

    pub fn dialed_for_moves(&mut self, link: usize) {
        let Link { dials, accepts, .. } = self.move_links.all[link];
        self.move_links.all[link].is_dialing = false;
        if !self.hosts[dials].is_up || self.move_links.all[link].names[0].is_some() {
            return;
        }
        let parted = self.is_silent(dials, accepts) || self.is_silent(accepts, dials);
        if parted || !self.know_each_other(dials, accepts) {
            return self.dial_for_moves(link);
        }
        // Who dials again has given the older link up.
        self.end_at(link, 1);
        let timeout = self.profile.link_timeout * 1_000;
        self.move_links.named += 2;
        let named = self.move_links.named;
        let names = [Some(MoveLink(named - 1)), Some(MoveLink(named))];
        let now = self.now;
        let this = &mut self.move_links.all[link];
        this.life += 1;
        (this.names, this.waiting, this.heard) = (names, Waiting::new(timeout), now);
        this.next_tick = now + SECOND;
        (this.last, this.cut, this.tries) = ([now; 2], [NEVER; 2], 0);
        let life = this.life;
        self.coverage.meet(Sight::MoveLinkUp);
        let clock = self.hosts[dials].clock.at(self.now);
        let server = Arc::clone(&self.hosts[dials].server);
        let workers = server.move_link_up(clock, id_of(accepts), MoveLink(named - 1));
        self.carry(dials, workers);
        self.look_after_later(link, life);
    }

    fn look_after_later(&mut self, link: usize, life: u64) {
        let this = &self.move_links.all[link];
        // While its process is stopped, or its end has gone, nobody looks.
        let looks = self.hosts[this.dials].runs() && this.names[0].is_some();
        let next = this.waiting.next(false).filter(|_| looks).map(|next| next.div_ceil(1_000));
        let pause = if looks { 1 } else { 10_000 };
        let at = next.unwrap_or(NEVER).min(this.next_tick).max(self.now + pause);
        self.at(at, Happening::LookAfterMoves { link, life });
    }

    /// The dialing side asks whether the other one is there; the accepting one ends what nobody uses.
    pub fn look_after_moves(&mut self, link: usize, life: u64) {
        let now = self.now;
        let this = &mut self.move_links.all[link];
        if this.life != life || this.names == [None; 2] {
            return;
        }
        let (dials, accepts) = (this.dials, this.accepts);
        let ticks = this.next_tick <= now;
        if ticks {
            this.next_tick = now + SECOND;
        }
        if this.heard + UNUSED_MAX <= now && self.hosts[accepts].runs() {
            self.end_at(link, 1);
        }
        if self.hosts[dials].runs() && self.move_links.all[link].names[0].is_some() {
            let waiting = &mut self.move_links.all[link].waiting;
            match waiting.due(now * 1_000, false) {
                Some(Due::Silent) => self.end_at(link, 0),
                Some(Due::Ping) => self.send_frame(link, THERE, Frame::Ping),
                Some(Due::Expired(_)) => unreachable!("messages of moves have no deadlines"),
                None if ticks && waiting.is_idle(now * 1_000) => {
                    self.send_frame(link, THERE, Frame::Ping);
                }
                None => {}
            }
        }
        self.look_after_later(link, life);
    }

    /// One end closes, and its server is told; the other end hears of it later.
    fn end_at(&mut self, link: usize, end: usize) {
        let this = &mut self.move_links.all[link];
        let Some(name) = this.names[end].take() else { return };
        let host = [this.dials, this.accepts][end];
        self.coverage.meet(Sight::MoveLinkBroken);
        let clock = self.hosts[host].clock.at(self.now);
        let server = Arc::clone(&self.hosts[host].server);
        let workers = server.move_link_down(clock, name);
        self.carry(host, workers);
        let way = if end == 0 { THERE } else { BACK };
        self.send_frame(link, way, Frame::End);
        if end == 0 {
            self.dial_for_moves(link);
        }
    }

    fn send_frame(&mut self, link: usize, way: usize, frame: Frame) {
        let this = &self.move_links.all[link];
        let (from, to) = match way {
            THERE => (this.dials, this.accepts),
            _ => (this.accepts, this.dials),
        };
        let arrives = self.arrives_by_link(from, to);
        let this = &mut self.move_links.all[link];
        this.last[way] = arrives.max(this.last[way] + 1);
        let (at, life) = (this.last[way], this.life);
        self.at(at, Happening::Framed { link, life, way, frame });
    }

    /// A frame comes to an end.
    pub fn framed(&mut self, link: usize, life: u64, way: usize, frame: Frame) {
        let this = &self.move_links.all[link];
        let end = if way == THERE { 1 } else { 0 };
        let to = [this.dials, this.accepts][end];
        if this.life != life || this.cut[way] < self.now {
            return;
        }
        let Some(name) = this.names[end] else { return };
        let process = self.hosts[to].life;
        let happening = Happening::Framed { link, life, way, frame };
        let Some(Happening::Framed { frame, .. }) = self.may_do(to, process, happening) else {
            return;
        };
        let now = self.now;
        let this = &mut self.move_links.all[link];
        let from = [this.dials, this.accepts][1 - end];
        match end {
            0 => this.waiting.heard(now * 1_000),
            _ => this.heard = now,
        }
        match frame {
            Frame::Ping => self.send_frame(link, BACK, Frame::Pong),
            Frame::Pong => {}
            Frame::End => self.end_at(link, end),
            Frame::Say { id, kind, payload } => {
                let server = Arc::clone(&self.hosts[to].server);
                let clock = self.hosts[to].clock.at(now);
                let (from, payload) = (id_of(from), payload.as_slice());
                let message = MoveMessage { from, link: name, id, kind, payload };
                let heard = match way {
                    THERE => server.move_asked(clock, &message),
                    _ => server.move_answered(clock, &message),
                };
                match heard {
                    Ok(heard) => {
                        self.carry(to, heard.worker);
                        if let Some((kind, payload)) = heard.answer {
                            self.send_frame(link, BACK, Frame::Say { id, kind, payload });
                        }
                    }
                    Err(BrokenLink) => {
                        self.fail(5, format!("server {to} was told by {from:?} what cannot be"));
                    }
                }
            }
        }
    }

    fn end_named(&self, host: usize, name: MoveLink) -> Option<(usize, usize)> {
        let mut all = self.move_links.all.iter().enumerate();
        all.find_map(|(at, link)| {
            let end = link.names.iter().position(|known| *known == Some(name))?;
            ([link.dials, link.accepts][end] == host).then_some((at, end))
        })
    }

    /// A worker says something of a move.
    pub fn tell_move(
        &mut self,
        host: usize,
        name: MoveLink,
        id: MoveId,
        kind: u8,
        payload: Vec<u8>,
    ) {
        let Some((link, end)) = self.end_named(host, name) else { return };
        let way = if end == 0 { THERE } else { BACK };
        self.send_frame(link, way, Frame::Say { id, kind, payload });
    }

    pub fn break_move_link_of(&mut self, host: usize, name: MoveLink) {
        if let Some((link, end)) = self.end_named(host, name) {
            // A link that is dialed again loses nothing: the source begins with what has not come. Where that does not help it is a fault.
            if !std::mem::replace(&mut self.move_links.all[link].was_refused, true) {
                let Link { dials, accepts, .. } = self.move_links.all[link];
                return self.break_move_links(dials, accepts);
            }
            let what = format!("a worker of server {host} breaks link {link} of moves, end {end}");
            self.fail(5, what);
        }
    }

    /// The network breaks links of moves between two servers: some of what is on its way is lost.
    pub fn break_move_links(&mut self, one: usize, other: usize) {
        for link in 0..self.move_links.all.len() {
            let Link { dials, accepts, .. } = self.move_links.all[link];
            if [(one, other), (other, one)].contains(&(dials, accepts)) {
                let longest = self.profile.link_delay;
                for way in [THERE, BACK] {
                    let until = self.now + self.dice.skewed(1..=2 * longest);
                    let cut = &mut self.move_links.all[link].cut[way];
                    *cut = until.min(*cut);
                }
                for end in self.dice.pick(&[[0, 1], [1, 0]]) {
                    if self.hosts[[dials, accepts][end]].is_up {
                        self.end_at(link, end);
                    }
                }
            }
        }
    }

    /// A process is gone, and the kernel closes its links.
    pub fn move_links_die(&mut self, host: usize) {
        for link in 0..self.move_links.all.len() {
            let this = &mut self.move_links.all[link];
            let Some(end) = [this.dials, this.accepts].iter().position(|at| *at == host) else {
                continue;
            };
            if this.names[end].take().is_some() {
                let way = if end == 0 { THERE } else { BACK };
                self.send_frame(link, way, Frame::End);
            }
        }
    }

    /// All are up, of those between processes that know each other.
    pub fn move_links_are_up(&self) -> bool {
        self.move_links.all.iter().all(|link| link.names.iter().all(Option::is_some))
    }
}
