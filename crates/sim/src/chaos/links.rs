//! Links between servers: each worker dials one to each other server, as in a server.
//!
//! ```text
//!  Action::Forward --- later, in order ---> Event::Forwarded       of one life of the link: from LinkUp to LinkBroken
//!  Event::Answered <-- later, in order ---- Action::Answer     it may end at any moment, for both ways at another
//! ```
//! What a link gives is what TCP gives: when it breaks, the last requests and replies are lost, or still on their way, and
//! the next life may overtake them. So nobody knows whether a lost request was executed, or will be: until its deadline. Who asks
//! gives it up then at the earliest, and who answers refuses it then at the latest: what is told as failed is not executed any more.
//! Deadlines, and how long a link may be silent, are a server's own ([`Waiting`]). A server's event loop keeps from its worker what comes too late or
//! twice; here the worker gets some of it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use mbal_link::{Due, Waiting};
use mbal_worker::{Event, Ticket, Ticketed};

use super::coverage::Sight;
use super::history::{Micros, NEVER};
use super::hosts::id_of;
use super::letters::Letter;
use super::seat::is_no_route;
use super::world::{Happening, World};

/// What a clock shows of a moment is known to this many microseconds.
const LEAST: Micros = 2;

/// Both ways of a link.
const THERE: usize = 0;
const BACK: usize = 1;

#[derive(Default)]
pub struct Links {
    all: Vec<Link>,
    /// Requests of peers, by the name that the worker who answers knows them by.
    asked: BTreeMap<Ticket, Forwarded>,
    last_serial: u64,
}

struct Link {
    /// The worker that asks.
    seat: usize,
    /// The server that answers.
    host: usize,
    up: bool,
    /// When it was last missing, or a request on it came to its deadline: [`NEVER`] is now.
    missing: Micros,
    lives: Vec<Life>,
    /// How often it has been dialed in vain.
    tries: u32,
    is_dialing: bool,
}

/// A link from its beginning to its break.
struct Life {
    /// The worker that answers.
    seat: usize,
    waiting: Waiting,
    /// Tells the names of its requests from those of other lives; and how many there are.
    serial: u64,
    asked: u64,
    /// The worker that answers knows that it has gone.
    fenced_off: bool,
    broken: bool,
    /// When the last thing arrives, either way.
    last: [Micros; 2],
    /// What would arrive later is lost.
    cut: [Micros; 2],
}

struct Forwarded {
    link: usize,
    life: usize,
    ticket: Ticket,
    /// As the worker that answers counts it.
    deadline: Micros,
}

/// What is on its way between two servers.
pub enum Crossing {
    /// `deadline` is a moment of the run; the worker that answers is told how long that is from now by its clock.
    Request {
        ticket: Ticket,
        deadline: Micros,
        request: Vec<u8>,
    },
    Reply {
        ticket: Ticket,
        reply: Vec<u8>,
    },
    Ping,
    Pong,
}

impl World {
    pub fn begin_links(&mut self) {
        for seat in 0..self.seats.len() {
            let here = self.seats[seat].host;
            for host in (0..self.hosts.len()).filter(|host| *host != here) {
                let (up, missing, lives) = (false, NEVER, Vec::new());
                let (tries, is_dialing) = (0, false);
                self.links.all.push(Link { seat, host, up, missing, lives, tries, is_dialing });
            }
        }
    }

    /// A process that begins dials all others.
    pub fn links_begin(&mut self, host: usize) {
        for link in 0..self.links.all.len() {
            if self.seats[self.links.all[link].seat].host == host {
                self.dial_later(link);
            }
        }
    }

    fn dial_later(&mut self, link: usize) {
        let this = &mut self.links.all[link];
        if std::mem::replace(&mut this.is_dialing, true) {
            return;
        }
        let least = if this.tries == 0 { 1 } else { (10_000u64 << this.tries.min(6)).min(500_000) };
        this.tries += 1;
        let outage = self.profile.outage.min(500_000);
        let pause = self.dice.between(least..=least + outage);
        self.after(pause, Happening::Dialed { link });
    }

    pub fn dialed(&mut self, link: usize) {
        let Link { seat, host, up, .. } = self.links.all[link];
        let here = self.seats[seat].host;
        self.links.all[link].is_dialing = false;
        if up || !self.hosts[here].is_up {
            return;
        }
        let parted = self.is_silent(here, host) || self.is_silent(host, here);
        if parted || !self.know_each_other(here, host) {
            return self.dial_later(link);
        }
        self.links.all[link].tries = 0;
        self.post(seat, Letter::LinkUp { link });
    }

    /// All are up.
    pub fn links_are_up(&self) -> bool {
        self.links.all.iter().all(|link| link.life().is_some_and(|life| !link.lives[life].broken))
    }

    /// The worker that asks learns that a link is up, with any worker at its other end.
    pub fn link_up(&mut self, link: usize) {
        let Link { seat, host, up, .. } = self.links.all[link];
        // The other process may have died since it was dialed.
        if up || !self.hosts[host].is_up {
            return self.dial_later(link);
        }
        let end = self.hosts[host].seats.start + self.dice.below(self.profile.workers);
        let waiting = Waiting::new(self.profile.link_timeout * 1_000);
        let this = &mut self.links.all[link];
        let (last, cut) = ([0; 2], [NEVER; 2]);
        self.links.last_serial += 1;
        let serial = self.links.last_serial;
        let (asked, fenced_off, broken) = (0, false, false);
        this.lives.push(Life { seat: end, waiting, serial, asked, fenced_off, broken, last, cut });
        (this.up, this.missing) = (true, self.now);
        self.coverage.meet(Sight::EventLinkUp);
        let (server, credits) = (id_of(host), self.profile.credits);
        self.handle(seat, Event::LinkUp { server, credits });
    }

    /// ... that it broke, unless it knows, and dials again.
    pub fn link_broken(&mut self, link: usize, life: usize) {
        let this = &mut self.links.all[link];
        if !this.up || this.lives.len() != life + 1 {
            return;
        }
        (this.up, this.missing) = (false, NEVER);
        let Link { seat, host, .. } = *this;
        self.coverage.meet(Sight::EventLinkBroken);
        self.handle(seat, Event::LinkBroken { server: id_of(host) });
        self.dial_later(link);
    }

    fn break_link(&mut self, link: usize) {
        let longest = self.profile.link_delay;
        let mut cut = [NEVER; 2];
        for way in &mut cut {
            // Everything is lost, or some of it, or nothing.
            *way = match self.dice.below(3) {
                0 => self.now,
                1 => self.now + self.dice.skewed(1..=2 * longest),
                _ => NEVER,
            };
        }
        let Link { seat, up, lives, .. } = &mut self.links.all[link];
        let number = lives.len().wrapping_sub(1);
        let Some(life) = lives.last_mut().filter(|life| *up && !life.broken) else { return };
        life.broken = true;
        life.cut = cut;
        let (asks, answers) = (*seat, life.seat);
        self.post(asks, Letter::LinkBroken { link, life: number });
        self.post(answers, Letter::AskerGone { link, life: number });
    }

    /// A worker's own, one to each other server.
    pub fn links_of(&self, seat: usize) -> Range<usize> {
        let others = self.hosts.len() - 1;
        seat * others..(seat + 1) * others
    }

    /// True if a worker's link to a server was missing, or slower than its deadline, at some moment since then.
    pub fn was_missing(&self, seat: usize, host: usize, since: Micros) -> bool {
        let links = &self.links.all[self.links_of(seat)];
        links.iter().any(|link| link.host == host && link.missing >= since)
    }

    /// When a worker that nothing happens to has to look at its links.
    pub fn next_due(&self, seat: usize) -> Option<Micros> {
        let due = |link: &Link| link.lives.last().filter(|_| link.up)?.waiting.next(false);
        let next = self.links.all[self.links_of(seat)].iter().filter_map(due).min();
        next.map(|next| next.div_ceil(1_000))
    }

    /// What a wake-up does about its links at its end.
    pub fn do_what_is_due(&mut self, seat: usize) {
        for link in self.links_of(seat) {
            while let Some(life) = self.links.all[link].life() {
                let this = &mut self.links.all[link];
                let server = id_of(this.host);
                match this.lives[life].waiting.due(self.now * 1_000, false) {
                    None => break,
                    Some(Due::Expired(ticket)) => {
                        this.missing = self.now;
                        self.coverage.meet(Sight::EventUnanswered);
                        let ticket = Ticket(ticket);
                        self.handle(seat, Event::Unanswered { server, ticket });
                    }
                    Some(Due::Ping) => self.send_across(link, life, THERE, Crossing::Ping),
                    Some(Due::Silent) => {
                        self.coverage.meet(Sight::FoundSilent);
                        self.break_link(link);
                        self.link_broken(link, life);
                    }
                }
            }
        }
    }

    /// Once a second: servers of which nothing is heard are asked.
    pub fn ask_idle_links(&mut self, seat: usize) {
        for link in self.links_of(seat) {
            let Some(life) = self.links.all[link].life() else { continue };
            if self.links.all[link].lives[life].waiting.is_idle(self.now * 1_000) {
                self.coverage.meet(Sight::IdleAsked);
                self.send_across(link, life, THERE, Crossing::Ping);
            }
        }
    }

    pub fn break_any_link(&mut self) {
        let one = self.dice.below(self.links.all.len());
        self.break_link(one);
    }

    /// All links of workers between two servers.
    pub fn break_links_between(&mut self, one: usize, other: usize) {
        for link in 0..self.links.all.len() {
            if [(one, other), (other, one)].contains(&self.ends(link)) {
                self.break_link(link);
            }
        }
    }

    /// The server that asks, and the one that answers.
    fn ends(&self, link: usize) -> (usize, usize) {
        let Link { seat, host, .. } = self.links.all[link];
        (self.seats[seat].host, host)
    }

    /// A process is gone, and the kernel closes its links: it hears nothing any more, and what it has sent may still arrive.
    pub fn links_die(&mut self, host: usize) {
        for link in 0..self.links.all.len() {
            let (asks, answers) = self.ends(link);
            if ![asks, answers].contains(&host) {
                continue;
            }
            self.break_link(link);
            let (now, this) = (self.now, &mut self.links.all[link]);
            let heard = if asks == host { BACK } else { THERE };
            for life in &mut this.lives {
                life.cut[heard] = now.min(life.cut[heard]);
            }
            if asks == host {
                (this.up, this.missing, this.tries) = (false, NEVER, 0);
            }
        }
    }

    fn send_across(&mut self, link: usize, life: usize, way: usize, crossing: Crossing) {
        let (asks, answers) = self.ends(link);
        let arrives = match way {
            THERE => self.arrives_by_link(asks, answers),
            _ => self.arrives_by_link(answers, asks),
        };
        let last = &mut self.links.all[link].lives[life].last[way];
        *last = arrives.max(*last + 1);
        let at = *last;
        self.at(at, Happening::Crossed { link, life, crossing });
    }

    pub fn forward(
        &mut self,
        seat: usize,
        host: usize,
        ticket: Ticket,
        micros_left: u64,
        request: Vec<u8>,
    ) {
        let mut links = self.links.all.iter();
        let Some(link) = links.position(|link| (link.seat, link.host) == (seat, host)) else {
            return self.fail(5, format!("worker {seat} asks server {host}, which is no other"));
        };
        let Some(life) = self.links.all[link].life() else {
            return self.fail(5, format!("worker {seat} asks server {host} without a link"));
        };
        // Its time counts from when the worker's clock was read, which may have lost its core since.
        let asked = self.seats[seat].clock;
        self.links.all[link].lives[life].waiting.sent(ticket.0, asked * 1_000);
        // Clocks run apart, and what is known of another's is some time old.
        let clock = self.hosts[self.seats[seat].host].clock;
        let left = Duration::from_micros(self.profile.link_timeout.min(micros_left));
        let given_up = clock.when(clock.at(asked).instant() + left);
        let given_up = given_up.min(asked + self.profile.link_timeout);
        let unknown = self.dice.skewed(1..=self.profile.link_delay);
        let deadline = given_up.saturating_sub(unknown);
        self.send_across(link, life, THERE, Crossing::Request { ticket, deadline, request });
    }

    pub fn crossed(&mut self, link: usize, life: usize, crossing: Crossing) {
        let this = &self.links.all[link];
        let Life { seat: end, broken, cut, .. } = this.lives[life];
        let receives = !broken && this.life() == Some(life);
        let asks = this.seat;
        let sent = self.now;
        match crossing {
            Crossing::Request { .. } if cut[THERE] < self.now => {
                self.coverage.meet(Sight::RequestLost);
            }
            Crossing::Reply { .. } if cut[BACK] < self.now => self.coverage.meet(Sight::ReplyLost),
            Crossing::Request { ticket, deadline, request } => {
                if broken {
                    self.coverage.meet(Sight::RequestAfterBreak);
                }
                self.receive(end, Letter::Asked { link, life, ticket, deadline, request }, sent);
            }
            Crossing::Reply { ticket, reply } => {
                if broken {
                    self.coverage.meet(Sight::ReplyAfterBreak);
                }
                if self.dice.percent(1) {
                    self.coverage.meet(Sight::ReplyTwice);
                    let reply = reply.clone();
                    self.receive(asks, Letter::Answered { link, life, ticket, reply }, sent);
                }
                self.receive(asks, Letter::Answered { link, life, ticket, reply }, sent);
            }
            Crossing::Ping if cut[THERE] < self.now => {}
            Crossing::Ping => self.receive(end, Letter::Ping { link, life }, sent),
            Crossing::Pong if receives => self.receive(asks, Letter::Pong { link, life }, sent),
            Crossing::Pong => {}
        }
    }

    /// A peer's requests are before a worker.
    pub fn asked(
        &mut self,
        seat: usize,
        link: usize,
        life: usize,
        together: &[(Ticket, Micros, Vec<u8>)],
    ) {
        let mut named = Vec::new();
        if self.links.all[link].lives[life].fenced_off {
            return self.coverage.meet(Sight::RequestLost);
        }
        let clock = self.hosts[self.seats[seat].host].clock;
        self.seats[seat].clock = self.now;
        for (ticket, deadline, request) in together {
            let left = clock.at(*deadline).instant() - clock.at(self.now).instant();
            let micros_left = left.as_micros() as u64;
            if micros_left == 0 {
                self.coverage.meet(Sight::RequestTooLate);
            }
            let this = &mut self.links.all[link].lives[life];
            this.asked += 1;
            let name = Ticket(this.serial << 32 | this.asked);
            let forwarded = Forwarded { link, life, ticket: *ticket, deadline: *deadline };
            self.links.asked.insert(name, forwarded);
            named.push(Ticketed { ticket: name, micros_left, bytes: request });
        }
        let server = id_of(self.seats[self.links.all[link].seat].host);
        self.coverage.meet(Sight::EventAsked);
        self.handle(seat, Event::Forwarded { server, requests: &named });
    }

    /// The worker that answers learns that a link has gone: nothing more comes of it.
    pub fn asker_gone(&mut self, seat: usize, link: usize, life: usize) {
        let server = id_of(self.seats[self.links.all[link].seat].host);
        let this = &mut self.links.all[link].lives[life];
        this.fenced_off = true;
        let tickets = Ticket(this.serial << 32)..Ticket((this.serial + 1) << 32);
        self.coverage.meet(Sight::EventAskerGone);
        self.handle(seat, Event::AskerGone { server, tickets });
    }

    pub fn answer(&mut self, seat: usize, host: usize, ticket: Ticket, reply: Vec<u8>) {
        let asked = self.links.asked.remove(&ticket);
        let Some(Forwarded { link, life, ticket, deadline }) = asked else {
            return self.fail(5, format!("worker {seat} answers what nobody asked"));
        };
        // It was refused since it came, or was held, too long: its link is as slow as if there had been no answer.
        if is_no_route(&reply) && deadline <= self.now + LEAST {
            let missing = &mut self.links.all[link].missing;
            *missing = if *missing == NEVER { NEVER } else { self.now };
        }
        let asks = self.seats[self.links.all[link].seat].host;
        if self.links.all[link].lives[life].seat != seat || asks != host {
            return self.fail(5, format!("worker {seat} answers what server {asks} asked another"));
        }
        self.send_across(link, life, BACK, Crossing::Reply { ticket, reply });
    }

    /// Replies are before the worker that asked; the link may have broken since.
    pub fn answered_by_peer(
        &mut self,
        seat: usize,
        (link, life): (usize, usize),
        together: &[(Ticket, Vec<u8>)],
    ) {
        let this = &mut self.links.all[link];
        let server = id_of(this.host);
        // Tickets begin anew with each life.
        if this.life() != Some(life) {
            return;
        }
        let waiting = &mut this.lives[life].waiting;
        let mut replies = Vec::new();
        for (ticket, reply) in together {
            let is_late = waiting.answered(ticket.0 as u32).is_none();
            if is_late {
                self.coverage.meet(Sight::ReplyTooLate);
            }
            if !is_late || self.dice.percent(20) {
                replies.push(Ticketed::new(*ticket, reply));
            }
        }
        waiting.heard(self.now * 1_000);
        if !replies.is_empty() {
            self.coverage.meet(Sight::EventAnswered);
            self.handle(seat, Event::Answered { server, replies: &replies });
        }
    }

    /// The other side is asked whether it lives.
    pub fn pinged(&mut self, link: usize, life: usize) {
        self.send_across(link, life, BACK, Crossing::Pong);
    }

    pub fn ponged(&mut self, link: usize, life: usize) {
        let this = &mut self.links.all[link];
        if this.life() == Some(life) {
            this.lives[life].waiting.heard(self.now * 1_000);
        }
    }
}

impl Link {
    /// The one that the worker that asks knows to be up.
    fn life(&self) -> Option<usize> {
        self.up.then(|| self.lives.len() - 1)
    }
}
