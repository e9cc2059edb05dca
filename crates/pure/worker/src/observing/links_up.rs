//! Links of a server's workers, counted.

use std::collections::BTreeMap;

use mbal_locks::{Mutex, ranks};
use mbal_model::ServerId;

/// Links of this server's workers that are up, by the server at the other end.
#[derive(Default)]
pub(crate) struct LinksUp(Mutex<ranks::LinksUp, BTreeMap<ServerId, u64>>);

impl LinksUp {
    pub fn came(&self, server: ServerId) {
        *self.0.lock().entry(server).or_default() += 1;
    }

    pub fn went(&self, server: ServerId) {
        let mut up = self.0.lock();
        if let Some(count) = up.get_mut(&server) {
            *count = count.saturating_sub(1);
        }
    }

    pub fn to(&self, server: ServerId) -> u64 {
        let up = self.0.lock();
        up.get(&server).copied().unwrap_or(0)
    }
}
