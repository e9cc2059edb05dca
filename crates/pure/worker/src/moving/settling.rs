//! A worker looks again whether the store is as the map says: what is to leave waits for batches of other workers.

use std::time::Duration;

use crate::moving::followed::FollowedMap;
use crate::sessions::wakes::{Sleeper, Wakes};
use crate::time::Now;

/// Others' batches are over in a moment, unless one has lost its core; a journey may take long.
const SETTLE_AGAIN: Duration = Duration::from_millis(1);
const SETTLE_DOUBLINGS_MAX: u32 = 10;

/// How a worker waits for it.
#[derive(Default)]
pub(crate) struct Settling {
    /// It is looked at after this event.
    pub is_due: bool,
    /// How often it has been looked at in vain.
    tries: u32,
}

impl Settling {
    /// Looks again a moment later, unless that is so.
    pub fn later(&mut self, map: &FollowedMap, now: Now, wakes: &mut Wakes) {
        wakes.forget(Sleeper::Map);
        if !map.is_unsettled() {
            self.tries = 0;
            return;
        }
        let pause = SETTLE_AGAIN * (1 << self.tries.min(SETTLE_DOUBLINGS_MAX));
        self.tries += 1;
        wakes.set(now.instant() + pause, Sleeper::Map);
    }
}
