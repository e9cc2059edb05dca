//! What the oldest pages have earned: the reads of their items, by which policy weighs new pages against main ones.

use mbal_locks::ranks;
use mbal_model::Seconds;

use crate::access::{Access, ERAS};
use crate::cachelet::Cachelet;
use crate::cachelets::Cachelets;
use crate::eras::seals_per_era;
use crate::item::Item;
use crate::locked::Locked;
use crate::policy::{Gauge, Samples, Temper, Victim};
use crate::sync::SpinLock;

/// Items of a page in one sample.
const ITEMS_OF_A_SAMPLE: usize = 32;
/// So many parts of a page are sampled, one after the other: a page may be sampled many times before it is cleaned.
const PARTS_OF_A_PAGE: usize = 8;

/// What to clean next among these cachelets, for the worker whose gauge this is.
pub fn next_victim<'a, C>(
    all: &Cachelets,
    gauge: &SpinLock<ranks::Gauge, Gauge>,
    now: Seconds,
    cachelets: &impl Fn() -> C,
) -> Victim
where
    C: Iterator<Item = &'a Cachelet>,
{
    let pages = |temper| cachelets().map(|c| u64::from(c.front.aged.pages(temper))).sum::<u64>();
    let oldest = |temper| {
        let aged = cachelets().map(|c| (c.front.aged.oldest(temper), c));
        aged.filter(|&(order, _)| order != u64::MAX).min_by_key(|&(order, _)| order)
    };
    let (eras, limit) = (&all.shared.pages.eras, all.shared.pages.pool.limit());
    let mut weighed = None;
    if let (Some((new_order, new)), Some((main_order, main))) =
        (oldest(Temper::New), oldest(Temper::Main))
    {
        // Of the younger of the two: so long both had time to be read. A younger main page had none in less than an era.
        let age = eras.seals().saturating_sub(new_order.max(main_order));
        let window = (age / seals_per_era(limit)).min(u64::from(ERAS - 1)) as u32;
        if eras.are_judged() && (main_order < new_order || window > 0) {
            let part = gauge.lock().begin_sample(main_order);
            let sample = |cachelet, temper| {
                sample_oldest(&mut all.lock_cachelet(cachelet, now), temper, window, part)
            };
            let (of_new, of_main) = (sample(new, Temper::New), sample(main, Temper::Main));
            let mut gauge = gauge.lock();
            gauge.add(of_new, of_main);
            weighed = Some((gauge.worth_of_main(), window));
        }
    }
    let latest = eras.pages_of_latest();
    Victim::choose(pages(Temper::New), pages(Temper::Main), latest, weighed)
}

/// What became of some items of the oldest page of this temper in the last eras; which ones goes by `part`. Chunks
/// are passed over.
fn sample_oldest(locked: &mut Locked, temper: Temper, window: u32, part: u32) -> Samples {
    let mut samples = Samples::default();
    let Some(id) = locked.peek_oldest(temper) else { return samples };
    let (pages, era) = (locked.site.pages(), locked.site.era());
    let live = pages.get(id).live_records().max(1) as usize;
    let skipped = part as usize % PARTS_OF_A_PAGE * ITEMS_OF_A_SAMPLE % live;
    let items = pages.records(id).map(|offset| Item::at(&pages.memory, offset));
    let items = items.filter(|item| !item.is_dead() && !item.is_chunk());
    for item in items.skip(skipped).take(ITEMS_OF_A_SAMPLE) {
        let access = Access(item.access());
        let in_time = access.eras_ago(era) <= window;
        samples.items += 1.0;
        samples.items_read += f64::from(u8::from(access.frequency() > 0 && in_time));
        samples.bytes += item.stride(&pages.memory) as f64;
        samples.bytes += item.chain().map_or(0.0, |(bytes, _)| f64::from(bytes));
    }
    samples
}
