//! Pages of one kind, in the order of filling: where items are appended, and which page goes next.

use std::collections::VecDeque;
use std::mem;

use mbal_model::Seconds;

use crate::kinds::{LOGS, Target, logs_of, temper_of};
use crate::memory::Offset;
use crate::policy::Temper;
use crate::pool::PageId;
use crate::site::Site;
use crate::types::Full;

/// Without eviction a cachelet is compacted once one byte of so many in its logs is dead.
const COMPACT_DEAD_PART: u64 = 8;

/// How far a page's base lies below the counter when it opens: older items that are moved into
/// it stay expressible in 32 bits.
const BASE_MARGIN: u64 = 1 << 31;

#[derive(Default)]
struct Log {
    open: Option<PageId>,
    /// In the order of sealing. An entry is stale if the page's order differs.
    sealed: VecDeque<(u64, PageId)>,
}

/// The logs of a cachelet.
#[derive(Default)]
pub struct Logs {
    all: [Log; LOGS],
    /// Bytes of dead records in their pages.
    dead_bytes: u64,
    /// Pages that a flush has dropped, each with the order in which it was sealed; none is empty.
    dropped: Vec<VecDeque<(u64, PageId)>>,
}

/// A page that was taken out of its log's queue, with its place there.
pub struct TakenPage {
    pub order: u64,
    pub id: PageId,
}

impl Logs {
    /// Bytes that `log` can take without another page.
    pub fn room(&self, site: &Site, log: usize) -> usize {
        let open = self.all[log].open;
        open.map_or(0, |id| site.pages().bytes - site.page(id).fill() as usize)
    }

    /// Room for a record of `bytes`, already rounded up; the caller writes a whole header there before
    /// anything else happens to this cachelet. `counter` is that of its cas.
    pub fn append(
        &mut self,
        site: &Site,
        counter: u64,
        target: Target,
        bytes: usize,
    ) -> Result<Offset, Full> {
        let pages = site.pages();
        debug_assert!(bytes <= pages.bytes);
        let fits = self.all[target.log].open.filter(|&id| {
            let page = pages.get(id);
            page.fill() as usize + bytes <= pages.bytes
                && counter - page.base() < u64::from(u32::MAX)
        });
        let id = match fits {
            Some(id) => id,
            None => self.open_page(site, counter, target.log)?,
        };
        let page = pages.get(id);
        let fill = page.append(bytes as u32);
        page.outlive(target.deadline);
        Ok(pages.memory.offset(pages.start(id) + fill as usize))
    }

    fn open_page(&mut self, site: &Site, counter: u64, log: usize) -> Result<PageId, Full> {
        // Taken before sealing: a full memory leaves the open page as it is.
        let id = site.take_page().ok_or(Full::OutOfMemory)?;
        self.seal(site, log);
        begin_page(site, counter, log, id);
        self.all[log].open = Some(id);
        Ok(id)
    }

    /// Pages that are in no log, and begin with a record of so many bytes each, are this log's, and sealed.
    pub fn join(
        &mut self,
        site: &Site,
        counter: u64,
        target: Target,
        pages: impl Iterator<Item = (PageId, u32)>,
    ) {
        for (id, bytes) in pages {
            begin_page(site, counter, target.log, id);
            let page = site.page(id);
            page.append(bytes);
            page.outlive(target.deadline);
            let order = site.pages().next_seal(site.worker);
            page.set_order(order);
            self.all[target.log].sealed.push_back((order, id));
        }
        self.publish_oldest(site);
    }

    /// Closes the open page of `log`, if there is one.
    fn seal(&mut self, site: &Site, log: usize) {
        let Some(id) = self.all[log].open.take() else { return };
        if site.page(id).live_records() == 0 {
            self.give_back(site, id);
            return;
        }
        self.seal_page(site, log, id);
    }

    pub fn seal_page(&mut self, site: &Site, log: usize, id: PageId) {
        let order = site.pages().next_seal(site.worker);
        site.page(id).set_order(order);
        self.all[log].sealed.push_back((order, id));
        self.publish_oldest(site);
    }

    /// Gives a sealed page, with all that lives in it, to the same log of another cachelet: as if it had been filled there just now.
    pub fn hand_over_page(&mut self, site: &Site, id: PageId, to: &mut Logs, there: &Site) {
        let page = site.page(id);
        let (log, dead) = (page.log(), u64::from(page.dead_bytes()));
        self.dead_bytes -= dead;
        site.front.aged.count_pages(page.temper(), -1);
        to.dead_bytes += dead;
        there.front.aged.count_pages(page.temper(), 1);
        page.set_cleaned(0);
        // Its entry in the queue of this cachelet is stale by that.
        to.seal_page(there, log, id);
        self.publish_oldest(site);
    }

    /// Undoes the taking of a page.
    pub fn put_back(&mut self, site: &Site, log: usize, TakenPage { order, id }: TakenPage) {
        site.page(id).set_order(order);
        let queue = &mut self.all[log].sealed;
        let at = queue.partition_point(|&(sealed, _)| sealed < order);
        // Its entry may still be there.
        if queue.get(at) != Some(&(order, id)) {
            queue.insert(at, (order, id));
        }
        self.publish_oldest(site);
    }

    /// Takes the page that was sealed first among the logs of this temper; it is no longer sealed.
    /// Where none is sealed the fullest open page is.
    pub fn oldest_page(&mut self, site: &Site, temper: Temper) -> Option<TakenPage> {
        if self.oldest_log(site, temper).is_none() {
            let fullest = logs_of(temper).max_by_key(|&log| self.open_fill(site, log))?;
            self.seal(site, fullest);
        }
        let (_, log) = self.oldest_log(site, temper)?;
        let (order, id) = self.all[log].sealed.pop_front().expect("its front was looked at");
        site.page(id).set_order(0);
        self.publish_oldest(site);
        Some(TakenPage { order, id })
    }

    /// The page that [`Logs::oldest_page`] would take, if it is sealed.
    pub fn peek_oldest(&mut self, site: &Site, temper: Temper) -> Option<PageId> {
        let (_, log) = self.oldest_log(site, temper)?;
        self.oldest_of(site, log).map(|(_, id)| id)
    }

    /// Takes a page whose items are all past their deadline: the oldest of a log, be it the open one.
    pub fn expired_page(&mut self, site: &Site) -> Option<TakenPage> {
        let mut found = None;
        for log in 0..LOGS {
            let oldest = self.oldest_of(site, log).map(|(_, id)| id).or(self.all[log].open);
            if let Some(id) = oldest.filter(|&id| site.page(id).is_expired(site.now)) {
                let order = match self.all[log].sealed.pop_front() {
                    Some((order, _)) => order,
                    None => {
                        self.all[log].open = None;
                        site.pages().next_seal(site.worker)
                    }
                };
                site.page(id).set_order(0);
                found = Some(TakenPage { order, id });
                break;
            }
        }
        // Also where none is: a deadline that was moved has made a page outlive what was told of it.
        self.publish_oldest(site);
        found
    }

    /// Takes the page with the fewest live bytes, be it an open one, where the logs are worth compacting: an eighth of them is dead,
    /// and an eighth of that page. So whoever compacts again and again comes to an end: each page that is taken gives an eighth of a page
    /// back for good, and what is moved together fills its pages better than that. O(pages).
    pub fn sparsest_page(&mut self, site: &Site) -> Option<TakenPage> {
        if self.dead_bytes * COMPACT_DEAD_PART < site.log_bytes() as u64 {
            return None;
        }
        let page_bytes = site.pages().bytes as u64;
        let is_sparse =
            |live: u32| u64::from(live) * COMPACT_DEAD_PART <= page_bytes * (COMPACT_DEAD_PART - 1);
        let live_bytes = |id: PageId| site.page(id).live_bytes();
        let sealed = self.all.iter().flat_map(|log| &log.sealed);
        let sealed = sealed.filter(|&&(order, id)| site.page(id).order() == order);
        let sealed = sealed.copied().min_by_key(|&(_, id)| live_bytes(id));
        // What is dead in an open page would else be waited for until that is full.
        let open = (0..LOGS).filter_map(|log| Some((log, self.all[log].open?)));
        let dead = |id: PageId| u64::from(site.page(id).dead_bytes());
        let open = open.filter(|&(_, id)| dead(id) * COMPACT_DEAD_PART >= page_bytes);
        let open = open.min_by_key(|&(_, id)| live_bytes(id));
        let (order, id) = match (sealed, open) {
            (Some((_, id)), Some((log, open))) if live_bytes(open) < live_bytes(id) => {
                return self.take_open(site, log);
            }
            (None, Some((log, _))) => return self.take_open(site, log),
            (sealed, _) => sealed.filter(|&(_, id)| is_sparse(live_bytes(id)))?,
        };
        site.page(id).set_order(0);
        self.publish_oldest(site);
        Some(TakenPage { order, id })
    }

    /// Dead bytes beyond those that are not worth compacting.
    pub fn bytes_to_compact(&self, site: &Site) -> u64 {
        self.dead_bytes.saturating_sub(site.log_bytes() as u64 / COMPACT_DEAD_PART)
    }

    /// The open page of a log, which has none then.
    fn take_open(&mut self, site: &Site, log: usize) -> Option<TakenPage> {
        let id = self.all[log].open.take()?;
        Some(TakenPage { order: site.pages().next_seal(site.worker), id })
    }

    fn open_fill(&self, site: &Site, log: usize) -> u32 {
        self.all[log].open.map_or(0, |id| site.page(id).fill())
    }

    /// The page of `log` that was sealed first.
    fn oldest_of(&mut self, site: &Site, log: usize) -> Option<(u64, PageId)> {
        let sealed = &mut self.all[log].sealed;
        while let Some(&(order, id)) = sealed.front() {
            if site.page(id).order() == order {
                return Some((order, id));
            }
            sealed.pop_front();
        }
        None
    }

    fn oldest_log(&mut self, site: &Site, temper: Temper) -> Option<(u64, usize)> {
        let orders = logs_of(temper)
            .filter_map(|log| self.oldest_of(site, log).map(|(order, _)| (order, log)));
        orders.min()
    }

    /// Tells those who look for a victim how old this cachelet's oldest pages are, and when the first
    /// of them has died of itself.
    fn publish_oldest(&mut self, site: &Site) {
        let mut oldest = [u64::MAX; 2];
        let mut expires = Seconds::MAX;
        for log in 0..LOGS {
            if let Some((order, id)) = self.oldest_of(site, log) {
                let oldest = &mut oldest[temper_of(log) as usize];
                *oldest = order.min(*oldest);
                expires = expires.min(site.page(id).latest());
            }
        }
        site.front.aged.publish(oldest, expires);
    }

    /// A record that nothing points to any more. Its page is given back with its last one.
    pub fn kill(&mut self, site: &Site, offset: Offset) {
        let item = site.item(offset);
        item.kill();
        let bytes = item.stride(site.memory()) as u32;
        let id = site.pages().id_at(offset);
        let page = site.page(id);
        let live = page.kill(bytes);
        self.dead_bytes += u64::from(bytes);
        if live == 0 && page.order() != 0 {
            self.give_back(site, id);
        }
    }

    /// Gives back a page of a log without live records.
    #[inline(never)]
    pub fn give_back(&mut self, site: &Site, id: PageId) {
        let page = site.page(id);
        self.dead_bytes -= u64::from(page.fill());
        site.front.aged.count_pages(page.temper(), -1);
        site.release_page(id);
        self.publish_oldest(site);
    }

    /// Forgets all logs, whose items are gone already: O(logs). Their pages are given back by and by.
    pub fn drop_all(&mut self, site: &Site) {
        for log in 0..LOGS {
            let Log { open, mut sealed } = mem::take(&mut self.all[log]);
            sealed.extend(open.map(|id| (0, id)));
            self.drop_pages(site, sealed);
        }
        site.front.aged.have_no_pages();
        self.dead_bytes = 0;
        self.publish_oldest(site);
    }

    /// Leaves pages, each with the order in which it was sealed, for [`Logs::give_back_dropped`].
    pub fn drop_pages(&mut self, site: &Site, pages: VecDeque<(u64, PageId)>) {
        if !pages.is_empty() {
            if self.dropped.is_empty() {
                site.pages().count_dropped(1);
            }
            self.dropped.push(pages);
        }
    }

    /// Gives back up to `count` of the pages that a flush has dropped; false if there were none.
    pub fn give_back_dropped(&mut self, site: &Site, count: usize) -> bool {
        let mut pages = Vec::with_capacity(count);
        for _ in 0..count {
            let Some(dropped) = self.dropped.last_mut() else { break };
            let (order, id) = dropped.pop_front().expect("empty ones are not kept");
            if dropped.is_empty() {
                self.dropped.pop();
                if self.dropped.is_empty() {
                    site.pages().count_dropped(-1);
                }
            }
            // One whose order is another has been given back before, and may be somebody else's.
            if site.page(id).order() == order {
                site.page(id).set_order(0);
                pages.push(id);
            }
        }
        let any = !pages.is_empty();
        site.pages().pool.release_all(site.worker, pages.into_iter());
        any
    }
}

/// A page without records is this log's.
fn begin_page(site: &Site, counter: u64, log: usize, id: PageId) {
    site.page(id).begin(log, counter.saturating_sub(BASE_MARGIN));
    site.front.aged.count_pages(temper_of(log), 1);
}
