//! One situation under one set of rules, epoch by epoch.

use mbal_model::{Owner, Prefix};

use super::brains::{Allowed, Brains, Done};
use super::demand::Demand;
use super::events::{Epoch, Events, Latency, Measurement};
use super::network::Served;
use super::oracle;
use super::placement::{Laid, Placement, Ways};
use super::situation::Situation;

/// From this epoch on after each shift it is judged.
pub const JUDGED_FROM: u64 = 10;

/// Latency is worked out in one epoch of so many.
const P99_EVERY: u64 = 4;

/// A seed's situation, with what is asked for worked out once for all rules.
#[derive(Clone)]
pub struct World {
    pub situation: Situation,
    /// By shift.
    demands: Vec<Demand>,
    map: Vec<(Prefix, Owner)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    pub name: &'static str,
    pub kind: Kind,
    pub ways: Ways,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Phases(Allowed),
    /// Knows everything, and acts at once.
    Oracle,
}

/// What is compared.
pub const RULES: [Rules; 8] = [
    phases("off", [false, false, false], Ways::ATOMIC),
    phases("one", [true, false, false], Ways::ATOMIC),
    phases("one-async", [true, false, false], Ways::ASYNC),
    phases("two", [false, true, false], Ways::ATOMIC),
    phases("three", [false, false, true], Ways::ATOMIC),
    phases("all", [true, true, true], Ways::ATOMIC),
    phases("all-async", [true, true, true], Ways::ASYNC),
    Rules { name: "oracle", kind: Kind::Oracle, ways: Ways::OPEN },
];

pub const fn phases(name: &'static str, on: [bool; 3], ways: Ways) -> Rules {
    let [one, two, three] = on;
    Rules { name, kind: Kind::Phases(Allowed { one, two, three }), ways }
}

/// What came of a trial, by epoch.
#[derive(Clone, Default)]
pub struct Trial {
    /// Keys a second.
    pub throughput: Vec<f64>,
    /// Seconds, where they were worked out.
    pub p99: Vec<Option<f64>>,
    /// Seconds of a core in a second, of all workers; and of it, the part of the worker that has the most.
    pub work: Vec<f64>,
    pub busiest_part: Vec<f64>,
    /// Cachelets that have changed their worker, and those of them that have changed servers.
    pub moves: Vec<[u64; 2]>,
    /// How often a key has got copies, or more of them.
    pub copied: Vec<u64>,
    /// By events alone.
    pub seen: Vec<Observation>,
}

/// What clients have seen in an epoch, and servers.
#[derive(Clone)]
pub struct Observation {
    pub latency: Latency,
    /// Requests of the busiest server by those of the average one.
    pub busiest: f64,
    /// Copies that there are, beside the originals.
    pub copies: usize,
}

impl Trial {
    /// `taken`: of each worker's time, what moves take.
    fn note_work(&mut self, served: &Served, speeds: &[f64], taken: &[f64]) {
        let work = |(at, (speed, taken)): (usize, (&f64, &f64))| {
            speed * (taken + (1.0 - taken) * served.busy(at))
        };
        let work: Vec<f64> = speeds.iter().zip(taken).enumerate().map(work).collect();
        let all = work.iter().sum::<f64>();
        self.work.push(all);
        self.busiest_part.push(work.iter().copied().fold(0.0, f64::max) / all.max(1e-12));
    }
}

impl World {
    pub fn of(situation: Situation) -> World {
        let map = Brains::new(&situation, Allowed::default(), Ways::ATOMIC).map();
        let demand = |shift| Demand::new(&situation, shift, &map);
        World { demands: situation.shifts.iter().map(demand).collect(), situation, map }
    }

    fn placement(&self) -> Placement {
        let place = |owner: &Owner| {
            let server = usize::from(owner.server.0) - 1;
            server * self.situation.workers + usize::from(owner.worker.0)
        };
        Placement {
            owners: self.map.iter().map(|(_, owner)| place(owner)).collect(),
            ordinary: self.situation.clients.ordinary.clone(),
            copied: Default::default(),
            moves: Default::default(),
        }
    }

    /// Which shift holds in an epoch, and how long.
    fn shift(&self, epoch: u64) -> (&Demand, u64) {
        let shifts = &self.situation.shifts;
        let at = shifts.iter().rposition(|shift| shift.epoch <= epoch);
        let at = at.expect("one is from the beginning on");
        (&self.demands[at], epoch - shifts[at].epoch)
    }

    /// `by_events`: each request is served, instead of means.
    pub fn run(&self, rules: &Rules, by_events: bool, tells: bool) -> Trial {
        match rules.kind {
            Kind::Phases(allowed) => {
                let events = by_events.then(|| Events::new(&self.situation));
                self.balanced(allowed, rules.ways, events, tells)
            }
            Kind::Oracle => self.best(rules.ways, tells),
        }
    }

    fn balanced(
        &self,
        allowed: Allowed,
        ways: Ways,
        mut events: Option<Events>,
        tells: bool,
    ) -> Trial {
        let situation = &self.situation;
        let mut brains = Brains::new(situation, allowed, ways);
        let mut placement = self.placement();
        let mut trial = Trial::default();
        let mut served = Served::default();
        let mut divided: Option<Demand> = None;
        for epoch in 0..situation.epochs {
            let (asked, age) = self.shift(epoch);
            let prefixes = brains.prefixes();
            if age == 0 || prefixes.len() != divided.as_ref().unwrap_or(asked).shares.len() {
                divided = (prefixes.len() != asked.shares.len()).then(|| asked.by(prefixes));
            }
            let demand = divided.as_ref().unwrap_or(asked);
            let taken = placement.carry(&situation.speeds);
            let mut laid = placement.lay(situation, demand, &taken, &served, ways);
            served = laid.network.solve(&served);
            let is_timed = age >= JUDGED_FROM && age % P99_EVERY == 0;
            let mut p99 = is_timed.then(|| laid.network.p99(&served));
            if let Some(events) = &mut events {
                let (placement, sampling) = (&placement, &brains.sampling());
                let now = Epoch { situation, demand, placement, taken: &taken, sampling, ways };
                let measured = events.epoch(&now, served.throughput);
                count(&mut laid, demand, placement, &measured);
                p99 = is_timed.then(|| measured.latency.of_all(0.99));
                trial.seen.push(Observation {
                    busiest: busiest(situation, &measured.served),
                    copies: placement.copied.values().map(Vec::len).sum(),
                    latency: measured.latency,
                });
                served = measured.served;
            }
            trial.throughput.push(served.throughput);
            trial.note_work(&served, &situation.speeds, &taken);
            trial.p99.push(p99);
            let before = brains.done;
            brains.end_epoch(&mut placement, demand, &laid, &served);
            let Done { copied, lent, moved, handed, split } = brains.done;
            trial.copied.push(copied - before.copied);
            let (lent, moved) = (lent - before.lent, moved - before.moved);
            trial.moves.push([lent + moved, moved]);
            if tells {
                let mark = if age == 0 { "*" } else { " " };
                println!(
                    "{mark}{epoch:3} {:9.0}/s  lent {lent} moved {moved} handed {} split {} moving {} copied {}  {}",
                    served.throughput,
                    handed - before.handed,
                    split - before.split,
                    placement.moves.len(),
                    placement.copied.len(),
                    busy(situation, &served),
                );
            }
        }
        trial
    }

    fn best(&self, ways: Ways, tells: bool) -> Trial {
        let mut placement = self.placement();
        let mut trial = Trial::default();
        for (stretch, demand) in self.situation.stretches().zip(&self.demands) {
            let best = oracle::best(&self.situation, demand, ways, &mut placement);
            let begin = stretch.start;
            for epoch in stretch {
                trial.throughput.push(best.served.throughput);
                let speeds = &self.situation.speeds;
                trial.note_work(&best.served, speeds, &vec![0.0; speeds.len()]);
                trial.p99.push(Some(best.p99));
                trial.moves.push(if epoch == begin { best.moves } else { [0, 0] });
            }
            if tells {
                let Served { throughput, .. } = best.served;
                println!(
                    "*{:3} {throughput:9.0}/s  moved {:?}  {}",
                    begin,
                    best.moves,
                    busy(&self.situation, &best.served)
                );
            }
        }
        trial
    }
}

/// What events have counted of copies goes before what means say.
fn count(laid: &mut Laid, demand: &Demand, placement: &Placement, measured: &Measurement) {
    for key in &demand.hottest {
        let Some(shadows) = placement.copied.get(&key.name) else { continue };
        let seen = measured.by_key.get(&key.name).copied().unwrap_or_default();
        laid.count(key, shadows, seen.answered, seen.waits);
    }
}

fn busiest(situation: &Situation, served: &Served) -> f64 {
    let of = |server: &[f64]| server.iter().sum::<f64>();
    let most = served.keys.chunks(situation.workers).map(of).fold(0.0, f64::max);
    most * situation.servers as f64 / served.keys.iter().sum::<f64>().max(1.0)
}

/// How busy the workers of the first servers are.
fn busy(situation: &Situation, served: &Served) -> String {
    let server = |server: usize| {
        let own = server * situation.workers..(server + 1) * situation.workers;
        let busy = own.map(|at| format!("{:.2}", served.busy(at)));
        busy.collect::<Vec<_>>().join("/")
    };
    (0..situation.servers.min(12)).map(server).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::costs::Costs;
    use super::super::situation::{Clients, EPOCHS, Law, Names, Shift};
    use super::*;

    /// Three servers of two workers, each with a fifth of a core, and clients that keep them busy or do not.
    fn world(law: Law, clients: f64, think: f64, seed: u64) -> World {
        World::of(Situation {
            seed,
            servers: 3,
            workers: 2,
            speeds: vec![0.2; 6],
            keys: 20_000,
            epochs: EPOCHS,
            shifts: vec![Shift { epoch: 0, law, sets: 0.05, salt: seed }],
            batch: 1,
            clients: Clients { smart: clients, ordinary: vec![0.0; 6], think, is_open: false },
            round_trip: 1e-4,
            cachelet_bytes: 1 << 20,
            costs: Costs::MODELLED,
            names: Names::Drawn,
            quotas: None,
        })
    }

    fn rules(name: &str) -> &'static Rules {
        RULES.iter().find(|rules| rules.name == name).expect("there are such rules")
    }

    #[test]
    fn what_is_hot_on_one_worker_is_spread() {
        let world = world(Law::OneWorker { share: 0.95 }, 96.0, 0.0, 1);
        let late = |name| {
            let trial = world.run(rules(name), false, false);
            trial.throughput[JUDGED_FROM as usize..].iter().sum::<f64>()
        };
        let (off, all, oracle) = (late("off"), late("all"), late("oracle"));
        assert!(3.0 * off < all && all <= 1.02 * oracle, "{off} {all} {oracle}");
    }

    #[test]
    fn an_even_load_is_left_alone() {
        let mut moves = 0;
        // Idle, half busy, and saturated.
        for (seed, think) in [(1, 5e-3), (2, 5e-4), (3, 0.0)] {
            let world = world(Law::Zipf { exponent: 0.0 }, 96.0, think, seed);
            let trial = world.run(rules("all"), false, false);
            moves += trial.moves.iter().map(|moves| moves[0]).sum::<u64>();
        }
        assert!(moves <= 1, "{moves} moves in 240 epochs");
    }

    #[test]
    fn means_are_as_events_have_them() {
        let laws = [Law::Zipf { exponent: 0.9 }, Law::HotSet { keys: 0.01, share: 0.9 }];
        for (law, batch) in laws.into_iter().zip([1, 20]) {
            let mut world = world(law, 64.0, 0.0, 3);
            world.situation.batch = batch;
            let mean = |by_events| {
                let trial = world.run(rules("off"), by_events, false);
                trial.throughput.iter().sum::<f64>() / EPOCHS as f64
            };
            let ratio = mean(false) / mean(true);
            assert!((0.95..1.05).contains(&ratio), "{law:?}, batches of {batch}: {ratio}");
        }
    }
}
