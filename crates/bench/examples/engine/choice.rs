//! What travels when one of ten servers retires: the one that is chosen, and each of the others (ElMem, ICDCS 2018, Figure 7).
//!
//! Servers' stores are filled through misses by a trace, of which several copies are played at once, each with keys of its own and from
//! another place on. Ages of items are told as in heartbeats, and [`choose`] has what a coordinator has. Then every server retires in
//! turn: its cachelets leave, each for another server, with the age thresholds of the plan for that case, and what they export is counted.
//! Nothing is imported, so the other stores stay as they were.

use std::collections::HashMap;
use std::path::Path;
use std::thread;

use mbal_bench::Trace;
use mbal_cachelet::{AgeThresholds, Birth, Cursor, ITEM_OVERHEAD_BYTES, Memory, Store};
use mbal_control::api::{AgesReport, ClassAges, ScalePlan};
use mbal_control::{Inventory, choose};
use mbal_model::{Elsewhere, Key, MoveId, Prefix, ServerId, WorkerId};
use mbal_plot::{Line, Panel, Plot};
use mbal_sketch::{Random, mix};

use crate::engine::{Engine, options};
use crate::output::{Page, Sheet};
use crate::traces::{Traces, drawn, key_text};

const SERVERS: usize = 10;
/// Of the hashes: so many bits tell a cachelet.
const BITS: u32 = 10;
/// A ring with few points: shares of the hashes differ.
const POINTS: usize = 5;
/// A trace lasts so long.
const SECONDS: u64 = 3_600;
const BEGINS: u32 = 2;
/// As in a server.
const AGES_MOST: usize = 8_192;
const PART_BYTES: usize = 64 << 10;
const WORKER: WorkerId = WorkerId(0);

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    traces: Traces,
    /// Copies of the trace
    #[arg(long, default_value_t = 40)]
    copies: usize,
    /// Memory of all servers together, in percent of what all items need
    #[arg(long, default_value_t = 50)]
    percent: u64,
    /// Rings by which the hashes are dealt, beside equal shares
    #[arg(long, default_value_t = 3)]
    rings: u64,
}

/// Keys in the order in which they are asked for, numbered, and the length of each one's value.
struct Requests {
    name: String,
    keys: Vec<u32>,
    value_bytes: Vec<u32>,
    copies: usize,
}

impl Requests {
    fn new(name: String, trace: &Trace, copies: usize) -> Requests {
        let (mut numbers, mut value_bytes) = (HashMap::new(), Vec::new());
        let number = |(at, key): (usize, &u64)| {
            *numbers.entry(*key).or_insert_with(|| {
                let own = trace.value_bytes.as_ref().map(|bytes| bytes[at].min(1_000));
                value_bytes.push(own.unwrap_or_else(|| drawn(*key) as u32));
                value_bytes.len() as u32 - 1
            })
        };
        let keys = trace.keys.iter().enumerate().map(number).collect();
        Requests { name, keys, value_bytes, copies }
    }

    fn all_bytes(&self) -> u64 {
        let each = |bytes: &u32| u64::from(*bytes) + (ITEM_OVERHEAD_BYTES + 16) as u64;
        self.value_bytes.iter().map(each).sum::<u64>() * self.copies as u64
    }

    /// What this copy asks for at that step: a key's number, of all copies, and its value's length.
    fn at(&self, step: usize, copy: usize) -> (u64, u32) {
        let from = self.keys.len() / self.copies * copy;
        let number = self.keys[(from + step) % self.keys.len()];
        let key = mix(u64::from(number) << 16 | copy as u64);
        (key, self.value_bytes[number as usize])
    }
}

struct Cluster {
    stores: Vec<Store>,
    /// By cachelet.
    owners: Vec<usize>,
    now: u32,
}

/// Which server has which cachelet: the same number each, or as on a ring.
fn dealt(ring: Option<u64>) -> Vec<usize> {
    let cachelets = 0..1_usize << BITS;
    let Some(seed) = ring else { return cachelets.map(|at| at % SERVERS).collect() };
    let mut bits = Random::new(seed);
    let mut points: Vec<(usize, usize)> = (0..POINTS * SERVERS)
        .map(|point| ((bits.word() >> (64 - BITS)) as usize, point % SERVERS))
        .collect();
    points.sort_unstable();
    let owner =
        |at: usize| points[points.partition_point(|(point, _)| *point < at) % points.len()].1;
    cachelets.map(owner).collect()
}

impl Cluster {
    fn new(owners: Vec<usize>, memory_bytes: usize) -> Cluster {
        let store = |_| {
            let memory = Memory::heap(memory_bytes);
            Store::vacant(options(memory_bytes, 1, 128), memory).expect("memory")
        };
        let stores: Vec<Store> = (0..SERVERS).map(store).collect();
        for (prefix, owner) in Prefix::equal(BITS).zip(&owners) {
            assert!(stores[*owner].adopt(prefix, WORKER, Birth::default()), "a new one");
        }
        Cluster { stores, owners, now: BEGINS + SECONDS as u32 }
    }

    /// One thread has each second server.
    fn fill(&self, requests: &Requests) {
        let play = |half: usize| {
            let mut engines: Vec<Engine> =
                self.stores.iter().map(|store| Engine::new(store, WORKER.0)).collect();
            let value = vec![0; 1_000];
            for step in 0..requests.keys.len() {
                let now = BEGINS + (step as u64 * SECONDS / requests.keys.len() as u64) as u32;
                for copy in 0..requests.copies {
                    let (number, bytes) = requests.at(step, copy);
                    let text = key_text(number);
                    let key = Key::new(&text).expect("16 bytes");
                    let owner = self.owners[(key.hash() >> (64 - BITS)) as usize];
                    if owner % 2 == half {
                        engines[owner].ask(&key, &value[..bytes as usize], now);
                    }
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| play(0));
            play(1);
        });
    }

    /// What a server's heartbeat tells, when it is asked for ages.
    fn ages(&self, server: usize) -> AgesReport {
        let store = &self.stores[server];
        let told = store.ages(self.now, self.now, AGES_MOST).into_iter().enumerate();
        let class = |(class, told): (usize, mbal_cachelet::ClassAges)| ClassAges {
            class: class as u8,
            items: told.items,
            bytes: told.bytes,
            ages: told.ages,
        };
        AgesReport {
            number: 1,
            memory_bytes: store.options().memory_bytes as u64,
            used_bytes: store.stats().used_bytes,
            classes: told.filter(|(_, told)| told.items > 0).map(class).collect(),
        }
    }

    fn inventory(&self) -> Inventory {
        let servers =
            (0..SERVERS).map(|server| (ServerId(server as u16), self.ages(server))).collect();
        Inventory { number: 1, count: 1, named: Vec::new(), servers }
    }

    /// Empties a server, and counts items and bytes that leave it.
    fn retire(&self, server: usize, plan: &ScalePlan) -> (u64, u64) {
        let store = &self.stores[server];
        let (before, mut bytes) = (store.stats(), 0);
        let others = (0..SERVERS).filter(|other| *other != server).cycle();
        let own = Prefix::equal(BITS).zip(&self.owners).filter(|(_, owner)| **owner == server);
        for ((prefix, _), to) in own.zip(others) {
            let mut chosen = AgeThresholds::at(self.now);
            for cut in plan.cuts.iter().filter(|cut| usize::from(cut.server) == to) {
                let class = usize::from(cut.class);
                chosen.younger_than(class, cut.carried_younger_than, cut.carried_tied);
            }
            bytes += self.leave(store, prefix, chosen);
            store.release(prefix, Elsewhere::Peer(ServerId(to as u16)));
        }
        let after = store.stats();
        (before.items - (after.left_behind - before.left_behind), bytes)
    }

    fn leave(&self, store: &Store, prefix: Prefix, chosen: AgeThresholds) -> u64 {
        assert!(store.begin_to_leave(prefix, MoveId(1)), "it is whole");
        store.take_along(prefix, chosen);
        let (mut cursor, mut out, mut bytes) = (Cursor::default(), Vec::new(), 0);
        while let Some(stamp) = store.freeze(prefix, self.now) {
            assert!(store.all_have_left(stamp), "nobody is in it");
            let mut more = true;
            while more {
                more = store.export(prefix, &mut cursor, self.now, &mut out);
                if !more || out.len() >= PART_BYTES {
                    cursor.end_part();
                    bytes += out.len() as u64;
                    out.clear();
                }
            }
            while store.forget(prefix, &mut cursor, self.now) {}
        }
        bytes
    }
}

/// One server of a case, and what travels if it retires.
struct Candidate {
    case: String,
    server: usize,
    /// Of all hashes.
    share: f64,
    /// See [`mbal_elastic::score`].
    score: u64,
    has: u64,
    items: u64,
    bytes: u64,
    is_ours: bool,
}

fn case(requests: &Requests, args: &Args, ring: Option<u64>) -> Vec<Candidate> {
    let case = match ring {
        None => "equal shares".to_owned(),
        Some(seed) => format!("ring {seed}"),
    };
    let memory_bytes = requests.all_bytes() * args.percent / 100 / SERVERS as u64;
    let cluster = Cluster::new(dealt(ring), memory_bytes as usize);
    cluster.fill(requests);
    let inventory = cluster.inventory();
    let ours = usize::from(choose(&inventory).retiring[0].server);
    let candidate = |server: usize| {
        let plan = choose(&Inventory { named: vec![ServerId(server as u16)], ..inventory.clone() });
        let cachelets = cluster.owners.iter().filter(|owner| **owner == server).count();
        let has = cluster.stores[server].stats().items;
        let (items, bytes) = cluster.retire(server, &plan);
        Candidate {
            case: case.clone(),
            server,
            share: cachelets as f64 / cluster.owners.len() as f64,
            score: plan.retiring[0].score,
            has,
            items,
            bytes,
            is_ours: server == ours,
        }
    };
    (0..SERVERS).map(candidate).collect()
}

pub fn run(args: &Args, out: &Path) -> Result<(), String> {
    let rings = || [None].into_iter().chain((1..=args.rings).map(Some));
    let cases = args.traces.read(|name, trace| {
        let requests = Requests::new(name, &trace, args.copies);
        eprintln!(
            "{}: {} requests of {} keys, {:.1} GB",
            requests.name,
            requests.keys.len() * args.copies,
            requests.value_bytes.len() * args.copies,
            requests.all_bytes() as f64 / 1e9
        );
        rings().map(|ring| case(&requests, args, ring)).collect::<Vec<_>>()
    })?;
    let cases: Vec<Vec<Candidate>> = cases.into_iter().flatten().collect();
    if cases.is_empty() {
        return Ok(());
    }
    let mut page = Page::new(out, "choice", "What travels when one of ten servers retires");
    page.say(
        "Millions of items that leave the server that retires, and GB. Ours is the one that is chosen; by chance, the mean of all ten. ElMem, \
         Figure 7: 3.97 by score, 6.23 by chance, 7.4 of the worst.",
    );
    page.table(&table(&cases));
    page.save(&sheet(&cases), &plot(&cases).svg())
}

fn table(cases: &[Vec<Candidate>]) -> Sheet {
    let mut sheet =
        Sheet::new(["shares", "items of all servers", "ours", "by chance", "worst", "best"]);
    for candidates in cases {
        let all = candidates.iter().map(|one| one.has).sum::<u64>();
        let told = |items: f64, bytes: f64| format!("{:.3} M, {:.3} GB", items / 1e6, bytes / 1e9);
        let of = |one: &Candidate| told(one.items as f64, one.bytes as f64);
        let ours = candidates.iter().find(|one| one.is_ours).expect("one is chosen");
        let mean = |figure: fn(&Candidate) -> u64| {
            candidates.iter().map(figure).sum::<u64>() as f64 / candidates.len() as f64
        };
        let worst = candidates.iter().max_by_key(|one| one.items).expect("ten");
        let best = candidates.iter().min_by_key(|one| one.items).expect("ten");
        sheet.row([
            candidates[0].case.clone(),
            format!("{:.2} M", all as f64 / 1e6),
            of(ours),
            told(mean(|one| one.items), mean(|one| one.bytes)),
            of(worst),
            of(best),
        ]);
    }
    sheet
}

fn sheet(cases: &[Vec<Candidate>]) -> Sheet {
    let mut sheet =
        Sheet::new(["case", "server", "share", "score", "has", "items", "bytes", "chosen"]);
    for one in cases.iter().flatten() {
        sheet.row([
            one.case.clone(),
            one.server.to_string(),
            format!("{:.4}", one.share),
            one.score.to_string(),
            one.has.to_string(),
            one.items.to_string(),
            one.bytes.to_string(),
            u8::from(one.is_ours).to_string(),
        ]);
    }
    sheet
}

fn plot(cases: &[Vec<Candidate>]) -> Plot {
    let panel = |candidates: &Vec<Candidate>| {
        let point = |one: &Candidate| (one.score as f64, one.items as f64 / 1e6);
        let mut points: Vec<(f64, f64)> = candidates.iter().map(point).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let title = candidates[0].case.clone();
        Panel { title, lines: vec![Line { name: "items that travel".into(), points }] }
    };
    Plot {
        title: "What travels if a server retires, by its score".into(),
        x: "median item's age, s",
        y: "million items",
        log_x: false,
        log_y: false,
        panels: cases.iter().map(panel).collect(),
    }
}
