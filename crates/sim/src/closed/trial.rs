//! One situation under one set of rules, epoch by epoch.

use mbal_model::{Owner, Prefix};

use super::brains::{Allowed, Brains, Done};
use super::demand::Demand;
use super::network::Served;
use super::placement::{Placement, Ways, Writes};
use super::situation::{EPOCHS, Situation};

/// From this epoch on after each shift it is judged.
pub const JUDGED_FROM: u64 = 10;

/// A seed's situation, with what is asked for worked out once for all rules.
pub struct World {
    pub situation: Situation,
    /// By shift.
    demands: Vec<Demand>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub name: &'static str,
    pub allowed: Allowed,
    pub ways: Ways,
}

const NOW: Ways = Ways { writes: Writes::Closing, in_batches: false, at_once: false };

/// What is compared.
pub const RULES: [Rules; 4] = [
    rules("off", false, false, false),
    rules("two", false, true, false),
    rules("three", false, false, true),
    rules("all", false, true, true),
];

const fn rules(name: &'static str, one: bool, two: bool, three: bool) -> Rules {
    Rules { name, allowed: Allowed { one, two, three }, ways: NOW }
}

/// What came of a trial.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// Keys a second, by epoch.
    pub throughput: Vec<f64>,
    pub done: Done,
}

impl World {
    pub fn draw(seed: u64) -> World {
        let situation = Situation::draw(seed);
        let off = RULES[0].allowed;
        let map = Brains::new(&situation, off).map();
        let demand = |shift| Demand::new(&situation, shift, &map);
        World { demands: situation.shifts.iter().map(demand).collect(), situation }
    }

    fn placement(&self, map: &[(Prefix, Owner)]) -> Placement {
        let place = |owner: &Owner| {
            let server = usize::from(owner.server.0) - 1;
            server * self.situation.workers + usize::from(owner.worker.0)
        };
        Placement {
            owners: map.iter().map(|(_, owner)| place(owner)).collect(),
            ordinary: self.situation.clients.ordinary.clone(),
            copied: Default::default(),
            moves: Default::default(),
        }
    }

    pub fn run(&self, rules: &Rules, tells: bool) -> Trial {
        let situation = &self.situation;
        let mut brains = Brains::new(situation, rules.allowed);
        let mut placement = self.placement(&brains.map());
        let mut trial = Trial::default();
        let mut served = Served::default();
        for epoch in 0..EPOCHS {
            let shift = situation.shifts.iter().rposition(|shift| shift.epoch <= epoch);
            let demand = &self.demands[shift.expect("one is from the beginning on")];
            let taken = placement.carry(&situation.speeds);
            let laid = placement.lay(situation, demand, &taken, &served, rules.ways);
            served = laid.network.solve(&served);
            trial.throughput.push(served.throughput);
            let before = brains.done;
            brains.end_epoch(&mut placement, &laid, &served);
            if tells {
                tell(epoch, situation, &served, before, brains.done, placement.moves.len());
            }
        }
        trial.done = brains.done;
        trial
    }
}

fn tell(
    epoch: u64,
    situation: &Situation,
    served: &Served,
    before: Done,
    now: Done,
    moving: usize,
) {
    let mark = if situation.shifts.iter().any(|shift| shift.epoch == epoch) { "*" } else { " " };
    let busy: Vec<String> = (0..situation.servers.min(12))
        .map(|server| {
            let own = server * situation.workers..(server + 1) * situation.workers;
            let busy = own.map(|at| format!("{:.2}", served.busy(at)));
            busy.collect::<Vec<_>>().join("/")
        })
        .collect();
    println!(
        "{mark}{epoch:3} {:9.0}/s  lent {} moved {} handed {} moving {moving}  {}",
        served.throughput,
        now.lent - before.lent,
        now.moved - before.moved,
        now.handed - before.handed,
        busy.join(" "),
    );
}

impl Trial {
    /// Mean throughput from the tenth epoch after each shift on, by shift.
    pub fn settled(&self, situation: &Situation) -> Vec<f64> {
        let ends = situation.shifts.iter().skip(1).map(|shift| shift.epoch).chain([EPOCHS]);
        let stretch = |(shift, end): (&super::situation::Shift, u64)| {
            let judged = &self.throughput[(shift.epoch + JUDGED_FROM) as usize..end as usize];
            judged.iter().sum::<f64>() / judged.len() as f64
        };
        situation.shifts.iter().zip(ends).map(stretch).collect()
    }

    pub fn mean(&self, situation: &Situation) -> f64 {
        let settled = self.settled(situation);
        settled.iter().sum::<f64>() / settled.len() as f64
    }
}
