//! Links between migrators: in order, or broken. Each side hears of a break in its own time; what is on a broken link is lost.

use mbal_migration::{Response, destination, source};
use mbal_model::{MoveId, Route};

use crate::truth::KEYS;
use crate::world::{CLIENT, Event, MILLISECOND, World, hash_of};

/// One direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// Nothing arrives before.
    pub silent_until: u64,
    /// When the last one arrives.
    last_at: u64,
    /// Bytes on it.
    pub bytes: usize,
}

impl Way {
    /// When what is sent now, and is so long on its way, arrives.
    pub fn arrival(&mut self, now: u64, delay: u64) -> u64 {
        self.last_at = (now + delay).max(self.silent_until).max(self.last_at + 1);
        self.last_at
    }
}

/// From a source's server to a destination's, whatever moves there are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    /// Counts connections: what was sent over an older one does not arrive.
    pub number: u64,
    pub is_whole: bool,
    /// What the dialing side believes.
    pub is_up: bool,
    /// It cannot come up before.
    pub down_until: u64,
    /// To the destination, and back.
    pub ways: [Way; 2],
}

impl Link {
    pub fn comes_up(&mut self) {
        *self = Link { number: self.number + 1, is_whole: true, is_up: true, ..Link::default() };
    }
}

impl World {
    pub fn break_link(&mut self, from: usize, to: usize, span: u64) {
        let link = &mut self.links[from][to];
        if !link.is_whole {
            return;
        }
        self.sim.met.count("a link broke");
        self.sim.tell(|| format!("link {from}-{to} breaks"));
        for one in self.hosts[from].leaving.iter().filter(|one| one.to == to) {
            let hashes = self.hosts[from].store.as_ref().map(|store| {
                let prefix = one.leaver.source.order().prefix;
                let frozen = |hash: u64| {
                    let is_moving = matches!(store.route(CLIENT, hash), Route::Moving(_));
                    is_moving && Some(hash) > one.leaver.source.gone()
                };
                (0..KEYS).map(hash_of).any(|hash| prefix.contains(hash) && frozen(hash))
            });
            if hashes == Some(true) {
                self.sim.met.count("a link broke while a slice was on its way");
            }
            if one.leaver.source.is_unconfirmed() {
                self.sim.met.count("a link broke while a slice was gone and not confirmed");
            }
        }
        (link.is_whole, link.down_until) = (false, self.sim.now + span);
        link.ways.iter_mut().for_each(|way| way.bytes = 0);
        let number = link.number;
        for way in 0..2 {
            let wait = self.sim.random.below(20 * MILLISECOND);
            self.sim.after(wait, Event::LinkDown { from, to, way, number });
        }
    }

    pub fn link_down(&mut self, from: usize, to: usize, way: usize, number: u64) {
        let link = &mut self.links[from][to];
        if link.number != number {
            return;
        }
        if way == 1 {
            return self.link_ends(from, to);
        }
        if !link.is_up {
            return;
        }
        (link.is_up, link.is_whole) = (false, false);
        let at = link.down_until.max(self.sim.now) + 1;
        let leaving = self.hosts[from].leaving.iter().filter(|one| one.to == to);
        let leaving: Vec<MoveId> = leaving.map(|one| one.leaver.source.order().id).collect();
        for id in leaving {
            self.tell_source(from, id, source::Event::LinkDown);
        }
        let wait = self.sim.about(5 * MILLISECOND);
        self.sim.at(at + wait, Event::LinkUp { from, to });
    }

    /// The accepting side answers no more what came over this link.
    pub fn link_ends(&mut self, from: usize, to: usize) {
        let arriving = self.hosts[to].coming.iter().filter(|one| one.from == from);
        let arriving: Vec<MoveId> = arriving.map(|one| one.arriver.destination.id()).collect();
        for id in arriving {
            let event = destination::Event::LinkDown;
            self.tell_destination(to, id, event).expect("no peer says so");
        }
    }

    pub fn link_up(&mut self, from: usize, to: usize) {
        let link = &mut self.links[from][to];
        if link.is_up || self.hosts[from].store.is_none() {
            return;
        }
        if self.hosts[to].store.is_none() || self.sim.now < link.down_until {
            let wait = self.sim.about(10 * MILLISECOND);
            return self.sim.after(wait, Event::LinkUp { from, to });
        }
        link.comes_up();
        // Who accepts a link has no older one of the same server.
        self.link_ends(from, to);
        let leaving = self.hosts[from].leaving.iter().filter(|one| one.to == to);
        let leaving: Vec<MoveId> = leaving.map(|one| one.leaver.source.order().id).collect();
        for id in leaving {
            self.tell_source(from, id, source::Event::LinkUp);
        }
    }

    /// Over the link that `from` dialed; way 1 is back.
    pub fn send(
        &mut self,
        from: usize,
        to: usize,
        way: usize,
        id: MoveId,
        kind: u8,
        bytes: Vec<u8>,
    ) {
        let delay = self.delay();
        let link = &mut self.links[from][to];
        if !link.is_whole {
            return;
        }
        let at = link.ways[way].arrival(self.sim.now, delay);
        link.ways[way].bytes += bytes.len();
        let number = link.number;
        self.sim.at(at, Event::Frame { from, to, way, number, id, kind, bytes });
    }

    #[allow(clippy::too_many_arguments)]
    pub fn arrives(
        &mut self,
        from: usize,
        to: usize,
        way: usize,
        number: u64,
        id: MoveId,
        kind: u8,
        bytes: &[u8],
    ) {
        let link = &mut self.links[from][to];
        if link.number != number || !link.is_whole {
            return;
        }
        link.ways[way].bytes -= bytes.len();
        if way == 0 {
            return self.source_says(from, to, id, kind, bytes);
        }
        let answer = Response::parse(kind, bytes).expect("it is as it was written");
        self.tell_source(from, id, source::Event::Answer(answer));
    }
}
