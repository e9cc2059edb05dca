//! Clients, and a naive router: whoever is asked executes, or asks on, or waits for a slice that is on its way.

use mbal_model::{MoveId, Route, ServerId};
use mbal_testkit::Failed;

use crate::truth::{KEYS, Op, hash};
use crate::world::{CLIENT, Event, SLOW, World};

/// Servers that a request goes to.
const HOPS_MAX: u32 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub n: u64,
    pub op: Op,
    pub host: usize,
    pub hops: u32,
    /// The source sent it on: its move, and the last hash that is gone.
    pub moved: Option<(MoveId, u64)>,
    pub deadline: u64,
}

impl World {
    /// A client asks any server.
    pub fn ask(&mut self) {
        let n = self.sim.random.below(KEYS);
        let op = match self.sim.random.below(10) {
            0..4 => Op::Get,
            4..7 => Op::Set,
            7 => Op::Delete,
            _ => self.seen[n as usize].map_or(Op::Get, Op::Cas),
        };
        let host = self.sim.random.below(self.hosts.len() as u64) as usize;
        let deadline = self.sim.now + 1_000_000_000;
        let request = Request { n, op, host, hops: 0, moved: None, deadline };
        let delay = self.delay();
        self.sim.after(delay, Event::Request(request));
    }

    pub fn asked(&mut self, request: Request) -> Result<(), Failed> {
        let Request { n, op, host, hops, moved, deadline } = request;
        let hash = hash(n);
        if self.hosts[host].store.is_none() {
            self.sim.met.count("unreachable");
            return Ok(());
        }
        if let Some((id, last)) = moved {
            if !self.knows_gone(host, id, last) {
                self.sim.met.count("sent on to who knows nothing");
                return Ok(());
            }
        }
        let store = self.hosts[host].store.as_ref().expect("looked at");
        store.enter(CLIENT);
        let on = |world: &mut World, request: Request| {
            let delay = world.delay();
            world.sim.after(delay, Event::Request(request));
        };
        match store.route(CLIENT, hash) {
            Route::Own | Route::Neighbour(_) => {
                let executed = self.truth.execute(store, CLIENT, n, op);
                store.leave(CLIENT);
                self.seen[n as usize] = executed?.or(self.seen[n as usize]);
                self.sim.met.count("executed");
                return Ok(());
            }
            Route::Peer(ServerId::NOBODY) => {}
            Route::Peer(ServerId(to)) if hops < HOPS_MAX => {
                store.leave(CLIENT);
                let next =
                    Request { host: usize::from(to), hops: hops + 1, moved: None, ..request };
                on(self, next);
                return Ok(());
            }
            Route::Peer(_) => self.sim.met.count("came too far"),
            Route::Moving(id) => {
                store.leave(CLIENT);
                let leaving = self.hosts[host].leaver(id).expect("a cachelet leaves by a move");
                if let Some(last) = leaving.leaver.source.gone().filter(|last| hash <= *last) {
                    self.sim.met.count("sent on, since it is gone");
                    let (host, hops) = (leaving.to, hops + 1);
                    on(self, Request { host, hops, moved: Some((id, last)), ..request });
                } else if self.sim.now < deadline {
                    self.sim.met.count("waited for a slice");
                    let wait = 50_000 + self.sim.random.below(2 * self.profile.op_gap);
                    self.sim.after(wait, Event::Request(request));
                } else {
                    self.sim.met.count("waited in vain");
                }
                return Ok(());
            }
        }
        self.hosts[host].store.as_ref().expect("looked at").leave(CLIENT);
        Ok(())
    }

    /// A worker begins a batch, is told that a key is served here, and takes its time.
    pub fn slow_batch(&mut self, host: usize) {
        let n = self.sim.random.below(KEYS);
        let here = &mut self.hosts[host];
        let Some(store) = here.store.as_ref().filter(|_| !here.in_slow_batch) else { return };
        store.enter(SLOW);
        if !matches!(store.route(SLOW, hash(n)), Route::Own | Route::Neighbour(_)) {
            store.leave(SLOW);
            return;
        }
        here.in_slow_batch = true;
        let life = here.incarnation;
        let wait = 1_000 + self.sim.random.below(400_000);
        self.sim.after(wait, Event::SlowEnds { host, life, n });
    }

    pub fn slow_batch_ends(&mut self, host: usize, n: u64) -> Result<(), Failed> {
        let store = self.hosts[host].store.as_ref().expect("it lives");
        // A slice that froze meanwhile is not exported before this is over.
        if matches!(store.route(SLOW, hash(n)), Route::Moving(_)) {
            self.sim.met.count("written in a slice that froze");
        }
        let executed = self.truth.execute(store, SLOW, n, Op::Set);
        store.leave(SLOW);
        self.hosts[host].in_slow_batch = false;
        self.seen[n as usize] = executed?;
        Ok(())
    }
}
