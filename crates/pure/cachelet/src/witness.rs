//! What watchers are told of evictions.

use std::mem;

use mbal_locks::ranks;

use crate::shim::{AtomicU32, AtomicU64, Ordering::*};
use crate::sync::SpinLock;
use crate::types::Meta;
use crate::view::View;

/// Evicted items that wait to be told of; further ones are only counted.
const EVICTED_KEPT_MAX: usize = 1024;

/// An item that went for want of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    pub key: Vec<u8>,
    pub meta: Meta,
}

/// Keeps what is evicted, while somebody watches.
pub struct Witness {
    on: AtomicU32,
    lost: AtomicU64,
    kept: SpinLock<ranks::Evicted, Vec<Evicted>>,
}

impl Witness {
    pub fn new() -> Witness {
        let kept = SpinLock::new(Vec::new());
        Witness { on: AtomicU32::new(0), lost: AtomicU64::new(0), kept }
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed) != 0
    }

    #[cold]
    pub fn see(&self, view: &View) {
        let mut kept = self.kept.lock();
        if kept.len() < EVICTED_KEPT_MAX {
            kept.push(Evicted { key: view.key().to_vec(), meta: view.meta() });
        } else {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    pub fn turn(&self, on: bool) {
        self.on.store(on.into(), Relaxed);
        if !on {
            self.kept.lock().clear();
        }
    }

    pub fn take(&self) -> (Vec<Evicted>, u64) {
        (mem::take(&mut *self.kept.lock()), self.lost.swap(0, Relaxed))
    }
}
