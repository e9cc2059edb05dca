//! Looking at every item, a slice at a time.

use mbal_model::Seconds;

use crate::cachelets::Cachelets;
use crate::classes::class_of;
use crate::routes::Way;
use crate::slice::Slice;
use crate::view::View;

/// What a walk does with dead items that it meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dead {
    PassOver,
    Remove,
}

impl Cachelets {
    /// Shows the live items of the slice that the hash `from` falls into, under its cachelet's lock; the
    /// first hash of the next slice, whichever cachelet that belongs to. `None` is the end. O(items of a
    /// slice). An item that is there all the time is shown once, whatever splits or moves meanwhile.
    ///
    /// With it, the class of every item that was dead, belongs to `classes` (by bit), and was removed.
    ///
    /// Between [`Cachelets::enter`] and [`Cachelets::leave`].
    pub fn walk(
        &self,
        from: u64,
        now: Seconds,
        dead: Dead,
        classes: u64,
        mut show: impl FnMut(&View),
    ) -> (Option<u64>, Vec<usize>) {
        let Some(from) = self.routes.next_here(from) else { return (None, Vec::new()) };
        let Way::Here(slot) = self.routes.of(from) else { return (Some(from), Vec::new()) };
        let (mut locked, next) = self.lock_slice(slot, from, now);
        let (site, mut expired) = (&locked.site, Vec::new());
        let slice = site.slice_at(site.entry(from));
        for offset in slice.into_iter().flat_map(Slice::offsets) {
            let item = site.item(offset);
            // A child's slice may hold what was shown before it was moved there, and what will be shown where it is still.
            if !(u128::from(from)..next).contains(&u128::from(item.hash())) {
                continue;
            }
            if item.expired(site.now) {
                expired.push(offset);
            } else {
                show(&site.view(offset));
            }
        }
        let mut removed = Vec::new();
        for offset in expired.into_iter().filter(|_| dead == Dead::Remove) {
            let class = class_of(locked.site.item(offset)).0;
            if classes >> class & 1 == 1 {
                locked.remove_expired(offset);
                removed.push(class);
            }
        }
        (u64::try_from(next).ok(), removed)
    }
}
