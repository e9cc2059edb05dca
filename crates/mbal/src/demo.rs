//! `mbal demo`: a cluster beside a pool of memcacheds on the same load, and what happens to both.

mod load;
mod machine;
mod processes;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use load::{CLIENTS, DEPTH, KEYS, Load, Outcome, Pattern, Side, Way, client};
use machine::CpuTimes;
use mbal_reactor::process::{Signal, Signals};
use mbal_server::log;
use processes::{Cluster, Pool, SERVERS, stat};

/// How often what clients saw is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between two looks whether somebody wants it to end.
const NAP: Duration = Duration::from_millis(50);
/// A client's pause between batches where nothing is hot: then servers have time left, as they should.
const REST: Duration = Duration::from_millis(20);
/// All keys are there by then.
const FILLED_WITHIN: Duration = Duration::from_secs(40);
const RETIRES_WITHIN: Duration = Duration::from_secs(60);
/// The server that retires, or is killed.
const LAST: usize = SERVERS - 1;
/// Of 100 requests, for the hot key and the hot set.
const ONE_KEY: u64 = 60;
const HOT_SET: u64 = 90;
/// A side is itself again when it hits that part.
const WELL: f64 = 0.9;
const WELL_WITHIN: Duration = Duration::from_secs(10);
/// Hit ratio of the worst look while a server retires.
const WARM: f64 = 0.95;
/// The busiest server's gets with a hot key: by those of the average, and by what the pool's busiest has.
const BUSIEST_MAX: f64 = 1.5;
const BUSIEST_OF_POOL_MAX: f64 = 0.8;
/// Hit ratio with a hot set.
const HOT_SET_HITS: f64 = 0.99;
/// How often the hot set becomes another one.
const CHANGES: u64 = 4;
/// Of the machine's cores: with so much for other programs both sides wait for a core, and requests for both.
const OTHERS_MAX: f64 = 0.1;
/// As a shell reports SIGINT.
const INTERRUPTED: u8 = 130;

const EXAMPLES: &str = "\
EXAMPLES
  mbal demo                      two minutes: a hot key, a hot set that moves,
                                 a server that dies, one that retires
  mbal demo --short              the same in half a minute
  mbal demo --memcached ./memcached
                                 the pool is of another memcached

Everything runs on this machine, on loopback, and ends with the demonstration.
Exit code: 0 if the cluster did all that is promised, 1 if not, 130 by Ctrl-C.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Demo {
    /// Half a minute instead of two
    #[arg(long)]
    short: bool,

    /// The memcached of the pool; without one, servers of MBal's own without its balancer
    #[arg(long, value_name = "program", default_value = "memcached")]
    memcached: PathBuf,
}

/// What a side went through in one step.
#[derive(Clone, Copy, Debug)]
struct Went {
    all: Outcome,
    /// The lowest hit ratio of a look.
    worst: f64,
    /// Gets executed at the busiest server by those of the average, in the step's second half.
    busiest: f64,
    /// Time without its usual hit ratio.
    unwell: Duration,
}

/// A promise: what is said of it, and whether it was kept.
struct Promise {
    text: String,
    is_kept: bool,
}

enum Ends {
    /// By Ctrl-C.
    Interrupted,
    Failed(String),
}

impl From<String> for Ends {
    fn from(why: String) -> Ends {
        Ends::Failed(why)
    }
}

pub fn run(demo: &Demo) -> ExitCode {
    // Before there are other threads: these inherit that the signals interrupt nobody.
    let done = Signals::take().map_err(|error| Ends::from(error.to_string()));
    let before = CpuTimes::now();
    match done.and_then(|signals| show(demo, &signals)) {
        Ok(promises) => {
            let is_green = promises.iter().all(|promise| promise.is_kept);
            println!(
                "{}: what was promised of the cluster",
                if is_green { "GREEN" } else { "RED" }
            );
            for Promise { text, is_kept } in &promises {
                println!("  {} {text}", if *is_kept { "yes" } else { "NO " });
            }
            // All of its own processes have ended by now, and count as its own.
            let others = before.zip(CpuTimes::now()).and_then(|(from, to)| from.others_until(to));
            if let Some(text) = others.filter(|_| !is_green).map(reason) {
                println!("{text}");
            }
            ExitCode::from(u8::from(!is_green))
        }
        Err(Ends::Interrupted) => {
            println!("\nended before its end; all servers are ended, too");
            ExitCode::from(INTERRUPTED)
        }
        Err(Ends::Failed(why)) => {
            log::error("demo_failed", &format!("mbal demo: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn show(demo: &Demo, signals: &Signals) -> Result<Vec<Promise>, Ends> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let cluster = Cluster::start(&program)?;
    let last_port = cluster.servers[LAST].port();
    let pool = Pool::start(&program, &demo.memcached.to_string_lossy(), last_port + 1)?;
    let sides = [
        Side::new(Way::AnyServer, cluster.servers.clone()),
        Side::new(Way::ByHash, pool.addresses.clone()),
    ];
    let Pool { name, .. } = &pool;
    println!(
        "{SERVERS} servers of MBal as one cluster, beside {SERVERS} of {name}, all with one thread."
    );
    if !pool.is_memcached() {
        println!(
            "There is no memcached here: the pool is of MBal's servers without their balancer."
        );
    }
    println!(
        "Each side has {CLIENTS} clients that send {DEPTH} gets at a time of {KEYS} keys, and store"
    );
    println!(
        "what they miss. MBal's clients ask any server; the pool's find a key's server by its hash."
    );
    println!("The coordinator: {}\n", cluster.url);
    let load = Load::new();
    let mut stage = Stage {
        cluster,
        pool,
        sides: &sides,
        load: &load,
        signals,
        program: &program,
        unit: Duration::from_secs(if demo.short { 1 } else { 5 }),
    };
    std::thread::scope(|scope| {
        for side in &sides {
            for number in 0..CLIENTS {
                let load = &load;
                scope.spawn(move || client(side, number, load));
            }
        }
        let done = stage.play();
        // Clients end before the scope does.
        load.end();
        done
    })
}

struct Stage<'a> {
    cluster: Cluster,
    pool: Pool,
    sides: &'a [Side; 2],
    load: &'a Load,
    signals: &'a Signals,
    program: &'a Path,
    /// A step has some of them.
    unit: Duration,
}

impl Stage<'_> {
    fn play(&mut self) -> Result<Vec<Promise>, Ends> {
        let mut promises = Vec::new();
        announce(1, "all keys are asked for alike, and stored where they are missing");
        self.load.set(Pattern::Even, REST);
        self.fill()?;
        tell(&self.watch(2 * self.unit)?);
        promises.extend(self.hot_key()?);
        promises.extend(self.hot_set()?);
        self.load.set(Pattern::Even, REST);
        self.fill()?;
        promises.extend(self.dead_server()?);
        self.fill()?;
        promises.extend(self.retirement()?);
        Ok(promises)
    }

    fn hot_key(&self) -> Result<Vec<Promise>, Ends> {
        announce(2, &format!("{ONE_KEY}% of all gets are for one key"));
        self.load.set(Pattern::OneKey(ONE_KEY), Duration::ZERO);
        let went = self.watch(4 * self.unit)?;
        tell(&went);
        let [cluster, pool] = went.map(|went| went.busiest);
        let text = format!(
            "a hot key does not melt one server: the busiest had {cluster:.2} times the average's gets; \
             promised: less than {BUSIEST_MAX}, or than {BUSIEST_OF_POOL_MAX} of the pool's {pool:.2}"
        );
        let is_relieved = cluster < BUSIEST_MAX || cluster < BUSIEST_OF_POOL_MAX * pool;
        Ok(vec![promise(is_relieved, text), no_error("a hot key", &went)])
    }

    fn hot_set(&self) -> Result<Vec<Promise>, Ends> {
        let text = format!(
            "{HOT_SET}% are for a hundredth of the keys, which becomes another one {CHANGES} times"
        );
        announce(3, &text);
        let mut both: Option<[Went; 2]> = None;
        for change in 1..=CHANGES {
            let first = change * KEYS / (CHANGES + 1);
            self.load.set(Pattern::HotSet { part: HOT_SET, first }, Duration::ZERO);
            let went = self.watch(self.unit)?;
            both = Some(both.map_or(went, |before| and(before, went)));
        }
        let went = both.expect("it changes");
        tell(&went);
        let hits = went[0].all.hit_ratio();
        let text = format!(
            "a hot set that moves costs no hit: {hits:.4} of the gets hit; \
             promised: more than {HOT_SET_HITS}"
        );
        Ok(vec![promise(hits > HOT_SET_HITS, text), no_error("a hot set that moves", &went)])
    }

    fn dead_server(&mut self) -> Result<Vec<Promise>, Ends> {
        announce(4, "on each side a server is killed, and started again at once, empty");
        self.cluster.kill(LAST)?;
        self.pool.kill(LAST);
        self.pool.start_again(LAST)?;
        let went = self.watch(4 * self.unit)?;
        tell(&went);
        if let Some(text) = where_pool_is_better(&went) {
            println!("{text}\n");
        }
        let [cluster, pool] = went.map(|went| went.unwell.as_secs_f64());
        let within = WELL_WITHIN.min(3 * self.unit + Duration::from_secs(2));
        let text = format!(
            "a dead server is made good by itself: {cluster:.1} s until {WELL} of the gets hit again; \
             promised: {:.0} s at most, and nothing beside the pool, whose server the demonstration \
             started again: {pool:.1} s",
            within.as_secs_f64()
        );
        Ok(vec![promise(went[0].unwell <= within, text)])
    }

    fn retirement(&mut self) -> Result<Vec<Promise>, Ends> {
        announce(5, "on each side a server retires, for good");
        // As a balancer of connections does, which sends nobody to who is about to end.
        self.sides[0].leave_out(LAST);
        let retired = self.retire()?;
        self.sides[1].leave_out(LAST);
        let went = self.watch_child(retired, 3 * self.unit)?;
        self.pool.kill(LAST);
        tell(&went);
        let [cluster, pool] = went.map(|went| went.worst);
        let text = format!(
            "a server retires without a cold start: \
             {cluster:.3} of the gets hit in the worst half second; \
             promised: more than {WARM}, and no less than the pool's {pool:.3}"
        );
        let is_warm = cluster > WARM && cluster >= pool;
        Ok(vec![promise(is_warm, text), no_error("a server that retires", &went)])
    }

    /// Until both sides have nearly all keys.
    fn fill(&self) -> Result<(), Ends> {
        let until = Instant::now() + FILLED_WITHIN;
        loop {
            let went = self.watch(LOOK_EVERY)?;
            let is_full = |went: &Went| went.all.hit_ratio() > 0.995;
            if went.iter().all(is_full) || until < Instant::now() {
                return Ok(());
            }
        }
    }

    /// The cluster's server gives its items to the others, then it ends.
    fn retire(&self) -> Result<std::process::Child, Ends> {
        let mut command = Command::new(self.program);
        command.args(["cluster", "scale", &LAST.to_string(), "--retire", &SERVERS.to_string()]);
        command.args(["--coordinator", &self.cluster.url]).env_remove("MBAL_COORDINATOR_TOKEN");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(command.spawn().map_err(|error| error.to_string())?)
    }

    /// For so long, and until the child has ended.
    fn watch_child(
        &self,
        mut child: std::process::Child,
        time: Duration,
    ) -> Result<[Went; 2], Ends> {
        let until = Instant::now() + RETIRES_WITHIN;
        let mut went = self.watch(time);
        while let (Ok(before), Ok(None)) = (&went, child.try_wait()) {
            if until < Instant::now() {
                went = Err(Ends::Failed("the server does not retire".into()));
                break;
            }
            let before = *before;
            went = self.watch(LOOK_EVERY).map(|later| and(before, later));
        }
        drop(child.kill());
        match (went, child.wait()) {
            (Ok(_), Ok(status)) if !status.success() => {
                Err(Ends::Failed(format!("mbal cluster scale: {status}")))
            }
            (went, _) => went,
        }
    }

    /// Looks at both sides for so long.
    fn watch(&self, time: Duration) -> Result<[Went; 2], Ends> {
        let begun = Instant::now();
        let mut went = [Went::nothing(); 2];
        for side in self.sides {
            side.counts.take();
        }
        let mut half: Option<[Vec<u64>; 2]> = None;
        while begun.elapsed() < time {
            let next = Instant::now() + LOOK_EVERY;
            while Instant::now() < next {
                if let Ok(Some(Signal::Interrupt | Signal::Terminate)) = self.signals.next() {
                    return Err(Ends::Interrupted);
                }
                std::thread::sleep(NAP);
            }
            for (went, side) in went.iter_mut().zip(self.sides) {
                went.look(side.counts.take());
            }
            if half.is_none() && time / 2 <= begun.elapsed() {
                half = Some(self.executed());
            }
        }
        let now = self.executed();
        let before = half.unwrap_or_default();
        for (side, went) in went.iter_mut().enumerate() {
            went.busiest = busiest(&before[side], &now[side]);
        }
        Ok(went)
    }

    /// Gets that each server has executed ever.
    fn executed(&self) -> [Vec<u64>; 2] {
        let of = |address: &std::net::SocketAddr| {
            stat(*address, "cmd_get").ok().and_then(|gets| gets.parse().ok()).unwrap_or(0)
        };
        [&self.sides[0], &self.sides[1]].map(|side| {
            let listed = (0..SERVERS).filter(|server| side.is_listed(*server));
            listed.map(|server| of(&side.servers[server])).collect()
        })
    }
}

fn announce(number: u32, text: &str) {
    println!("[{number}/5] {text}");
}

fn promise(is_kept: bool, text: String) -> Promise {
    Promise { text, is_kept }
}

/// Nor a wrong value.
fn no_error(what: &str, went: &[Went; 2]) -> Promise {
    let Outcome { errors, late, wrong, .. } = went[0].all;
    let late = match late {
        0 => String::new(),
        late => format!(", of which {late} had no answer within a second"),
    };
    let text = format!(
        "{what} costs no error: {errors} errors{late}, {wrong} wrong values; the pool had {}",
        went[1].all.errors
    );
    promise(errors + wrong == 0, text)
}

/// Of `others`, the part of the machine's cores that other programs had meanwhile.
fn reason(others: f64) -> String {
    let had =
        format!("Other programs had {:.0}% of this machine's cores meanwhile", others * 100.0);
    match others > OTHERS_MAX {
        true => format!("{had}: both sides waited for them. Try it where nothing else runs."),
        false => format!("{had}: that is no reason."),
    }
}

/// With a server dead: the pool is, and why that is so.
fn where_pool_is_better(went: &[Went; 2]) -> Option<String> {
    let [cluster, pool] = went.map(|went| went.unwell.as_secs_f64());
    (pool < cluster).then(|| {
        format!(
            "      Here the pool is better: {pool:.1} s with less than {WELL} of the gets hit, the cluster {cluster:.1} s.\n      \
             In a pool only requests for the dead server's keys wait; in a cluster any server passes them on to it,\n      \
             and what was sent behind them waits, too. Its process is started again by `mbal up`; a pool leaves that to you."
        )
    })
}

fn and(before: [Went; 2], later: [Went; 2]) -> [Went; 2] {
    [0, 1].map(|side| before[side].and(later[side]))
}

/// The busiest server's gets between two looks, by those of the average.
fn busiest(before: &[u64], now: &[u64]) -> f64 {
    let gets = now.iter().zip(before).map(|(now, before)| now.saturating_sub(*before));
    let gets: Vec<u64> = gets.collect();
    let all: u64 = gets.iter().sum();
    match gets.iter().max() {
        Some(most) if all > 0 => *most as f64 * gets.len() as f64 / all as f64,
        _ => 1.0,
    }
}

impl Went {
    fn nothing() -> Went {
        Went { all: Outcome::default(), worst: 1.0, busiest: 1.0, unwell: Duration::ZERO }
    }

    fn look(&mut self, seen: Outcome) {
        self.all = sum(self.all, seen);
        let hits = seen.hit_ratio();
        self.worst = self.worst.min(hits);
        if hits < WELL {
            self.unwell += LOOK_EVERY;
        }
    }

    fn and(self, later: Went) -> Went {
        let weights = [self.all.gets as f64, later.all.gets as f64];
        let both = self.busiest * weights[0] + later.busiest * weights[1];
        let busiest = both / (weights[0] + weights[1]).max(1.0);
        Went {
            all: sum(self.all, later.all),
            worst: self.worst.min(later.worst),
            busiest,
            unwell: self.unwell + later.unwell,
        }
    }
}

/// The slower p99 of both.
fn sum(one: Outcome, other: Outcome) -> Outcome {
    Outcome {
        gets: one.gets + other.gets,
        hits: one.hits + other.hits,
        errors: one.errors + other.errors,
        late: one.late + other.late,
        wrong: one.wrong + other.wrong,
        p99_ms: one.p99_ms.max(other.p99_ms),
    }
}

fn tell(went: &[Went; 2]) {
    for (name, Went { all, worst, busiest, .. }) in ["MBal", "pool"].iter().zip(went) {
        let hits = all.hit_ratio();
        print!("      {name}  {:>9} gets  hit ratio {hits:.4}, worst {worst:.3}  ", all.gets);
        print!("errors {:>6}  p99 of {DEPTH} {:>6.1} ms  ", all.errors, all.p99_ms);
        println!("busiest server {busiest:.2} of the average");
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(gets: u64, hits: u64) -> Outcome {
        Outcome { gets, hits, ..Outcome::default() }
    }

    #[test]
    fn the_worst_look_and_the_time_without_hits_are_kept() {
        let mut went = Went::nothing();
        for (gets, hits) in [(100, 100), (100, 50), (100, 89), (100, 91), (0, 0)] {
            went.look(seen(gets, hits));
        }
        assert_eq!((went.all.gets, went.all.hits, went.worst), (400, 330, 0.0));
        assert_eq!(went.unwell, 3 * LOOK_EVERY);
        let later = Went { all: seen(1200, 1200), busiest: 2.0, worst: 0.3, ..Went::nothing() };
        let both = went.and(later);
        assert_eq!((both.worst, both.busiest, both.unwell), (0.0, 1.75, 3 * LOOK_EVERY));
    }

    #[test]
    fn where_the_pool_is_better_it_is_said() {
        let went = |half_seconds| Went { unwell: half_seconds * LOOK_EVERY, ..Went::nothing() };
        let said = where_pool_is_better(&[went(3), went(1)]).expect("it is better");
        let begin = "      Here the pool is better: 0.5 s with less than 0.9 of the gets hit, the cluster 1.5 s.\n";
        assert!(said.starts_with(begin), "{said}");
        assert_eq!(where_pool_is_better(&[went(1), went(1)]), None);
        assert_eq!(where_pool_is_better(&[went(0), went(1)]), None);
    }

    #[test]
    fn the_busiest_server_is_told_by_the_average() {
        assert_eq!(busiest(&[0, 0, 0], &[10, 10, 10]), 1.0);
        assert_eq!(busiest(&[100, 0, 0], &[100, 30, 60]), 2.0);
        // One that was started anew counts from nothing.
        assert_eq!(busiest(&[100, 0], &[3, 30]), 2.0);
        assert_eq!(busiest(&[], &[]), 1.0);
    }
}
