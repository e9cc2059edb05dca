//! Looks at requests for what people and planners are told: the hottest keys, hot keys to be copied, stack distances.

use mbal_model::{Key, METRICS};
use mbal_sketch::{Access, Sampler};
use mbal_wire::{Binary, Command, Request};

use crate::commands::context::Context;
use crate::copies::Read;
use crate::observing::distances::{Showing, Shown};
use crate::sessions::job::Job;

/// What a worker looks at requests with.
pub(crate) struct Observer<'w> {
    pub sampler: &'w mut Sampler,
    pub shown: &'w mut Shown,
}

impl Observer<'_> {
    /// Counts requests that are about to be executed, and looks at those that are chosen.
    #[inline]
    pub fn look_at(
        &mut self,
        on: &Context<'_>,
        jobs: &[Option<Job<'_>>],
        keys: &[Option<Key<'_>>],
    ) {
        self.show(on, &keys[..jobs.len()], jobs);
        if !METRICS {
            return;
        }
        if let Some(place) = self.sampler.next_among(jobs.len() as u32) {
            let keys = &keys[..jobs.len()];
            self.look_from(on, place, keys, |at| jobs[at].as_ref().map(|job| &job.request));
        }
    }

    /// The same for the further keys of a `get`, that have been answered.
    #[inline]
    pub fn look_at_gets(&mut self, on: &Context<'_>, keys: &[Option<Key<'_>>]) {
        self.show(on, keys, &[]);
        self.look_at_others(on, keys);
    }

    /// The same for further keys of a `get` that are not here: other servers are asked for them, or copies answer.
    #[inline]
    pub fn look_at_others(&mut self, on: &Context<'_>, keys: &[Option<Key<'_>>]) {
        if !METRICS {
            return;
        }
        if let Some(place) = self.sampler.next_among(keys.len() as u32) {
            self.look_from(on, place, keys, |_| None);
        }
    }

    /// `request` is what a key is asked for by, unless it is a further one of a `get`.
    #[cold]
    fn look_from<'r, 'a: 'r>(
        &mut self,
        on: &Context<'_>,
        first: u32,
        keys: &[Option<Key<'_>>],
        request: impl Fn(usize) -> Option<&'r Request<'a>>,
    ) {
        let (shared, worker) = (on.shared, on.here.owner.worker);
        let (second, requests) = (on.now().second, on.counters.keyed());
        let stands_for = self.sampler.requests_per_sample();
        let mut hot = shared.hot(worker.0.into());
        hot.pass_to(second, requests);
        let tracks = shared.looks_for_hot_keys();
        let mut heat = tracks.then(|| shared.copies.heat(worker.0));
        let mut at = first as usize;
        loop {
            if let Some(key) = keys[at] {
                let request = request(at);
                if let Some((cachelet, _)) = shared.store.cachelet_of(key.hash()) {
                    let access = request.map_or(Access::Read, access_of);
                    hot.observe(&key, access, cachelet, stands_for);
                }
                // A key is hot that heats anyone: those that are forwarded count, too.
                if let Some(heat) = &mut heat {
                    // A read that no copy can answer is like a write: copies do not relieve the home of it.
                    let relieved = request.is_none_or(|request| Read::of(request).is_some());
                    let access = if relieved { Access::Read } else { Access::Write };
                    heat.observe(&key, access, stands_for);
                }
            }
            at += 1;
            match self.sampler.next_among((keys.len() - at) as u32) {
                Some(skipped) => at += skipped as usize,
                None => break,
            }
        }
        let rate = shared.hot_sample(second, worker);
        if self.sampler.rate() != rate {
            self.sampler.set_rate(rate);
        }
    }

    #[inline]
    fn show(&mut self, on: &Context<'_>, keys: &[Option<Key<'_>>], jobs: &[Option<Job<'_>>]) {
        if let Some(distances) = &on.shared.distances {
            let (store, counters, now) = (&on.shared.store, on.shared.all_counters(), on.now());
            self.shown.show(&Showing { distances, store, counters, now }, keys, jobs);
        }
    }
}

fn access_of(request: &Request<'_>) -> Access {
    match request {
        Request::Binary(Binary {
            command:
                Command::Store(_)
                | Command::TooLarge { .. }
                | Command::Arithmetic { .. }
                | Command::Delete { .. },
            ..
        })
        | Request::Store(_)
        | Request::MetaSet(..)
        | Request::MetaDelete(_)
        | Request::MetaArithmetic(_)
        | Request::Arithmetic { .. }
        | Request::Touch { .. }
        | Request::Delete { .. }
        | Request::TooLarge { .. } => Access::Write,
        _ => Access::Read,
    }
}
