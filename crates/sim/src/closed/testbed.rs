//! `mbal-lab closed --testbed`: situations that a few processes on one machine can play, as flags of `mbal bench`, and what the loop says of
//! them. `crates/bench/scripts/situations` plays them.

use super::brains::{Allowed, Brains};
use super::costs::Quotas;
use super::demand::ONE_WORKERS_KEYS;
use super::placement::Ways;
use super::situation::{Clients, Law, Names, Shift, Situation};
use super::trial::{JUDGED_FROM, Rules, Trial, World};

const SERVERS_MAX: usize = 4;
const WORKERS_MAX: usize = 2;
/// Of each worker: fewer leave it without work while others are held back, more are too much for one client's process.
const CLIENTS_MIN: f64 = 8.0;
const CLIENTS_MAX: f64 = 32.0;
const KEY_BYTES: usize = 16;
/// A key, a value of 32 bytes, and what the store needs.
const ITEM_BYTES: f64 = 100.0;

#[derive(clap::Args, Clone, Copy, Debug)]
pub struct TestbedArgs {
    /// Those alone that fit on one machine, with all workers together as fast as so many cores; as CSV, with flags of `mbal bench`.
    #[arg(long, value_name = "CORES", conflicts_with_all = ["check", "floors", "out", "against"])]
    testbed: Option<f64>,
    /// Seconds of each of them.
    #[arg(long, default_value_t = 30, requires = "testbed")]
    seconds: u64,
    /// Microseconds between two of its processes and back.
    #[arg(long, value_name = "US", default_value_t = 100.0, requires = "testbed")]
    trip_us: f64,
    /// By events, with quotas of so many milliseconds at a time, as control groups keep them; else cores are slower.
    #[arg(long, value_name = "MS", requires = "testbed")]
    quota_ms: Option<f64>,
}

impl TestbedArgs {
    pub fn is_asked_for(&self) -> bool {
        self.testbed.is_some()
    }

    /// The nearest that processes can play; none if there is nothing near.
    fn played(&self, drawn: Situation) -> Option<Situation> {
        let shift = *drawn.shifts.first()?;
        let Clients { smart, ordinary, .. } = drawn.clients;
        let count = smart + ordinary.iter().sum::<f64>();
        // Ordinary clients do not know whose keys are hot.
        let law = match shift.law {
            Law::OneWorker { .. } if smart < count => return None,
            Law::Zipf { .. } | Law::HotSet { .. } | Law::OneWorker { .. } => shift.law,
            Law::OneKey { share, .. } => Law::OneKey { share, exponent: 0.0, sets: shift.sets },
            Law::PartlyReadOnly { .. } | Law::OneCachelet { .. } => return None,
        };
        if drawn.servers > SERVERS_MAX || drawn.workers > WORKERS_MAX {
            return None;
        }
        let workers = (drawn.servers * drawn.workers) as f64;
        let wanted = count.clamp(CLIENTS_MIN * workers, CLIENTS_MAX * workers);
        // Sets leave one by one, and clients that are connected to a server are spread over its workers.
        let sets = if drawn.batch > 1 { 0.0 } else { shift.sets };
        let by_server: Vec<f64> = ordinary
            .chunks(drawn.workers)
            .map(|own| (own.iter().sum::<f64>() * wanted / count).round())
            .collect();
        let own = |at: usize| by_server[at / drawn.workers] / drawn.workers as f64;
        let speed = self.testbed? / drawn.speeds.iter().sum::<f64>();
        let law = match law {
            Law::OneKey { share, exponent, .. } => Law::OneKey { share, exponent, sets },
            law => law,
        };
        let mut played = Situation {
            speeds: drawn.speeds.iter().map(|one| one * speed).collect(),
            epochs: self.seconds,
            shifts: vec![Shift { law, sets, ..shift }],
            clients: Clients {
                smart: (smart * wanted / count).round(),
                ordinary: (0..ordinary.len()).map(own).collect(),
                think: 0.0,
                is_open: false,
            },
            round_trip: self.trip_us / 1e6,
            names: Names::Bench { bytes: KEY_BYTES },
            quotas: self.quota_ms.map(|ms| Quotas { slice: ms / 1e3, ..Quotas::LEAST }),
            ..drawn
        };
        let map = Brains::new(&played, Allowed::default(), Ways::ATOMIC).map();
        played.cachelet_bytes = (f64::from(played.keys) * ITEM_BYTES / map.len() as f64) as u64;
        Some(played)
    }
}

/// What asks for it, but for how many clients there are.
fn flags(situation: &Situation) -> String {
    let shift = &situation.shifts[0];
    let keys = f64::from(situation.keys);
    // So many hot keys as there are here, however the part is rounded.
    let percent = |part: f64| 100.0 * ((keys * part).ceil() + 0.5) / keys;
    let law = match shift.law {
        Law::HotSet { keys, share } => format!("--hotspot {}:{}", 100.0 * share, percent(keys)),
        Law::OneKey { share, .. } => format!("--hotspot {}:{}", 100.0 * share, percent(1.0 / keys)),
        Law::OneWorker { share } => {
            let workers = situation.all_workers();
            let hot = shift.hot_one_of(workers);
            let part = percent(ONE_WORKERS_KEYS);
            format!("--hotspot {}:{part} --hot-worker {hot}/{workers}", 100.0 * share)
        }
        Law::Zipf { exponent } | Law::PartlyReadOnly { exponent } => format!("--zipf {exponent}"),
        Law::OneCachelet { .. } => String::new(),
    };
    format!(
        "--keys {} --key-bytes {KEY_BYTES} --value-bytes 32 {law} --set-share {} --multi-get {}",
        situation.keys, shift.sets, situation.batch
    )
}

/// Those of the drawn ones that can be played, so many at most, a line each.
pub fn print(
    args: &TestbedArgs,
    drawn: impl Iterator<Item = Situation>,
    count: usize,
    rules: &[&Rules],
    by_events: bool,
    tells: bool,
) {
    let by_events = by_events || args.quota_ms.is_some();
    let names = rules.iter().map(|one| format!(",{0}_per_second,{0}_busiest,{0}_us", one.name));
    println!("seed,servers,workers,speeds,smart,ordinary,flags,told{}", names.collect::<String>());
    for situation in drawn.filter_map(|one| args.played(one)).take(count) {
        let world = World::of(situation);
        let came = rules.iter().map(|rules| came(&world.run(rules, by_events, tells)));
        let came: String = came.collect();
        println!("{}{came}", row(&world.situation));
    }
}

fn row(situation: &Situation) -> String {
    let list = |all: &[f64]| all.iter().map(f64::to_string).collect::<Vec<_>>().join(" ");
    let Situation { seed, servers, workers, speeds, clients, .. } = situation;
    let ordinary: Vec<f64> =
        clients.ordinary.chunks(*workers).map(|own| own.iter().sum()).collect();
    format!(
        "{seed},{servers},{workers},{},{},{},{},{}",
        list(speeds),
        clients.smart,
        list(&ordinary),
        flags(situation),
        situation.told().replace(',', ";"),
    )
}

/// Keys a second, the busiest worker's part of the work, and microseconds of a core for each key.
fn came(trial: &Trial) -> String {
    let Trial { throughput, busiest_part, work, .. } = trial;
    let [keys, busiest, work] = [throughput, busiest_part, work].map(|all| {
        let judged = &all[JUDGED_FROM as usize..];
        judged.iter().sum::<f64>() / judged.len() as f64
    });
    format!(",{keys:.0},{busiest:.4},{:.3}", 1e6 * work / keys)
}

#[cfg(test)]
mod tests {
    use super::super::costs::Costs;
    use super::*;

    #[test]
    fn what_is_played_fits_on_the_testbed_and_has_as_many_hot_keys() {
        let args = TestbedArgs { testbed: Some(0.8), seconds: 30, trip_us: 100.0, quota_ms: None };
        let drawn = (1..=300).map(|seed| Situation::draw(seed, Costs::MODELLED));
        let played: Vec<Situation> = drawn.filter_map(|one| args.played(one)).collect();
        assert!(played.len() >= 10, "{}", played.len());
        let mut hot_sets = 0;
        for one in &played {
            assert!(one.servers <= SERVERS_MAX && one.workers <= WORKERS_MAX, "{one:?}");
            assert!((one.speeds.iter().sum::<f64>() - 0.8).abs() < 1e-9, "{one:?}");
            let clients = one.clients.smart + one.clients.ordinary.iter().sum::<f64>();
            let most = CLIENTS_MAX * one.all_workers() as f64 + one.servers as f64;
            assert!(clients <= most, "{one:?}");
            let Law::HotSet { keys, .. } = one.shifts[0].law else { continue };
            // As `mbal bench` reads it: OPS:KEYS, and rounds down.
            let flags = flags(one);
            let hotspot = flags.split(' ').skip_while(|word| *word != "--hotspot").nth(1);
            let percent = hotspot.and_then(|word| word.split_once(':')?.1.parse::<f64>().ok());
            let hot = f64::from(one.keys) * percent.expect("a hot set has a part") / 100.0;
            assert_eq!(hot.floor(), (f64::from(one.keys) * keys).ceil(), "{flags}");
            hot_sets += 1;
        }
        assert!(hot_sets > 0);
    }
}
