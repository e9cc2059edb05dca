//! `stats cluster`: the cluster as this server sees it. docs/design/cluster.md lists the names.

use std::collections::BTreeMap;

use mbal_locks::{Mutex, ranks};
use mbal_model::ServerId;

use crate::shared::Shared;
use crate::turn::Turn;

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

    fn to(&self, server: ServerId) -> u64 {
        let up = self.0.lock();
        up.get(&server).copied().unwrap_or(0)
    }
}

impl Shared {
    /// Links of this server's workers that are up, and those that there would be if all other servers could be reached.
    pub fn links(&self) -> (u64, u64) {
        let others = self.others();
        let up = others.iter().map(|server| self.links_up.to(*server)).sum();
        (up, others.len() as u64 * u64::from(self.settings.workers))
    }
}

impl Turn<'_> {
    /// A server that is alone does not know the word, as memcached.
    pub fn stats_cluster(&mut self) {
        let Some((here, cluster)) = self.shared.cluster() else { return self.line(b"ERROR") };
        let (up, wanted) = self.shared.links();
        let own = cluster.map.cachelets().iter().filter(|(_, owner)| owner.server == here);
        let own = own.count() as u64;
        let moves = self.shared.moves_in_words();
        let rescued = self.shared.rescued();
        self.stat_text("cluster", &cluster.name);
        self.stat("server_id", here.0.into());
        for (name, value) in [
            ("map_version", cluster.map.version()),
            ("servers", cluster.servers.len() as u64),
            ("cachelets", own),
            ("links_up", up),
            ("links_wanted", wanted),
            ("moves", moves.len() as u64),
            ("moved_bytes", rescued.bytes),
            ("left_behind", rescued.left_behind),
            ("get_unreachable", self.shared.sums().get_unreachable),
        ] {
            self.stat(name, value);
        }
        if let Some(age) = rescued.cut {
            self.stat("left_behind_age", age.into());
        }
        for (id, addresses) in &cluster.servers {
            let held = cluster.map.cachelets().iter().filter(|(_, owner)| owner.server == *id);
            let held = held.count() as u64;
            self.stat_text(&format!("{}:client", id.0), &addresses.client.to_string());
            self.stat(&format!("{}:cachelets", id.0), held);
            if *id != here {
                self.stat(&format!("{}:links_up", id.0), self.shared.links_up.to(*id));
            }
        }
        for (id, prefix, side) in moves {
            self.stat_text(&format!("move:{}:cachelet", id.0), &prefix.to_string());
            self.stat_text(&format!("move:{}:side", id.0), side);
        }
        self.line(b"END");
    }
}
