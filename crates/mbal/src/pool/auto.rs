//! `mbal pool autoscale`: looks once a minute, decides by `mbal_elastic`, and resizes the pool as `mbal pool resize --through` does.
//!
//! ```text
//!   proxies ── stats distances ──► Autopilot ──► start ──► it answers ──► pool resize --to-servers
//!   servers ── limit_maxbytes ───►            └► pool resize --to N ──► stop
//! ```
//! Nothing is saved: the proxies know the pool, and SERVERS who else there may be.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use mbal_control::api::{AutoscaleConfig, AutoscalePolicy};
use mbal_coordinator::{Leaver, Machines};
use mbal_dial::Access;
use mbal_elastic::pool::{Autopilot, Change, DatabaseRate, PoolLook, ProxyTold, Report, agreed};
use mbal_pool::{Dial, Failed, stats};
use mbal_reactor::process::Signals;
use mbal_routing::ketama::{Dialect, RingServer};
use mbal_server::token_of;
use serde_json::json;

use super::results::{has, is, listed};
use super::telling::Telling;
use super::{Ended, LOOK_EVERY, PATIENCE_WITH_PROXIES, Pool, dialed, rate, run};
use crate::coordinator::looks_every;

/// A server that was started answers by then, or the pool does not get it.
const COMES_WITHIN: Duration = Duration::from_secs(300);
/// What hooks hear as $MBAL_CLUSTER.
const POOL: &str = "pool";

const EXAMPLES: &str = "\
EXAMPLES
  mbal pool autoscale a,b,c --through p1:11311,p2:11311 --min 2 --database-rate 4000 --dry-run
                        what it would do each minute, and why

Without --dry-run it needs --token-file, --start-command and --stop-command. The
commands are run once for each server; $MBAL_SERVER is its address.

The memcacheds are stock ones. The list has all that the pool may ever have; which
it has now the proxies know. They need --stack-distances, and --resize-token-file
with the same token. Ctrl-C ends it, and takes back a resize that is under way.";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, override_usage = "mbal pool autoscale SERVERS [OPTIONS]")]
pub struct AutoPool {
    /// All servers that the pool may have, as clients name them, separated by commas: those in front are started first
    #[arg(value_name = "SERVERS", value_delimiter = ',', required = true)]
    servers: Vec<RingServer>,

    /// All proxies (mbal proxy) that clients use, separated by commas
    #[arg(long, value_name = "PROXIES", value_delimiter = ',', required = true)]
    through: Vec<RingServer>,

    /// A file with the token of the proxies' --resize-token-file
    #[arg(long, value_name = "FILE", required_unless_present = "dry_run")]
    token_file: Option<PathBuf>,

    /// Servers at least
    #[arg(long, value_name = "num")]
    min: usize,

    /// Servers at most [default: all]
    #[arg(long, value_name = "num")]
    max: Option<usize>,

    /// Reads that the database bears, a second; or profiled: what is seen of it
    #[arg(long, value_name = "rate", value_parser = database_rate)]
    database_rate: DatabaseRate,

    /// What the last minute needs; or that, and what yesterday needed at this hour
    #[arg(long, value_name = "policy", default_value = "predictive")]
    policy: Policy,

    /// Never below so many servers at some hours, UTC: `6 from 08:00`, `6 from 22:00 to 06:00 on mon-fri`. Can be said several
    /// times
    #[arg(long, value_name = "rule")]
    schedule: Vec<String>,

    /// Memory is planned for so many times the rate
    #[arg(long, value_name = "times", default_value_t = AutoscaleConfig::default().headroom)]
    headroom: f64,

    /// Minutes after a change in which no server leaves
    #[arg(long, value_name = "minutes", default_value_t = AutoscaleConfig::default().rest_minutes)]
    rest: u64,

    /// Command that starts the server $MBAL_SERVER, place $MBAL_SERVER_ID of the list; $MBAL_COUNT is how many there are to be
    #[arg(long, value_name = "command", requires = "stop_command")]
    #[arg(required_unless_present = "dry_run")]
    start_command: Option<String>,

    /// Command that stops a server, which has nothing any more that anybody reads; likewise
    #[arg(long, value_name = "command", requires = "start_command")]
    stop_command: Option<String>,

    /// Copy at most so many MB a second
    #[arg(long, value_name = "MB", value_parser = rate)]
    rate: Option<u64>,

    /// Only say what it would do
    #[arg(long)]
    dry_run: bool,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,

    /// Time between two looks, which it counts as minutes; for tests
    #[arg(long, hide = true, default_value = "60s", value_parser = looks_every)]
    every: Duration,

    #[command(flatten)]
    access: Access,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Policy {
    Reactive,
    Predictive,
}

fn database_rate(text: &str) -> Result<DatabaseRate, String> {
    match text {
        "profiled" => Ok(DatabaseRate::Profiled),
        _ => {
            let rate = text.parse().ok().filter(|rate: &f64| *rate > 0.0 && rate.is_finite());
            rate.map(DatabaseRate::Known).ok_or_else(|| "reads a second, or profiled".into())
        }
    }
}

pub fn autoscale(args: &AutoPool) -> ExitCode {
    let kept = Signals::take().map_err(|why| why.to_string()).and_then(|signals| {
        let autopilot = args.autopilot()?;
        let dialer = args.access.open()?;
        let dial = |server: &RingServer| dialed(&dialer, server, PATIENCE_WITH_PROXIES);
        let keeper = Keeper {
            args,
            telling: Telling { json: args.json },
            signals: &signals,
            machines: args.machines(),
            dial: &dial,
            autopilot,
            began: Instant::now(),
            looked: None,
            pool_bytes: None,
            retired: Vec::new(),
        };
        keeper.keep()
    });
    match kept {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("mbal pool autoscale: {}", mbal_wire::printable(&why));
            ExitCode::FAILURE
        }
    }
}

impl AutoPool {
    fn autopilot(&self) -> Result<Autopilot, String> {
        for list in [&self.servers, &self.through] {
            for (at, server) in list.iter().enumerate() {
                if has(&list[..at], server) {
                    return Err(format!("{server} is there twice"));
                }
            }
        }
        if let Some(path) = &self.token_file {
            token_of("--token-file", path)?;
        }
        let max = self.max.unwrap_or(self.servers.len());
        if self.servers.len() < max {
            return Err(format!("--max {max}: {} servers are named", self.servers.len()));
        }
        let config = AutoscaleConfig {
            min: self.min,
            max,
            database_rate: match self.database_rate {
                DatabaseRate::Known(rate) => rate,
                DatabaseRate::Profiled => 1.0,
            },
            policy: match self.policy {
                Policy::Reactive => AutoscalePolicy::Reactive,
                Policy::Predictive => AutoscalePolicy::Predictive,
            },
            schedule: self.schedule.clone(),
            dry_run: self.dry_run,
            headroom: self.headroom,
            rest_minutes: self.rest,
        };
        Ok(Autopilot::new(config.aims()?, self.database_rate))
    }

    fn machines(&self) -> Machines {
        match (&self.start_command, &self.stop_command) {
            (Some(start), Some(stop)) => {
                Machines::Commands { start: start.clone(), stop: stop.clone() }
            }
            _ => Machines::Nobody,
        }
    }
}

/// How a change ends that was not done.
enum NotDone {
    Failed(String),
    Interrupted,
}

struct Keeper<'a> {
    args: &'a AutoPool,
    telling: Telling,
    signals: &'a Signals,
    machines: Machines,
    dial: Dial<'a>,
    autopilot: Autopilot,
    began: Instant,
    looked: Option<Instant>,
    /// Of all servers of the pool, as it was known last.
    pool_bytes: Option<u64>,
    /// Servers that are to be stopped.
    retired: Vec<RingServer>,
}

impl Keeper<'_> {
    /// Until it is interrupted. The error is one of the first look: nothing was begun.
    fn keep(mut self) -> Result<(), String> {
        let (pool, look) = self.ask()?;
        // A resize that goes on will be over.
        if let Err(why) = self.told(&look) {
            self.cannot(&why);
        }
        self.tell_who_runs(&pool);
        let mut is_over = false;
        while !is_over {
            is_over = self.wait();
            if is_over {
                break;
            }
            match self.ask() {
                Ok((pool, look)) => is_over = self.look(&pool, &look),
                Err(why) => self.cannot(&why),
            }
        }
        Ok(())
    }

    /// True if it is to end.
    fn look(&mut self, pool: &[RingServer], look: &PoolLook) -> bool {
        let change = match self.told(look) {
            Ok(report) => report.change,
            Err(why) => {
                self.cannot(&why);
                None
            }
        };
        self.stop_retired(pool);
        let Some(change) = change.filter(|_| !self.args.dry_run) else { return false };
        let done = match change.from < change.to {
            true => self.grow(pool, &change),
            false => self.shrink(pool, &change),
        };
        self.autopilot.done(self.minute(), &change, done.is_ok());
        match done {
            Ok(()) => {
                let text = format!("the pool has {} servers now", change.to);
                let fields = json!({ "from": change.from, "to": change.to });
                self.telling.say(&text, "changed", fields);
                false
            }
            Err(NotDone::Interrupted) => true,
            Err(NotDone::Failed(why)) => {
                let text =
                    format!("not changed from {} to {} servers: {why}", change.from, change.to);
                let fields = json!({ "from": change.from, "to": change.to, "why": why });
                self.telling.say(&text, "not_changed", fields);
                false
            }
        }
    }

    /// What it makes of a look, which it tells.
    fn told(&mut self, look: &PoolLook) -> Result<Report, String> {
        let report = self.autopilot.look(look)?;
        let Report {
            servers, wanted, rate, hit_ratio, needed, expected, why, bears, outcome, ..
        } = &report;
        if let Some(outcome) = outcome {
            let text = format!(
                "from {} to {} servers: {:.1}% were expected to hit, and {:.1}% have",
                outcome.from,
                outcome.to,
                100.0 * outcome.expected,
                100.0 * outcome.measured
            );
            let fields = json!({
                "from": outcome.from, "to": outcome.to, "expected": outcome.expected, "measured": outcome.measured,
            });
            self.telling.say(&text, "outcome", fields);
        }
        let does = match (servers == wanted, self.args.dry_run) {
            (true, _) => format!("keeps {servers} servers"),
            (false, true) => format!("would change from {servers} to {wanted} servers"),
            (false, false) => format!("changes from {servers} to {wanted} servers"),
        };
        let text = format!(
            "{rate:.0} reads/s, {:.1}% hit; {does}, {:.1}% expected to hit: {why}",
            100.0 * hit_ratio,
            100.0 * expected
        );
        let fields = json!({
            "servers": servers, "servers_wanted": wanted, "reads_per_second": rate, "hit_ratio": hit_ratio,
            "hit_ratio_needed": needed, "hit_ratio_expected": expected, "why": why,
            "database_bears": bears.map(|bears| bears.rate), "database_knee": bears.and_then(|bears| bears.knee),
        });
        self.telling.say(&text, "look", fields);
        Ok(report)
    }

    fn cannot(&self, why: &str) {
        self.telling.say(&format!("nothing is decided: {why}"), "undecided", json!({ "why": why }));
    }

    /// Asks all proxies, and the servers that these name for their memory.
    fn ask(&mut self) -> Result<(Vec<RingServer>, PoolLook), String> {
        let first = self.ask_proxies()?;
        let pool = self.pool_of(&first[0])?;
        let memory = pool.iter().map(|server| {
            let told = stats(self.dial, server, "").map_err(|failed| failed.to_string())?;
            let bytes = told.get("limit_maxbytes").and_then(|text| text.parse::<u64>().ok());
            bytes.ok_or_else(|| format!("{server} tells no limit_maxbytes"))
        });
        let all_bytes = memory.sum::<Result<u64, String>>()?;
        // What was there before they sampled hits where there is as much as the pool has.
        let proxies = match self.pool_bytes.replace(all_bytes) {
            None => self.ask_proxies()?,
            Some(_) => first,
        };
        let now = Instant::now();
        let since = self.looked.replace(now).unwrap_or(self.began);
        let seconds = (now - since).as_secs_f64();
        let server_bytes = all_bytes / pool.len() as u64;
        Ok((pool, PoolLook { minute: self.minute(), seconds, proxies, server_bytes }))
    }

    fn ask_proxies(&self) -> Result<Vec<ProxyTold>, String> {
        let topic = match self.pool_bytes {
            Some(bytes) => format!("distances {bytes}"),
            None => "distances".into(),
        };
        let ask = |proxy: &RingServer| {
            let told: Result<BTreeMap<_, _>, Failed> = stats(self.dial, proxy, &topic);
            let told = told.map_err(|failed| failed.to_string())?;
            ProxyTold::parse(&told).map_err(|why| format!("{proxy}: {why}"))
        };
        self.args.through.iter().map(ask).collect()
    }

    fn pool_of(&self, told: &ProxyTold) -> Result<Vec<RingServer>, String> {
        let pool: Vec<RingServer> =
            told.servers.iter().map(|one| one.parse()).collect::<Result<_, String>>()?;
        match pool.iter().find(|server| !has(&self.args.servers, server)) {
            None if pool.is_empty() => Err(format!("{} has no servers", self.args.through[0])),
            None => Ok(pool),
            Some(other) => Err(format!("{other} is in the pool, and not in the list of servers")),
        }
    }

    /// Servers that are not in the pool, and run: an earlier process has started them, or has not stopped them.
    fn tell_who_runs(&self, pool: &[RingServer]) {
        let spare = self.args.servers.iter().filter(|server| !has(pool, server));
        let running: Vec<RingServer> = spare.filter(|server| self.runs(server)).cloned().collect();
        if !running.is_empty() {
            let text = format!("these run, and are not in the pool: {}", listed(&running));
            self.telling.say(&text, "spare", json!({ "servers": listed(&running) }));
        }
    }

    fn runs(&self, server: &RingServer) -> bool {
        stats(self.dial, server, "").is_ok()
    }

    fn grow(&self, pool: &[RingServer], change: &Change) -> Result<(), NotDone> {
        let spare = self.args.servers.iter().filter(|server| !has(pool, server));
        let come: Vec<RingServer> = spare.take(change.to - change.from).cloned().collect();
        for server in come.iter().filter(|server| !self.runs(server)) {
            let id = self.place(server);
            let started = Leaver { id, client: server.to_string() };
            let begun = self.machines.start_named(POOL, change.to, &started);
            begun.map_err(NotDone::Failed)?;
        }
        let until = Instant::now() + COMES_WITHIN;
        while let Some(missing) = come.iter().find(|server| !self.runs(server)) {
            if until <= Instant::now() {
                let within = COMES_WITHIN.as_secs();
                return Err(NotDone::Failed(format!("{missing} does not answer after {within} s")));
            }
            if self.is_stopped() {
                return Err(NotDone::Interrupted);
            }
            thread::sleep(LOOK_EVERY);
        }
        // While servers started, somebody else may have begun to resize the pool: what is asked of proxies ends that.
        let now = self.ask_proxies().and_then(|told| {
            agreed(&told)?;
            self.pool_of(&told[0])
        });
        match now.map_err(NotDone::Failed)? == pool {
            true => self.resize(pool, None, [pool, &come].concat()),
            false => Err(NotDone::Failed("the pool was changed meanwhile".into())),
        }
    }

    fn shrink(&mut self, pool: &[RingServer], change: &Change) -> Result<(), NotDone> {
        self.resize(pool, Some(change.to), Vec::new())?;
        let told = self.ask_proxies().and_then(|told| self.pool_of(&told[0]));
        let left = told.map_err(NotDone::Failed)?;
        self.retired.extend(pool.iter().filter(|server| !has(&left, server)).cloned());
        self.stop_retired(&left);
        Ok(())
    }

    fn stop_retired(&mut self, pool: &[RingServer]) {
        for server in std::mem::take(&mut self.retired) {
            if has(pool, &server) {
                continue;
            }
            let leaver = Leaver { id: self.place(&server), client: server.to_string() };
            if let Err(why) = self.machines.stop(POOL, pool.len(), &[leaver]) {
                let text = format!("{server} is not stopped: {why}");
                let fields = json!({ "server": server.to_string(), "why": why });
                self.telling.say(&text, "not_stopped", fields);
                self.retired.push(server);
            }
        }
    }

    /// In the list of all, from 1.
    fn place(&self, server: &RingServer) -> u16 {
        let at = self.args.servers.iter().position(|one| is(one, server));
        at.map_or(0, |at| at as u16 + 1)
    }

    /// As `mbal pool resize` does it.
    fn resize(
        &self,
        pool: &[RingServer],
        to: Option<usize>,
        to_servers: Vec<RingServer>,
    ) -> Result<(), NotDone> {
        let args = Pool {
            servers: pool.to_vec(),
            to,
            to_servers,
            // Theirs.
            ring: Dialect::Libmemcached,
            hash: None,
            rate: self.args.rate,
            dry_run: false,
            json: self.args.json,
            i_stop_writers: false,
            delete_strays: false,
            switch_command: None,
            through: self.args.through.clone(),
            token_file: self.args.token_file.clone(),
            access: self.args.access.clone(),
        };
        let (ended, is_stopped) = run(&args, self.signals);
        match ended {
            _ if is_stopped => Err(NotDone::Interrupted),
            Ok(()) => Ok(()),
            Err(Ended::Interrupted) => Err(NotDone::Interrupted),
            Err(Ended::Refused(why) | Ended::NotSwitched(why)) => Err(NotDone::Failed(why)),
            Err(Ended::Failed(failed)) => Err(NotDone::Failed(failed.to_string())),
        }
    }

    fn minute(&self) -> u64 {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (unix.as_millis() / self.args.every.as_millis()) as u64
    }

    /// Until the next look. True if it is to end.
    fn wait(&self) -> bool {
        let until = Instant::now() + self.args.every;
        loop {
            if self.is_stopped() {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
    }

    fn is_stopped(&self) -> bool {
        matches!(self.signals.next(), Ok(Some(_)))
    }
}
