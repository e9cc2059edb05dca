//! The autoscalers on diurnal demand (`demand/mod.rs`), in a modelled cluster of LRU caches.
//!
//!     cargo run --release -p mbal-elastic --example autoscale [PEAKS]
//!
//! Every minute the policy reads the last minute's rate and the sampled curve; what it wishes is
//! done two minutes later, warm: retiring servers are chosen by score, and what travels by
//! FuseCache. Of each seed's two days the first teaches and is not judged. Compared with the fewest
//! servers that hold p_min without scaling in as many minutes. Some five minutes, or two with
//! PEAKS, the peaks of each seed as an earlier run found them, which no policy changes. Writes `docs/results/deciders/autoscale.csv` and
//! `autoscale-minutes.csv` (what was predicted beside what happened).

mod demand;
#[path = "../../sketch/examples/support/mod.rs"]
mod support;

use demand::{KEYS, MINUTES_PER_DAY, RATE_DB};
use mbal_elastic::{
    Age, Autoscaler, ClassAge, Demand, Forecast, Inventory, Predictive, Reactive, ScalingConfig,
    SizeClass, choose_retiring, hit_ratio_min, plan_transfer,
};
use mbal_model::ServerId;
use mbal_sketch::{Random, StackDistances, mix};
use std::fmt::Write;
use support::wikipedia::{Ranks, Shape};

const DAYS: usize = 2;
const ITEMS_PER_SERVER: usize = 10_000;
const SERVERS_MOST: usize = 24;
/// What migration takes (ElMem, ICDCS 2018, §V.B.2).
const MIGRATION_MINUTES: usize = 2;
/// Key, header and the mean of the values' sizes.
const ITEM_BYTES: u64 = 330;
/// Headroom and patience were tuned on the first seed; the others, which no policy had seen, judge them.
const SEEDS: [u64; 4] = [1, 2, 3, 4];
const REACTIVE: Tuning = Tuning { policy: "reactive", headroom: 1.25, patience_minutes: 30 };
/// Who foresees the next minutes need not wait as long for a rate to come back.
const PREDICTIVE: Tuning = Tuning { policy: "predictive", headroom: 1.25, patience_minutes: 10 };
const HEADROOMS_TRIED: [f64; 4] = [1.0, 1.25, 1.5, 2.0];
const PATIENCES_TRIED: [usize; 3] = [5, 10, 30];
const LEAD_MINUTES: usize = 15;

#[derive(Clone, Copy, PartialEq)]
struct Tuning {
    policy: &'static str,
    headroom: f64,
    patience_minutes: usize,
}

impl Tuning {
    fn tried() -> Vec<Tuning> {
        let reactive = HEADROOMS_TRIED.map(|headroom| Tuning { headroom, ..REACTIVE });
        let predictive =
            PATIENCES_TRIED.map(|patience_minutes| Tuning { patience_minutes, ..PREDICTIVE });
        reactive.into_iter().chain(predictive).collect()
    }

    fn scaler(&self) -> Box<dyn Autoscaler> {
        let config = ScalingConfig {
            rate_db: RATE_DB,
            server_bytes: ITEMS_PER_SERVER as u64 * ITEM_BYTES,
            servers_least: 1,
            servers_most: SERVERS_MOST,
            headroom: self.headroom,
            patience_minutes: self.patience_minutes,
        };
        match self.policy {
            "reactive" => Box::new(Reactive::new(config)),
            _ => Box::new(Predictive::new(config, LEAD_MINUTES)),
        }
    }
}

/// One size class, so a server's memory is a number of items; a list by last access.
#[derive(Clone, Default)]
struct Server {
    id: u16,
    live: usize,
    newest: u32,
    oldest: u32,
}

struct Cluster {
    servers: Vec<Server>,
    home: Vec<u16>,
    /// By key: its neighbours in its server's list, and when it was last asked for; 0 is absent.
    newer: Vec<u32>,
    older: Vec<u32>,
    last: Vec<u32>,
    now: u32,
}

const NONE: u32 = u32::MAX;

impl Cluster {
    fn new(servers: usize) -> Cluster {
        let mut cluster = Cluster {
            servers: (0..servers as u16).map(Server::new).collect(),
            home: vec![0; KEYS],
            newer: vec![NONE; KEYS],
            older: vec![NONE; KEYS],
            last: vec![0; KEYS],
            now: 0,
        };
        cluster.place();
        cluster
    }

    // Rendezvous: the server whose mix with the key is largest, by its place in `servers`.
    fn place(&mut self) {
        for (key, home) in self.home.iter_mut().enumerate() {
            let weight = |server: &Server| mix(mix(key as u64) ^ u64::from(server.id) << 40);
            *home = (0..self.servers.len())
                .max_by_key(|&at| weight(&self.servers[at]))
                .expect("a cluster has servers") as u16;
        }
    }

    fn get(&mut self, key: usize) -> bool {
        self.now += 1;
        let hit = self.last[key] != 0;
        if hit {
            self.unlink(key);
        }
        let home = self.home[key] as usize;
        self.last[key] = self.now;
        self.link_newest(home, key as u32);
        if self.servers[home].live > ITEMS_PER_SERVER {
            let victim = self.servers[home].oldest as usize;
            self.unlink(victim);
            self.last[victim] = 0;
        }
        hit
    }

    fn link_newest(&mut self, home: usize, key: u32) {
        let server = &mut self.servers[home];
        let before = std::mem::replace(&mut server.newest, key);
        (self.newer[key as usize], self.older[key as usize]) = (NONE, before);
        match before {
            NONE => server.oldest = key,
            before => self.newer[before as usize] = key,
        }
        server.live += 1;
    }

    fn unlink(&mut self, key: usize) {
        let server = &mut self.servers[self.home[key] as usize];
        let (newer, older) = (self.newer[key], self.older[key]);
        match newer {
            NONE => server.newest = older,
            newer => self.older[newer as usize] = older,
        }
        match older {
            NONE => server.oldest = newer,
            older => self.newer[older as usize] = newer,
        }
        server.live -= 1;
    }

    // Keys of a server, youngest first.
    fn keys_of(&self, server: &Server) -> Vec<u32> {
        std::iter::successors((server.newest != NONE).then_some(server.newest), |&key| {
            let older = self.older[key as usize];
            (older != NONE).then_some(older)
        })
        .collect()
    }

    fn age(&self, key: u32) -> Age {
        self.now - self.last[key as usize]
    }

    /// Scales warm: after the plan, what is at its destination lives on, everything else is gone.
    fn scale(&mut self, wanted: usize) {
        let lists: Vec<Vec<u32>> = self.servers.iter().map(|server| self.keys_of(server)).collect();
        let before: Vec<u16> = self.servers.iter().map(|server| server.id).collect();
        let mut ids = before.clone();
        if wanted < ids.len() {
            let scores: Vec<(ServerId, Vec<ClassAge>)> = lists
                .iter()
                .zip(&before)
                .map(|(keys, &id)| {
                    let median_age =
                        keys.get(keys.len() / 2).map_or(Age::MAX, |&key| self.age(key));
                    (ServerId(id), vec![ClassAge { memory_share: 1.0, median_age }])
                })
                .collect();
            let retiring = choose_retiring(&scores, before.len() - wanted);
            ids.retain(|&id| !retiring.contains(&ServerId(id)));
        } else {
            let unused = (0..u16::MAX).filter(|id| !before.contains(id));
            ids.extend(unused.take(wanted - before.len()));
        }
        self.servers = ids.iter().map(|&id| Server::new(id)).collect();
        self.place();

        // lists[source] split by destination, each still sorted by age.
        let mut split = vec![vec![Vec::new(); ids.len()]; lists.len()];
        for (keys, by_destination) in lists.iter().zip(&mut split) {
            for &key in keys {
                by_destination[self.home[key as usize] as usize].push(key);
            }
        }
        let mut kept: Vec<Vec<u32>> = Vec::new();
        for (destination, &id) in ids.iter().enumerate() {
            let own_at = before.iter().position(|&other| other == id);
            let ages_from = |source: usize| -> Vec<Age> {
                split[source][destination].iter().map(|&key| self.age(key)).collect()
            };
            let own = own_at.map_or(Vec::new(), ages_from);
            let sources: Vec<usize> = (0..lists.len()).filter(|&at| Some(at) != own_at).collect();
            let arriving: Vec<Vec<Age>> = sources.iter().map(|&source| ages_from(source)).collect();
            let transfer = plan_transfer(&Inventory {
                destination: ServerId(id),
                class: SizeClass(0),
                room: ITEMS_PER_SERVER,
                own: &own,
                arriving: sources
                    .iter()
                    .map(|&source| ServerId(before[source]))
                    .zip(arriving.iter().map(Vec::as_slice))
                    .collect(),
            });
            let mut keys: Vec<u32> = own_at
                .map_or(Vec::new(), |at| split[at][destination][..transfer.own_kept].to_vec());
            for (&source, (_, pick)) in sources.iter().zip(&transfer.carried) {
                keys.extend(&split[source][destination][..pick.items]);
            }
            keys.sort_unstable_by_key(|&key| self.last[key as usize]);
            kept.push(keys);
        }
        let last = std::mem::replace(&mut self.last, vec![0; KEYS]);
        for (destination, keys) in kept.into_iter().enumerate() {
            for key in keys {
                self.last[key as usize] = last[key as usize];
                self.link_newest(destination, key);
            }
        }
    }
}

impl Server {
    fn new(id: u16) -> Server {
        Server { id, live: 0, newest: NONE, oldest: NONE }
    }
}

#[derive(Default)]
struct Outcome {
    minutes: usize,
    held: usize,
    server_minutes: usize,
    scalings: usize,
    /// |what the curve of the minutes before promised for the servers in use − what then happened|.
    expectation_error: f64,
    rows: String,
}

/// `None` for the scaler: as many servers as at the start, for all the time.
fn run(seed: u64, start: usize, mut scaler: Option<&mut dyn Autoscaler>, ranks: &Ranks) -> Outcome {
    let rates = demand::rates(DAYS, seed);
    let mut bits = Random::new(seed + 99);
    let mut key_of_rank: Vec<u32> = (0..KEYS as u32).collect();
    let mut cluster = Cluster::new(start);
    let mut distances = StackDistances::new(16_384);
    let mut due: Option<(usize, usize)> = None;
    let mut outcome = Outcome::default();
    let mut forecast = Forecast::of(distances.by_bytes());
    for (minute, &rate) in rates.iter().enumerate() {
        let requests = (rate * 60.0) as usize;
        let mut hits = 0;
        for _ in 0..requests {
            let key = key_of_rank[ranks.draw(&mut bits) - 1] as usize;
            hits += usize::from(cluster.get(key));
            if scaler.is_some() {
                distances.observe(mix(key as u64), ITEM_BYTES as u32);
            }
        }
        for _ in 0..demand::SWAPS_PER_MINUTE {
            let (one, other) = (bits.word() as usize % KEYS, bits.word() as usize % KEYS);
            key_of_rank.swap(one, other);
        }
        let servers = cluster.servers.len();
        let (hit_ratio, needed) = (hits as f64 / requests as f64, hit_ratio_min(rate, RATE_DB));
        let bytes = (servers * ITEMS_PER_SERVER) as u64 * ITEM_BYTES;
        // By what was known before this minute.
        let expected = forecast.hit_ratio(bytes);
        forecast = Forecast::of(distances.by_bytes());
        if minute >= MINUTES_PER_DAY {
            outcome.minutes += 1;
            outcome.held += usize::from(hit_ratio >= needed);
            outcome.server_minutes += servers;
            outcome.expectation_error += (expected - hit_ratio).abs();
            // Too few servers: the rest would not change that.
            if scaler.is_none() && outcome.minutes - outcome.held > MINUTES_PER_DAY / 100 {
                break;
            }
        }
        if let Some(scaler) = scaler.as_mut() {
            let wish = scaler.decide(&Demand { minute, rate, forecast: &forecast, servers });
            if let Some((_, wanted)) = due.filter(|&(at, _)| minute >= at) {
                cluster.scale(wanted);
                outcome.scalings += 1;
                due = None;
            }
            if due.is_none() && wish.servers != cluster.servers.len() {
                due = Some((minute + MIGRATION_MINUTES, wish.servers));
            }
            writeln!(
                outcome.rows,
                "{minute},{rate:.1},{needed:.4},{expected:.4},{hit_ratio:.4},{servers},{},{:.4}",
                wish.servers, wish.hit_ratio_expected
            )
            .expect("a string grows");
        }
        distances.fade(0.98);
    }
    outcome
}

fn main() {
    let ranks = Shape { exponent: demand::ZIPF_EXPONENT, keys: KEYS }.ranks();
    let mut rows = String::from(
        "seed,policy,headroom,patience,held_share,servers_mean,peak_servers,saved,scalings,mean_error\n",
    );
    let mut minutes = String::new();
    for seed in SEEDS {
        let known = std::env::args().nth(1 + (seed - SEEDS[0]) as usize);
        let holds = |servers: usize| {
            let outcome = run(seed, servers, None, &ranks);
            outcome.held as f64 >= 0.99 * MINUTES_PER_DAY as f64
        };
        let known = known.map(|peak| peak.parse::<usize>().expect("a number of servers"));
        let (mut too_few, mut peak) = known.map_or((0, SERVERS_MOST), |peak| (peak - 1, peak));
        while peak - too_few > 1 {
            let middle = usize::midpoint(too_few, peak);
            if holds(middle) { peak = middle } else { too_few = middle }
        }
        let tunings = if seed == SEEDS[0] { Tuning::tried() } else { vec![REACTIVE, PREDICTIVE] };
        for tuning in tunings {
            let outcome = run(seed, peak, Some(&mut *tuning.scaler()), &ranks);
            let mean = outcome.server_minutes as f64 / outcome.minutes as f64;
            let Tuning { policy, headroom, patience_minutes } = tuning;
            writeln!(
                rows,
                "{seed},{policy},{headroom},{patience_minutes},{:.4},{mean:.2},{peak},{:.3},{},{:.4}",
                outcome.held as f64 / outcome.minutes as f64,
                1.0 - mean / peak as f64,
                outcome.scalings,
                outcome.expectation_error / outcome.minutes as f64,
            )
            .expect("a string grows");
            eprint!("{}", rows.lines().last().expect("a row was written").to_owned() + "\n");
            if seed == SEEDS[0] && [REACTIVE, PREDICTIVE].contains(&tuning) {
                for line in outcome.rows.lines() {
                    writeln!(minutes, "{policy},{line}").expect("a string grows");
                }
            }
        }
    }
    print!("{rows}");
    support::write_result("autoscale.csv", &rows);
    let header = "policy,minute,rate,p_min,predicted,observed,servers,wished,wish_predicted\n";
    support::write_result("autoscale-minutes.csv", &(header.to_owned() + &minutes));
}
