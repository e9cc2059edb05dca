//! `mbal-lab spore`: SPORE's figures (SoCC 2013, §5), with the product's policy of copies.

use super::costs::Costs;
use super::placement::{CopyTerms, Ways};
use super::situation::{Clients, Law, Names, Shift, Situation};
use super::sweep::{self, EPOCHS, HEADER, Line, Row, SweepArgs};
use super::trial::phases;
use crate::model::Report;

const EXAMPLES: &str = "\
  mbal-lab spore                            all figures
  mbal-lab spore 6a 7 8 --out figures       some, as CSV and plots
  mbal-lab spore 6a --clients 66 --core 1   servers of a whole core";

/// SPORE's figures in virtual time: rate against latency as clients become more.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which; without one all.
    figures: Vec<Figure>,
    #[command(flatten)]
    sweep: SweepArgs,
    /// How many clients there are, a point of each line for each number; as in the paper.
    #[arg(long, value_delimiter = ',')]
    clients: Vec<f64>,
    /// The part of a core that a server has; so much that rates are as in the paper.
    #[arg(long)]
    core: Option<f64>,
    /// Keys; as in the paper.
    #[arg(long)]
    keys: Option<u32>,
    /// Seconds of a trial; the last ten are counted.
    #[arg(long, default_value_t = EPOCHS, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    /// 99% reads: copies beside more servers, and beside an even load.
    #[value(name = "6a")]
    Six,
    /// 99% and 95% reads: asynchronous and atomic writes.
    #[value(name = "7")]
    Seven,
    /// The 500 hottest keys are a fifth read-only.
    #[value(name = "8")]
    Eight,
    /// 64 servers, reads alone.
    #[value(name = "9")]
    Nine,
    /// How many copies a key has at most.
    #[value(name = "10a")]
    TenA,
    /// How long a lease is.
    #[value(name = "10b")]
    TenB,
    /// The part of all requests that is sampled.
    Sampling,
    /// Servers look for hot keys always, not only while they are busy.
    Trigger,
    /// Which keys and servers are hot is known.
    Oracle,
}

/// What a Gumstix Overo has of a core: it serves 3,750 requests a second. A small instance of EC2 serves 46% more.
const GUMSTIX: f64 = 0.02;
const EC2: f64 = 0.029;
const SKEW: Law = Law::Zipf { exponent: 0.99 };

pub fn run(args: &Args) -> Result<(), String> {
    let report = Report::new(args.sweep.out.as_deref())?;
    let all: &[Figure] = clap::ValueEnum::value_variants();
    let figures = if args.figures.is_empty() { all } else { &args.figures };
    for figure in figures {
        let rows: Vec<String> = rows(*figure, args).iter().map(Row::csv).collect();
        report.table(&format!("spore-{}", name(*figure)), HEADER, &rows)?;
    }
    Ok(())
}

fn name(figure: Figure) -> String {
    let value = clap::ValueEnum::to_possible_value(&figure);
    value.expect("none is left out").get_name().to_owned()
}

fn rows(figure: Figure, args: &Args) -> Vec<Row> {
    let mut lines = lines(figure);
    for Line { situation, .. } in &mut lines {
        if let Some(core) = args.core {
            situation.speeds.fill(core);
        }
        situation.keys = args.keys.unwrap_or(situation.keys);
        situation.epochs = args.seconds;
    }
    let paper: &[f64] = match figure {
        Figure::Nine => &[64.0, 192.0, 384.0, 608.0, 832.0],
        _ => &[6.0, 18.0, 30.0, 42.0, 54.0, 66.0],
    };
    let clients = if args.clients.is_empty() { paper } else { &args.clients };
    sweep::run(&lines, clients, &args.sweep)
}

/// Twelve servers of the paper's testbed, one worker each.
fn testbed(servers: usize, law: Law, sets: f64) -> Situation {
    let none = Clients { smart: 0.0, ordinary: vec![0.0; servers], think: 0.0, is_open: false };
    Situation {
        seed: 0,
        servers,
        workers: 1,
        speeds: vec![GUMSTIX; servers],
        keys: 1_000_000,
        epochs: EPOCHS,
        shifts: vec![Shift { epoch: 0, law, sets, salt: 1 }],
        batch: 1,
        clients: none,
        round_trip: 1e-4,
        cachelet_bytes: 1 << 20,
        costs: Costs::MODELLED,
        names: Names::Drawn,
        quotas: None,
    }
}

fn line(panel: &str, name: &str, situation: &Situation, copies: Option<Ways>) -> Line {
    let rules = phases("", [copies.is_some(), false, false], copies.unwrap_or(Ways::ATOMIC));
    Line { panel: panel.to_owned(), name: name.to_owned(), situation: situation.clone(), rules }
}

/// Without copies, and with both kinds.
fn modes(panel: &str, situation: &Situation) -> [Line; 3] {
    [("off", None), ("async", Some(Ways::ASYNC)), ("atomic", Some(Ways::ATOMIC))]
        .map(|(name, ways)| line(panel, name, situation, ways))
}

fn percent_reads(sets: f64) -> String {
    format!("{:.0}% reads", 100.0 - 100.0 * sets)
}

fn lines(figure: Figure) -> Vec<Line> {
    let usual = testbed(12, SKEW, 0.01);
    let terms = |terms: CopyTerms| Some(Ways { terms, ..Ways::ASYNC });
    let built = CopyTerms::AS_BUILT;
    // The line as built is the last but one; without copies the last.
    let beside = |others: &[(&str, CopyTerms)]| -> Vec<Line> {
        let of = |(name, other): &(&str, CopyTerms)| line("", name, &usual, terms(*other));
        let last = [line("", "as built", &usual, Some(Ways::ASYNC)), line("", "off", &usual, None)];
        others.iter().map(of).chain(last).collect()
    };
    match figure {
        Figure::Six => {
            let even = testbed(12, Law::Zipf { exponent: 0.0 }, 0.01);
            let more = line("", "16 servers off", &testbed(16, SKEW, 0.01), None);
            modes("", &usual).into_iter().chain([more, line("", "even", &even, None)]).collect()
        }
        Figure::Seven => [0.01, 0.05]
            .iter()
            .flat_map(|sets| modes(&percent_reads(*sets), &testbed(12, SKEW, *sets)))
            .collect(),
        Figure::Eight => [0.5, 0.3, 0.1]
            .iter()
            .flat_map(|sets| {
                let law = Law::PartlyReadOnly { exponent: 0.99 };
                modes(&percent_reads(*sets), &testbed(12, law, *sets))
            })
            .collect(),
        Figure::Nine => {
            let large = |law| Situation {
                speeds: vec![EC2; 64],
                keys: 10_000_000,
                ..testbed(64, law, 0.0)
            };
            let even = line("", "even", &large(Law::Zipf { exponent: 0.0 }), None);
            modes("", &large(SKEW)).into_iter().chain([even]).collect()
        }
        Figure::TenA => [0.0, 0.05]
            .iter()
            .flat_map(|sets| {
                let (panel, situation) = (percent_reads(*sets), testbed(12, SKEW, *sets));
                [0, 1, 2, 3, built.gamma].map(|gamma| {
                    let name = match gamma {
                        gamma if gamma == built.gamma => "as built".to_owned(),
                        _ => format!("γ at most {gamma}"),
                    };
                    line(&panel, &name, &situation, terms(CopyTerms { gamma, ..built }))
                })
            })
            .collect(),
        Figure::TenB => beside(&[
            ("2 s", CopyTerms { lease: 2.0, ..built }),
            ("5 s", CopyTerms { lease: 5.0, ..built }),
            ("10 s", CopyTerms { lease: 10.0, ..built }),
        ]),
        Figure::Sampling => beside(&[
            ("3%", CopyTerms { sampled: 0.03, ..built }),
            ("100%", CopyTerms { sampled: 1.0, ..built }),
            ("100% always", CopyTerms { sampled: 1.0, hotspot: 0.0, ..built }),
        ]),
        Figure::Trigger => beside(&[("always", CopyTerms { hotspot: 0.0, ..built })]),
        Figure::Oracle => beside(&[("oracle", CopyTerms { is_known: true, ..built })]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_ROUND: SweepArgs = SweepArgs { rounds: 1, jobs: None, out: None };

    /// Of few keys, with so many clients, in one round.
    fn short(figure: Figure, clients: f64) -> Vec<Row> {
        let args = Args {
            figures: vec![],
            sweep: ONE_ROUND,
            clients: vec![clients],
            core: None,
            keys: Some(20_000),
            seconds: EPOCHS,
        };
        rows(figure, &args)
    }

    fn row<'r>(rows: &'r [Row], panel: &str, name: &str) -> &'r Row {
        let row = rows.iter().find(|row| row.panel == panel && row.name == name);
        row.unwrap_or_else(|| panic!("no line {name}"))
    }

    #[test]
    fn async_is_ahead_of_atomic_and_atomic_of_off() {
        let rows = short(Figure::Seven, 66.0);
        for panel in ["99% reads", "95% reads"] {
            let [off, open, atomic] =
                ["off", "async", "atomic"].map(|name| row(&rows, panel, name).throughput());
            println!("{panel}: {off:.0} {atomic:.0} {open:.0}");
            assert!(0.99 * off <= atomic && 0.99 * atomic <= open, "{panel}");
            assert!(1.1 * off < open, "{panel}: copies help");
        }
    }

    #[test]
    fn twelve_servers_with_copies_are_between_none_and_an_even_load() {
        let rows = short(Figure::Six, 66.0);
        let [off, open, even] =
            ["off", "async", "even"].map(|name| row(&rows, "", name).throughput());
        assert!(1.1 * off < open && open < 1.05 * even, "{off} {open} {even}");
    }

    #[test]
    fn a_key_has_as_many_copies_as_gamma_allows() {
        let rows = short(Figure::TenA, 66.0);
        let copies = |name| row(&rows, "100% reads", name).mean(|point| point.copies);
        let [none, one, two, built] =
            ["γ at most 0", "γ at most 1", "γ at most 2", "as built"].map(copies);
        assert!(none == 0.0 && one < two && two <= built, "{none} {one} {two} {built}");
    }

    #[test]
    fn longer_leases_leave_more_to_copies() {
        let busiest = |lease: f64| {
            let terms = CopyTerms { lease, ..CopyTerms::AS_BUILT };
            let mut situation = testbed(12, SKEW, 0.0);
            situation.keys = 20_000;
            let line = line("", "", &situation, Some(Ways { terms, ..Ways::ASYNC }));
            sweep::run(&[line], &[66.0], &ONE_ROUND)[0].mean(|point| point.busiest)
        };
        let [none, long] = [0.0, 10.0].map(busiest);
        assert!(
            1.2 * long < none,
            "the busiest server of the average: {none} without leases, {long}"
        );
    }

    #[test]
    fn a_sample_of_every_request_is_felt_and_one_of_fifty_is_not() {
        let rows = short(Figure::Sampling, 1.0);
        let p50 = |name| row(&rows, "", name).mean(|point| point.latency.of_reads(0.5));
        let [off, built, all] = ["off", "as built", "100% always"].map(p50);
        assert!((built / off - 1.0).abs() < 0.01, "{built} {off}");
        assert!((1.02..1.1).contains(&(all / off)), "{all} {off}");
    }

    #[test]
    fn without_a_trigger_idle_servers_copy_too() {
        let rows = short(Figure::Trigger, 1.0);
        let copies = |name| row(&rows, "", name).mean(|point| point.copies);
        assert_eq!(copies("as built"), 0.0);
        assert!(copies("always") > 0.0);
    }

    #[test]
    fn what_is_sampled_is_as_good_as_what_is_known() {
        let rows = short(Figure::Oracle, 66.0);
        let rate = |name| row(&rows, "", name).throughput();
        assert!(rate("as built") > 0.9 * rate("oracle"), "{} {}", rate("as built"), rate("oracle"));
    }

    #[test]
    fn sixty_four_servers_gain_more() {
        let mut lines = lines(Figure::Nine);
        lines.truncate(2);
        lines.iter_mut().for_each(|line| line.situation.keys = 20_000);
        let rows = sweep::run(&lines, &[832.0], &ONE_ROUND);
        assert!(rows[1].throughput() > 1.3 * rows[0].throughput());
    }
}
