//! What a client sends: of each key of a batch who is asked for it.

use mbal_replica::choose_place;

use super::super::costs::Costs;
use super::{Epoch, Events, Job, Targets, What};

impl Events {
    /// A client sends a batch.
    pub(super) fn send(&mut self, epoch: &Epoch<'_>, targets: &Targets, client: usize) {
        let Epoch { situation, demand, placement, ways, .. } = *epoch;
        let batch = situation.batch;
        let own = self.clients[client].at;
        let own_server = own.map(|worker| worker / situation.workers);
        let mut parts: Vec<Job> = Vec::new();
        // Copied keys of a smart client, which go where others go.
        let mut joining: Vec<usize> = Vec::new();
        let (mut first_asks, mut first_writes, mut sets_any) = (0, 0, false);
        for _ in 0..batch {
            let target = targets.draw(&mut self.random);
            let (cachelet, sets, slot) = match demand.hottest.get(target) {
                Some(key) => (key.cachelet, key.sets, targets.slots[target]),
                None => (target - targets.hottest, demand.sets, None),
            };
            let is_set = self.random.unit() < sets;
            sets_any |= is_set;
            let mut worker = placement.owners[cachelet];
            let (mut asks, mut writes) = (0, 0);
            if let Some((slot, copied)) = slot.and_then(|slot| Some((slot, self.copies.get(slot)?)))
            {
                let bit = 1 << slot;
                if is_set {
                    self.clients[client].leases.end(slot);
                    writes = bit;
                } else {
                    let places = &copied.places;
                    let here =
                        places.iter().find(|at| Some(**at / situation.workers) == own_server);
                    let may_choose = ways.forwards_to_copies(batch);
                    let has_lease = self.clients[client].leases.has(slot, self.now);
                    if has_lease && own.is_none() {
                        joining.push(slot);
                        continue;
                    }
                    if has_lease {
                        let chosen = self.random.below(places.len() as u64) as usize;
                        worker = if may_choose { places[chosen] } else { worker };
                        let here = here.filter(|_| ways.answers_at_once(batch));
                        worker = *here.unwrap_or(&worker);
                    }
                    asks = bit;
                }
            }
            if Some(worker / situation.workers) == own_server {
                first_asks |= asks;
                first_writes |= writes;
                continue;
            }
            let what = What::Part { client };
            add_key(&mut parts, Job { worker, what, work: 0.0, keys: 1, asks, writes });
        }
        for slot in joining {
            let places = &self.copies.get(slot).expect("it was leased").places;
            let is_asked = |at: usize| parts.iter().any(|part| part.worker == places[at]);
            let worker = places[choose_place(places.len(), is_asked, self.random.word() as u32)];
            let (what, asks) = (What::Part { client }, 1 << slot);
            add_key(&mut parts, Job { worker, what, work: 0.0, keys: 1, asks, writes: 0 });
        }
        let Costs { turn, key, link, .. } = situation.costs;
        let part_turn = if own.is_some() { link } else { turn };
        let key = |worker: usize| key + epoch.sampling[worker];
        for part in &mut parts {
            part.work = part_turn + f64::from(part.keys) * key(part.worker);
        }
        self.clients[client].sent = self.now;
        self.clients[client].writes = sets_any;
        self.clients[client].parts = parts.len() as u32 + u32::from(own.is_some());
        if let Some(worker) = own {
            let links = parts.len() as f64;
            let first = Job {
                worker,
                what: What::Turn { client },
                work: turn + f64::from(batch) * key(worker) + links * link,
                keys: batch,
                asks: first_asks,
                writes: first_writes,
            };
            self.clients[client].forwards = parts;
            self.ask(epoch, first, own_server);
        } else {
            parts.into_iter().for_each(|part| self.ask(epoch, part, None));
        }
    }

    /// Who asks for many clients is busy with one part after the other.
    fn ask(&mut self, epoch: &Epoch<'_>, part: Job, server: Option<usize>) {
        let Costs { client, client_key, .. } = epoch.situation.costs;
        let busy_until = &mut self.askers[server.map_or(0, |server| 1 + server)];
        *busy_until = busy_until.max(self.now) + client + f64::from(part.keys) * client_key;
        let delay = *busy_until - self.now + epoch.situation.round_trip / 2.0;
        self.post(part, delay);
    }
}

/// A key more for its worker, in the part that it has of the batch already or in one of its own.
fn add_key(parts: &mut Vec<Job>, key: Job) {
    match parts.iter_mut().find(|part| part.worker == key.worker) {
        Some(part) => {
            part.keys += key.keys;
            part.asks |= key.asks;
            part.writes |= key.writes;
        }
        None => parts.push(key),
    }
}
