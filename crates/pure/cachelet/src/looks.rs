//! What the oldest pages have earned: the reads of their items, by which policy weighs new pages against main ones.
//!
//! Time is counted in eras, a part of all pages sealed each, so that policy forgets by what was written, not by the clock.

use mbal_model::Seconds;

use crate::cachelet::{Cachelet, Locked};
use crate::item::{Access, ERAS, Item};
use crate::policy::{ERAS_PER_TURN, Looks, Temper, Victim};
use crate::shim::Ordering::*;
use crate::store::Store;

/// Items of a page that are looked at...
const SAMPLE: usize = 32;
/// ...and so many of its parts, in turn: a page may be looked at many times before it is cleaned.
const SAMPLES: usize = 8;

impl Store {
    #[inline(always)]
    pub(crate) fn era(&self) -> u32 {
        self.era.load(Relaxed)
    }

    /// The order of a page that is sealed now.
    pub(crate) fn next_seal(&self) -> u64 {
        let order = self.seals.fetch_add(1, Relaxed) + 1;
        let era = (order / self.seals_per_era()) as u32 % ERAS;
        if era != self.era() {
            self.era.store(era, Relaxed);
        }
        order
    }

    fn seals_per_era(&self) -> u64 {
        u64::from(self.pool.limit() / ERAS_PER_TURN).max(1)
    }

    /// What to clean next among these cachelets, for `worker`.
    pub(crate) fn next_victim<'a, C>(
        &self,
        worker: usize,
        now: Seconds,
        cachelets: impl Fn() -> C,
    ) -> Victim
    where
        C: Iterator<Item = &'a Cachelet>,
    {
        let pages = |temper: Temper| {
            cachelets().map(|c| u64::from(c.log_pages[temper as usize].load(Relaxed))).sum::<u64>()
        };
        let oldest = |temper: Temper| {
            let aged = cachelets().map(|c| (c.oldest[temper as usize].load(Relaxed), c));
            aged.filter(|&(order, _)| order != u64::MAX).min_by_key(|&(order, _)| order)
        };
        let mut weighed = None;
        if let (Some((new_order, new)), Some((main_order, main))) =
            (oldest(Temper::New), oldest(Temper::Main))
        {
            // Of the younger of the two: so long both had time to be read. A younger main page had none in less than an era.
            let age = self.seals.load(Relaxed).saturating_sub(new_order.max(main_order));
            let window = (age / self.seals_per_era()).min(u64::from(ERAS - 1)) as u32;
            if main_order < new_order || window > 0 {
                let part = self.gauges[worker].lock().look(main_order);
                let look = |cachelet, temper| {
                    self.lock_cachelet(cachelet, now).look_at_oldest(temper, window, part)
                };
                let (seen_new, seen_main) = (look(new, Temper::New), look(main, Temper::Main));
                let mut gauge = self.gauges[worker].lock();
                gauge.add(seen_new, seen_main);
                weighed = Some((gauge.worth_of_main(), window));
            }
        }
        Victim::choose(pages(Temper::New), pages(Temper::Main), weighed)
    }
}

impl Locked<'_> {
    /// What became of some items of the oldest page of this temper in the last eras; which ones goes by `part`. Chunks
    /// are passed over.
    fn look_at_oldest(&mut self, temper: Temper, window: u32, part: u32) -> Looks {
        let mut looks = Looks::default();
        let Some(id) = self.peek_oldest(temper) else { return looks };
        let (memory, era) = (&self.store.memory, self.store.era());
        let live = self.page(id).live_records.load(Relaxed).max(1) as usize;
        let skipped = part as usize % SAMPLES * SAMPLE % live;
        let items = self.records(id).map(|offset| Item::at(memory, offset));
        let items = items.filter(|item| !item.is_dead() && !item.is_chunk());
        for item in items.skip(skipped).take(SAMPLE) {
            let access = Access(item.access());
            let in_time = access.eras_ago(era) <= window;
            looks.items += 1.0;
            looks.items_read += f64::from(u8::from(access.frequency() > 0 && in_time));
            looks.bytes += item.stride(memory) as f64;
            looks.bytes += item.chain().map_or(0.0, |(bytes, _)| f64::from(bytes));
        }
        looks
    }
}
