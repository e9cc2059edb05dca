//! What comes by mailbox, and over links: letters take their time, and overtake each other.

use std::sync::Arc;

use mbal_model::{Cluster, WorkerId};
use mbal_worker::{Carried, ConnId, Event, Ticket};

use super::connection::End;
use super::coverage::Sight;
use super::history::Micros;
use super::hosts::id_of;
use super::seat::{Job, Seat};
use super::world::{Happening, World};

/// What comes by mailbox.
pub enum Letter {
    Adopt {
        connection: usize,
        own_port: bool,
    },
    /// Another worker hands a connection over.
    Take {
        connection: usize,
        session: Carried,
    },
    /// An order.
    Tell(Event<'static>),
    Mapped {
        cluster: Arc<Cluster>,
    },
    LinkUp {
        link: usize,
    },
    LinkBroken {
        link: usize,
        life: usize,
    },
    /// A peer forwards a request.
    Asked {
        link: usize,
        life: usize,
        ticket: Ticket,
        deadline: Micros,
        request: Vec<u8>,
    },
    /// A peer has answered.
    Answered {
        link: usize,
        life: usize,
        ticket: Ticket,
        reply: Vec<u8>,
    },
    /// The link has gone over which a peer asked.
    AskerGone {
        link: usize,
        life: usize,
    },
    Ping {
        link: usize,
        life: usize,
    },
    Pong {
        link: usize,
        life: usize,
    },
}

impl World {
    pub fn post_to(&mut self, host: usize, worker: WorkerId, letter: Letter) {
        self.post(self.hosts[host].seats.start + usize::from(worker.0), letter);
    }

    /// Letters take their time, and overtake each other.
    pub fn post(&mut self, seat: usize, letter: Letter) {
        let longest = self.profile.delay;
        let delay = self.dice.skewed(1..=longest);
        let life = self.hosts[self.seats[seat].host].life;
        self.after(delay, Happening::Letter { seat, life, letter, sent: self.now });
    }

    pub fn receive(&mut self, seat: usize, letter: Letter, sent: Micros) {
        // Nobody hears what comes at the moment of a process's death.
        if !self.hosts[self.seats[seat].host].is_up {
            return;
        }
        if sent < self.seats[seat].newest {
            self.coverage.meet(Sight::Overtaken);
        }
        self.seats[seat].newest = sent.max(self.seats[seat].newest);
        self.seats[seat].letters.push(letter);
        self.wake(seat);
    }

    pub fn open_letter(&mut self, seat: usize, letter: Letter) {
        match letter {
            Letter::Adopt { connection, own_port } => {
                let conn = self.admit(seat, connection);
                self.coverage.meet(Sight::EventOpened);
                self.handle(seat, Event::Opened { conn, own_port });
                self.notify(connection);
            }
            Letter::Take { connection, session } => {
                let conn = self.admit(seat, connection);
                self.connections[connection].travels = false;
                self.coverage.meet(Sight::EventAdopted);
                self.handle(seat, Event::Adopted { conn, session });
                self.notify(connection);
            }
            Letter::Tell(Event::Lend { order, cachelet, to, seen }) => {
                let Seat { host, id, .. } = self.seats[seat];
                let owner = self.hosts[host].store().owner(cachelet);
                self.coverage.meet(Sight::EventLend);
                self.handle(seat, Event::Lend { order, cachelet, to, seen });
                let changed = self.hosts[host].store().owner(cachelet) != owner;
                if changed && owner != Some(id) {
                    self.fail(1, format!("worker {seat} gave away what was {owner:?}'s"));
                }
                self.look_at_owners(host);
            }
            Letter::Mapped { cluster } => self.mapped(seat, cluster),
            Letter::Tell(Event::Carry) => {
                self.coverage.meet(Sight::EventCarry);
                self.handle_and_look(seat, Event::Carry);
            }
            Letter::LinkUp { link } => self.link_up(link),
            Letter::LinkBroken { link, life } => self.link_broken(link, life),
            Letter::Asked { link, life, ticket, deadline, request } => {
                let mut together = vec![(ticket, deadline, request)];
                while let Some(next) = self.next_of(seat, |letter| match letter {
                    Letter::Asked { link: at, life: of, ticket, deadline, request }
                        if (*at, *of) == (link, life) =>
                    {
                        Some((*ticket, *deadline, std::mem::take(request)))
                    }
                    _ => None,
                }) {
                    together.push(next);
                }
                self.asked(seat, link, life, &together);
            }
            Letter::Answered { link, life, ticket, reply } => {
                let mut together = vec![(ticket, reply)];
                while let Some(next) = self.next_of(seat, |letter| match letter {
                    Letter::Answered { link: at, life: of, ticket, reply }
                        if (*at, *of) == (link, life) =>
                    {
                        Some((*ticket, std::mem::take(reply)))
                    }
                    _ => None,
                }) {
                    together.push(next);
                }
                self.answered_by_peer(seat, (link, life), &together);
            }
            Letter::AskerGone { link, life } => self.asker_gone(seat, link, life),
            Letter::Ping { link, life } => self.pinged(link, life),
            Letter::Pong { link, life } => self.ponged(link, life),
            Letter::Tell(event) => {
                self.coverage.meet(match event {
                    Event::Lighten { .. } => Sight::EventLighten,
                    _ => Sight::EventHandOver,
                });
                self.handle(seat, event);
            }
        }
    }

    /// What is next in a worker's turn, if it is what `take` looks for: it has arrived together with what is being done.
    fn next_of<T>(
        &mut self,
        seat: usize,
        take: impl FnOnce(&mut Letter) -> Option<T>,
    ) -> Option<T> {
        let Some(Job::Letter(letter)) = self.seats[seat].turn.last_mut() else { return None };
        let taken = take(letter)?;
        self.seats[seat].turn.pop();
        self.coverage.meet(Sight::FramesTogether);
        Some(taken)
    }

    /// A name for a connection that a worker gets.
    fn admit(&mut self, seat: usize, connection: usize) -> ConnId {
        let this = &mut self.seats[seat];
        let conn = this.free.pop().unwrap_or_else(|| {
            this.conns.push(None);
            ConnId(this.conns.len() as u32 - 1)
        });
        this.conns[conn.0 as usize] = Some(connection);
        self.connections[connection].end = End::At { seat, conn };
        self.connections[connection].came = self.now;
        conn
    }

    /// A worker hears of a map that its server follows.
    fn mapped(&mut self, seat: usize, cluster: Arc<Cluster>) {
        let this = &mut self.seats[seat];
        let (host, version) = (this.host, cluster.map.version());
        if version < this.map_version {
            self.coverage.meet(Sight::MapLate);
        }
        let this = &mut self.seats[seat];
        this.map_version = version.max(this.map_version);
        self.coverage.meet(Sight::EventMapped);
        self.handle_and_look(seat, Event::Mapped { here: id_of(host), cluster });
        self.look_at_places(true);
    }

    /// Hands over an event that may change who serves what, and looks at what came of it.
    pub fn handle_and_look(&mut self, seat: usize, event: Event<'_>) {
        self.handle(seat, event);
        self.look_at_owners(self.seats[seat].host);
        self.look_at_places(false);
    }
}
