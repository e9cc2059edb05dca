//! From what is wished to what is done: bounds, a schedule, loads, rest between two changes; and what came true.

use mbal_model::planted::{Fault, is_planted};

use crate::autoscale::{Autoscaler, Demand, Predictive, Reactive, ScalingConfig, hit_ratio_min};
use crate::forecast::Forecast;
use crate::schedule::Rule;

/// A schedule's servers are started so many minutes before they are to serve.
const STARTS_MINUTES: u64 = 5;
/// Servers leave only if the rest then has this mean load at most.
const LOAD_MOST: f64 = 0.6;
/// A cache that was resized has its new hit ratio after so many minutes, which is then measured for so many.
const SETTLES_MINUTES: u64 = 5;
const MEASURED_MINUTES: u64 = 10;
/// How far ahead the rate is foreseen: while servers start and get their share.
const LEAD_MINUTES: usize = 15;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// What the last minute needs.
    Reactive,
    /// The same, or what yesterday needed at this hour, if that is more.
    #[default]
    Predictive,
    /// Nothing.
    Off,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Aims {
    pub policy: Policy,
    pub servers_least: usize,
    pub servers_most: usize,
    /// What the database bears, requests per second.
    pub rate_db: f64,
    pub rules: Vec<Rule>,
    /// Memory is planned for so many times the rate.
    pub headroom: f64,
    /// No server leaves sooner after the last change, and none comes sooner after one has left, unless the database is overloaded.
    pub rest_minutes: u64,
}

/// How the cluster is, once a minute.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// Since 1970.
    pub minute: u64,
    /// Reads of keys per second of the last minute, and the part that hit.
    pub rate: f64,
    pub hit_ratio: f64,
    pub forecast: &'a Forecast,
    pub servers: usize,
    /// Memory of one.
    pub server_bytes: u64,
    /// All are hot: so many more would do.
    pub more_wanted: usize,
    /// Of the workers; 1 is saturated.
    pub load_mean: f64,
}

/// How many servers there are to be, what that is to bring, and why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    pub servers: usize,
    /// The least hit ratio that the database needs, and the forecast one.
    pub needed: f64,
    pub expected: f64,
    pub why: String,
}

/// What came of a change: the hit ratio that was forecast for it, and what was measured when the cache had settled.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// In which it was changed, since 1970.
    pub minute: u64,
    pub from: usize,
    pub to: usize,
    pub expected: f64,
    pub measured: f64,
}

/// Decides once a minute.
pub struct Resizer {
    aims: Aims,
    policy: Option<Box<dyn Autoscaler + Send>>,
    /// Of which `policy` was made.
    config: Option<ScalingConfig>,
    changed: Option<Changed>,
    /// A change of which it is not known yet what came of it.
    judged: Option<Judged>,
}

#[derive(Clone, Copy, Debug)]
struct Changed {
    minute: u64,
    came: bool,
}

#[derive(Clone, Debug)]
struct Judged {
    outcome: Outcome,
    reads: f64,
    hits: f64,
    minutes: u64,
}

impl Resizer {
    /// What happened before `minute` is not known, so it begins with a rest.
    pub fn new(aims: Aims, minute: u64) -> Resizer {
        let changed = Some(Changed { minute, came: true });
        Resizer { aims, policy: None, config: None, changed, judged: None }
    }

    pub fn aims(&self) -> &Aims {
        &self.aims
    }

    /// What is to be so from now on; what was learned of other days stays.
    pub fn aim(&mut self, aims: Aims) {
        if self.aims.policy != aims.policy {
            self.config = None;
        }
        self.aims = aims;
    }

    pub fn decide(&mut self, seen: &Seen) -> Decision {
        let (least, most) = (self.aims.servers_least, self.aims.servers_most);
        let needed = hit_ratio_min(seen.rate, self.aims.rate_db);
        let now = seen.servers;
        let wished = self.wished(seen);
        let bytes = |servers: usize| servers as u64 * seen.server_bytes;
        let mut why = format!(
            "{:.0} reads/s on a database of {:.0}/s need a hit ratio of {needed:.3}, with headroom {:.3}",
            seen.rate,
            self.aims.rate_db,
            hit_ratio_min(seen.rate * self.aims.headroom, self.aims.rate_db)
        );
        let mut servers = match self.aims.policy {
            Policy::Off => now,
            _ => wished,
        };
        why += &format!(": {}", in_words(servers));
        let mut at_least = |wanted: usize, reason: String| {
            if servers < wanted {
                servers = wanted;
                why += &format!("; {reason}: {}", in_words(wanted));
            }
        };
        if seen.more_wanted > 0 {
            at_least(now + seen.more_wanted, "all servers are hot".into());
        }
        let loaded = (seen.load_mean * now as f64 / LOAD_MOST).ceil() as usize;
        at_least(loaded.min(now), format!("their load is {:.2}", seen.load_mean));
        let scheduled = [seen.minute, seen.minute + STARTS_MINUTES];
        let rules = scheduled.map(|minute| Rule::least(&self.aims.rules, minute));
        if let Some(rule) = rules.into_iter().flatten().max_by_key(|rule| rule.servers) {
            at_least(rule.servers, format!("the schedule says {rule}"));
        }
        if servers != servers.clamp(least, most) {
            servers = servers.clamp(least, most);
            why += &format!("; within {least} and {most}: {}", in_words(servers));
        }
        if self.aims.policy != Policy::Off {
            let best = seen.forecast.hit_ratio(bytes(most));
            let best_of_all = seen.forecast.hit_ratio_most();
            if best < needed {
                why += &format!(
                    "; no size is enough: at most {best:.3} with {}, {needed:.3} is needed",
                    in_words(most)
                );
            }
            if best_of_all < needed {
                why += &format!(" (at most {best_of_all:.3} with any memory)");
            }
        }
        if let Some(rests) = self.rests(seen, servers, needed) {
            servers = now;
            why += &format!(
                "; but servers rest for {rests} more minutes after a change: {}",
                in_words(now)
            );
        }
        Decision { servers, needed, expected: seen.forecast.hit_ratio(bytes(servers)), why }
    }

    fn wished(&mut self, seen: &Seen) -> usize {
        let config = ScalingConfig {
            rate_db: self.aims.rate_db,
            server_bytes: seen.server_bytes.max(1),
            servers_least: self.aims.servers_least,
            servers_most: self.aims.servers_most,
            headroom: self.aims.headroom,
            patience_minutes: match self.aims.policy {
                Policy::Reactive => 30,
                // Who foresees the next minutes need not wait as long for a rate to come back.
                Policy::Predictive | Policy::Off => 10,
            },
        };
        let policy = match &mut self.policy {
            Some(policy) if self.config.is_some() => {
                policy.reconfigure(config);
                policy
            }
            none => none.insert(match self.aims.policy {
                Policy::Reactive => Box::new(Reactive::new(config)),
                Policy::Predictive | Policy::Off => Box::new(Predictive::new(config, LEAD_MINUTES)),
            }),
        };
        self.config = Some(config);
        let demand = Demand {
            minute: seen.minute as usize,
            rate: seen.rate,
            forecast: seen.forecast,
            servers: seen.servers,
        };
        policy.decide(&demand).servers
    }

    /// Minutes for which nothing is to be changed that way.
    fn rests(&self, seen: &Seen, wanted: usize, needed: f64) -> Option<u64> {
        let changed = self.changed?;
        let until = changed.minute + self.aims.rest_minutes;
        let is_back = match () {
            () if wanted == seen.servers => false,
            () if wanted < seen.servers => !is_planted(Fault::LeavesWithoutRest),
            // Servers that come after others have left: only for a database that has too much to do.
            () => !changed.came && seen.hit_ratio >= needed,
        };
        (is_back && seen.minute < until).then(|| until - seen.minute)
    }

    /// The cluster has another size from now on.
    pub fn changed(&mut self, minute: u64, from: usize, to: usize, expected: f64) {
        self.changed = Some(Changed { minute, came: from < to });
        let outcome = Outcome { minute, from, to, expected, measured: 0.0 };
        self.judged = Some(Judged { outcome, reads: 0.0, hits: 0.0, minutes: 0 });
    }

    /// What came of the last change, once it is known.
    pub fn came_true(&mut self, seen: &Seen) -> Option<Outcome> {
        let judged = self.judged.as_mut()?;
        if seen.minute <= judged.outcome.minute + SETTLES_MINUTES {
            return None;
        }
        judged.reads += seen.rate;
        judged.hits += seen.rate * seen.hit_ratio;
        judged.minutes += 1;
        if judged.minutes < MEASURED_MINUTES {
            return None;
        }
        let judged = self.judged.take().expect("it has just been seen");
        let measured = judged.hits / judged.reads.max(1e-9);
        (judged.reads > 0.0).then_some(Outcome { measured, ..judged.outcome })
    }
}

fn in_words(servers: usize) -> String {
    if servers == 1 { "1 server".into() } else { format!("{servers} servers") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mbal_sketch::{StackDistances, mix};

    const SERVER_BYTES: u64 = 10_000;

    fn aims(policy: Policy, rules: &[&str]) -> Aims {
        Aims {
            policy,
            servers_least: 2,
            servers_most: 9,
            rate_db: 100.0,
            rules: rules.iter().map(|text| Rule::parse(text).expect("a rule")).collect(),
            headroom: 1.0,
            rest_minutes: 10,
        }
    }

    /// Uniform over 1,000 items of 100 bytes: 10,000 bytes for each tenth of hits.
    fn forecast() -> Forecast {
        let mut distances = StackDistances::new(2_048);
        for number in 0..200_000_u64 {
            distances.observe(mix(mix(number) % 1_000), 100);
        }
        Forecast::of(distances.by_bytes())
    }

    fn seen(forecast: &Forecast, minute: u64, rate: f64, servers: usize) -> Seen<'_> {
        Seen {
            minute,
            rate,
            hit_ratio: 1.0,
            forecast,
            servers,
            server_bytes: SERVER_BYTES,
            more_wanted: 0,
            load_mean: 0.1,
        }
    }

    /// Servers by minute, as they are done at once.
    fn play(aims: Aims, minutes: std::ops::Range<u64>, rate: impl Fn(u64) -> f64) -> Vec<usize> {
        let forecast = forecast();
        let mut resizer = Resizer::new(aims, minutes.start);
        let mut servers = 4;
        let decide = |minute| {
            let decision = resizer.decide(&seen(&forecast, minute, rate(minute), servers));
            if decision.servers != servers {
                resizer.changed(minute, servers, decision.servers, decision.expected);
            }
            servers = decision.servers;
            servers
        };
        minutes.map(decide).collect()
    }

    #[test]
    fn servers_come_at_once_and_leave_after_a_rest() {
        let rate = |minute| if minute < 50 { 300.0 } else { 150.0 };
        let servers = play(aims(Policy::Reactive, &[]), 0..120, rate);
        assert_eq!(servers[0], 7, "they come at once");
        assert_eq!(servers[50..79], [7; 29], "30 minutes of patience");
        assert_eq!(servers[119], 4);
    }

    /// Nine servers hold 900 of the 1,000 items.
    #[test]
    fn it_says_when_no_size_that_it_may_have_is_enough() {
        let forecast = forecast();
        let why = |policy, most, rate| {
            let aims = Aims { servers_most: most, ..aims(policy, &[]) };
            Resizer::new(aims, 0).decide(&seen(&forecast, 0, rate, 4)).why
        };
        for policy in [Policy::Reactive, Policy::Predictive] {
            assert!(!why(policy, 9, 300.0).contains("enough"));
            let bounded = why(policy, 5, 300.0);
            assert!(bounded.contains("; no size is enough: at most 0.50"), "{bounded}");
            assert!(bounded.contains(" with 5 servers, 0.667 is needed"), "{bounded}");
            assert!(!bounded.contains("any memory"), "{bounded}");
            let hopeless = why(policy, 50, 1e6);
            assert!(
                hopeless.contains("; no size is enough: at most 0.99")
                    && hopeless.contains(" with 50 servers, 1.000 is needed (at most 0.99"),
                "{hopeless}"
            );
        }
        assert!(!why(Policy::Off, 5, 300.0).contains("enough"));
    }

    #[test]
    fn a_rate_that_swings_within_the_rest_changes_nothing() {
        let swings = |minute: u64| if minute % 8 < 4 { 300.0 } else { 150.0 };
        let servers = play(aims(Policy::Predictive, &[]), 0..200, swings);
        assert_eq!(servers[1..], [7; 199]);
    }

    #[test]
    fn bounds_and_the_schedule_hold_whatever_the_policy_wishes() {
        assert_eq!(play(aims(Policy::Reactive, &[]), 0..60, |_| 10.0)[59], 2);
        assert_eq!(play(aims(Policy::Reactive, &[]), 0..60, |_| 1e6)[59], 9);
        let servers = play(aims(Policy::Reactive, &["6 from 08:00 to 09:00"]), 400..700, |_| 10.0);
        assert_eq!((servers[74], servers[75], servers[139]), (2, 6, 6), "5 minutes ahead");
        assert_eq!(servers[299], 2);
    }

    #[test]
    fn off_keeps_what_is_there() {
        assert_eq!(play(aims(Policy::Off, &[]), 0..60, |_| 1e6)[59], 4);
    }

    #[test]
    fn hot_servers_get_help_and_busy_ones_do_not_leave() {
        let forecast = forecast();
        let mut resizer = Resizer::new(aims(Policy::Reactive, &[]), 0);
        let hot = Seen { more_wanted: 2, load_mean: 0.9, ..seen(&forecast, 100, 10.0, 4) };
        let decision = resizer.decide(&hot);
        assert_eq!(decision.servers, 6, "{}", decision.why);
        resizer.changed(100, 4, 6, decision.expected);
        for minute in 101..200 {
            let busy = Seen { load_mean: 0.5, ..seen(&forecast, minute, 10.0, 6) };
            let decision = resizer.decide(&busy);
            assert!(decision.servers >= 5, "{}", decision.why);
        }
    }

    #[test]
    fn after_servers_have_left_others_come_at_once_only_if_the_database_suffers() {
        let forecast = forecast();
        let mut resizer = Resizer::new(aims(Policy::Reactive, &[]), 0);
        resizer.changed(100, 6, 4, 0.4);
        let decision = resizer.decide(&seen(&forecast, 103, 300.0, 4));
        assert_eq!(decision.servers, 4, "{}", decision.why);
        let suffers = Seen { hit_ratio: 0.4, ..seen(&forecast, 103, 300.0, 4) };
        assert_eq!(resizer.decide(&suffers).servers, 7);
    }

    #[test]
    fn what_came_true_is_told_once_when_the_cache_has_settled() {
        let forecast = forecast();
        let mut resizer = Resizer::new(aims(Policy::Reactive, &[]), 0);
        resizer.changed(100, 4, 6, 0.6);
        let told: Vec<Outcome> = (101..200)
            .filter_map(|minute| {
                let hit_ratio = if minute <= 105 { 0.0 } else { 0.5 };
                resizer.came_true(&Seen { hit_ratio, ..seen(&forecast, minute, 300.0, 6) })
            })
            .collect();
        let expected = Outcome { minute: 100, from: 4, to: 6, expected: 0.6, measured: 0.5 };
        assert_eq!(told, [expected]);
    }
}
