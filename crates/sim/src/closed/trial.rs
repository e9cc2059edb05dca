//! One situation under one set of rules, epoch by epoch.

use mbal_model::{Owner, Prefix};

use super::brains::{Allowed, Brains, Done};
use super::demand::Demand;
use super::events::{Epoch, Events};
use super::network::Served;
use super::oracle;
use super::placement::{Placement, Ways, Writes};
use super::situation::{EPOCHS, Shift, Situation};

/// From this epoch on after each shift it is judged.
pub const JUDGED_FROM: u64 = 10;

/// Latency is worked out in one epoch of so many.
const P99_EVERY: u64 = 4;

/// A seed's situation, with what is asked for worked out once for all rules.
pub struct World {
    pub situation: Situation,
    /// By shift.
    demands: Vec<Demand>,
    map: Vec<(Prefix, Owner)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// As built, and all that copies could do.
const ATOMIC: Ways = Ways { writes: Writes::Atomic, in_batches: false };
const ASYNC: Ways = Ways { writes: Writes::Open, in_batches: false };
const OPEN: Ways = Ways { writes: Writes::Open, in_batches: true };

/// What is compared.
pub const RULES: [Rules; 8] = [
    phases("off", [false, false, false], ATOMIC),
    phases("one", [true, false, false], ATOMIC),
    phases("one-async", [true, false, false], ASYNC),
    phases("two", [false, true, false], ATOMIC),
    phases("three", [false, false, true], ATOMIC),
    phases("all", [true, true, true], ATOMIC),
    phases("all-async", [true, true, true], ASYNC),
    Rules { name: "oracle", kind: Kind::Oracle, ways: OPEN },
];

const fn phases(name: &'static str, on: [bool; 3], ways: Ways) -> Rules {
    let [one, two, three] = on;
    Rules { name, kind: Kind::Phases(Allowed { one, two, three }), ways }
}

/// What came of a trial, by epoch.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// Keys a second.
    pub throughput: Vec<f64>,
    /// Seconds, where they were worked out.
    pub p99: Vec<Option<f64>>,
    /// Cachelets that have changed their worker, and those of them that have changed servers.
    pub moves: Vec<[u64; 2]>,
}

impl World {
    pub fn of(situation: Situation) -> World {
        let map = Brains::new(&situation, Allowed::default(), ATOMIC).map();
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
        for epoch in 0..EPOCHS {
            let (asked, age) = self.shift(epoch);
            let prefixes = brains.prefixes();
            if age == 0 || prefixes.len() != divided.as_ref().unwrap_or(asked).shares.len() {
                divided = (prefixes.len() != asked.shares.len()).then(|| asked.by(prefixes));
            }
            let demand = divided.as_ref().unwrap_or(asked);
            let taken = placement.carry(&situation.speeds);
            let laid = placement.lay(situation, demand, &taken, &served, ways);
            served = laid.network.solve(&served);
            let is_timed = age >= JUDGED_FROM && age % P99_EVERY == 0;
            let mut p99 = is_timed.then(|| laid.network.p99(&served));
            if let Some(events) = &mut events {
                let placement = &placement;
                let now = Epoch { situation, demand, placement, taken: &taken, ways };
                let seen = events.epoch(&now, served.throughput);
                served = seen.0;
                p99 = is_timed.then_some(seen.1);
            }
            trial.throughput.push(served.throughput);
            trial.p99.push(p99);
            let before = brains.done;
            brains.end_epoch(&mut placement, demand, &laid, &served);
            let Done { lent, moved, handed, split } = brains.done;
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
        for (at, demand) in self.demands.iter().enumerate() {
            let best = oracle::best(&self.situation, demand, ways, &mut placement);
            let shift = &self.situation.shifts[at];
            for epoch in shift.epoch..shift.end(&self.situation.shifts) {
                trial.throughput.push(best.served.throughput);
                trial.p99.push(Some(best.p99));
                trial.moves.push(if epoch == shift.epoch { best.moves } else { [0, 0] });
            }
            if tells {
                let Served { throughput, .. } = best.served;
                println!(
                    "*{:3} {throughput:9.0}/s  moved {:?}  {}",
                    shift.epoch,
                    best.moves,
                    busy(&self.situation, &best.served)
                );
            }
        }
        trial
    }
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

impl Trial {
    /// Epochs of each shift.
    pub fn stretches(shifts: &[Shift]) -> impl Iterator<Item = std::ops::Range<usize>> {
        shifts.iter().map(|shift| shift.epoch as usize..shift.end(shifts) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::super::situation::{Clients, Law};
    use super::*;

    /// Three servers of two workers, each with a fifth of a core, and clients that keep them busy or do not.
    fn world(law: Law, clients: f64, think: f64, seed: u64) -> World {
        World::of(Situation {
            seed,
            servers: 3,
            workers: 2,
            speeds: vec![0.2; 6],
            keys: 20_000,
            shifts: vec![Shift { epoch: 0, law, salt: seed }],
            sets: 0.05,
            batch: 1,
            clients: Clients { smart: clients, ordinary: vec![0.0; 6], think, is_open: false },
            round_trip: 1e-4,
            cachelet_bytes: 1 << 20,
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
