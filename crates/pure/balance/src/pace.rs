//! How fast cachelets leave a worker: what a move costs goes by how long it lasts.

use std::collections::{BTreeMap, BTreeSet};

use mbal_model::{Outlook, Owner, PlannedMove, Prefix};

/// Until something has been seen to go.
const BYTES_A_SECOND: f64 = (16 << 20) as f64;
/// The newest sample's part.
const NEWEST: f64 = 0.5;
/// Slower than this is a move that does not get on.
const LEAST: f64 = (1 << 20) as f64;

/// By worker that has given something. A worker sends what it gives by itself, in the time that its clients leave it, so workers differ.
#[derive(Default)]
pub(crate) struct Pace {
    bytes_a_second: BTreeMap<Owner, f64>,
    /// Who gives each cachelet that is on its way, and how many bytes of it had gone when that was last told.
    givers: BTreeMap<Prefix, (Owner, Option<u64>)>,
}

/// What a worker has sent in an epoch.
#[derive(Clone, Copy, Default)]
struct Sent {
    bytes: u64,
    /// It has something left to send; else it might have sent more.
    is_busy: bool,
    /// Nothing is told of what is on its way.
    is_silent: bool,
}

impl Pace {
    /// What a plan has ordered: it may have arrived before it is seen to be on its way.
    pub fn begin(&mut self, moves: &[PlannedMove]) {
        self.givers.extend(moves.iter().map(|one| (one.step.cachelet, (one.step.from, None))));
    }

    /// An epoch of a second: what has changed servers, with its bytes, and what is on its way still.
    pub fn observe(&mut self, arrived: &[(Prefix, u64)], outlook: &Outlook) {
        let mut sent: BTreeMap<Owner, Sent> = BTreeMap::new();
        for (cachelet, bytes) in arrived {
            if let Some((giver, before)) = self.givers.remove(cachelet) {
                sent.entry(giver).or_default().bytes += bytes.saturating_sub(before.unwrap_or(0));
            }
        }
        let mut givers = BTreeMap::new();
        for step in &outlook.under_way {
            let before = self.givers.get(&step.cachelet).and_then(|(_, before)| *before);
            let now = outlook.gone.get(&step.cachelet).copied();
            let of = sent.entry(step.from).or_default();
            of.is_busy = true;
            of.is_silent |= now.is_none();
            of.bytes += now.map_or(0, |now| now.saturating_sub(before.unwrap_or(0)));
            givers.insert(step.cachelet, (step.from, now.or(before)));
        }
        self.givers = givers;
        for (giver, of) in sent {
            self.learn(giver, of);
        }
        let workers = outlook.servers.iter().flat_map(|server| &server.workers);
        let there: BTreeSet<Owner> = workers.map(|worker| worker.at).collect();
        self.bytes_a_second.retain(|at, _| there.contains(at));
    }

    fn learn(&mut self, giver: Owner, sent: Sent) {
        let (bytes, known) = (sent.bytes as f64, self.bytes_a_second.get(&giver).copied());
        let now = match known {
            None if sent.is_busy && bytes > 0.0 => bytes,
            // It may not have begun, or wait for a destination that does not take it.
            None if sent.is_busy => return,
            None => self.of(giver).max(bytes),
            Some(known) if sent.is_busy && sent.is_silent && bytes == 0.0 => known * 0.9,
            Some(known) if sent.is_busy || bytes > known => known + NEWEST * (bytes - known),
            Some(_) => return,
        };
        self.bytes_a_second.insert(giver, now.max(LEAST));
    }

    /// Something has been seen to go.
    pub fn is_known(&self) -> bool {
        !self.bytes_a_second.is_empty()
    }

    /// Bytes that leave this worker in a second; of who has given nothing, what others do on average.
    pub fn of(&self, giver: Owner) -> f64 {
        let count = self.bytes_a_second.len() as f64;
        let mean = || match self.is_known() {
            true => self.bytes_a_second.values().sum::<f64>() / count,
            false => BYTES_A_SECOND,
        };
        self.bytes_a_second.get(&giver).copied().unwrap_or_else(mean)
    }
}

#[cfg(test)]
mod tests {
    use mbal_model::{Move, ServerId, ServerOutlook, Service, Standing, Why, WorkerId, WorkerLoad};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(server: u16) -> Owner {
        Owner { server: ServerId(server), worker: WorkerId(0) }
    }

    fn server(id: u16) -> ServerOutlook {
        ServerOutlook {
            server: ServerId(id),
            standing: Standing::Serving,
            memory_bytes: 0,
            workers: vec![WorkerLoad {
                at: at(id),
                service: Service::default(),
                fixed: 0.0,
                bytes_max: 0,
                cachelets: Vec::new(),
            }],
            helpless: false,
            refuses: false,
            copying: Vec::new(),
            hottest: Vec::new(),
            room_bytes: None,
        }
    }

    /// What is on its way from server 1, with the MiB of it that have gone, if that is told.
    fn epoch(under_way: &[(usize, Option<u64>)]) -> Outlook {
        let cachelet = |place: usize| Prefix::nth(place, 15);
        let step = |(place, _): &(usize, Option<u64>)| Move {
            cachelet: cachelet(*place),
            from: at(1),
            to: at(2),
        };
        let gone = under_way
            .iter()
            .filter_map(|(place, gone)| gone.map(|gone| (cachelet(*place), gone * MIB)));
        Outlook {
            servers: vec![server(1), server(2)],
            under_way: under_way.iter().map(step).collect(),
            gone: gone.collect(),
            ..Outlook::default()
        }
    }

    fn mib(pace: &Pace, server: u16) -> u64 {
        pace.of(at(server)) as u64 / MIB
    }

    #[test]
    fn what_has_gone_in_an_epoch_is_known_before_anything_arrives() {
        let mut pace = Pace::default();
        assert!(!pace.is_known() && mib(&pace, 1) == 16);
        pace.observe(&[], &epoch(&[(0, Some(3)), (1, Some(0))]));
        assert!(pace.is_known());
        assert_eq!([mib(&pace, 1), mib(&pace, 2)], [3, 3], "of who has given nothing, the others'");
        // The first arrives, and has 8 in all; of the other 2 have gone.
        pace.observe(&[(Prefix::nth(0, 15), 8 * MIB)], &epoch(&[(1, Some(2))]));
        assert_eq!(mib(&pace, 1), 5);
    }

    #[test]
    fn who_waits_for_its_destination_shows_nothing() {
        let mut pace = Pace::default();
        pace.observe(&[], &epoch(&[(0, None)]));
        pace.observe(&[], &epoch(&[(0, Some(0))]));
        assert!(!pace.is_known());
    }

    #[test]
    fn what_arrives_within_an_epoch_might_have_been_more() {
        let mut pace = Pace::default();
        let planned = PlannedMove {
            step: Move { cachelet: Prefix::nth(0, 15), from: at(1), to: at(2) },
            why: Why::Overload,
            load: 0.0,
            bytes: MIB,
            from_load: 0.0,
            to_load: 0.0,
        };
        pace.begin(&[planned]);
        pace.observe(&[(Prefix::nth(0, 15), MIB)], &epoch(&[]));
        assert!(pace.is_known() && mib(&pace, 1) == 16);
    }
}
