//! What is counted of an epoch's events.

use std::collections::BTreeMap;

use super::super::network::Served;
use crate::model::Delays;

/// By worker, but for the last.
#[derive(Default)]
pub struct Counts {
    /// When counting began.
    pub from: f64,
    pub keys: Vec<f64>,
    pub turns: Vec<f64>,
    pub followed_keys: Vec<f64>,
    pub followed_turns: Vec<f64>,
    pub followed: Vec<f64>,
    pub own: Vec<f64>,
    /// Requests times seconds in the queue, and their seconds of a core.
    pub queued: Vec<f64>,
    pub backlog: Vec<f64>,
    pub since: Vec<f64>,
    pub requests: f64,
    pub latency: Latency,
    pub by_key: BTreeMap<Vec<u8>, OfKey>,
}

/// Seconds between sending and reply, in [`Delays`]' unit of a tenth of a microsecond.
#[derive(Clone, Default)]
pub struct Latency {
    pub reads: Delays,
    /// Requests that set something.
    pub writes: Delays,
}

/// What was seen of a key with copies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OfKey {
    /// Reads that copies have answered, as a part of all keys that were asked for.
    pub answered: f64,
    /// The part of the time in which writes waited for copies.
    pub waits: f64,
}

/// What an epoch has shown.
pub struct Measurement {
    pub served: Served,
    pub latency: Latency,
    pub by_key: BTreeMap<Vec<u8>, OfKey>,
}

const UNITS: f64 = 1e7;

impl Latency {
    pub fn note(&mut self, writes: bool, seconds: f64) {
        let delays = if writes { &mut self.writes } else { &mut self.reads };
        delays.note(seconds * UNITS);
    }

    pub fn add(&mut self, other: &Latency) {
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
    }

    /// Of all requests, in seconds.
    pub fn of_all(&self, share: f64) -> f64 {
        let mut all = self.reads.clone();
        all.add(&self.writes);
        all.at(share) / UNITS
    }

    pub fn of_reads(&self, share: f64) -> f64 {
        self.reads.at(share) / UNITS
    }

    pub fn of_writes(&self, share: f64) -> f64 {
        self.writes.at(share) / UNITS
    }
}

impl Counts {
    pub fn new(workers: usize, now: f64) -> Counts {
        let none = || vec![0.0; workers];
        Counts {
            from: now,
            keys: none(),
            turns: none(),
            followed_keys: none(),
            followed_turns: none(),
            followed: none(),
            own: none(),
            queued: none(),
            backlog: none(),
            since: vec![now; workers],
            ..Counts::default()
        }
    }

    pub fn is_counting(&self) -> bool {
        !self.keys.is_empty()
    }

    pub fn of_key(&mut self, name: &[u8]) -> &mut OfKey {
        self.by_key.entry(name.to_vec()).or_default()
    }

    /// `speeds`: of each worker.
    pub fn measured(self, seconds: f64, batch: u32, speeds: &[f64]) -> Measurement {
        let rate = |counts: &[f64]| counts.iter().map(|count| count / seconds).collect::<Vec<_>>();
        let all_keys = self.requests * f64::from(batch);
        let in_seconds = |(work, speed): (f64, &f64)| work / speed;
        let served = Served {
            throughput: all_keys / seconds,
            queue: rate(&self.queued),
            backlog: rate(&self.backlog).into_iter().zip(speeds).map(in_seconds).collect(),
            followed: rate(&self.followed),
            own: rate(&self.own),
            keys: rate(&self.keys),
            turns: rate(&self.turns),
            followed_keys: rate(&self.followed_keys),
            followed_turns: rate(&self.followed_turns),
            ..Served::default()
        };
        let part = |one: OfKey| OfKey {
            answered: one.answered / all_keys.max(1.0),
            waits: one.waits / seconds,
        };
        let by_key = self.by_key.into_iter().map(|(name, one)| (name, part(one))).collect();
        Measurement { served, latency: self.latency, by_key }
    }
}
