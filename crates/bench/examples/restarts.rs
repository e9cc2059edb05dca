//! A look-aside load by the client library, for the script `rolling-restart`: what misses is stored, and nothing else is written.
//!
//!     restarts --server HOST:PORT --keys N --zipf S --fill                 every key once, the hottest last
//!     restarts ... --warm SECONDS                                         as fast as it goes
//!     restarts ... --rate KEYS/S --seconds N --csv FILE                   a row for each second, until it is killed at the latest
//!
//! Key `k` with number n has rank n. What is told to the client as an error, reads that no server answered, and values that are not those of
//! their keys are counted.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Parser;
use mbal_bench::{Popularity, Random};
use mbal_client::{Client, Error, Options, Store};
use tokio::task::JoinSet;
use tokio::time::{interval_at, sleep};

/// Keys of a read.
const READ_KEYS: usize = 50;
const TASKS: usize = 16;

#[derive(Parser)]
struct Args {
    /// Any of the cluster's; repeatable
    #[arg(long)]
    server: Vec<String>,
    #[arg(long)]
    keys: u64,
    #[arg(long)]
    zipf: f64,
    #[arg(long, default_value_t = 300)]
    value_bytes: usize,
    #[arg(long)]
    fill: bool,
    #[arg(long, default_value_t = 0)]
    warm: u64,
    /// Keys a second
    #[arg(long, default_value_t = 10_000.0)]
    rate: f64,
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Of what is asked at that rate
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[arg(long)]
    csv: Option<PathBuf>,
}

/// All that has happened.
#[derive(Default)]
struct Counts {
    gets: AtomicU64,
    hits: AtomicU64,
    errors: AtomicU64,
    wrong: AtomicU64,
}

struct Load {
    client: Client,
    popularity: Popularity,
    value_bytes: usize,
    counts: Counts,
}

fn key(number: u64) -> String {
    format!("k{number:015}")
}

impl Load {
    fn value(&self, key: &str) -> Vec<u8> {
        key.bytes().cycle().take(self.value_bytes).collect()
    }

    async fn set(&self, key: &str) {
        if let Err(error) = self.client.set(key, self.value(key), Store::forever()).await {
            self.failed(&error);
        }
    }

    fn failed(&self, error: &Error) {
        if self.counts.errors.fetch_add(1, Relaxed) < 20 {
            eprintln!("restarts: {error}");
        }
    }

    async fn read(&self, random: &mut Random) {
        let number = |_| self.popularity.draw_ranked(random).0;
        let mut numbers: Vec<u64> = (0..READ_KEYS).map(number).collect();
        // A key that was drawn twice is one that would be stored twice.
        numbers.sort_unstable();
        numbers.dedup();
        let keys: Vec<String> = numbers.into_iter().map(key).collect();
        let found = match self.client.get_many(&keys).await {
            Ok(found) => found,
            Err(error) => return self.failed(&error),
        };
        self.counts.gets.fetch_add(keys.len() as u64, Relaxed);
        for (key, found) in keys.iter().zip(found) {
            match found {
                Some(value) => {
                    self.counts.hits.fetch_add(1, Relaxed);
                    let is_wrong = value.bytes != self.value(key);
                    self.counts.wrong.fetch_add(is_wrong.into(), Relaxed);
                }
                None => self.set(key).await,
            }
        }
    }
}

/// By tasks that have every so manieth of a number of turns each.
async fn fill(load: &Arc<Load>, keys: u64) {
    let mut tasks = JoinSet::new();
    let each = 8 * TASKS as u64;
    for task in 0..each {
        let load = Arc::clone(load);
        tasks.spawn(async move {
            for number in (0..keys).rev().filter(|number| number % each == task) {
                load.set(&key(number)).await;
            }
        });
    }
    tasks.join_all().await;
}

/// `pause` between two reads of a task.
fn begin(load: &Arc<Load>, until: Instant, pause: Option<Duration>, seed: u64) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS as u64 {
        let load = Arc::clone(load);
        tasks.spawn(async move {
            let mut random = Random::new(seed + task);
            let first = pause.map(|pause| pause.mul_f64(task as f64 / TASKS as f64));
            let mut ticks = pause
                .zip(first)
                .map(|(pause, first)| interval_at(tokio::time::Instant::now() + first, pause));
            while Instant::now() < until {
                if let Some(ticks) = &mut ticks {
                    ticks.tick().await;
                }
                load.read(&mut random).await;
            }
        });
    }
    tasks
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::main]
async fn main() -> Result<(), String> {
    let args = Args::parse();
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let client = Client::connect(&args.server, Options::new()).await.map_err(|e| failed(&e))?;
    let popularity = Popularity::new(args.keys, args.zipf);
    let counts = Counts::default();
    let load = Arc::new(Load { client, popularity, value_bytes: args.value_bytes, counts });
    if args.fill {
        fill(&load, args.keys).await;
    }
    begin(&load, Instant::now() + seconds(args.warm), None, 1_000).join_all().await;
    let told = |counts: &Counts| {
        let of = |count: &AtomicU64| count.load(Relaxed);
        let unanswered = load.client.unreachable_gets();
        [of(&counts.gets), of(&counts.hits), of(&counts.errors), unanswered, of(&counts.wrong)]
    };
    println!("gets, hits, errors, unanswered, wrong so far: {:?}", told(&load.counts));
    let Some(path) = args.csv.filter(|_| args.seconds > 0) else { return Ok(()) };
    let mut csv = File::create(&path).map_err(|error| failed(&error))?;
    let pause = Duration::from_secs_f64((TASKS * READ_KEYS) as f64 / args.rate);
    let begun = Instant::now();
    let seed = 1 + args.seed * TASKS as u64;
    let tasks = begin(&load, begun + seconds(args.seconds), Some(pause), seed);
    writeln!(csv, "second,gets,hits,errors,unanswered,wrong").map_err(|error| failed(&error))?;
    let mut before = told(&load.counts);
    for second in 0..args.seconds {
        sleep((begun + seconds(second + 1)).saturating_duration_since(Instant::now())).await;
        let now = told(&load.counts);
        let row: Vec<String> =
            now.iter().zip(before).map(|(now, before)| (now - before).to_string()).collect();
        writeln!(csv, "{second},{}", row.join(",")).map_err(|error| failed(&error))?;
        before = now;
    }
    tasks.join_all().await;
    Ok(())
}
