//! Where a key's item is, under the writer lock: looking for it, and pointing to another.

use mbal_model::{Key, Prefix};

use crate::bucket::tag_of;
use crate::dir::Dir;
use crate::item::Item;
use crate::memory::Offset;
use crate::site::Site;
use crate::slice::{Place, Slice};

impl Site<'_> {
    #[inline]
    pub fn dir(&self) -> &Dir {
        self.front.root.dir()
    }

    /// Readers find this directory from now on. The one of before is to be kept until its epoch has passed.
    pub fn replace_dir(&mut self, dir: Box<Dir>) -> Box<Dir> {
        self.front.root.replace(dir)
    }

    /// Index of the directory's entry for `hash`.
    #[inline]
    pub fn entry(&self, hash: u64) -> usize {
        self.front.root.entry_in(self.dir(), hash)
    }

    #[inline]
    pub fn slice_at(&self, entry: usize) -> Option<Slice<'_>> {
        self.dir().entries[entry].slice(self.memory())
    }

    /// The slice that `hash` falls into, if there is one.
    #[inline]
    pub fn slice_of(&self, hash: u64) -> Option<Slice<'_>> {
        let entry = self.entry(hash);
        debug_assert!(!self.dir().entries[entry].has_moved(), "lock() follows it to the child");
        self.slice_at(entry)
    }

    /// The key's item's place, if it has one.
    pub fn place_of(&self, key: &Key) -> Option<Place> {
        let slice = self.slice_of(key.hash())?;
        let accept = |offset| self.item(offset).has_key(key.bytes());
        slice.search(slice.home_for(key.hash()), key.hash(), accept)
    }

    /// The place of the record at `offset`, whose key has `hash`.
    pub fn place_at(&self, hash: u64, offset: Offset) -> Option<Place> {
        let slice = self.slice_of(hash)?;
        slice.search(slice.home_for(hash), hash, |candidate| candidate == offset)
    }

    /// The chained item with this hash that `accept` knows as its own.
    pub fn place_where(&self, hash: u64, accept: impl Fn(Item) -> bool) -> Option<Place> {
        let slice = self.slice_of(hash)?;
        slice.search(slice.home_for(hash), hash, |offset| accept(self.item(offset)))
    }

    /// Runs `change` while readers of the keys with this home bucket are told to try again.
    #[inline]
    pub fn change<R>(&self, hash: u64, change: impl FnOnce() -> R) -> R {
        let slice = self.slice_of(hash).expect("its item was found in it");
        slice.home_for(hash).version.write(change)
    }

    /// Points an existing place to another record of the same key, or to none (0).
    pub fn repoint(&self, hash: u64, place: Place, offset: Offset) {
        let slice = self.slice_of(hash).expect("the place lies in it");
        let place = (place.bucket.into(), place.slot.into());
        let change = || slice.set_slot(tag_of(hash), place, offset);
        slice.home_for(hash).version.write(change);
    }

    /// The hashes that the directory stands for, by one of them.
    pub fn hashes_around(&self, hash: u64) -> (u64, u64) {
        let all = Prefix::of(hash, self.front.root.prefix_bits());
        (all.first_hash(), all.last_hash())
    }

    /// The first hash that an entry of the directory stands for.
    pub fn first_hash_of(&self, entry: usize) -> u64 {
        let prefix = self.front.prefix().expect("it serves one");
        let bits = self.front.root.prefix_bits();
        Prefix::of(prefix.first_hash(), bits).first_hash()
            | (entry as u64).checked_shl(64 - bits - self.dir().depth()).unwrap_or(0)
    }

    /// Where the slice of `hash` ends.
    pub fn end_of_slice(&self, hash: u64) -> u128 {
        let bits = self.front.root.prefix_bits();
        let prefix = hash.checked_shr(64 - bits).unwrap_or(0);
        let dir = self.dir();
        let end = dir.run(self.entry(hash)).end as u128;
        ((u128::from(prefix) << dir.depth()) + end) << (64 - bits - dir.depth())
    }
}
