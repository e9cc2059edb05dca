//! An item's cas: the cachelet's generation and counter, or one that was given elsewhere.

use mbal_model::Prefix;

use crate::front::Front;
use crate::pages::Page;

const COUNTER_BITS: u32 = 48;
/// A cas this far behind the counter is written out: a page's base may lie above it.
const OWN_CAS_REACH: u64 = 1 << 30;
/// More cas than a cachelet can have given in another process, before that died.
const CAS_LEAP: u64 = 1 << 36;
/// Cachelets that are born together begin to count so far apart, by virtual node: a cas of one is not another's.
const CAS_PER_NODE_BITS: u32 = 28;

#[derive(Clone, Copy)]
pub enum Cas {
    /// A value of this cachelet's counter.
    Own(u64),
    Foreign(u64),
}

/// A cachelet's counter.
#[derive(Default)]
#[repr(C)]
pub struct Counter {
    /// The low 48 bits of the next cas, less one.
    last: u64,
    /// What it was when the cachelet was born.
    at_birth: u64,
}

#[inline(always)]
pub fn cas_of(front: &Front, counter: u64) -> u64 {
    u64::from(front.generation()) << COUNTER_BITS | counter
}

impl Cas {
    #[inline]
    pub fn value(self, front: &Front) -> u64 {
        match self {
            Cas::Own(counter) => cas_of(front, counter),
            Cas::Foreign(cas) => cas,
        }
    }

    /// What an item in this page has to say of its cas beside the page's base; `None` if it cannot.
    #[inline]
    pub fn sequence(self, page: &Page) -> Option<u32> {
        match self {
            Cas::Own(counter) => u32::try_from(counter.checked_sub(page.base())?).ok(),
            Cas::Foreign(_) => Some(0),
        }
    }
}

impl Counter {
    pub fn born(prefix: Prefix) -> Counter {
        let at_birth = u64::from(prefix.first()) << CAS_PER_NODE_BITS;
        Counter { last: at_birth, at_birth }
    }

    #[inline(always)]
    pub fn last(&self) -> u64 {
        self.last
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The next cas are above all that another process can have given in the name of this cachelet.
    pub fn leap(&mut self) {
        self.last += CAS_LEAP;
    }

    /// That of a cachelet whose items come from another one, which has counted so far.
    pub fn go_on_from(&mut self, last: u64) {
        self.last = last;
    }

    /// It has given all that another one has.
    pub fn reach(&mut self, last: u64) {
        self.last = self.last.max(last);
    }

    /// The cachelet comes from a server where it had this generation and counter: it goes on with both if it has given no cas itself.
    pub fn follow(&mut self, front: &Front, generation: u16, last: u64) {
        if self.last == self.at_birth {
            front.set_generation(generation);
            (self.last, self.at_birth) = (last, 0);
        }
        if front.generation() == u32::from(generation) {
            self.reach(last);
        }
    }

    /// How an item can have this cas: short, if the cachelet gave it and not too long ago.
    pub fn classify(&self, front: &Front, cas: u64) -> Cas {
        let own = cas >> COUNTER_BITS == u64::from(front.generation());
        let counter = cas & ((1 << COUNTER_BITS) - 1);
        let recent = counter <= self.last && counter + OWN_CAS_REACH >= self.last;
        if own && recent { Cas::Own(counter) } else { Cas::Foreign(cas) }
    }
}
