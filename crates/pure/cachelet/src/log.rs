//! Pages as logs: records of mixed sizes are appended, whole pages are taken and given back.

use std::collections::VecDeque;

use mbal_model::Seconds;

use crate::item::Item;
use crate::locked::Locked;
use crate::memory::Offset;
use crate::policy::Temper;
use crate::pool::{Page, PageId};
use crate::shim::Ordering::*;
use crate::types::Full;

/// Upper ends of the classes of remaining time, in seconds, for items with a deadline: items that die
/// together lie together, so that whole pages expire.
const TTL_CLASSES: [Seconds; 8] = [16, 64, 256, 1024, 4096, 16_384, 65_536, Seconds::MAX];

/// Of each temper a log without deadline, and logs by class of remaining time.
const LOGS_PER_TEMPER: usize = 1 + TTL_CLASSES_MAX;
pub const TTL_CLASSES_MAX: usize = TTL_CLASSES.len();
pub const LOGS: usize = 2 * LOGS_PER_TEMPER;

/// Without eviction a cachelet is compacted once one byte of so many in its logs is dead.
const COMPACT_DEAD_PART: u64 = 8;

/// Pages that only cleaning may take.
const CLEANING_PAGES: u32 = 2;

/// How far a page's base lies below the counter when it opens: older items that are moved into
/// it stay expressible in 32 bits.
const BASE_MARGIN: u64 = 1 << 31;

#[derive(Default)]
pub struct Log {
    open: Option<PageId>,
    /// In the order of sealing. An entry is stale if the page's `sealed` differs.
    pub sealed: VecDeque<(u64, PageId)>,
}

/// A page that was taken out of its log's queue, with its place there.
pub struct TakenPage {
    pub order: u64,
    pub id: PageId,
}

pub fn temper_of(log: usize) -> Temper {
    if log < LOGS_PER_TEMPER { Temper::Main } else { Temper::New }
}

impl<'a> Locked<'a> {
    pub(crate) fn page(&self, id: PageId) -> &'a Page {
        &self.store.pages[id as usize]
    }

    #[inline]
    pub(crate) fn page_of(&self, offset: Offset) -> PageId {
        (self.store.memory.position(offset) >> self.store.page_shift) as PageId
    }

    /// The log for an item that dies at `deadline`.
    pub(crate) fn log_for(&self, temper: Temper, deadline: Seconds) -> usize {
        let first = temper as usize * LOGS_PER_TEMPER;
        if deadline == 0 || self.store.ttl_classes == 0 {
            return first;
        }
        let remaining = deadline.saturating_sub(self.now);
        let class =
            TTL_CLASSES.iter().position(|&end| remaining <= end).expect("the last has no end");
        first + 1 + class * self.store.ttl_classes / TTL_CLASSES_MAX
    }

    /// Bytes that `log` can take without another page.
    pub(crate) fn room(&self, log: usize) -> usize {
        let open = self.inner.logs[log].open;
        open.map_or(0, |id| self.store.page_bytes - self.page(id).fill.load(Relaxed) as usize)
    }

    /// Room for a record of `bytes`, already rounded up; the caller writes a whole header there before
    /// anything else happens to this cachelet.
    pub(crate) fn append(
        &mut self,
        log: usize,
        bytes: usize,
        deadline: Seconds,
    ) -> Result<Offset, Full> {
        debug_assert!(bytes <= self.store.page_bytes);
        let counter = self.inner.counter;
        let fits = self.inner.logs[log].open.filter(|&id| {
            let page = self.page(id);
            page.fill.load(Relaxed) as usize + bytes <= self.store.page_bytes
                && counter - page.base.load(Relaxed) < u64::from(u32::MAX)
        });
        let id = match fits {
            Some(id) => id,
            None => self.open_page(log)?,
        };
        let page = self.page(id);
        let fill = page.fill.load(Relaxed);
        page.fill.store(fill + bytes as u32, Relaxed);
        page.live_records.store(page.live_records.load(Relaxed) + 1, Relaxed);
        page.live_bytes.store(page.live_bytes.load(Relaxed) + bytes as u32, Relaxed);
        self.outlive(id, deadline);
        let position = ((id as usize) << self.store.page_shift) + fill as usize;
        Ok(self.store.memory.offset(position))
    }

    /// Notes that page `id` has an item that dies at `deadline`.
    pub(crate) fn outlive(&self, id: PageId, deadline: Seconds) {
        let deadline = if deadline == 0 { Seconds::MAX } else { deadline };
        let latest = &self.page(id).latest;
        // Only where it changes: most often it is as late already.
        if latest.load(Relaxed) < deadline {
            latest.store(deadline, Relaxed);
        }
    }

    fn open_page(&mut self, log: usize) -> Result<PageId, Full> {
        // Taken before sealing: a full memory leaves the open page as it is.
        let id = self.take_page().ok_or(Full::OutOfMemory)?;
        self.seal(log);
        self.begin_page(log, id);
        self.inner.logs[log].open = Some(id);
        Ok(id)
    }

    /// A page without records is this log's.
    fn begin_page(&mut self, log: usize, id: PageId) {
        let base = self.inner.counter.saturating_sub(BASE_MARGIN);
        let page = self.page(id);
        page.base.store(base, Relaxed);
        page.fill.store(0, Relaxed);
        page.live_records.store(0, Relaxed);
        page.live_bytes.store(0, Relaxed);
        page.latest.store(0, Relaxed);
        page.log.store(log as u32, Relaxed);
        page.cleaned.store(0, Relaxed);
        self.count_pages(log, 1);
    }

    /// A page that is in no log, and begins with a record of `bytes`, is this log's, and sealed. [`Locked::publish_oldest`] is the
    /// caller's.
    pub(crate) fn join_log(&mut self, log: usize, id: PageId, bytes: u32, deadline: Seconds) {
        self.begin_page(log, id);
        let page = self.page(id);
        page.fill.store(bytes, Relaxed);
        page.live_records.store(1, Relaxed);
        page.live_bytes.store(bytes, Relaxed);
        self.outlive(id, deadline);
        let order = self.store.next_seal();
        page.sealed.store(order, Relaxed);
        self.inner.logs[log].sealed.push_back((order, id));
    }

    pub(crate) fn take_page(&self) -> Option<PageId> {
        let spare = if self.cleaning { 0 } else { CLEANING_PAGES };
        if self.store.pool.available(self.pool) <= spare {
            return None;
        }
        self.store.pool.take(self.pool, &self.store.epochs)
    }

    pub(crate) fn release_page(&self, id: PageId) {
        self.page(id).sealed.store(0, Relaxed);
        self.store.pool.release(self.pool, id, &self.store.epochs);
    }

    /// Closes the open page of `log`, if there is one.
    pub(crate) fn seal(&mut self, log: usize) {
        let Some(id) = self.inner.logs[log].open.take() else { return };
        if self.page(id).live_records.load(Relaxed) == 0 {
            self.give_back(id);
            return;
        }
        self.seal_page(log, id);
    }

    pub(crate) fn seal_page(&mut self, log: usize, id: PageId) {
        let order = self.store.next_seal();
        self.page(id).sealed.store(order, Relaxed);
        self.inner.logs[log].sealed.push_back((order, id));
        self.publish_oldest();
    }

    /// Gives a sealed page, with all that lives in it, to the same log of another cachelet: as if it had been filled there just now.
    pub(crate) fn hand_over_page(&mut self, id: PageId, to: &mut Locked<'_>) {
        let page = self.page(id);
        let log = page.log.load(Relaxed) as usize;
        let dead = page.fill.load(Relaxed) - page.live_bytes.load(Relaxed);
        self.inner.dead_bytes -= u64::from(dead);
        self.count_pages(log, -1);
        to.inner.dead_bytes += u64::from(dead);
        to.count_pages(log, 1);
        page.cleaned.store(0, Relaxed);
        // Its entry in the queue of this cachelet is stale by that.
        to.seal_page(log, id);
        self.publish_oldest();
    }

    /// Undoes the taking of a page.
    pub(crate) fn put_back(&mut self, log: usize, TakenPage { order, id }: TakenPage) {
        self.page(id).sealed.store(order, Relaxed);
        let queue = &mut self.inner.logs[log].sealed;
        let at = queue.partition_point(|&(sealed, _)| sealed < order);
        // Its entry may still be there.
        if queue.get(at) != Some(&(order, id)) {
            queue.insert(at, (order, id));
        }
        self.publish_oldest();
    }

    /// Takes the page that was sealed first among the logs of this temper; it is no longer sealed.
    /// Where none is sealed the fullest open page is.
    pub(crate) fn oldest_page(&mut self, temper: Temper) -> Option<TakenPage> {
        if self.oldest_log(temper).is_none() {
            let of_temper = |&log: &usize| temper_of(log) == temper;
            let fullest = (0..LOGS).filter(of_temper).max_by_key(|&log| self.open_fill(log))?;
            self.seal(fullest);
        }
        let (_, log) = self.oldest_log(temper)?;
        let (order, id) = self.inner.logs[log].sealed.pop_front().expect("its front was looked at");
        self.page(id).sealed.store(0, Relaxed);
        self.publish_oldest();
        Some(TakenPage { order, id })
    }

    /// The page that [`Locked::oldest_page`] would take, if it is sealed.
    pub(crate) fn peek_oldest(&mut self, temper: Temper) -> Option<PageId> {
        let (_, log) = self.oldest_log(temper)?;
        self.oldest_of(log).map(|(_, id)| id)
    }

    /// Takes a page whose items are all past their deadline: the oldest of a log, be it the open one.
    pub(crate) fn expired_page(&mut self) -> Option<TakenPage> {
        let mut found = None;
        for log in 0..LOGS {
            let oldest = self.oldest_of(log).map(|(_, id)| id).or(self.inner.logs[log].open);
            if let Some(id) = oldest.filter(|&id| self.is_expired(id)) {
                let order = match self.inner.logs[log].sealed.pop_front() {
                    Some((order, _)) => order,
                    None => {
                        self.inner.logs[log].open = None;
                        self.store.next_seal()
                    }
                };
                self.page(id).sealed.store(0, Relaxed);
                found = Some(TakenPage { order, id });
                break;
            }
        }
        // Also where none is: a deadline that was moved has made a page outlive what was told of it.
        self.publish_oldest();
        found
    }

    fn is_expired(&self, id: PageId) -> bool {
        let page = self.page(id);
        page.live_records.load(Relaxed) > 0 && page.latest.load(Relaxed) <= self.now
    }

    /// Takes the page with the fewest live bytes, be it an open one, where the logs are worth compacting: an eighth of them is dead,
    /// and an eighth of that page. So whoever compacts again and again comes to an end: each page that is taken gives an eighth of a page
    /// back for good, and what is moved together fills its pages better than that. O(pages).
    pub(crate) fn sparsest_page(&mut self) -> Option<TakenPage> {
        if self.inner.dead_bytes * COMPACT_DEAD_PART < self.log_bytes() as u64 {
            return None;
        }
        let page_bytes = self.store.page_bytes as u64;
        let is_sparse =
            |live: u32| u64::from(live) * COMPACT_DEAD_PART <= page_bytes * (COMPACT_DEAD_PART - 1);
        let live_bytes = |id: PageId| self.page(id).live_bytes.load(Relaxed);
        let sealed = self.inner.logs.iter().flat_map(|log| &log.sealed);
        let sealed = sealed.filter(|&&(order, id)| self.page(id).sealed.load(Relaxed) == order);
        let sealed = sealed.copied().min_by_key(|&(_, id)| live_bytes(id));
        // What is dead in an open page would else be waited for until that is full.
        let open = (0..LOGS).filter_map(|log| Some((log, self.inner.logs[log].open?)));
        let dead = |id: PageId| u64::from(self.page(id).fill.load(Relaxed) - live_bytes(id));
        let open = open.filter(|&(_, id)| dead(id) * COMPACT_DEAD_PART >= page_bytes);
        let open = open.min_by_key(|&(_, id)| live_bytes(id));
        let (order, id) = match (sealed, open) {
            (Some((_, id)), Some((log, open))) if live_bytes(open) < live_bytes(id) => {
                return self.take_open(log);
            }
            (None, Some((log, _))) => return self.take_open(log),
            (sealed, _) => sealed.filter(|&(_, id)| is_sparse(live_bytes(id)))?,
        };
        self.page(id).sealed.store(0, Relaxed);
        self.publish_oldest();
        Some(TakenPage { order, id })
    }

    /// Dead bytes beyond those that are not worth compacting.
    pub(crate) fn bytes_to_compact(&self) -> u64 {
        self.inner.dead_bytes.saturating_sub(self.log_bytes() as u64 / COMPACT_DEAD_PART)
    }

    /// The open page of a log, which has none then.
    fn take_open(&mut self, log: usize) -> Option<TakenPage> {
        let id = self.inner.logs[log].open.take()?;
        Some(TakenPage { order: self.store.next_seal(), id })
    }

    fn open_fill(&self, log: usize) -> u32 {
        self.inner.logs[log].open.map_or(0, |id| self.page(id).fill.load(Relaxed))
    }

    fn drop_stale(&mut self, log: usize) {
        while let Some(&(order, id)) = self.inner.logs[log].sealed.front() {
            if self.page(id).sealed.load(Relaxed) == order {
                break;
            }
            self.inner.logs[log].sealed.pop_front();
        }
    }

    /// The page of `log` that was sealed first.
    fn oldest_of(&mut self, log: usize) -> Option<(u64, PageId)> {
        self.drop_stale(log);
        self.inner.logs[log].sealed.front().copied()
    }

    fn oldest_log(&mut self, temper: Temper) -> Option<(u64, usize)> {
        let first = temper as usize * LOGS_PER_TEMPER;
        let orders = (first..first + LOGS_PER_TEMPER)
            .filter_map(|log| self.oldest_of(log).map(|(order, _)| (order, log)));
        orders.min()
    }

    /// Tells those who look for a victim how old this cachelet's oldest pages are, and when the first
    /// of them has died of itself.
    pub(crate) fn publish_oldest(&mut self) {
        let mut oldest = [u64::MAX; 2];
        let mut expires = Seconds::MAX;
        for log in 0..LOGS {
            if let Some((order, id)) = self.oldest_of(log) {
                let oldest = &mut oldest[temper_of(log) as usize];
                *oldest = order.min(*oldest);
                expires = expires.min(self.page(id).latest.load(Relaxed));
            }
        }
        for (told, oldest) in self.cachelet.oldest.iter().zip(oldest) {
            told.store(oldest, Relaxed);
        }
        self.cachelet.expires.store(expires, Relaxed);
    }

    pub(crate) fn count_pages(&self, log: usize, change: i32) {
        let count = &self.cachelet.log_pages[temper_of(log) as usize];
        count.store(count.load(Relaxed).wrapping_add_signed(change), Relaxed);
    }

    /// A record that nothing points to any more. Its page is given back with its last one.
    pub(crate) fn kill(&mut self, offset: Offset) {
        let item = Item::at(&self.store.memory, offset);
        item.kill();
        let bytes = item.stride(&self.store.memory) as u32;
        let id = self.page_of(offset);
        let page = self.page(id);
        let live = page.live_records.load(Relaxed) - 1;
        page.live_records.store(live, Relaxed);
        page.live_bytes.store(page.live_bytes.load(Relaxed) - bytes, Relaxed);
        self.inner.dead_bytes += u64::from(bytes);
        if live == 0 && page.sealed.load(Relaxed) != 0 {
            self.give_back(id);
        }
    }

    /// Gives back a page of a log without live records.
    pub(crate) fn give_back(&mut self, id: PageId) {
        self.inner.dead_bytes -= u64::from(self.page(id).fill.load(Relaxed));
        let log = self.page(id).log.load(Relaxed) as usize;
        self.count_pages(log, -1);
        self.release_page(id);
        self.publish_oldest();
    }

    /// Forgets all logs, whose items are gone already: O(logs). Their pages are given back by and by.
    pub(crate) fn drop_logs(&mut self) {
        for log in 0..LOGS {
            let Log { open, mut sealed } = std::mem::take(&mut self.inner.logs[log]);
            sealed.extend(open.map(|id| (0, id)));
            self.drop_pages(sealed);
        }
        self.cachelet.log_pages.iter().for_each(|pages| pages.store(0, Relaxed));
        self.inner.dead_bytes = 0;
        self.drop_value();
        self.publish_oldest();
    }

    /// Leaves pages, each with the order in which it was sealed, for [`Locked::give_back_dropped`].
    pub(crate) fn drop_pages(&mut self, pages: VecDeque<(u64, PageId)>) {
        if !pages.is_empty() {
            if self.inner.dropped.is_empty() {
                self.store.with_dropped.fetch_add(1, Relaxed);
            }
            self.inner.dropped.push(pages);
        }
    }

    /// Gives back up to `count` of the pages that a flush has dropped; false if there were none.
    pub(crate) fn give_back_dropped(&mut self, count: usize) -> bool {
        let mut pages = Vec::with_capacity(count);
        for _ in 0..count {
            let Some(dropped) = self.inner.dropped.last_mut() else { break };
            let (order, id) = dropped.pop_front().expect("empty ones are not kept");
            if dropped.is_empty() {
                self.inner.dropped.pop();
                if self.inner.dropped.is_empty() {
                    self.store.with_dropped.fetch_sub(1, Relaxed);
                }
            }
            // One whose order is another has been given back before, and may be somebody else's.
            let sealed = &self.store.pages[id as usize].sealed;
            if sealed.load(Relaxed) == order {
                sealed.store(0, Relaxed);
                pages.push(id);
            }
        }
        let any = !pages.is_empty();
        self.store.pool.release_all(self.pool, pages.into_iter(), &self.store.epochs);
        any
    }
}
