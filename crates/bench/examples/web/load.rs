//! The load: web requests at exponential intervals, each of which reads 100 keys from the caches and the rest from the database.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use mbal_bench::{Popularity, Random, Trace};

use crate::Args;
use crate::cache::{Asked, Caches, Found, Sets};
use crate::control;
use crate::database::Database;
use crate::routing::Routing;
use crate::values::{Acknowledged, name, value, version};

/// The load goes on for so long after what is measured: connections that end cost the servers time.
const AFTER_SECONDS: u64 = 2;

/// What all threads share.
pub struct World {
    pub args: Args,
    /// Whoever asks takes a clone: a new map waits for nobody. Only a new list waits, by `under_way`.
    pub routing: RwLock<Arc<Routing>>,
    /// Web requests have it shared; who has it alone knows that none is under way.
    pub under_way: RwLock<()>,
    pub updates: AtomicBool,
    pub over: AtomicBool,
    acknowledged: Acknowledged,
    begin: Instant,
    arrivals: Mutex<Arrivals>,
    seconds: Mutex<BTreeMap<i64, Second>>,
    requests: Mutex<Vec<Took>>,
}

/// A web request's time by what it waited for.
struct Took {
    at: f64,
    late: Duration,
    caches: Duration,
    /// The longest of the pauses between two caches' answers to reads, and whose answer came after it.
    slowest: (Duration, String),
    database: Duration,
    all: Duration,
}

/// Which web request comes next, and when.
struct Arrivals {
    random: Random,
    /// Since the beginning.
    next: f64,
    keys: Keys,
}

enum Keys {
    Zipf(Box<Popularity>),
    Trace { keys: Vec<u32>, at: usize },
}

#[derive(Default)]
struct Second {
    latencies_us: Vec<u32>,
    /// Of the same web requests, without what the database took.
    caches_us: Vec<u32>,
    asked: u64,
    hits: u64,
    /// Found at a secondary cache.
    second_hits: u64,
    database_keys: u64,
    database_queries: u64,
    updates: u64,
    stale: u64,
    errors: u64,
    /// Of one web request: what the database took, and the slowest cache.
    database: Duration,
    slowest: (Duration, String),
}

/// What one web request did.
type Done = Second;

impl World {
    /// Seconds since measuring began; the warm-up is before.
    pub fn now(&self) -> f64 {
        self.begin.elapsed().as_secs_f64() - self.args.warmup as f64
    }

    fn next(&self) -> (Instant, Vec<u32>, f64) {
        let mut arrivals = self.arrivals.lock().expect("no thread panics");
        let Arrivals { random, next, keys } = &mut *arrivals;
        *next -= (1.0 - random.unit()).max(1e-12).ln() / self.args.rate;
        let at = self.begin + Duration::from_secs_f64(*next);
        let list = (0..self.args.keys_each).map(|_| match keys {
            Keys::Zipf(law) => law.draw(random) as u32,
            Keys::Trace { keys, at } => {
                *at = (*at + 1) % keys.len();
                keys[*at]
            }
        });
        (at, list.collect(), random.unit())
    }
}

pub fn load(args: &Args) -> Result<(), String> {
    let routing = match args.mbal {
        true => Routing::map(&args.servers).ok_or("no server tells its map")?,
        false => Routing::of(&args.servers),
    };
    let keys = match &args.trace {
        None => Keys::Zipf(Box::new(Popularity::new(u64::from(args.keys), args.zipf))),
        Some(path) => Keys::Trace { keys: numbered(path, args.keys)?, at: 0 },
    };
    let world = World {
        routing: RwLock::new(Arc::new(routing)),
        under_way: RwLock::default(),
        updates: AtomicBool::new(true),
        over: AtomicBool::new(false),
        acknowledged: Acknowledged::new(args.keys),
        begin: Instant::now(),
        arrivals: Mutex::new(Arrivals { random: Random::new(args.seed), next: 0.0, keys }),
        seconds: Mutex::default(),
        requests: Mutex::default(),
        args: args.clone(),
    };
    thread::scope(|scope| {
        scope.spawn(|| control::obey(&world, args.control.as_deref()));
        let threads: Vec<_> = (0..args.threads).map(|_| scope.spawn(|| serve(&world))).collect();
        let ended: Result<(), String> =
            threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"));
        world.over.store(true, SeqCst);
        ended
    })?;
    report(&world)
}

/// Keys of a trace, numbered as they come.
fn numbered(path: &std::path::Path, most: u32) -> Result<Vec<u32>, String> {
    let trace = Trace::read(path, usize::MAX)?;
    let mut numbers = BTreeMap::new();
    let keys = trace.keys.iter().filter_map(|key| {
        let next = numbers.len() as u32;
        Some(*numbers.entry(*key).or_insert(next)).filter(|number| *number < most)
    });
    Ok(keys.collect())
}

fn serve(world: &World) -> Result<(), String> {
    let mut database = Database::open(&world.args.database)?;
    let mut caches = Caches::default();
    loop {
        let (at, keys, chance) = world.next();
        let end = Duration::from_secs(world.args.warmup + world.args.seconds + AFTER_SECONDS);
        if at > world.begin + end || world.begin.elapsed() > end {
            return Ok(());
        }
        if let Some(wait) = at.checked_duration_since(Instant::now()) {
            thread::sleep(wait);
        }
        let mut done = Done::default();
        let late = at.elapsed();
        {
            let _under_way = world.under_way.read().expect("no thread panics");
            let routing = Arc::clone(&world.routing.read().expect("no thread panics"));
            read(world, &routing, &mut database, &mut caches, &keys, &mut done)?;
            if chance < world.args.updates && world.updates.load(SeqCst) {
                update(world, &routing, &mut database, &mut caches, keys[0], &mut done)?;
            }
        }
        let all = at.elapsed();
        let caches = all.saturating_sub(done.database);
        let mut seconds = world.seconds.lock().expect("no thread panics");
        let second = seconds.entry(world.now().floor() as i64).or_default();
        second.latencies_us.push(all.as_micros() as u32);
        second.caches_us.push(caches.as_micros() as u32);
        second.asked += done.asked;
        second.hits += done.hits;
        second.second_hits += done.second_hits;
        second.database_keys += done.database_keys;
        second.database_queries += done.database_queries;
        second.updates += done.updates;
        second.stale += done.stale;
        second.errors += done.errors;
        drop(seconds);
        if world.args.requests.is_some() {
            let at = world.now() - all.as_secs_f64();
            let Done { database, slowest, .. } = done;
            let took = Took { at, late, caches, slowest, database, all };
            world.requests.lock().expect("no thread panics").push(took);
        }
    }
}

fn read(
    world: &World,
    routing: &Routing,
    database: &mut Database,
    caches: &mut Caches,
    keys: &[u32],
    done: &mut Done,
) -> Result<(), String> {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    keys.dedup();
    done.asked = keys.len() as u64;
    let acknowledged: Vec<u64> = keys.iter().map(|&key| world.acknowledged.get(key)).collect();
    let names: Vec<String> = keys.iter().map(|&key| name(key)).collect();
    let servers: Vec<String> = names.iter().map(|name| routing.primary(name)).collect();
    let mut asked = Asked::new();
    for (place, &key) in keys.iter().enumerate() {
        asked.entry(servers[place].clone()).or_default().push((place, key));
    }
    let mut found: Vec<Found> = keys.iter().map(|_| Found::Missed).collect();
    done.slowest = caches.get(&asked, true, &mut found);
    let mut second = Asked::new();
    for (place, found) in found.iter().enumerate() {
        if matches!(found, Found::Value(_)) {
            continue;
        }
        if let Some(server) = routing.secondary(&names[place]) {
            second.entry(server).or_default().push((place, keys[place]));
        }
    }
    let mut elsewhere: Vec<Found> = keys.iter().map(|_| Found::Missed).collect();
    caches.get(&second, false, &mut elsewhere);
    let mut sets = Sets::new();
    let mut store = |place: usize, value: &[u8]| {
        if let Found::Won(token) = &found[place] {
            let set = (keys[place], *token, value.to_vec());
            sets.entry(servers[place].clone()).or_default().push(set);
        }
    };
    let mut missed = Vec::new();
    for place in 0..keys.len() {
        let value = match (&found[place], &elsewhere[place]) {
            (Found::Value(value), _) => {
                done.hits += 1;
                value
            }
            (_, Found::Value(value)) => {
                done.second_hits += 1;
                store(place, value);
                value
            }
            _ => {
                missed.push(place);
                continue;
            }
        };
        match version(value) {
            Some(version) => done.stale += u64::from(version < acknowledged[place]),
            None => done.errors += 1,
        }
    }
    if !missed.is_empty() {
        let asked = Instant::now();
        let rows = database.read(&missed.iter().map(|&place| keys[place]).collect::<Vec<_>>())?;
        done.database += asked.elapsed();
        done.database_queries += 1;
        done.database_keys += rows.len() as u64;
        for &place in &missed {
            match rows.get(&keys[place]) {
                Some((version, padding)) => {
                    done.stale += u64::from(*version < acknowledged[place]);
                    store(place, &value(*version, padding));
                }
                None => done.errors += 1,
            }
        }
    }
    caches.set(&sets);
    Ok(())
}

/// The secondary cache is deleted from first: who has missed the primary one after that finds nothing old there.
fn update(
    world: &World,
    routing: &Routing,
    database: &mut Database,
    caches: &mut Caches,
    key: u32,
    done: &mut Done,
) -> Result<(), String> {
    let asked = Instant::now();
    let version = database.update(key)?;
    done.database += asked.elapsed();
    let name = name(key);
    let places = routing.secondary(&name).into_iter().chain([routing.primary(&name)]);
    let mut gone = true;
    for server in places {
        gone &= caches.delete(&server, key);
    }
    done.updates = 1;
    match gone {
        true => world.acknowledged.raise(key, version),
        false => done.errors += 1,
    }
    Ok(())
}

fn report(world: &World) -> Result<(), String> {
    let mut text = String::from(
        "second,web_requests,p50_ms,p95_ms,caches_p95_ms,hit_ratio,second_hit_ratio,database_keys,database_queries,updates,stale,errors\n",
    );
    let mut seconds = world.seconds.lock().expect("no thread panics");
    let (mut stale, mut errors, mut updates) = (0, 0, 0);
    let measured = -(world.args.warmup as i64)..world.args.seconds as i64;
    for (number, second) in seconds.range_mut(measured) {
        second.latencies_us.sort_unstable();
        second.caches_us.sort_unstable();
        let at = |sorted: &[u32], share: f64| {
            let place = (sorted.len() as f64 * share) as usize;
            f64::from(sorted[place.min(sorted.len() - 1)]) / 1e3
        };
        text += &format!(
            "{number},{},{:.2},{:.2},{:.2},{:.4},{:.4},{},{},{},{},{}\n",
            second.latencies_us.len(),
            at(&second.latencies_us, 0.5),
            at(&second.latencies_us, 0.95),
            at(&second.caches_us, 0.95),
            second.hits as f64 / second.asked as f64,
            second.second_hits as f64 / second.asked as f64,
            second.database_keys,
            second.database_queries,
            second.updates,
            second.stale,
            second.errors,
        );
        stale += second.stale;
        errors += second.errors;
        updates += second.updates;
    }
    match &world.args.csv {
        Some(path) => fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?,
        None => print!("{text}"),
    }
    if let Some(path) = &world.args.requests {
        let requests = world.requests.lock().expect("no thread panics");
        let mut text =
            String::from("at_s,all_ms,late_ms,caches_ms,slowest_ms,slowest,database_ms\n");
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        for took in requests.iter() {
            let Took { at, late, caches, slowest: (slowest, whose), database, all } = took;
            text += &format!(
                "{at:.3},{:.2},{:.2},{:.2},{:.2},{whose},{:.2}\n",
                ms(*all),
                ms(*late),
                ms(*caches),
                ms(*slowest),
                ms(*database),
            );
        }
        fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    println!("{updates} updates, {stale} stale values, {errors} errors");
    Ok(())
}

/// Keys a second that the database gives to as many threads as fit its share, 20 a query.
pub fn database_rate(args: &Args) -> Result<(), String> {
    const THREADS: u64 = 16;
    let (keys, begin) = (AtomicU64::new(0), Instant::now());
    let ask = |seed| -> Result<(), String> {
        let mut database = Database::open(&args.database)?;
        let mut random = Random::new(seed);
        while begin.elapsed().as_secs() < args.seconds {
            let batch: Vec<u32> =
                (0..20).map(|_| random.below(u64::from(args.keys)) as u32).collect();
            keys.fetch_add(database.read(&batch)?.len() as u64, SeqCst);
        }
        Ok(())
    };
    let ask = &ask;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|seed| scope.spawn(move || ask(seed))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    println!("{:.0}", keys.load(SeqCst) as f64 / begin.elapsed().as_secs_f64());
    Ok(())
}
