//! What a seed draws: servers, their speeds, clients, and what is hot when.

use std::ops::Range;

use mbal_random::Random;

use super::costs::{Costs, Quotas};

/// Epochs of a drawn situation, of a second each.
pub const EPOCHS: u64 = 80;

/// Situations of more servers than this are the large ones.
const SMALL_SERVERS: u64 = 8;

/// A client that does not wait sends at its own pace: as one that waits would which thinks this long, in seconds.
const OPEN_PACE: f64 = 0.05;

/// More shifts than any situation has: each round's salts are its own.
const ROUND_SALT: u64 = 16;

#[derive(Clone, Debug)]
pub struct Situation {
    pub seed: u64,
    pub servers: usize,
    /// Of each server.
    pub workers: usize,
    /// By worker of all servers: its part of a core.
    pub speeds: Vec<f64>,
    pub keys: u32,
    pub epochs: u64,
    /// What is asked for, and from which epoch on; the first from 0 on.
    pub shifts: Vec<Shift>,
    /// Keys of a request.
    pub batch: u32,
    pub clients: Clients,
    /// Seconds between two machines and back.
    pub round_trip: f64,
    pub cachelet_bytes: u64,
    pub costs: Costs,
    pub names: Names,
    /// How workers' parts of a core are kept, by events; else they have slower cores.
    pub quotas: Option<Quotas>,
}

/// How keys are called, and so where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Others in each shift.
    Drawn,
    /// As `mbal bench` calls keys of so many bytes, and says which of them is how popular.
    Bench { bytes: usize },
}

#[derive(Clone, Debug)]
pub struct Clients {
    /// Those that ask each key's owner.
    pub smart: f64,
    /// By worker of all servers: ordinary ones, which ask that worker for everything.
    pub ordinary: Vec<f64>,
    /// Seconds between a reply and the next request.
    pub think: f64,
    /// They stand for clients that do not wait.
    pub is_open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    pub epoch: u64,
    pub law: Law,
    /// Part of the operations that are sets.
    pub sets: f64,
    /// Another one: other keys are hot.
    pub salt: u64,
}

/// How popular keys are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Law {
    Zipf {
        exponent: f64,
    },
    /// The same; of the 500 hottest keys every fifth is never set (SPORE, Figure 8).
    PartlyReadOnly {
        exponent: f64,
    },
    /// So many of the keys have so much of the requests, each as much.
    HotSet {
        keys: f64,
        share: f64,
    },
    /// One key has so much; the others follow Zipf's law. Its part of sets may be its own.
    OneKey {
        share: f64,
        exponent: f64,
        sets: f64,
    },
    /// Keys that are all one worker's in the beginning have so much.
    OneWorker {
        share: f64,
    },
    /// Keys that are all one cachelet's in the beginning have so much.
    OneCachelet {
        share: f64,
    },
}

impl Situation {
    /// The same seed draws the same.
    pub fn draw(seed: u64, costs: Costs) -> Situation {
        let mut dice = Dice(Random::new(seed.wrapping_mul(0x9e37_79b9) ^ 0x636c_6f73_6564));
        let is_large = dice.one_in(10);
        let servers = match is_large {
            true => dice.log(SMALL_SERVERS as f64 + 1.0, 100.0).round() as usize,
            false => 3 + dice.below(SMALL_SERVERS - 2) as usize,
        };
        let workers = 1 + dice.below(8) as usize;
        let speeds = speeds(&mut dice, servers, workers);
        let sets = *dice.of(&[0.0, 0.0, 0.002, 0.01, 0.05, 0.1, 0.3, 0.5]);
        let batch = match dice.one_in(2) {
            true => 1,
            false => dice.log(2.0, 100.0).round() as u32,
        };
        let shifts = shifts(&mut dice, sets, servers * workers);
        let round_trip = dice.log(50e-6, 1e-3);
        let clients = clients(&mut dice, &speeds, workers, batch, round_trip, costs);
        Situation {
            seed,
            servers,
            workers,
            speeds,
            keys: dice.log(10_000.0, 200_000.0) as u32,
            epochs: EPOCHS,
            shifts,
            batch,
            clients,
            round_trip,
            cachelet_bytes: dice.log(f64::from(1 << 18), f64::from(1 << 24)) as u64,
            costs,
            names: Names::Drawn,
            quotas: None,
        }
    }

    /// The same servers and clients. In each shift the keys of one cachelet have from two to eight times an even worker's part.
    pub fn with_one_cachelet(self) -> Situation {
        let mut dice = Dice(Random::new(self.seed ^ 0x6f6e_6563));
        let part = 1.0 / self.all_workers() as f64;
        let law =
            |dice: &mut Dice| Law::OneCachelet { share: dice.log(2.0, 8.0).min(0.9 / part) * part };
        let shifts = self.shifts.iter().map(|shift| Shift { law: law(&mut dice), ..*shift });
        Situation { shifts: shifts.collect(), ..self }
    }

    pub fn all_workers(&self) -> usize {
        self.servers * self.workers
    }

    /// The same, but other keys are hot, and chance is another.
    pub fn with_other_keys(&self, round: u64) -> Situation {
        let mut other = self.clone();
        other.seed += round;
        other.shifts.iter_mut().for_each(|shift| shift.salt += ROUND_SALT * round);
        other
    }

    /// The epochs of each shift.
    pub fn stretches(&self) -> impl Iterator<Item = Range<usize>> {
        let ends = self.shifts.iter().skip(1).map(|shift| shift.epoch).chain([self.epochs]);
        self.shifts.iter().zip(ends).map(|(shift, end)| shift.epoch as usize..end as usize)
    }

    /// In one line.
    pub fn told(&self) -> String {
        let (slow, fast) =
            self.speeds.iter().fold((f64::INFINITY, 0.0f64), |(slow, fast), speed| {
                (slow.min(*speed), fast.max(*speed))
            });
        let ordinary: f64 = self.clients.ordinary.iter().sum();
        let law = |shift: &Shift| format!("{} with {}% sets", shift.law.told(), shift.sets * 100.0);
        let laws: Vec<String> = self.shifts.iter().map(law).collect();
        format!(
            "{} x {} workers of {slow:.2} to {fast:.2} cores; {:.0} smart and {ordinary:.0} ordinary clients{}, thinking {:.1} ms, \
             round trip {:.0} us; batches of {}; {}; cachelets of {} KiB",
            self.servers,
            self.workers,
            self.clients.smart,
            if self.clients.is_open { " that do not wait" } else { "" },
            self.clients.think * 1e3,
            self.round_trip * 1e6,
            self.batch,
            laws.join(", then "),
            self.cachelet_bytes >> 10,
        )
    }
}

impl Shift {
    /// Which of so many workers or cachelets has what is hot.
    pub fn hot_one_of(&self, count: usize) -> usize {
        Random::new(self.salt).below(count as u64) as usize
    }
}

impl Law {
    fn told(&self) -> String {
        match self {
            Law::Zipf { exponent } => format!("Zipf {exponent:.2}"),
            Law::PartlyReadOnly { exponent } => format!("Zipf {exponent:.2}, partly read-only"),
            Law::HotSet { keys, share } => {
                format!("{:.0}% on {:.0}% of the keys", share * 100.0, keys * 100.0)
            }
            Law::OneKey { share, exponent, sets } => format!(
                "one key with {:.0}% ({:.1}% sets), others Zipf {exponent:.2}",
                share * 100.0,
                sets * 100.0
            ),
            Law::OneWorker { share } => format!("one worker with {:.0}%", share * 100.0),
            Law::OneCachelet { share } => format!("one cachelet with {:.0}%", share * 100.0),
        }
    }
}

fn speeds(dice: &mut Dice, servers: usize, workers: usize) -> Vec<f64> {
    let base = *dice.of(&[0.12, 0.2, 0.5, 1.0]);
    let kind = dice.below(10);
    let slow_server = dice.below(servers as u64) as usize;
    let mut all = Vec::new();
    for server in 0..servers {
        let of_server = match kind {
            6 | 7 => dice.log(0.5, 1.0),
            8 if server == slow_server => 0.4,
            _ => 1.0,
        };
        for _ in 0..workers {
            let of_worker = if kind == 9 { dice.log(0.5, 1.0) } else { 1.0 };
            all.push(base * of_server * of_worker);
        }
    }
    all
}

fn law(dice: &mut Dice, sets: f64, workers: usize) -> Law {
    match dice.below(10) {
        0..=2 => Law::Zipf { exponent: 2.0 * dice.unit() },
        3..=5 => Law::HotSet { keys: dice.log(0.01, 0.2), share: 0.5 + 0.45 * dice.unit() },
        6 | 7 => {
            let sets = if dice.one_in(4) { *dice.of(&[0.0, 0.01, 0.1, 0.5]) } else { sets };
            Law::OneKey { share: dice.log(0.05, 0.8), exponent: dice.unit(), sets }
        }
        // No more than three times as much as a worker's part where there are many: else nothing but that is served.
        _ => Law::OneWorker { share: dice.log((1.5 / workers as f64).min(0.5), 0.95) },
    }
}

fn shifts(dice: &mut Dice, sets: f64, workers: usize) -> Vec<Shift> {
    let count = 1 + dice.below(3);
    let first = law(dice, sets, workers);
    let mut shifts = Vec::new();
    for at in 0..count {
        let law = if at > 0 && dice.one_in(3) { law(dice, sets, workers) } else { first };
        shifts.push(Shift { epoch: at * EPOCHS / count, law, sets, salt: dice.word() });
    }
    shifts
}

fn clients(
    dice: &mut Dice,
    speeds: &[f64],
    workers: usize,
    batch: u32,
    trip: f64,
    costs: Costs,
) -> Clients {
    let all = speeds.len() as f64;
    // Requests a second if all were even, and cost what a smart client's costs.
    let keys = f64::from(batch);
    let turns = all * (1.0 - (1.0 - 1.0 / all).powf(keys));
    let cost = turns * costs.turn + keys * costs.key;
    let most = speeds.iter().sum::<f64>() / cost;
    let load = 0.3 + 0.6 * dice.unit();
    let (count, think, is_open) = match dice.below(10) {
        // As fast as they are answered.
        0..=4 => (all * dice.log(2.0, 64.0), 0.0, false),
        5..=7 => {
            let count = all * dice.log(8.0, 64.0);
            (count, (count / (load * most) - trip).max(0.0), false)
        }
        _ => (load * most * OPEN_PACE, OPEN_PACE, true),
    };
    let smart = match dice.below(10) {
        0..=4 => 1.0,
        5 | 6 => 0.0,
        _ => dice.unit(),
    };
    // Where ordinary clients are connected: even, by chance, mostly at one server or one worker.
    let kind = dice.below(10);
    let one = dice.below(speeds.len() as u64) as usize;
    let weights: Vec<f64> = (0..speeds.len())
        .map(|at| match kind {
            0..=4 => 1.0,
            5 | 6 => 0.5 + dice.unit(),
            7 if at / workers == one / workers => 2.0 * all / workers as f64,
            8 if at == one => all,
            _ => 1.0,
        })
        .collect();
    let sum: f64 = weights.iter().sum();
    let ordinary = weights.iter().map(|weight| count * (1.0 - smart) * weight / sum).collect();
    Clients { smart: count * smart, ordinary, think, is_open }
}

/// Chance, by a seed.
struct Dice(Random);

impl Dice {
    fn word(&mut self) -> u64 {
        self.0.word()
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    /// Between these, as likely twice as much as half as much.
    fn log(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.unit())
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_thousand_nine_hundred_are_small_and_all_kinds_are_among_them() {
        let all: Vec<Situation> =
            (1..=1_000).map(|seed| Situation::draw(seed, Costs::MODELLED)).collect();
        let count = |is: &dyn Fn(&Situation) -> bool| all.iter().filter(|one| is(one)).count();
        let small = count(&|one| one.servers <= 8);
        assert!((870..=930).contains(&small), "{small}");
        let law = |one: &Situation, is: fn(&Law) -> bool| one.shifts.iter().any(|s| is(&s.law));
        let kinds: [(&str, usize); 9] = [
            ("Zipf", count(&|one| law(one, |law| matches!(law, Law::Zipf { .. })))),
            ("hot set", count(&|one| law(one, |law| matches!(law, Law::HotSet { .. })))),
            ("one key", count(&|one| law(one, |law| matches!(law, Law::OneKey { .. })))),
            ("one worker", count(&|one| law(one, |law| matches!(law, Law::OneWorker { .. })))),
            ("batches", count(&|one| one.batch > 1)),
            ("shifts", count(&|one| one.shifts.len() > 1)),
            ("unequal", count(&|one| one.speeds.iter().any(|speed| *speed != one.speeds[0]))),
            ("ordinary", count(&|one| one.clients.ordinary.iter().sum::<f64>() > 0.0)),
            ("open", count(&|one| one.clients.is_open)),
        ];
        for (name, count) in kinds {
            assert!(count >= 100, "{name}: {count}");
        }
        for one in &all {
            assert!((3..=100).contains(&one.servers) && (1..=8).contains(&one.workers), "{one:?}");
            let has_few_sets = one.shifts.iter().all(|shift| shift.sets <= 0.5);
            assert!(one.batch <= 100 && has_few_sets, "{one:?}");
        }
    }
}
