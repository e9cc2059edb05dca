//! The coordinator of a simulated cluster: what `docs/design/moves.md` says of it, with a state that is saved at once.

use mbal_migration::State;
use mbal_migration::{Incarnation, Order};
use mbal_model::{MoveId, Prefix, WorkerId};

/// Who has each cachelet: which host.
#[derive(Clone, Debug)]
pub struct Map {
    pub version: u64,
    pub owners: Vec<(Prefix, usize)>,
}

#[derive(Clone, Copy, Debug)]
pub struct Move {
    pub order: Order,
    pub from: usize,
    pub to: usize,
    pub cancelled: bool,
    /// It ended, since the destination has died.
    pub lost: bool,
}

pub struct Report {
    pub host: usize,
    pub incarnation: Incarnation,
    pub states: Vec<(MoveId, State)>,
}

#[derive(Clone, Debug)]
pub struct Word {
    pub map: Map,
    /// In flight, from or to this host.
    pub moves: Vec<Move>,
    /// The highest number that was given.
    pub newest: MoveId,
}

pub struct Coordinator {
    pub map: Map,
    members: Vec<Incarnation>,
    pub moves: Vec<Move>,
    newest: MoveId,
    /// It is down until then.
    pub down_until: u64,
}

impl Coordinator {
    pub fn new(map: Map, members: Vec<Incarnation>) -> Coordinator {
        Coordinator { map, members, moves: Vec::new(), newest: MoveId(0), down_until: 0 }
    }

    fn hand_over(&mut self, prefix: Prefix, to: usize) {
        self.map.version += 1;
        let at = self.map.owners.iter_mut().find(|(other, _)| *other == prefix);
        at.expect("cachelets are not split").1 = to;
    }

    pub fn heartbeat(&mut self, report: &Report) -> Word {
        let Report { host, incarnation, .. } = *report;
        if self.members[host] != incarnation {
            self.registers(host, incarnation);
        }
        for &(id, state) in &report.states {
            let mine = |one: &Move| one.order.id == id && one.from == host;
            let Some(at) = self.moves.iter().position(mine) else { continue };
            let Move { order, to, lost, .. } = self.moves[at];
            match state {
                State::Sealed if !lost => {
                    self.hand_over(order.prefix, to);
                    self.moves.remove(at);
                }
                State::Back(_) => _ = self.moves.remove(at),
                _ => {}
            }
        }
        let concerns = |one: &&Move| one.from == host || one.to == host;
        let moves = self.moves.iter().filter(concerns).copied().collect();
        Word { map: self.map.clone(), moves, newest: self.newest }
    }

    /// A new process: the old one is certainly dead.
    fn registers(&mut self, host: usize, incarnation: Incarnation) {
        self.members[host] = incarnation;
        // Its cachelets are born anew, so their generation must be new.
        self.map.version += 1;
        let (over, stay): (Vec<Move>, Vec<Move>) =
            self.moves.drain(..).partition(|one| one.from == host);
        self.moves = stay;
        for one in over {
            if !one.lost && self.members[one.to] == one.order.destination {
                self.hand_over(one.order.prefix, one.to);
            }
        }
        self.moves.iter_mut().for_each(|one| one.lost |= one.to == host);
    }

    /// Moves a cachelet, unless it moves already.
    pub fn order(&mut self, at: usize, to: usize) -> bool {
        let (prefix, from) = self.map.owners[at];
        if from == to || self.moves.iter().any(|one| one.order.prefix == prefix) {
            return false;
        }
        self.newest.0 += 1;
        let order = Order {
            id: self.newest,
            prefix,
            source: self.members[from],
            destination: self.members[to],
            worker: WorkerId(0),
            generation: self.map.version as u16,
        };
        self.moves.push(Move { order, from, to, cancelled: false, lost: false });
        true
    }
}
