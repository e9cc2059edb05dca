//! Cachelets that have begun empty, and serve nothing while copies may be read that an earlier owner has made.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

use mbal_locks::{Mutex, ranks};
use mbal_model::{Instant, Prefix, ServerId};
use mbal_replica::{Grant, Held, Newborn};

/// Those of a server. Any worker asks the other servers, and hears their answers.
#[derive(Default)]
pub(crate) struct Newborns {
    all: Mutex<ranks::Newborn, Vec<(Prefix, Newborn)>>,
    any: AtomicBool,
}

impl Newborns {
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Acquire)
    }

    pub fn is_newborn(&self, hash: u64, now: Instant) -> bool {
        self.any_of(now, |prefix| prefix.contains(hash))
    }

    /// The same of a whole cachelet, or of a part of it.
    pub fn overlap(&self, other: Prefix, now: Instant) -> bool {
        self.any_of(now, |prefix| prefix.overlaps(other))
    }

    fn any_of(&self, now: Instant, is_meant: impl Fn(&Prefix) -> bool) -> bool {
        let all = self.all.lock();
        all.iter().any(|(prefix, newborn)| is_meant(prefix) && !newborn.is_over(now))
    }

    /// Before the cachelet is here.
    pub fn add(&self, prefix: Prefix, newborn: Newborn) {
        let mut all = self.all.lock();
        // It has been tried before, and there was no room yet.
        if all.iter().all(|(other, known)| (*other, known.fence()) != (prefix, newborn.fence())) {
            all.push((prefix, newborn));
            self.any.store(true, Release);
        }
    }

    /// `sends` asks a server to fence off a cachelet's copies below a grant, and says whether it could.
    pub fn ask(&self, now: Instant, mut sends: impl FnMut(ServerId, Prefix, Grant) -> bool) {
        let mut all = self.all.lock();
        for (prefix, newborn) in all.iter_mut() {
            let fence = newborn.fence();
            newborn.ask(now, |server| sends(server, *prefix, fence));
        }
    }

    /// A server has answered, or will not.
    pub fn heard(
        &self,
        now: Instant,
        from: ServerId,
        (prefix, fence): (Prefix, Grant),
        held: Option<&Held>,
    ) {
        let mut all = self.all.lock();
        let is_meant = |(other, newborn): &&mut (Prefix, Newborn)| {
            (*other, newborn.fence()) == (prefix, fence)
        };
        if let Some((_, newborn)) = all.iter_mut().find(is_meant) {
            newborn.heard(now, from, held);
        }
        self.tidy(&mut all, now);
    }

    /// Forgets those that serve.
    pub fn forget(&self, now: Instant) {
        self.tidy(&mut self.all.lock(), now);
    }

    fn tidy(&self, all: &mut Vec<(Prefix, Newborn)>, now: Instant) {
        all.retain(|(_, newborn)| !newborn.is_over(now));
        self.any.store(!all.is_empty(), Release);
    }
}
