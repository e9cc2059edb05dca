//! What came of all trials: each rule's figures, and each situation in which one loses.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::situation::Situation;
use super::trial::{JUDGED_FROM, Trial};

/// Throughput that differs by less from what it will be is settled.
const SETTLED_WITHIN: f64 = 0.05;
/// What it will be: the mean of so many last epochs.
const LAST: usize = 5;

/// One rule in one situation, from the tenth epoch after each shift on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    pub throughput: f64,
    /// In microseconds.
    pub p99_us: f64,
    /// By shift: epochs until throughput is as it stays; cachelets that have changed their worker.
    pub settled: Vec<u64>,
    pub moves: Vec<u64>,
    pub servers: usize,
}

impl Verdict {
    pub fn new(situation: &Situation, trial: &Trial) -> Verdict {
        let mut verdict = Verdict { servers: situation.servers, ..Verdict::default() };
        let (mut p99, mut timed) = (0.0, 0.0);
        for stretch in situation.stretches() {
            let rates = &trial.throughput[stretch.clone()];
            let judged = &rates[JUDGED_FROM as usize..];
            let shifts = situation.shifts.len() as f64;
            verdict.throughput += judged.iter().sum::<f64>() / judged.len() as f64 / shifts;
            for seconds in trial.p99[stretch.clone()].iter().flatten() {
                (p99, timed) = (p99 + seconds, timed + 1.0);
            }
            let last = &rates[rates.len() - LAST..];
            let last = last.iter().sum::<f64>() / LAST as f64;
            let is_off = |rate: &f64| (rate / last - 1.0).abs() > SETTLED_WITHIN;
            verdict.settled.push(rates.iter().rposition(is_off).map_or(0, |at| at as u64 + 1));
            verdict.moves.push(trial.moves[stretch].iter().map(|moves| moves[0]).sum());
        }
        verdict.p99_us = p99 / timed * 1e6;
        verdict
    }
}

/// By seed, and by the rule's name.
pub type Verdicts = BTreeMap<u64, BTreeMap<String, Verdict>>;

const HEADER: &str = "seed,rules,servers,throughput,p99_us,settled,moves";

pub fn csv(verdicts: &Verdicts) -> String {
    let mut csv = format!("{HEADER}\n");
    for (seed, by_rules) in verdicts {
        for (rules, verdict) in by_rules {
            let list = |all: &[u64]| all.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
            let Verdict { throughput, p99_us, settled, moves, servers } = verdict;
            let (settled, moves) = (list(settled), list(moves));
            writeln!(csv, "{seed},{rules},{servers},{throughput:.0},{p99_us:.1},{settled},{moves}")
                .expect("a string has room");
        }
    }
    csv
}

pub fn parse(csv: &str) -> Option<Verdicts> {
    let mut verdicts = Verdicts::new();
    let mut lines = csv.lines();
    if lines.next() != Some(HEADER) {
        return None;
    }
    for line in lines {
        let words: Vec<&str> = line.split(',').collect();
        let &[seed, rules, servers, throughput, p99_us, settled, moves] = words.as_slice() else {
            return None;
        };
        let number = |word: &str| word.parse::<u64>().ok();
        let list = |words: &str| words.split(' ').map(number).collect::<Option<Vec<u64>>>();
        let verdict = Verdict {
            throughput: throughput.parse().ok()?,
            p99_us: p99_us.parse().ok()?,
            settled: list(settled)?,
            moves: list(moves)?,
            servers: servers.parse().ok()?,
        };
        verdicts.entry(seed.parse().ok()?).or_default().insert(rules.to_owned(), verdict);
    }
    Some(verdicts)
}

/// Ratios with their seeds, the worst first.
struct Ratios(Vec<(f64, u64)>);

impl Ratios {
    fn new(all: impl Iterator<Item = (f64, u64)>) -> Ratios {
        let mut all: Vec<(f64, u64)> = all.collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ratios(all)
    }

    /// That part of all is at most this.
    fn at(&self, part: f64) -> f64 {
        let at = ((self.0.len() as f64 * part).ceil() as usize).max(1) - 1;
        self.0.get(at).map_or(f64::NAN, |one| one.0)
    }

    fn mean(&self) -> f64 {
        self.0.iter().map(|one| one.0).sum::<f64>() / self.0.len() as f64
    }

    fn under(&self, bound: f64) -> impl Iterator<Item = &(f64, u64)> {
        self.0.iter().take_while(move |one| one.0 < bound)
    }
}

const OFF: &str = "off";
const ORACLE: &str = "oracle";
const SINGLE: [&str; 4] = [OFF, "one", "two", "three"];

/// A figure of a rule, and what it is to be at least.
pub struct Figure {
    pub name: &'static str,
    pub value: f64,
    pub goal: f64,
    /// Below it something is broken that was not when this was written.
    pub floor: f64,
    /// Situations that are under the goal of the worst, or under half of what they may be: the worst first.
    pub losers: Vec<(u64, f64)>,
}

/// All figures of one rule.
pub fn figures(verdicts: &Verdicts, rules: &str) -> Vec<Figure> {
    let by = |other: &dyn Fn(&BTreeMap<String, Verdict>) -> Option<f64>| {
        Ratios::new(verdicts.iter().filter_map(|(seed, all)| Some((other(all)?, *seed))))
    };
    let throughput = |all: &BTreeMap<String, Verdict>, name: &str| {
        all.get(name).map(|verdict| verdict.throughput)
    };
    let of_off = by(&|all| Some(throughput(all, rules)? / throughput(all, OFF)?));
    let of_single = by(&|all| {
        let singles = SINGLE.iter().filter_map(|name| throughput(all, name));
        Some(throughput(all, rules)? / singles.fold(0.0, f64::max))
    });
    let of_oracle = by(&|all| Some(throughput(all, rules)? / throughput(all, ORACLE)?));
    let of_p99 = by(&|all| {
        let others = SINGLE.iter().chain([&rules]).filter_map(|name| all.get(*name));
        let best = others.map(|verdict| verdict.p99_us).fold(f64::INFINITY, f64::min);
        Some(best / all.get(rules)?.p99_us)
    });
    let in_time = by(&|all| {
        let settled = &all.get(rules)?.settled;
        let late = settled.iter().filter(|epochs| **epochs > JUDGED_FROM).count();
        Some(1.0 - late as f64 / settled.len() as f64)
    });
    let spare = by(&|all| {
        let (own, best) = (all.get(rules)?, all.get(ORACLE)?);
        let allowed = |best: &u64| 2 * (best + own.servers as u64);
        let over = own.moves.iter().zip(&best.moves).filter(|(own, best)| **own > allowed(best));
        Some(1.0 - over.count() as f64 / own.moves.len() as f64)
    });
    let figure = |name, value, [goal, floor]: [f64; 2], ratios: &Ratios, bound: f64| {
        let losers = ratios.under(bound).map(|(ratio, seed)| (*seed, *ratio)).collect();
        Figure { name, value, goal, floor, losers }
    };
    let none = Ratios(Vec::new());
    vec![
        figure("of off, worst", of_off.at(0.0), [0.97, 0.97], &of_off, 0.97),
        figure("of off, 1st percentile", of_off.at(0.01), [0.99, 0.95], &none, 0.0),
        figure("of off, mean", of_off.mean(), [1.0, 1.3], &none, 0.0),
        figure("of best single, worst", of_single.at(0.0), [0.85, 0.82], &of_single, 0.85),
        figure("of best single, 10th", of_single.at(0.1), [0.98, 0.95], &of_single, 0.95),
        figure("of best single, median", of_single.at(0.5), [1.0, 0.98], &none, 0.0),
        figure("of oracle, 10th", of_oracle.at(0.1), [0.85, 0.38], &of_oracle, 0.7),
        figure("of oracle, median", of_oracle.at(0.5), [0.97, 0.94], &none, 0.0),
        figure("best p99 by p99, 10th", of_p99.at(0.1), [1.0 / 1.05, 0.7], &none, 0.0),
        figure("settled in 10 epochs", in_time.mean(), [0.9, 0.74], &none, 0.0),
        figure("moves as few as told", spare.mean(), [1.0, 0.72], &none, 0.0),
    ]
}

/// A table of all rules, then those that lose of the last one.
pub fn report(verdicts: &Verdicts, rules: &[String]) -> String {
    let mut text = String::new();
    let all: Vec<Vec<Figure>> = rules.iter().map(|rules| figures(verdicts, rules)).collect();
    let names: Vec<String> = rules.iter().map(|name| format!("{name:>12}")).collect();
    let _ = writeln!(text, "{:24}{:>6}{}", "situations", verdicts.len(), names.concat());
    for (at, figure) in all.first().into_iter().flatten().enumerate() {
        let values: Vec<String> = all.iter().map(|one| format!("{:12.3}", one[at].value)).collect();
        let _ = writeln!(text, "{:24}{:>6.2}{}", figure.name, figure.goal, values.concat());
    }
    let Some(last) = rules.last() else { return text };
    for figure in all.last().into_iter().flatten().filter(|figure| !figure.losers.is_empty()) {
        let few = figure.losers.iter().take(12);
        let few: Vec<String> = few.map(|(seed, ratio)| format!("{seed} ({ratio:.2})")).collect();
        let (name, count) = (figure.name, figure.losers.len());
        let _ = writeln!(text, "{last}, {name}: {count} seeds, {}", few.join(" "));
    }
    text
}

/// Figures of a rule that are below their floors.
pub fn broken(verdicts: &Verdicts, rules: &str) -> Vec<String> {
    let low = figures(verdicts, rules).into_iter().filter(|figure| figure.value < figure.floor);
    low.map(|low| format!("{}: {:.3} is under {}", low.name, low.value, low.floor)).collect()
}

/// How far two ways of serving are apart, by rule: throughput and p99 of the one by the other's.
pub fn apart(one: &Verdicts, other: &Verdicts) -> String {
    let mut text = format!(
        "{} situations, mean values by events: p5, median, p95, the farthest (seed)\n",
        one.len()
    );
    let mut ratios: BTreeMap<(&str, &str), Vec<(f64, u64)>> = BTreeMap::new();
    for (seed, by_rules) in one {
        for (rules, verdict) in by_rules {
            let Some(other) = other.get(seed).and_then(|all| all.get(rules)) else { continue };
            let throughput = verdict.throughput / other.throughput;
            ratios.entry((rules, "throughput")).or_default().push((throughput, *seed));
            let p99 = verdict.p99_us / other.p99_us;
            ratios.entry((rules, "p99")).or_default().push((p99, *seed));
        }
    }
    for ((rules, what), ratios) in ratios {
        let ratios = Ratios::new(ratios.into_iter());
        let far = |one: &&(f64, u64)| one.0.ln().abs();
        let farthest = ratios.0.iter().max_by(|a, b| far(a).total_cmp(&far(b)));
        let (far, seed) = farthest.copied().unwrap_or_default();
        let [low, middle, high] = [0.05, 0.5, 0.95].map(|part| ratios.at(part));
        let _ =
            writeln!(text, "{rules:12} {what:10} {low:.3} {middle:.3} {high:.3} {far:.3} ({seed})");
    }
    text
}
