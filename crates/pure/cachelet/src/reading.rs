//! Reading an item without a lock: ask for its bucket, find it, show it, and look whether a writer came in between.

use mbal_model::{Key, Seconds};

use crate::ahead::{Ahead, Home};
use crate::bucket::{Bucket, tag_of};
use crate::cachelet::Cachelet;
use crate::cachelets::Cachelets;
use crate::dir::Dir;
use crate::item::Item;
use crate::memory::{Offset, prefetch};
use crate::routes;
use crate::slice::{Slice, Way};
use crate::sync::pause;
use crate::view::View;

/// Why there is nothing to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    NotFound,
    /// It is there, but dead by its deadline.
    Expired,
}

impl Cachelets {
    /// Asks for the cache line of the key's index bucket, ahead of `read` or `lock`. Between [`Cachelets::enter`] and
    /// [`Cachelets::leave`].
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) -> Ahead<'_> {
        let home = self.home(hash).and_then(Result::ok);
        if let Some(home) = home {
            prefetch(&raw const *home.bucket as *const u8);
        }
        Ahead(home)
    }

    /// Asks for the item's cache lines; the bucket should have arrived. In the same epoch, see
    /// [`Cachelets::look_ahead`].
    #[inline]
    pub fn prefetch_item(&self, hash: u64, ahead: Ahead<'_>) {
        let Some(Home { bucket, .. }) = ahead.0 else { return };
        if let Some(offset) = self.find(bucket, hash, |_| true) {
            let at = self.memory().at(offset);
            prefetch(at);
            prefetch(at.wrapping_add(64));
        }
    }

    /// The first item with this hash that `accept` knows, by its home bucket.
    #[inline(always)]
    fn find(&self, home: &Bucket, hash: u64, accept: impl Fn(Offset) -> bool) -> Option<Offset> {
        if let Some((_, offset)) = home.find(tag_of(hash), &accept) {
            return Some(offset);
        }
        match home.version.reach() {
            0 => None,
            reach => self.search_beyond(hash, reach, accept),
        }
    }

    /// Few items are not in their home buckets: apart, so that it is not in the way of the others.
    #[cold]
    #[inline(never)]
    fn search_beyond(
        &self,
        hash: u64,
        reach: usize,
        accept: impl Fn(Offset) -> bool,
    ) -> Option<Offset> {
        let (.., slice) = self.slice(hash)?;
        Some(slice.search_beyond(hash, reach, accept)?.offset)
    }

    /// The slice of `hash`, and whose it is, by which directory; `None` if no key of it is stored here.
    #[inline(always)]
    fn slice(&self, hash: u64) -> Option<(&Cachelet, &Dir, Slice<'_>)> {
        let routes::Way::Here(slot) = self.routes.of(hash) else { return None };
        let mut cachelet = self.at(slot);
        loop {
            let dir = cachelet.front.root.dir();
            match cachelet.front.root.way(dir, hash, self.memory()) {
                Way::Nowhere => return None,
                Way::Moved => cachelet = self.child(&cachelet.front),
                Way::Slice(slice) => return Some((cachelet, dir, slice)),
            }
        }
    }

    /// The key's home bucket: `None` if no key of its slice is stored, an error while the slice is being changed.
    #[inline(always)]
    fn home(&self, hash: u64) -> Option<Result<Home<'_>, ()>> {
        let (cachelet, dir, slice) = self.slice(hash)?;
        Some(slice.home(hash).map(|bucket| Home { cachelet, dir, bucket }).ok_or(()))
    }

    /// Shows the live item of `key` to `show`, and counts as an access if `access`. Between
    /// [`Cachelets::enter`] and [`Cachelets::leave`].
    ///
    /// Optimistic: `show` may be called again when a writer came in between, with `out` cut back
    /// to its length before, so it must have no other effect. `None` is a miss.
    #[inline]
    pub fn read<R>(
        &self,
        key: &Key,
        now: Seconds,
        access: bool,
        out: &mut Vec<u8>,
        show: impl FnMut(&View, &mut Vec<u8>) -> R,
    ) -> Option<R> {
        self.look(key, now, access, out, show).ok()
    }

    /// [`Cachelets::read`] that says why there is nothing to read.
    #[inline]
    pub fn look<R>(
        &self,
        key: &Key,
        now: Seconds,
        access: bool,
        out: &mut Vec<u8>,
        show: impl FnMut(&View, &mut Vec<u8>) -> R,
    ) -> Result<R, Miss> {
        self.look_ahead(Ahead::NONE, key, now, access, out, show)
    }

    /// [`Cachelets::look`] where [`Cachelets::prefetch_bucket`] has told for this key, in the same epoch: before the worker reserves
    /// room. What changes a bucket changes its version, and a flush the directory, so nothing that was done meanwhile
    /// is overlooked.
    #[inline]
    pub fn look_ahead<R>(
        &self,
        ahead: Ahead<'_>,
        key: &Key,
        now: Seconds,
        access: bool,
        out: &mut Vec<u8>,
        mut show: impl FnMut(&View, &mut Vec<u8>) -> R,
    ) -> Result<R, Miss> {
        let now = self.shared.clock.latest(now);
        let (hash, key) = (key.hash(), key.bytes());
        let length = out.len();
        let mut spins = 0;
        let mut known =
            ahead.0.filter(|home| std::ptr::eq(home.cachelet.front.root.dir(), home.dir));
        loop {
            let home = match known.take().map_or_else(|| self.home(hash), |home| Some(Ok(home))) {
                None => return Err(Miss::NotFound),
                Some(Err(())) => {
                    pause(&mut spins);
                    continue;
                }
                Some(Ok(home)) => home,
            };
            if home.cachelet.front.is_flush_due(now) {
                drop(self.lock(hash, now));
                continue;
            }
            let Some(seen) = home.bucket.version.begin() else {
                pause(&mut spins);
                continue;
            };
            let accept = |offset| {
                // Where the value begins is known when the key has arrived: too late to ask for its line.
                prefetch(self.memory().at(offset).wrapping_add(64));
                Item::at(self.memory(), offset).has_key(key)
            };
            let shown = match self.find(home.bucket, hash, accept) {
                None => Err(Miss::NotFound),
                Some(offset) => {
                    let item = Item::at(self.memory(), offset);
                    let view = View::new(&self.shared.pages, &home.cachelet.front, item, now);
                    match view.expired() {
                        true => Err(Miss::Expired),
                        false => Ok((item, show(&view, out))),
                    }
                }
            };
            if home.bucket.version.unchanged(seen) {
                let (item, shown) = shown?;
                if access {
                    item.touch_access(now, self.shared.pages.eras.now());
                }
                return Ok(shown);
            }
            out.truncate(length);
            pause(&mut spins);
        }
    }
}
