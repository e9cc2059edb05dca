//! What memcached does not tell: `stats hot`, `stats cachelets`, `stats workers`, `stats latency` and `stats background`.

use mbal_cachelet::View;
use mbal_model::Key;
use mbal_replica::HomeState;
use mbal_wire::{push_readable, word_u32};

use crate::commands::stats::Stats;
use crate::copies::HotMode;
use crate::observing::chores::CHORES;
use crate::observing::latency::{Histogram, TIMED};

/// Without a number, `stats hot` tells so many keys.
const HOT_KEYS: u32 = 10;
const HOT_KEYS_MAX: u32 = 1000;

impl Stats<'_, '_> {
    /// `stats hot [count]`: the keys with the most requests in the last second, how many, and the
    /// bytes of their values now. Where hot keys are copied, their states and how many copies they have, too.
    pub fn stats_hot(&mut self, count: &[u8]) {
        let count = if count.is_empty() { Some(HOT_KEYS) } else { word_u32(count) };
        let Some(count) = count.filter(|count| (1..=HOT_KEYS_MAX).contains(count)) else {
            return self.line(b"CLIENT_ERROR usage: stats hot [1 to 1000]");
        };
        let keys = self.on.shared.hottest(count as usize, self.on.now().second);
        for (place, hot) in (1..).zip(keys) {
            self.out.extend_from_slice(format!("STAT {place}:key ").as_bytes());
            push_readable(self.out, &hot.key);
            self.line(b"");
            let value_bytes = |view: &View<'_>, _: &mut Vec<u8>| u64::from(view.value_bytes());
            let key = Key::new(&hot.key).expect("it was a request's");
            let store = &self.on.shared.store;
            let bytes = store.read(&key, self.on.now().second, false, self.out, value_bytes);
            for (name, value) in [
                ("rate", hot.rate().round() as u64),
                ("reads", hot.reads.round() as u64),
                ("writes", hot.writes.round() as u64),
                ("bytes", bytes.unwrap_or(0)),
            ] {
                self.stat(&format!("{place}:{name}"), value);
            }
            if self.on.shared.hot_terms().mode != HotMode::Off {
                let (state, copies) = match self.on.shared.copied(&key) {
                    None => ("cold", 0),
                    Some((HomeState::HotPending, copies)) => ("pending", copies),
                    Some((HomeState::Hot, copies)) => ("hot", copies),
                    Some((HomeState::ColdPending, _)) => ("cooling", 0),
                };
                self.stat_text(&format!("{place}:state"), state);
                self.stat(&format!("{place}:copies"), copies);
            }
        }
        self.line(b"END");
    }

    /// `stats cachelets`: who owns each, what is in it, its requests so far and in the last second, and
    /// these in percent of the server's. Requests are estimates, as in `stats hot`.
    pub fn stats_cachelets(&mut self) {
        let store = &self.on.shared.store;
        let requests = self.on.shared.cachelet_requests(self.on.now().second);
        let rate: f64 = requests.values().map(|(_, rate)| rate).sum();
        for (cachelet, (ever, late)) in requests {
            let (Some(stats), Some(owner)) = (store.stats_of(cachelet), store.owner(cachelet))
            else {
                continue;
            };
            for (name, value) in [
                ("owner", owner.0.into()),
                ("items", stats.items),
                ("bytes", stats.bytes),
                ("requests", ever.round() as u64),
                ("rate", late.round() as u64),
            ] {
                self.stat(&format!("{cachelet}:{name}"), value);
            }
            let share = if rate > 0.0 { 100.0 * late / rate } else { 0.0 };
            self.stat_text(&format!("{cachelet}:share"), &format!("{share:.1}"));
        }
        self.line(b"END");
    }

    /// `stats workers`: what each has counted since the start.
    pub fn stats_workers(&mut self) {
        for worker in 0..self.on.shared.settings.workers {
            let sums = self.on.shared.sums_of(worker.into());
            for (name, value) in [
                ("own", sums.requests_own),
                ("neighbour", sums.requests_neighbour),
                ("peer", sums.requests_peer),
                ("get_unreachable", sums.get_unreachable),
                ("received", sums.bytes_read),
                ("sent", sums.bytes_written),
                ("busy_us", sums.busy_ns / 1000),
                ("waited_us", sums.waited_ns / 1000),
            ] {
                self.stat(&format!("{worker}:{name}"), value);
            }
        }
        self.line(b"END");
    }

    /// `stats latency`, and with `buckets` how many requests took less than so many ns, but not less
    /// than the line before says.
    pub fn stats_latency(&mut self, what: &[u8]) {
        let histograms = self.on.shared.latencies();
        match what {
            b"" => TIMED
                .iter()
                .for_each(|class| self.stat_histogram(class.name(), histograms.of(*class), &[])),
            b"buckets" => {
                for class in TIMED {
                    for (end_ns, requests) in histograms.of(class).buckets() {
                        self.stat(&format!("{}:{end_ns}", class.name()), requests);
                    }
                }
            }
            _ => return self.line(b"CLIENT_ERROR usage: stats latency [buckets]"),
        }
        self.line(b"END");
    }

    /// `stats background`.
    pub fn stats_background(&mut self) {
        let steps = self.on.shared.background_steps();
        for (chore, histogram) in CHORES.iter().zip(&steps) {
            self.stat_histogram(chore, histogram, &[("p9999", 0.9999)]);
        }
        self.line(b"END");
    }

    fn stat_histogram(&mut self, name: &str, histogram: &Histogram, more: &[(&str, f64)]) {
        let count = histogram.count();
        self.stat(&format!("{name}:count"), count);
        let mean_ns = histogram.sum_ns().checked_div(count).unwrap_or(0);
        let mut told = |what: &str, ns: u64| {
            let us = format!("{}.{:03}", ns / 1000, ns % 1000);
            self.stat_text(&format!("{name}:{what}_us"), &us);
        };
        told("mean", mean_ns);
        for (what, share) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)].iter().chain(more) {
            told(what, histogram.quantile_ns(*share));
        }
    }
}
