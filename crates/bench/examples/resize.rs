//! What a smaller cluster still finds: four stores become three, and the items that travel are chosen in several ways.
//!
//!     cargo run --release -p mbal-bench --example resize [-- --mib 16 --rounds 3 --out resize.csv]
//!
//! One thread does all: a cache is asked for keys by Zipf's law, and filled with what it misses, until each store is full and has
//! evicted as much again. Then one store gives its cachelets to the others, which go on. Compared are:
//!
//! - `four`: nobody retires;
//! - `lost`: what the store has is lost;
//! - `all`: everything travels, and policy says what goes;
//! - `chosen`: by `mbal_elastic::plan_for`, from the ages that stores tell; the others make room by their age thresholds.
//!
//! `at once` is the probability that the next request finds its item, of those that the stores have at that moment; `best` the highest
//! that the same bytes could have, of all items of the four stores; `by age` of the youngest ones, by exact ages. `after` is the hit ratio of the next requests,
//! as many as there are items.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use clap::Parser;
use mbal_bench::Random;
use mbal_cachelet::{
    AgeThresholds, Arriving, Birth, Crowded, Cursor, Draft, Due, ImportStep, Memory, Options, Part,
    Store,
};
use mbal_elastic::{ClassSample, Resize, ServerSample, SizeClass, plan_for};
use mbal_model::{Elsewhere, Key, MoveId, Prefix, ServerId, WorkerId};

#[derive(Parser)]
struct Args {
    /// Memory of each store.
    #[arg(long, default_value_t = 16)]
    mib: usize,
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Figures as CSV.
    #[arg(long)]
    out: Option<PathBuf>,
}

const STORES: usize = 4;
const RETIRES: usize = STORES - 1;
const BITS: u32 = 6;
const WORKER: WorkerId = WorkerId(0);
/// Of the cluster, in a second.
const REQUESTS_PER_SECOND: u64 = 20_000;
const EXPONENTS: [f64; 3] = [0.7, 0.9, 1.1];
const AGES_MOST: usize = 8_192;
const PART_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Four,
    Lost,
    All,
    Chosen,
}

const WAYS: [Way; 4] = [Way::Four, Way::Lost, Way::All, Way::Chosen];

/// Ranks by Zipf's law.
struct Zipf {
    up_to: Vec<f64>,
}

impl Zipf {
    fn new(keys: usize, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let weights = (1..=keys).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        let up_to: Vec<f64> = weights.collect();
        Zipf { up_to: up_to.iter().map(|part| part / sum).collect() }
    }

    fn draw(&self, bits: &mut Random) -> usize {
        let at = bits.unit();
        self.up_to.partition_point(|part| *part < at).min(self.up_to.len() - 1)
    }

    fn probability(&self, rank: usize) -> f64 {
        self.up_to[rank] - if rank == 0 { 0.0 } else { self.up_to[rank - 1] }
    }
}

struct Cluster {
    stores: Vec<Store>,
    owners: Vec<usize>,
    requests: u64,
}

fn name(rank: usize) -> String {
    format!("key:{rank}")
}

/// From 40 to 400 bytes, by key.
fn value_bytes(rank: usize) -> usize {
    40 + (rank * 7_919) % 361
}

impl Cluster {
    fn new(mib: usize) -> Cluster {
        let options = Options {
            memory_bytes: mib << 20,
            workers: 1,
            cachelets: 16,
            item_bytes_max: 1 << 20,
            evict: true,
            generation: 1,
        };
        let store = |_| {
            let memory = Memory::heap(options.memory_bytes);
            Store::vacant(options.clone(), memory).expect("memory")
        };
        let stores: Vec<Store> = (0..STORES).map(store).collect();
        let owners: Vec<usize> = (0..1 << BITS).map(|at| at % STORES).collect();
        for (prefix, owner) in Prefix::equal(BITS).zip(&owners) {
            assert!(stores[*owner].adopt(prefix, WORKER, Birth::default()), "a new one");
        }
        Cluster { stores, owners, requests: 0 }
    }

    fn now(&self) -> u32 {
        2 + (self.requests / REQUESTS_PER_SECOND) as u32
    }

    fn owner(&self, hash: u64) -> usize {
        self.owners[(hash >> (64 - BITS)) as usize]
    }

    /// True if it is there; else it is filled.
    fn ask(&mut self, rank: usize) -> bool {
        self.requests += 1;
        let (text, now) = (name(rank), self.now());
        let key = Key::new(text.as_bytes()).expect("short");
        let store = &self.stores[self.owner(key.hash())];
        store.enter(WORKER);
        let mut locked = store.lock(key.hash(), now);
        let found = locked.find(&key);
        let hit = found.is_some();
        if let Some(found) = found {
            locked.accessed(&found);
        } else {
            drop(locked);
            let bytes = value_bytes(rank);
            // Without room it is not stored, and missed again.
            let _room = store.reserve_at_once(WORKER, key.hash(), bytes, now);
            let value = vec![b'v'; bytes];
            let draft = Draft { parts: &[&value], ..Draft::default() };
            let _stored = store.lock(key.hash(), now).put(&key, &draft);
        }
        store.leave(WORKER);
        hit
    }

    /// Rank, second of the last access, bytes of every item.
    fn items_of(&self, stores: &[Store]) -> Vec<(usize, u32, usize)> {
        let mut all = Vec::new();
        for store in stores {
            store.enter(WORKER);
            let mut next = Some(0);
            while let Some(from) = next {
                (next, _) =
                    store.walk(from, self.now(), mbal_cachelet::Dead::PassOver, 0, |view| {
                        let text = std::str::from_utf8(view.key()).expect("digits");
                        let rank: usize = text[4..].parse().expect("a rank");
                        all.push((rank, view.meta().last_access, value_bytes(rank) + text.len()));
                    });
            }
            store.leave(WORKER);
        }
        all
    }

    fn samples(&self) -> Vec<ServerSample> {
        let sample =
            |(at, store): (usize, &Store)| {
                let ages = store.ages(self.now(), self.now(), AGES_MOST);
                let classes = ages.into_iter().enumerate().filter(|(_, ages)| ages.items > 0);
                let class = |(class, mbal_cachelet::ClassAges { items, bytes, ages })| {
                    ClassSample { class: SizeClass(class as u8), items, bytes, ages }
                };
                let used_bytes = store.stats().used_bytes;
                let memory_bytes = store.options().memory_bytes as u64;
                let classes = classes.map(class).collect();
                ServerSample { server: ServerId(at as u16), memory_bytes, used_bytes, classes }
            };
        self.stores.iter().enumerate().map(sample).collect()
    }

    fn resize(&mut self, way: Way) {
        let plan = match way {
            Way::Four => return,
            Way::Lost | Way::All => Resize::default(),
            Way::Chosen => plan_for(&self.samples(), &[ServerId(RETIRES as u16)]),
        };
        let at = self.now();
        let mut age_thresholds = BTreeMap::new();
        for cut in plan.cuts.iter().filter(|_| way == Way::Chosen) {
            let of_it = age_thresholds
                .entry(usize::from(cut.destination.0))
                .or_insert((AgeThresholds::at(at), AgeThresholds::at(at)));
            let class = usize::from(cut.class.0);
            of_it.0.younger_than(class, cut.own.younger_than, cut.own.tied);
            let carried = cut.carried[0].1;
            of_it.1.younger_than(class, carried.younger_than, carried.tied);
        }
        for (to, (own, _)) in &age_thresholds {
            self.stores[*to].keep(*own);
        }
        let mut turn = 0;
        for (place, prefix) in Prefix::equal(BITS).enumerate() {
            if self.owners[place] != RETIRES {
                continue;
            }
            let to = turn % RETIRES;
            turn += 1;
            let chosen = age_thresholds.get(&to).map(|(_, carried)| *carried);
            self.travel(prefix, to, way, chosen);
            self.owners[place] = to;
        }
    }

    fn travel(&self, prefix: Prefix, to: usize, way: Way, chosen: Option<AgeThresholds>) {
        let (source, target, now) = (&self.stores[RETIRES], &self.stores[to], self.now());
        if way == Way::Lost {
            assert!(target.adopt(prefix, WORKER, Birth::default()), "it is not there");
            return;
        }
        let from = ServerId(RETIRES as u16);
        assert!(target.begin_to_arrive(prefix, WORKER, Birth::default(), from), "it has room");
        assert!(source.begin_to_leave(prefix, MoveId(1)), "it is whole");
        if let Some(chosen) = chosen {
            source.take_along(prefix, chosen);
        }
        let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(prefix));
        arriving.is_chosen = chosen.is_some();
        while let Some(stamp) = source.freeze(prefix, now) {
            assert!(source.all_have_left(stamp), "nobody is in it");
            let (mut out, mut more) = (Vec::new(), true);
            while more {
                more = source.export(prefix, &mut cursor, now, &mut out);
                if !more || out.len() >= PART_BYTES {
                    cursor.end_part();
                    let mut part = Part::read(&out).expect("it was exported");
                    assert_eq!(arriving.due(&part.heading), Due::Now);
                    target.enter(WORKER);
                    let drops = Crowded::Drops;
                    let mut step = || target.import(WORKER, &mut arriving, &mut part, now, drops);
                    while step().expect("it reads") == ImportStep::More {}
                    target.leave(WORKER);
                    out.clear();
                }
            }
            while source.forget(prefix, &mut cursor, now) {}
            target.serve_until(prefix, arriving.last());
        }
        source.release(prefix, Elsewhere::Peer(ServerId(to as u16)));
    }
}

fn main() {
    let Args { mib, rounds, out } = Args::parse();
    let mut rows = String::from("exponent,seed,way,at_once,best,by_age,after,items,left_behind\n");
    for exponent in EXPONENTS {
        for seed in 1..=rounds {
            WAYS.iter().for_each(|way| round(mib, exponent, seed, *way, &mut rows));
        }
    }
    print!("{rows}");
    if let Some(path) = out {
        std::fs::write(path, rows).expect("the file can be written");
    }
}

fn round(mib: usize, exponent: f64, seed: u64, way: Way, rows: &mut String) {
    let keys = STORES * (mib << 20) / 64;
    let zipf = Zipf::new(keys, exponent);
    let mut bits = Random::new(seed);
    let mut cluster = Cluster::new(mib);
    for _ in 0..6 * keys {
        cluster.ask(zipf.draw(&mut bits));
    }
    let before = cluster.items_of(&cluster.stores);
    let all: usize = before.iter().map(|(_, _, bytes)| bytes).sum();
    let room = if way == Way::Four { all } else { all / STORES * RETIRES };
    cluster.resize(way);
    // Who has retired serves nothing, whatever is in its store still.
    let serving = if way == Way::Four { STORES } else { RETIRES };
    let there = |cluster: &Cluster| -> f64 {
        let items = cluster.items_of(&cluster.stores[..serving]);
        items.into_iter().map(|(rank, ..)| zipf.probability(rank)).sum()
    };
    let at_once = there(&cluster);
    let fill = |mut order: Vec<(usize, u32, usize)>, key: fn(&(usize, u32, usize)) -> u64| {
        order.sort_by_key(key);
        let mut filled = 0;
        let fits = order.into_iter().take_while(|(_, _, bytes)| {
            filled += bytes;
            filled <= room
        });
        fits.map(|(rank, ..)| zipf.probability(rank)).sum::<f64>()
    };
    // By byte, the most probable first.
    let mut by_worth = before.clone();
    by_worth.sort_by(|a, b| {
        let worth = |one: &(usize, u32, usize)| zipf.probability(one.0) / one.2 as f64;
        worth(b).total_cmp(&worth(a))
    });
    let mut filled = 0;
    let best: f64 = by_worth
        .iter()
        .take_while(|(_, _, bytes)| {
            filled += bytes;
            filled <= room
        })
        .map(|(rank, ..)| zipf.probability(*rank))
        .sum();
    let by_age = fill(before, |(_, last, _)| u64::from(u32::MAX - last));
    let (mut hits, asked) = (0_u64, keys / 4);
    for _ in 0..asked {
        hits += u64::from(cluster.ask(zipf.draw(&mut bits)));
    }
    let after = hits as f64 / asked as f64;
    let stats: Vec<_> = cluster.stores.iter().map(|store| store.stats()).collect();
    let items: u64 = stats.iter().map(|one| one.items).sum();
    let left_behind: u64 = stats.iter().map(|one| one.left_behind).sum();
    writeln!(rows, "{exponent},{seed},{way:?},{at_once:.4},{best:.4},{by_age:.4},{after:.4},{items},{left_behind}")
        .expect("a string grows");
}
