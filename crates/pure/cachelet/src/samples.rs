//! What the oldest pages have earned: the reads of their items, by which policy weighs new pages against main ones.
//!
//! Time is counted in eras, a part of all pages sealed each, so that policy forgets by what was written, not by the clock.

use mbal_model::Seconds;

use crate::access::{Access, ERAS};
use crate::cachelet::Cachelet;
use crate::item::Item;
use crate::locked::Locked;
use crate::policy::{ERAS_PER_TURN, Samples, Temper, Victim};
use crate::shim::Ordering::*;
use crate::store::Store;

/// Items of a page in one sample.
const ITEMS_OF_A_SAMPLE: usize = 32;
/// Values that were written last, and are to be found: more than clients that store at the same time and read then.
const LATEST_VALUES: u64 = 32;
/// What is known of long values has so many bits behind the point.
const LONG_SHIFT: u32 = 16;
/// Values are long if the latest ones take more than one page in so many of a worker's.
const LONG_PART: u64 = 5;
/// So many parts of a page are sampled, one after the other: a page may be sampled many times before it is cleaned.
const PARTS_OF_A_PAGE: usize = 8;

impl Store {
    #[inline(always)]
    pub(crate) fn era(&self) -> u32 {
        self.era.load(Relaxed)
    }

    /// The order of a page that is sealed now.
    pub(crate) fn next_seal(&self) -> u64 {
        let order = self.seals.fetch_add(1, Relaxed) + 1;
        let long = self.long.load(Relaxed);
        if long > 0 {
            self.long.store(long - (long / self.seals_per_era()).min(long), Relaxed);
        }
        let era = (order / self.seals_per_era()) as u32 % ERAS;
        if era != self.era() {
            self.era.store(era, Relaxed);
        }
        order
    }

    /// A value of so many pages was written. Values count by their pages, against those that are sealed in an era: where few pages are
    /// full of long ones they count for nothing. Two that write at once may count as one.
    pub(crate) fn wrote_long(&self, pages: u64) {
        let (long, era) = (self.long.load(Relaxed), self.seals_per_era());
        let toward = (pages << LONG_SHIFT).saturating_sub(long) / era * pages.min(era);
        self.long.store(long + toward, Relaxed);
    }

    /// Pages of the values that were written last, as many as clients may be about to read: few of the pages, unless values are long.
    pub(crate) fn pages_of_latest(&self) -> u64 {
        // Where all are as long, sealing has halved it.
        (2 * LATEST_VALUES * self.long.load(Relaxed)) >> LONG_SHIFT
    }

    /// The latest values are more than a worker's own new pages may hold: then its share of them says nothing.
    pub(crate) fn are_values_long(&self) -> bool {
        let share = u64::from(self.pool.limit()) / self.options().workers as u64;
        self.pages_of_latest() > share / LONG_PART
    }

    fn seals_per_era(&self) -> u64 {
        u64::from(self.pool.limit() / ERAS_PER_TURN).max(1)
    }

    /// What comes from other servers seals pages faster than anybody reads: in such eras no page has earned anything.
    pub(crate) fn judge_an_era_later(&self) {
        let from = self.seals.load(Relaxed) + self.seals_per_era();
        self.judged_from.store(from, Relaxed);
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
            let seals = self.seals.load(Relaxed);
            let age = seals.saturating_sub(new_order.max(main_order));
            let window = (age / self.seals_per_era()).min(u64::from(ERAS - 1)) as u32;
            let are_judged = seals >= self.judged_from.load(Relaxed);
            if are_judged && (main_order < new_order || window > 0) {
                let part = self.gauges[worker].lock().begin_sample(main_order);
                let sample = |cachelet, temper| {
                    self.lock_cachelet(cachelet, now).sample_oldest(temper, window, part)
                };
                let (of_new, of_main) = (sample(new, Temper::New), sample(main, Temper::Main));
                let mut gauge = self.gauges[worker].lock();
                gauge.add(of_new, of_main);
                weighed = Some((gauge.worth_of_main(), window));
            }
        }
        let latest = self.pages_of_latest();
        Victim::choose(pages(Temper::New), pages(Temper::Main), latest, weighed)
    }
}

impl Locked<'_> {
    /// What became of some items of the oldest page of this temper in the last eras; which ones goes by `part`. Chunks
    /// are passed over.
    fn sample_oldest(&mut self, temper: Temper, window: u32, part: u32) -> Samples {
        let mut samples = Samples::default();
        let Some(id) = self.peek_oldest(temper) else { return samples };
        let (memory, era) = (&self.store.memory, self.store.era());
        let live = self.page(id).live_records.load(Relaxed).max(1) as usize;
        let skipped = part as usize % PARTS_OF_A_PAGE * ITEMS_OF_A_SAMPLE % live;
        let items = self.records(id).map(|offset| Item::at(memory, offset));
        let items = items.filter(|item| !item.is_dead() && !item.is_chunk());
        for item in items.skip(skipped).take(ITEMS_OF_A_SAMPLE) {
            let access = Access(item.access());
            let in_time = access.eras_ago(era) <= window;
            samples.items += 1.0;
            samples.items_read += f64::from(u8::from(access.frequency() > 0 && in_time));
            samples.bytes += item.stride(memory) as f64;
            samples.bytes += item.chain().map_or(0.0, |(bytes, _)| f64::from(bytes));
        }
        samples
    }
}
