//! How many stock memcacheds a pool is to have, by what its proxies tell once a minute.
//!
//! ```text
//!   proxies ── ProxyTold ──► Autopilot::look ──► Report: what it saw, and perhaps a Change
//!                                                  Change done, or not ──► Autopilot::done
//! ```
//!
//! It decides as a cluster's autoscaler, by [`Resizer`]. Each proxy sees some requests for all keys, and the order in which keys are
//! asked for is the same through each: so each curve is one of the whole pool, and they are added by their requests.

use std::collections::{BTreeMap, VecDeque};

use mbal_sketch::Curve;

use crate::autoscale::hit_ratio_min;
use crate::database::{Bears, DatabaseProfile};
use crate::forecast::{Forecast, Measured};
use crate::resizing::{Aims, Outcome, Resizer, Seen};

/// The hit ratio that forecasts go through is measured in a pool that has had the same servers for so many minutes, and over them.
const STEADY_MINUTES: usize = 10;
/// No server leaves that the most reads of so many minutes would need: to list and to copy a stock pool costs more than a server for
/// half an hour, and a rate that swings about a size would change it to and fro.
const CALM_MINUTES: usize = 30;
/// What a size has hit is remembered for so long: a forecast that promised too much of it is not believed again.
const REMEMBERED_MINUTES: u64 = 1_440;
/// A change that fails again and again is tried each minute at first, and each so many at last.
const AGAIN_MINUTES_MAX: u64 = 32;

/// What a proxy tells: `stats distances`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProxyTold {
    /// As they stand in its list.
    pub servers: Vec<String>,
    /// How far a resize is; `none`.
    pub resize: String,
    /// Reads of keys since its start, and those that hit.
    pub reads: u64,
    pub hits: u64,
    /// Reads of which the curve tells, and its points.
    pub counted: f64,
    pub points: Vec<u64>,
    /// By the end in ns: missed keys that were stored in less, and in more than the end before.
    pub fills: BTreeMap<u64, u64>,
}

impl ProxyTold {
    pub fn parse(stats: &BTreeMap<String, String>) -> Result<ProxyTold, String> {
        let text = |name: &str| stats.get(name).ok_or_else(|| format!("it tells no {name}"));
        let list =
            |name: &str| text(name).map(|text| text.split(',').filter(|one| !one.is_empty()));
        let odd = |name: &str| format!("its {name} is no number");
        let number = |name: &str| text(name)?.parse().map_err(|_| odd(name));
        let counted = text("counted")?.parse().ok();
        let counted = counted.filter(|counted: &f64| counted.is_finite() && *counted >= 0.0);
        let points = list("points")?.map(|point| point.parse().map_err(|_| odd("points")));
        let mut fills = BTreeMap::new();
        for (name, count) in stats {
            let Some(end) = name.strip_prefix("fill:") else { continue };
            let (Ok(end), Ok(count)) = (end.parse(), count.parse()) else { return Err(odd(name)) };
            fills.insert(end, count);
        }
        Ok(ProxyTold {
            servers: list("servers")?.map(str::to_owned).collect(),
            resize: text("resize")?.clone(),
            reads: number("reads")?,
            hits: number("hits")?,
            counted: counted.ok_or_else(|| odd("counted"))?,
            points: points.collect::<Result<_, _>>()?,
            fills,
        })
    }
}

/// What a database bears.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DatabaseRate {
    /// So many reads a second.
    Known(f64),
    /// What [`DatabaseProfile`] finds.
    Profiled,
}

/// A look at a pool.
#[derive(Clone, Debug)]
pub struct PoolLook {
    /// Since 1970.
    pub minute: u64,
    /// Since the look before; since anything, for the first.
    pub seconds: f64,
    /// In the same order at each look.
    pub proxies: Vec<ProxyTold>,
    /// Memory for items of one server: the mean.
    pub server_bytes: u64,
}

/// The pool is to have another size.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub from: usize,
    pub to: usize,
    /// The hit ratio that is forecast.
    pub expected: f64,
}

/// What was seen, and what is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub servers: usize,
    pub wanted: usize,
    /// Reads a second since the look before, and the part that hit.
    pub rate: f64,
    pub hit_ratio: f64,
    /// p_min, and the forecast for the servers that are wanted.
    pub needed: f64,
    pub expected: f64,
    pub why: String,
    /// If the database is profiled, and something is known.
    pub bears: Option<Bears>,
    /// What came of the last change, once.
    pub outcome: Option<Outcome>,
    pub change: Option<Change>,
}

pub struct Autopilot {
    /// Its rate of the database is that of the last look.
    aims: Aims,
    database: DatabaseRate,
    resizer: Option<Resizer>,
    profile: DatabaseProfile,
    /// What each proxy told last.
    before: Vec<ProxyTold>,
    /// The servers, and the reads and hits of the minutes in which these were all.
    steady: (Vec<String>, VecDeque<(u64, u64)>),
    measured: Option<Measured>,
    /// By size: when it was measured last, and what hit.
    was: BTreeMap<usize, (u64, f64)>,
    /// Reads a second, of the last minutes.
    rates: VecDeque<f64>,
    /// Failures of a change in a row, and the minute in which it is tried again.
    failures: u32,
    again: u64,
}

impl Autopilot {
    /// `aims.rate_db` is not looked at.
    pub fn new(aims: Aims, database: DatabaseRate) -> Autopilot {
        Autopilot {
            aims,
            database,
            resizer: None,
            profile: DatabaseProfile::default(),
            before: Vec::new(),
            steady: (Vec::new(), VecDeque::new()),
            measured: None,
            was: BTreeMap::new(),
            rates: VecDeque::new(),
            failures: 0,
            again: 0,
        }
    }

    /// Once a minute. The error says why nothing can be decided: proxies do not have the same list, or a resize is under way.
    pub fn look(&mut self, look: &PoolLook) -> Result<Report, String> {
        let counted = self.count(&look.proxies);
        let servers = agreed(&look.proxies)?;
        if self.steady.0 != servers {
            self.steady = (servers.to_vec(), VecDeque::new());
        }
        // Nothing is known of the time before the first look.
        let Some(ProxyCounts { reads, hits, fills }) = counted else {
            return Ok(Report {
                servers: servers.len(),
                wanted: servers.len(),
                why: "the first look".into(),
                ..Report::default()
            });
        };
        self.measure(look, (reads, hits));
        let rate = reads as f64 / look.seconds.max(1e-3);
        let hit_ratio = hits as f64 / reads.max(1) as f64;
        let (timed, latency_ns) = median(&fills);
        self.profile.observe(look.minute, rate * (1.0 - hit_ratio), timed, latency_ns);
        let bears = match self.database {
            DatabaseRate::Known(_) => None,
            DatabaseRate::Profiled => self.profile.bears(),
        };
        let nothing = Report {
            servers: servers.len(),
            wanted: servers.len(),
            rate,
            hit_ratio,
            bears,
            ..Report::default()
        };
        let Some(rate_db) = self.rate_db(bears) else {
            let why = "nothing is known yet of what the database bears".into();
            return Ok(Report { why, ..nothing });
        };
        if reads == 0 {
            return Ok(Report { why: "nothing was read".into(), ..nothing });
        }
        let forecast = forecast(&look.proxies, self.measured);
        let seen = Seen {
            minute: look.minute,
            rate,
            hit_ratio,
            forecast: &forecast,
            servers: servers.len(),
            server_bytes: look.server_bytes,
            more_wanted: 0,
            // How busy a memcached's processors are it does not tell.
            load_mean: 0.0,
        };
        let aims = Aims { rate_db, ..self.aims.clone() };
        let resizer = self.resizer.get_or_insert_with(|| Resizer::new(aims.clone(), look.minute));
        resizer.aim(aims);
        let (decision, outcome) = (resizer.decide(&seen), resizer.came_true(&seen));
        let mut why = decision.why;
        if let Some(bears) = bears {
            why = format!("{}; {why}", in_words(&bears));
        }
        let from = servers.len();
        let (mut to, mut expected) = (decision.servers, decision.expected);
        let needed = hit_ratio_min(rate, rate_db);
        if self.rates.len() == CALM_MINUTES {
            self.rates.pop_front();
        }
        self.rates.push_back(rate);
        let most = self.rates.iter().copied().fold(0.0, f64::max);
        let for_most = hit_ratio_min(most * self.aims.headroom, rate_db);
        let at = |servers: usize| forecast.hit_ratio(servers as u64 * look.server_bytes);
        let proven = |servers: usize| match self.was.get(&servers) {
            Some((minute, was)) if look.minute < minute + REMEMBERED_MINUTES => {
                was.min(at(servers))
            }
            _ => at(servers),
        };
        if to < from {
            let stay = (to..from).find(|servers| for_most <= proven(*servers)).unwrap_or(from);
            if to < stay {
                (to, expected) = (stay, at(stay));
                why += &format!("; {CALM_MINUTES} minutes had up to {most:.0} reads/s: {to} stay");
            }
        }
        if self.was.is_empty() {
            why += "; not measured for ten minutes yet";
            // Keys that the sketch has not heard of are taken to miss with more memory, too. What hits often enough needs no more.
            if from < to && needed <= hit_ratio {
                (to, expected) = (from, at(from));
                why += &format!(", and {hit_ratio:.3} hit: {from} servers");
            }
        }
        let acts = to != from && self.again <= look.minute;
        if to != from && !acts {
            why +=
                &format!("; it failed, and is tried again in {} minutes", self.again - look.minute);
        }
        Ok(Report {
            wanted: to,
            needed,
            expected,
            why,
            outcome,
            change: acts.then_some(Change { from, to, expected }),
            ..nothing
        })
    }

    /// What came of a change that was begun.
    pub fn done(&mut self, minute: u64, change: &Change, is_done: bool) {
        if is_done {
            (self.failures, self.again) = (0, 0);
            let resizer = self.resizer.as_mut().expect("it has decided");
            return resizer.changed(minute, change.from, change.to, change.expected);
        }
        self.again = minute + (1 << self.failures.min(16)).min(AGAIN_MINUTES_MAX);
        self.failures += 1;
    }

    /// Until a knee was seen, so much more than the database has borne is tried as is planned for anyway: who would plan for less
    /// than there is would have servers come for nothing.
    fn rate_db(&self, bears: Option<Bears>) -> Option<f64> {
        match self.database {
            DatabaseRate::Known(rate) => Some(rate),
            DatabaseRate::Profiled => bears.map(|bears| match bears.knee {
                Some(_) => bears.rate,
                None => bears.rate * self.aims.headroom,
            }),
        }
    }

    /// What all proxies have counted since the look before. One that has begun anew has counted from zero.
    fn count(&mut self, proxies: &[ProxyTold]) -> Option<ProxyCounts> {
        let before = std::mem::replace(&mut self.before, proxies.to_vec());
        if before.is_empty() {
            return None;
        }
        let mut all = ProxyCounts::default();
        for (told, before) in proxies.iter().zip(&before) {
            let nothing = ProxyTold::default();
            let is_new = told.reads < before.reads || told.hits < before.hits;
            let before = if is_new { &nothing } else { before };
            let (reads, hits) = (told.reads - before.reads, told.hits - before.hits);
            all.reads += reads;
            all.hits += hits.min(reads);
            for (end, count) in &told.fills {
                let more = count.saturating_sub(before.fills.get(end).copied().unwrap_or(0));
                *all.fills.entry(*end).or_default() += more;
            }
        }
        Some(all)
    }

    /// A pool that has just got or lost a server is not yet what it will be.
    fn measure(&mut self, look: &PoolLook, minute: (u64, u64)) {
        let (servers, minutes) = &mut self.steady;
        minutes.push_back(minute);
        let is_steady = minutes.len() > STEADY_MINUTES;
        if is_steady {
            minutes.pop_front();
        } else if !self.was.is_empty() {
            return;
        }
        // Before the first ten minutes a minute tells more than lists that have just begun, for which most keys are new.
        let told = if is_steady { minutes.len() } else { 1 };
        let (reads, hits) =
            minutes.iter().rev().take(told).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        if reads > 0 {
            let bytes = servers.len() as u64 * look.server_bytes;
            let hit_ratio = hits as f64 / reads as f64;
            self.measured = Some(Measured { bytes, hit_ratio });
            if is_steady {
                self.was.insert(servers.len(), (look.minute, hit_ratio));
            }
        }
    }
}

#[derive(Default)]
struct ProxyCounts {
    reads: u64,
    hits: u64,
    fills: BTreeMap<u64, u64>,
}

/// The list that all proxies have. The error says why it must not be changed now.
pub fn agreed(proxies: &[ProxyTold]) -> Result<&[String], String> {
    let first = proxies.first().ok_or("no proxy")?;
    let again = "run the same mbal pool resize again, which ends it";
    for (number, told) in (1..).zip(proxies) {
        match told.resize.as_str() {
            "none" => {}
            "silent" | "lost" => {
                return Err(format!("proxy {number}: a resize is not over: {again}"));
            }
            step => return Err(format!("proxy {number}: a resize is under way ({step})")),
        }
        if told.servers.is_empty() {
            return Err(format!("proxy {number} tells no servers"));
        }
        let is_same = told.servers.len() == first.servers.len()
            && told.servers.iter().all(|server| first.servers.contains(server));
        if !is_same {
            return Err(format!(
                "proxy {number} has {}, and proxy 1 has {}: {again}",
                told.servers.join(","),
                first.servers.join(",")
            ));
        }
    }
    Ok(&first.servers)
}

fn forecast(proxies: &[ProxyTold], measured: Option<Measured>) -> Forecast {
    let curve = |told: &ProxyTold| (Curve::from_points(&told.points, told.counted), 1.0);
    let forecast = Forecast::new(&proxies.iter().map(curve).collect::<Vec<_>>());
    match measured {
        Some(measured) => forecast.through(measured),
        None => forecast,
    }
}

/// How many there are, and the latency that half of them have at most: straight within its bucket.
fn median(fills: &BTreeMap<u64, u64>) -> (u64, f64) {
    let all: u64 = fills.values().sum();
    let (mut below, mut begin) = (0, 0);
    for (end, count) in fills {
        if *count > 0 && 2 * (below + count) >= all {
            let part = (all as f64 / 2.0 - below as f64) / *count as f64;
            return (all, begin as f64 + part * (end - begin) as f64);
        }
        (below, begin) = (below + count, *end);
    }
    (0, 0.0)
}

fn in_words(bears: &Bears) -> String {
    let ms = bears.latency_ns / 1e6;
    match bears.knee {
        Some(knee) => format!(
            "the database bears {:.0} misses/s: from {knee:.0} on they take more than twice {ms:.1} ms",
            bears.rate
        ),
        None => format!(
            "the database has borne {:.0} misses/s in {ms:.1} ms, and no knee was seen",
            bears.rate
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resizing::Policy;
    use mbal_sketch::{Random, StackDistances, mix};

    const SERVER_BYTES: u64 = 20_000_000;

    fn aims(policy: Policy) -> Aims {
        Aims {
            policy,
            servers_least: 1,
            servers_most: 6,
            rate_db: 0.0,
            rules: Vec::new(),
            headroom: 1.25,
            rest_minutes: 10,
        }
    }

    /// Uniform over 1,000 items of 100 kB: a server holds a fifth of them.
    fn curve() -> Curve {
        let mut distances = StackDistances::new(2_048);
        for number in 0..200_000_u64 {
            distances.observe(mix(mix(number) % 1_000), 100_000);
        }
        distances.by_bytes()
    }

    fn names(servers: usize) -> Vec<String> {
        (0..servers).map(|number| format!("s{number}:11211")).collect()
    }

    /// A pool in virtual time, behind some proxies that share its requests.
    struct World {
        curve: Curve,
        proxies: Vec<ProxyTold>,
        servers: usize,
        autopilot: Autopilot,
        changes: Vec<(u64, usize, usize)>,
        outcomes: Vec<Outcome>,
    }

    impl World {
        fn new(proxies: usize, policy: Policy, database: DatabaseRate) -> World {
            let told = ProxyTold { resize: "none".into(), ..ProxyTold::default() };
            World {
                curve: curve(),
                proxies: vec![told; proxies],
                servers: 6,
                autopilot: Autopilot::new(aims(policy), database),
                changes: Vec::new(),
                outcomes: Vec::new(),
            }
        }

        /// The share of `rate` reads a second that hits.
        fn hit_ratio(&self) -> f64 {
            1.0 - self.curve.miss_ratio(self.servers as u64 * SERVER_BYTES)
        }

        fn minute(&mut self, minute: u64, rate: f64) -> Report {
            self.minute_of(minute, rate, |_| 5)
        }

        /// The database takes so many ms at so many misses a second.
        fn minute_of(&mut self, minute: u64, rate: f64, ms: impl Fn(f64) -> u64) -> Report {
            let (hit_ratio, count) = (self.hit_ratio(), self.proxies.len() as f64);
            let took = 1_000_000 * ms(rate * (1.0 - hit_ratio)).next_power_of_two();
            for told in &mut self.proxies {
                let reads = (60.0 * rate / count).round() as u64;
                told.servers = names(self.servers);
                told.reads += reads;
                told.hits += (reads as f64 * hit_ratio).round() as u64;
                told.counted = self.curve.requests() / count;
                told.points = self.curve.clone().of_requests(told.counted).points();
                *told.fills.entry(took).or_default() += 100;
                told.fills.entry(took / 2).or_default();
            }
            let look = PoolLook {
                minute,
                seconds: 60.0,
                proxies: self.proxies.clone(),
                server_bytes: SERVER_BYTES,
            };
            let report = self.autopilot.look(&look).expect("proxies agree");
            self.outcomes.extend(report.outcome.clone());
            if let Some(change) = &report.change {
                self.changes.push((minute, change.from, change.to));
                self.servers = change.to;
                self.autopilot.done(minute, change, true);
            }
            report
        }
    }

    /// The rate is high, low at night, and high again.
    #[test]
    fn a_pool_shrinks_at_night_and_grows_in_the_morning() {
        for (policy, proxies) in
            [(Policy::Reactive, 1), (Policy::Predictive, 1), (Policy::Reactive, 3)]
        {
            let mut world = World::new(proxies, policy, DatabaseRate::Known(100.0));
            let rate = |minute| if (60..240).contains(&minute) { 150.0 } else { 1_500.0 };
            for minute in 0..360 {
                let report = world.minute(minute, rate(minute));
                let rises = minute == 240;
                assert!(rises || report.needed <= world.hit_ratio() + 1e-9, "{minute}: {report:?}");
            }
            let sizes: Vec<usize> = world.changes.iter().map(|change| change.2).collect();
            assert_eq!(sizes, [5, 3, 5], "{policy:?}, {proxies} proxies: {:?}", world.changes);
            assert_eq!(world.changes[2].0, 240, "it grows at once");
            // Points of a curve are a quarter of an octave apart, and this one has a corner.
            for outcome in &world.outcomes {
                assert!((outcome.expected - outcome.measured).abs() < 0.05, "{outcome:?}");
            }
            assert_eq!(world.outcomes.len(), 3);
        }
    }

    #[test]
    fn a_rate_that_swings_moves_nothing_to_and_fro() {
        let mut world = World::new(2, Policy::Predictive, DatabaseRate::Known(100.0));
        let mut bits = Random::new(5);
        for minute in 0..600 {
            let swing = 0.8 + 0.4 * bits.unit();
            world.minute(minute, swing * if minute % 8 < 4 { 400.0 } else { 200.0 });
        }
        // Six servers are more than are needed. Of four a forecast may promise too much, once.
        assert!(world.changes.len() <= 3, "{:?}", world.changes);
    }

    #[test]
    fn where_no_size_is_enough_it_says_so_and_nobody_leaves() {
        let mut world = World::new(1, Policy::Reactive, DatabaseRate::Known(100.0));
        world.autopilot.aims.servers_most = 3;
        world.servers = 3;
        for minute in 0..60 {
            let why = world.minute(minute, 1_500.0).why;
            let says = why.contains("; no size is enough: at most 0.5")
                && why.contains(" with 3 servers, 0.933 is needed");
            assert!(minute == 0 || says, "{why}");
        }
        assert_eq!(world.changes, []);
    }

    /// The curve knows of half of the hits: keys that the pool has had for long are new to it.
    #[test]
    fn a_pool_that_hits_often_enough_does_not_grow_by_a_curve_that_was_not_measured() {
        for (database, grows) in [(100.0, false), (10.0, true)] {
            let mut autopilot =
                Autopilot::new(aims(Policy::Reactive), DatabaseRate::Known(database));
            let told = |minute: u64| ProxyTold {
                resize: "none".into(),
                servers: names(3),
                reads: 60_000 * minute,
                hits: 57_000 * minute,
                counted: 100.0,
                points: vec![0, 50, 70],
                ..ProxyTold::default()
            };
            let mut changes = (0..9).filter_map(|minute| {
                let (proxies, server_bytes) = (vec![told(minute)], 10);
                let look = PoolLook { minute, seconds: 60.0, proxies, server_bytes };
                autopilot.look(&look).expect("one proxy").change
            });
            assert_eq!(changes.next().is_some(), grows, "{database}");
        }
    }

    /// It is slow from 200 misses/s on, which four servers never let through: they let through 104 at most.
    #[test]
    fn a_database_that_is_profiled_is_not_asked_for_more_than_it_has_borne() {
        let mut world = World::new(1, Policy::Reactive, DatabaseRate::Profiled);
        world.autopilot.aims.servers_most = 4;
        world.servers = 4;
        let mut most: f64 = 0.0;
        for minute in 0..2_160 {
            // A day is half as long, and each is busier.
            let busy = 1.0 + 0.15 * (minute / 720) as f64;
            let rate = busy * if minute % 720 < 360 { 400.0 } else { 100.0 };
            let report =
                world.minute_of(minute, rate, |misses| if misses < 200.0 { 4 } else { 40 });
            // A rise is seen when it has come.
            if minute % 720 > 0 {
                most = most.max(rate * (1.0 - report.hit_ratio));
            }
        }
        assert!(most < 110.0, "{most} misses/s: {:?}", world.changes);
        assert!(world.changes.iter().any(|change| change.2 < 4), "{:?}", world.changes);
        assert!(world.changes.len() <= 6, "{:?}", world.changes);
    }

    /// The night's database can be asked for less: a knee at 150.
    #[test]
    fn above_the_knee_of_a_profile_servers_come() {
        let mut world = World::new(1, Policy::Reactive, DatabaseRate::Profiled);
        world.servers = 3;
        for minute in 0..300 {
            let rate = 100.0 + 4.0 * minute as f64;
            world.minute_of(minute, rate, |misses| if misses < 150.0 { 4 } else { 40 });
        }
        assert!(world.servers >= 5, "{:?}", world.changes);
    }

    #[test]
    fn nothing_is_decided_while_proxies_differ_or_a_resize_goes_on() {
        let told = |resize: &str, servers: usize| ProxyTold {
            resize: resize.into(),
            servers: names(servers),
            ..ProxyTold::default()
        };
        for (proxies, why) in [
            (vec![], "no proxy"),
            (vec![told("none", 0)], "proxy 1 tells no servers"),
            (vec![told("copying", 2)], "proxy 1: a resize is under way (copying)"),
            (vec![told("none", 2), told("lost", 2)], "proxy 2: a resize is not over: run"),
            (vec![told("silent", 2)], "proxy 1: a resize is not over"),
            (
                vec![told("none", 2), told("none", 3)],
                "proxy 2 has s0:11211,s1:11211,s2:11211, and proxy 1",
            ),
        ] {
            let refused = agreed(&proxies).expect_err(why);
            assert!(refused.starts_with(why), "{refused}");
        }
        let mut turned = told("none", 2);
        turned.servers.reverse();
        assert_eq!(agreed(&[told("none", 2), turned]).map(<[_]>::len), Ok(2));
    }

    #[test]
    fn a_change_that_fails_is_tried_again_later_and_later() {
        let mut autopilot = Autopilot::new(aims(Policy::Reactive), DatabaseRate::Known(1.0));
        let change = Change { from: 2, to: 3, expected: 1.0 };
        let again = [100, 200, 300, 400, 500, 600, 700].map(|minute| {
            autopilot.done(minute, &change, false);
            autopilot.again - minute
        });
        assert_eq!(again, [1, 2, 4, 8, 16, 32, 32]);
    }

    #[test]
    fn a_proxy_that_begins_anew_counts_from_zero() {
        let mut autopilot = Autopilot::new(aims(Policy::Reactive), DatabaseRate::Known(1.0));
        let told = |reads, hits| ProxyTold { reads, hits, ..ProxyTold::default() };
        assert!(autopilot.count(&[told(100, 50), told(100, 100)]).is_none());
        let counted = autopilot.count(&[told(150, 60), told(10, 5)]).expect("a second look");
        assert_eq!((counted.reads, counted.hits), (60, 15));
    }

    #[test]
    fn what_a_proxy_tells_is_read_or_refused() {
        let lines = [
            ("servers", "a:1,b:2 name"),
            ("resize", "none"),
            ("reads", "10"),
            ("hits", "4"),
            ("counted", "9.5"),
            ("points", "0,3,7"),
            ("state_bytes", "1"),
            ("fill:1000", "3"),
        ];
        let stats = |changed: &[(&str, &str)]| -> BTreeMap<String, String> {
            let all = lines.iter().chain(changed);
            all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let told = ProxyTold::parse(&stats(&[])).expect("it is whole");
        assert_eq!(told.servers, ["a:1", "b:2 name"]);
        assert_eq!(
            (told.points, told.counted, told.fills),
            (vec![0, 3, 7], 9.5, [(1000, 3)].into())
        );
        assert_eq!(ProxyTold::parse(&stats(&[("points", "")])).expect("no reads yet").points, []);
        for changed in [
            ("reads", "-1"),
            ("hits", "many"),
            ("counted", "NaN"),
            ("counted", "-1"),
            ("points", "1,x"),
            ("fill:x", "1"),
        ] {
            assert!(ProxyTold::parse(&stats(&[changed])).is_err(), "{changed:?}");
        }
        assert_eq!(ProxyTold::parse(&BTreeMap::new()), Err("it tells no counted".into()));
    }

    #[test]
    fn half_of_the_fills_took_less_than_the_median() {
        for (fills, median_ns) in [
            (vec![(1_000, 0), (2_000, 10), (4_000, 0)], (10, 1_500.0)),
            (vec![(1_000, 10), (2_000, 0), (4_000, 10)], (20, 1_000.0)),
            (vec![(1_000, 0), (2_000, 5), (4_000, 15)], (20, 2_666.0)),
            (vec![(1_000, 0)], (0, 0.0)),
        ] {
            let found = median(&fills.iter().copied().collect());
            assert!(found.0 == median_ns.0 && (found.1 - median_ns.1).abs() < 1.0, "{found:?}");
        }
    }

    /// One that answers as a queue does, from 20 to 95% of what it can.
    #[test]
    fn a_queue_bears_about_half_of_what_it_can() {
        for seed in 0..20 {
            let (mut bits, mut profile) = (Random::new(seed), DatabaseProfile::default());
            let most = 500.0 * (1 << (seed % 5)) as f64;
            for minute in 0..2_000 {
                let load = 0.05 + 0.9 * bits.unit();
                let latency = 2e6 / (1.0 - load) * (0.9 + 0.2 * bits.unit());
                profile.observe(minute, load * most, 100, latency);
            }
            let bears = profile.bears().expect("it was seen");
            assert!((0.4..0.65).contains(&(bears.rate / most)), "{seed}: {bears:?} of {most}");
            assert!(bears.knee.is_some());
        }
    }
}
