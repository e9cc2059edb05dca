//! What a worker asks for, carried out: what the event loop does in a server.

use mbal_replica::{Hold, HoldWhat};
use mbal_wire::PeerRequest;
use mbal_worker::{Action, ConnId, Event, OUTPUT_BYTES_MAX};

use super::connection::End;
use super::coverage::Sight;
use super::hosts::host_of;
use super::letters::Letter;
use super::world::{Happening, World};

impl World {
    pub fn carry_out(&mut self, seat: usize, action: Action, bytes: &[u8], requests: &[u8]) {
        let connection_of = |world: &World, conn: ConnId| world.seats[seat].conns[conn.0 as usize];
        match action {
            Action::Send { conn, bytes: range } => {
                self.coverage.meet(Sight::ActionSend);
                let Some(connection) = connection_of(self, conn) else { return };
                self.connections[connection].output.push(bytes[range].to_vec());
                self.flush(connection);
            }
            Action::Stall { conn } => {
                self.coverage.meet(Sight::ActionStall);
                self.count_bound(self.seats[seat].host, bytes.len());
                let Some(connection) = connection_of(self, conn) else { return };
                self.connections[connection].stalled = true;
                if self.connections[connection].output.is_empty() {
                    self.seats[seat].drained.push(conn);
                }
            }
            Action::HandOver { conn, to, session } => {
                self.coverage.meet(Sight::ActionHandOver);
                let Some(connection) = connection_of(self, conn) else { return };
                self.connections[connection].leaving = Some((to, session));
                if self.connections[connection].output.is_empty() {
                    self.go(connection);
                } else {
                    self.coverage.meet(Sight::LeftWithOutput);
                }
            }
            Action::Pause { conn } => {
                self.coverage.meet(Sight::ActionPause);
                if let Some(wake) = self.next_wake(seat) {
                    let now = self.seats[seat].clock;
                    self.coverage.meet(if wake <= now {
                        Sight::RoomInTurns
                    } else {
                        Sight::RoomInUse
                    });
                }
                let Some(connection) = connection_of(self, conn) else { return };
                if std::mem::replace(&mut self.connections[connection].paused, true) {
                    self.fail(5, format!("connection {connection} was to pause twice"));
                }
            }
            Action::Resume { conn } => {
                self.coverage.meet(Sight::ActionResume);
                let Some(connection) = connection_of(self, conn) else { return };
                if !std::mem::replace(&mut self.connections[connection].paused, false) {
                    self.fail(5, format!("connection {connection} was to go on, and did not wait"));
                }
                self.notify_if_arrived(connection);
            }
            Action::Forward { server, ticket, micros_left, request } => {
                self.coverage.meet(Sight::ActionForward);
                let request = requests[request].to_vec();
                if let Some(decoded) = PeerRequest::decode(&request) {
                    if decoded.hops > 1 {
                        self.coverage.meet(Sight::PassedOn);
                    }
                    if decoded.by_lease.is_some() {
                        self.coverage.meet(Sight::ForwardByLease);
                    }
                    let said = Hold::decode(decoded.request).map(|hold| hold.what);
                    if said == Some(HoldWhat::Fence) {
                        self.coverage.meet(Sight::FenceAsked);
                    }
                }
                self.forward(seat, host_of(server), ticket, micros_left, request);
            }
            Action::Answer { server, ticket, reply } => {
                self.coverage.meet(Sight::ActionAnswer);
                self.answer(seat, host_of(server), ticket, bytes[reply].to_vec());
            }
            Action::TellMove { link, id, kind, payload } => {
                self.coverage.meet(Sight::ActionTellMove);
                self.tell_move(self.seats[seat].host, link, id, kind, payload);
            }
            Action::BreakMoveLink { link } => {
                self.break_move_link_of(self.seats[seat].host, link);
            }
            // Nobody looks.
            Action::Say { .. } => {}
            Action::Report(report) => {
                self.coverage.meet(Sight::ActionReport);
                self.reported(seat, report);
            }
            Action::Close { conn } => {
                self.coverage.meet(Sight::ActionClose);
                let Some(connection) = connection_of(self, conn) else { return };
                let this = &self.connections[connection];
                if self.is_stranger(this.client) && !this.half_closed {
                    self.coverage.meet(Sight::StrangerClosed);
                } else if !this.half_closed {
                    let what = "the server closed a connection that did nothing wrong";
                    self.fail(5, format!("{what}: {connection}"));
                }
                self.connections[connection].closing = true;
                if self.connections[connection].output.is_empty() {
                    self.close(connection);
                }
            }
            other => self.fail(5, format!("nobody asked for this: {other:?}")),
        }
    }

    /// Which bound a connection has come to, that is not read until its output has left.
    fn count_bound(&mut self, host: usize, replied_bytes: usize) {
        let host = &mut self.hosts[host];
        let yields = host.server.sums().conn_yields;
        if yields > std::mem::replace(&mut host.yields, yields) {
            self.coverage.meet(Sight::TurnOfRequests);
        } else if replied_bytes >= OUTPUT_BYTES_MAX {
            self.coverage.meet(Sight::OutputFull);
        }
    }

    /// Gives the socket what it takes.
    pub fn flush(&mut self, connection: usize) {
        let this = &mut self.connections[connection];
        let room = this.window.saturating_sub(this.in_flight).min(this.output.len());
        if room < this.output.len() {
            self.coverage.meet(Sight::SocketFull);
        }
        if room == 0 {
            return;
        }
        let this = &mut self.connections[connection];
        let mut bytes = Vec::new();
        this.output.take(room, &mut bytes);
        let left = this.output.is_empty();
        self.send_down(connection, bytes);
        if !left {
            return;
        }
        let End::At { seat, conn } = self.connections[connection].end else { return };
        if self.connections[connection].leaving.is_some() {
            self.go(connection);
        } else if self.connections[connection].closing {
            self.close(connection);
        } else if self.connections[connection].stalled {
            self.seats[seat].drained.push(conn);
        } else {
            self.notify_if_arrived(connection);
        }
    }

    /// A connection leaves for another worker.
    fn go(&mut self, connection: usize) {
        let End::At { seat, conn } = self.connections[connection].end else { return };
        let (to, session) =
            self.connections[connection].leaving.take().expect("it was asked to leave");
        self.connections[connection].end = End::Underway;
        self.connections[connection].came = self.now;
        self.connections[connection].travels = true;
        self.seats[seat].conns[conn.0 as usize] = None;
        self.seats[seat].free.push(conn);
        self.post_to(self.seats[seat].host, to, Letter::Take { connection, session });
    }

    pub fn close(&mut self, connection: usize) {
        let End::At { seat, conn } = self.connections[connection].end else { return };
        self.connections[connection].end = End::Closed;
        self.seats[seat].conns[conn.0 as usize] = None;
        self.coverage.meet(Sight::EventClosed);
        self.handle(seat, Event::Closed { conn });
        self.seats[seat].free.push(conn);
        // The client learns of it.
        let this = &mut self.connections[connection];
        if this.client >= self.profile.clients {
            this.open = false;
        } else if this.half_open {
            let at = this.last_down.max(self.now) + 1;
            self.at(at, Happening::Ended { connection });
        }
    }
}
