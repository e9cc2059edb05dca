//! What is known of a cluster's hit ratio by size, from what its servers say of theirs.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mbal_elastic::{Forecast, Measured, hit_ratio_min};
use mbal_model::{ClusterPlan, Instant, ServerId};
use mbal_sketch::Curve;

use crate::api::{CurveReport, ForecastTold, Incarnation, SizeForecast};
use crate::ledger::Ledger;

/// Of rates and measured hit ratios.
const LOOKS_BACK: Duration = Duration::from_secs(60);
/// The hit ratio that forecasts go through is measured while the cluster has been as it is for so long, and over that time.
const STEADY: Duration = Duration::from_secs(600);
/// Sizes that a question may ask for.
const SERVERS_MOST: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Forecasts {
    servers: BTreeMap<ServerId, CurveHistory>,
    /// The last time that it was; or, before the first, of a minute.
    measured: Option<Measured>,
    is_first: bool,
    /// Since when these servers have been those that serve.
    steady: (Instant, Vec<ServerId>),
}

#[derive(Debug)]
struct CurveHistory {
    incarnation: Incarnation,
    report: CurveReport,
    /// When how many reads and hits were said, the last for so long as is looked back.
    counts: VecDeque<(Instant, u64, u64)>,
}

impl CurveHistory {
    /// Reads and hits a second, of so long ago until the last word.
    fn rates(&self, now: Instant, back: Duration) -> (f64, f64) {
        let Some(&last) = self.counts.back() else { return (0.0, 0.0) };
        if now - last.0 > back {
            return (0.0, 0.0);
        }
        let since = last.0 - back;
        let first = self.counts.iter().find(|count| count.0 >= since);
        let &first = first.expect("the last one is not older");
        let seconds = (last.0 - first.0).as_secs_f64();
        if seconds == 0.0 {
            return (0.0, 0.0);
        }
        ((last.1 - first.1) as f64 / seconds, (last.2 - first.2) as f64 / seconds)
    }
}

/// What an autoscaler reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    pub forecast: Forecast,
    /// Reads of keys a second, in the last minute, and the part that hit.
    pub rate: f64,
    pub hit_ratio: f64,
    /// Servers that have cachelets or may get some, and their clients' addresses.
    pub servers: Vec<(ServerId, String)>,
    /// Those whose curves are known.
    pub servers_told: usize,
    /// Memory of a server: the mean.
    pub server_bytes: u64,
    /// Mean bytes of an item.
    pub item_bytes: f64,
    pub state_bytes: u64,
    /// All are hot: so many more would do.
    pub more_wanted: usize,
    pub load_mean: f64,
}

impl Forecasts {
    pub fn reported(
        &mut self,
        ledger: &Ledger,
        (server, incarnation): (ServerId, Incarnation),
        report: CurveReport,
    ) {
        let now = ledger.now;
        self.look_whether_steady(now, &ledger.serving());
        let told = self.servers.entry(server).or_insert_with(|| CurveHistory {
            incarnation,
            report: CurveReport::default(),
            counts: VecDeque::new(),
        });
        let went_back =
            told.counts.back().is_some_and(|last| report.reads < last.1 || report.hits < last.2);
        if told.incarnation != incarnation || went_back {
            told.counts.clear();
        }
        told.counts.push_back((now, report.reads, report.hits));
        let oldest = now - STEADY;
        while told.counts.len() > 1 && told.counts[0].0 < oldest {
            told.counts.pop_front();
        }
        (told.incarnation, told.report) = (incarnation, report);
    }

    fn look_whether_steady(&mut self, now: Instant, serving: &[ServerId]) {
        if self.steady.1 != serving {
            self.steady = (now, serving.to_vec());
        }
    }

    /// `plan` is the last one of balance.
    pub fn demand(&mut self, ledger: &Ledger, plan: &ClusterPlan) -> Demand {
        let (now, members) = (ledger.now, &ledger.state().members);
        let serving = ledger.serving();
        self.look_whether_steady(now, &serving);
        self.servers.retain(|id, _| members.contains_key(id));
        let mut shares: BTreeMap<ServerId, u64> = BTreeMap::new();
        for (prefix, owner) in ledger.state().cachelets() {
            *shares.entry(owner.server).or_default() += prefix.nodes() as u64;
        }
        let told = self.servers.iter();
        let parts: Vec<(Curve, f64)> = told
            .clone()
            .filter_map(|(id, told)| {
                let share = *shares.get(id)? as f64 / 65_536.0;
                let counted = if told.report.counted.is_finite() {
                    told.report.counted.max(0.0)
                } else {
                    0.0
                };
                Some((Curve::from_points(&told.report.points, counted), share))
            })
            .collect();
        let sum = |back| {
            let rates = told.clone().map(|(_, told)| told.rates(now, back));
            rates.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        let part = |(reads, hits): (f64, f64)| if reads > 0.0 { hits / reads } else { 0.0 };
        let (lately, steadily) = (sum(LOOKS_BACK), sum(STEADY));
        let state_bytes = told.clone().map(|(_, told)| told.report.state_bytes).max().unwrap_or(0);
        let memory = |id: &ServerId| {
            let heard = ledger.heard(*id).map_or(0, |heard| heard.last.memory_bytes);
            if heard > 0 { heard } else { members[id].memory_bytes }
        };
        let all_bytes: u64 = serving.iter().map(memory).sum();
        // A cache that has just got or lost a server is not yet what it will be.
        let steady_for = now - self.steady.0;
        let (long_enough, first) = (steady_for >= STEADY, steady_for >= LOOKS_BACK);
        if long_enough && steadily.0 > 0.0 {
            let hit_ratio = part(steadily);
            (self.measured, self.is_first) =
                (Some(Measured { bytes: all_bytes, hit_ratio }), false);
        } else if first && lately.0 > 0.0 && (self.measured.is_none() || self.is_first) {
            // A minute tells more than lists that have just begun, for which most keys are new.
            let hit_ratio = part(lately);
            (self.measured, self.is_first) = (Some(Measured { bytes: all_bytes, hit_ratio }), true);
        }
        let item_bytes = told.clone().map(|(_, told)| told.report.item_bytes as f64).sum::<f64>()
            / told.len().max(1) as f64;
        let forecast = Forecast::new(&parts);
        let forecast = match self.measured {
            Some(measured) => forecast.through(measured),
            None => forecast,
        };
        let client = |id: &ServerId| (*id, members[id].addresses.client.to_string());
        Demand {
            forecast,
            rate: lately.0,
            hit_ratio: part(lately),
            servers_told: parts.len(),
            server_bytes: all_bytes / serving.len().max(1) as u64,
            item_bytes,
            servers: serving.iter().map(client).collect(),
            state_bytes,
            more_wanted: plan.servers_wanted as usize,
            load_mean: plan.load_mean,
        }
    }

    /// Of `1..=servers`, and at least of what there is.
    pub fn told(
        &self,
        demand: &Demand,
        servers: usize,
        database_rate: Option<f64>,
    ) -> ForecastTold {
        let now = demand.servers.len();
        let bytes = |servers: usize| servers as u64 * demand.server_bytes;
        let size = |servers: usize| {
            let hit_ratio = demand.forecast.hit_ratio(bytes(servers));
            let larger = servers > now && demand.item_bytes > 0.0;
            let fills_in = || {
                let (rate, item_bytes) = (demand.rate, demand.item_bytes);
                demand.forecast.fills_in(bytes(now), bytes(servers), rate, item_bytes)
            };
            SizeForecast {
                servers,
                hit_ratio,
                hit_ratio_most: demand.forecast.hit_ratio_most_at(bytes(servers)),
                database_rate: demand.rate * (1.0 - hit_ratio),
                fills_in_s: larger.then(fills_in).flatten(),
            }
        };
        ForecastTold {
            servers: now,
            servers_told: demand.servers_told,
            server_bytes: demand.server_bytes,
            reads_per_second: demand.rate,
            hit_ratio: demand.hit_ratio,
            hit_ratio_measured: self
                .measured
                .filter(|_| !self.is_first)
                .map(|measured| measured.hit_ratio),
            state_bytes: demand.state_bytes,
            hit_ratio_needed: database_rate.map(|database| hit_ratio_min(demand.rate, database)),
            sizes: (1..=servers.max(demand.servers.len()).min(SERVERS_MOST)).map(size).collect(),
        }
    }
}
