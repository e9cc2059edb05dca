//! What goes wrong in a world of several proxies.

use mbal_proxy::{ConnId, Event};

use super::common::memcached::{Late, Wire};
use super::{Client, KEYS, LEASE, MS, UPSTREAMS, World};

impl World {
    pub fn fault(&mut self) -> Result<(), String> {
        let at = self.sim.random.below(self.nodes.len() as u64) as usize;
        let upstream = self.sim.random.below(UPSTREAMS as u64) as usize;
        match self.sim.random.below(16) {
            0 => {
                self.upstreams[upstream].stopped_until =
                    self.sim.now + self.sim.random.below(60 * MS)
            }
            1 => {
                self.upstreams[upstream].away_until = self.sim.now + self.sim.random.below(60 * MS)
            }
            2..5 => {
                if self.sim.random.below(2) == 0 {
                    self.upstreams[upstream].away_until =
                        self.sim.now + self.sim.random.below(60 * MS);
                }
                return self.lose(at, upstream);
            }
            5 => self.upstreams[upstream].items.clear(),
            6..10 => return self.fault_of_links(at),
            10..12 => {
                self.nodes[at].stopped_until = self.sim.now + self.sim.random.below(2 * LEASE)
            }
            12..15 => return self.lose_a_write(at),
            _ => self.kill(at),
        }
        Ok(())
    }

    fn lose(&mut self, at: usize, upstream: usize) -> Result<(), String> {
        let conn = ConnId(2 * upstream as u32);
        let was_up = self.nodes[at].wires.get(2 * upstream).is_some_and(|wire| wire.up);
        if was_up && self.runs(at) {
            self.hang_up(at, conn);
            return self.event(at, Event::Lost { conn });
        }
        Ok(())
    }

    /// A write is on its way when its connection is lost, and its key is hot from then on: a coordinator wants to copy it.
    fn lose_a_write(&mut self, at: usize) -> Result<(), String> {
        let is_idle = |client: &Client| client.node == at && client.asking.is_none();
        let Some(client) = self.clients.iter().position(is_idle).filter(|_| self.runs(at)) else {
            return Ok(());
        };
        self.hot = self.sim.random.below(KEYS);
        self.set(client, format!("key{}", self.hot))?;
        let is_it = |one: &String| one.starts_with(&format!("set key{} ", self.hot));
        let writes = |wire: &Wire| wire.requests.iter().any(is_it);
        let Some(conn) = self.nodes[at].wires.iter().position(writes) else { return Ok(()) };
        self.upstreams[conn / 2].away_until = self.sim.now + self.sim.random.below(60 * MS);
        self.lose(at, conn / 2)
    }

    /// All links of a proxy are late, or one is, or one is cut.
    fn fault_of_links(&mut self, at: usize) -> Result<(), String> {
        let until = self.sim.now + self.sim.random.below(2 * LEASE);
        let chosen = self.sim.random.below(self.links.len().max(1) as u64) as usize;
        let all = self.sim.random.below(3) == 0;
        if all {
            let mut links = self.links.iter_mut();
            links
                .by_ref()
                .filter(|link| link.asks.proxy == at || link.serves.proxy == at)
                .for_each(|link| link.stalled_until = until);
            return Ok(());
        }
        let cuts = self.sim.random.below(2) == 0;
        let Some(link) = self.links.get_mut(chosen) else { return Ok(()) };
        link.stalled_until = until;
        let (asks, conn) = (link.asks.proxy, link.conn);
        if cuts && link.asks.is_open && link.asks.life == self.nodes[asks].life && self.runs(asks) {
            self.hang_up(asks, conn);
            return self.event(asks, Event::Lost { conn });
        }
        Ok(())
    }

    /// kill -9. What it has sent may be handled all the same.
    fn kill(&mut self, at: usize) {
        self.count(at);
        let node = &mut self.nodes[at];
        if node.proxy.take().is_none() {
            return;
        }
        node.starts_at = self.sim.now + self.sim.random.below(2) * self.sim.random.below(3 * LEASE);
        for (place, wire) in std::mem::take(&mut node.wires).into_iter().enumerate() {
            self.upstreams[place / 2].late.push(Late::of(at, wire));
        }
        for client in self.clients.iter_mut().filter(|client| client.node == at) {
            client.asking = None;
        }
    }
}
