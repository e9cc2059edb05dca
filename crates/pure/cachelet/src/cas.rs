//! An item's cas: the cachelet's generation and counter, or one that was given elsewhere.

use crate::locked::Locked;
use crate::pool::PageId;
use crate::shim::Ordering::*;

const COUNTER_BITS: u32 = 48;
/// A cas this far behind the counter is written out: a page's base may lie above it.
const OWN_CAS_REACH: u64 = 1 << 30;
/// More cas than a cachelet can have given in another process, before that died.
const CAS_LEAP: u64 = 1 << 36;

#[derive(Clone, Copy)]
pub(crate) enum Cas {
    /// A value of this cachelet's counter.
    Own(u64),
    Foreign(u64),
}

impl Locked<'_> {
    /// The cas that the next stored item would get; consumes it.
    pub fn next_cas(&mut self) -> u64 {
        self.inner.counter += 1;
        self.cas_of(self.inner.counter)
    }

    /// The next cas are above all that another process can have given in the name of this cachelet.
    pub(crate) fn leap(&mut self) {
        self.inner.counter += CAS_LEAP;
    }

    /// How an item can have this cas: short, if the cachelet gave it and not too long ago.
    pub(crate) fn classify(&self, cas: u64) -> Cas {
        let own = cas >> COUNTER_BITS == u64::from(self.cachelet.generation.load(Relaxed));
        let counter = cas & ((1 << COUNTER_BITS) - 1);
        let recent = counter <= self.inner.counter && counter + OWN_CAS_REACH >= self.inner.counter;
        if own && recent { Cas::Own(counter) } else { Cas::Foreign(cas) }
    }

    pub(crate) fn cas_value(&self, cas: Cas) -> u64 {
        match cas {
            Cas::Own(counter) => self.cas_of(counter),
            Cas::Foreign(cas) => cas,
        }
    }

    /// What an item in this page has to say of its cas beside the page's base; `None` if it cannot.
    pub(crate) fn sequence(&self, page: PageId, cas: Cas) -> Option<u32> {
        match cas {
            Cas::Own(counter) => {
                u32::try_from(counter.checked_sub(self.page(page).base.load(Relaxed))?).ok()
            }
            Cas::Foreign(_) => Some(0),
        }
    }

    fn cas_of(&self, counter: u64) -> u64 {
        u64::from(self.cachelet.generation.load(Relaxed)) << COUNTER_BITS | counter
    }
}
