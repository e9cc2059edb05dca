//! `stats cluster`: the cluster as this server sees it. docs/design/cluster.md lists the names.

use crate::commands::stats::Stats;

impl Stats<'_, '_> {
    /// A server that is alone does not know the word, as memcached.
    pub fn stats_cluster(&mut self) {
        let Some((here, cluster)) = self.on.shared.cluster() else { return self.line(b"ERROR") };
        let (up, wanted) = self.on.shared.links();
        let own = cluster.map.cachelets().iter().filter(|(_, owner)| owner.server == here);
        let own = own.count() as u64;
        let moves = self.on.shared.moves_in_words();
        let rescued = self.on.shared.rescued();
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
            ("get_unreachable", self.on.shared.sums().get_unreachable),
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
                self.stat(&format!("{}:links_up", id.0), self.on.shared.links_up.to(*id));
            }
        }
        for (id, prefix, side) in moves {
            self.stat_text(&format!("move:{}:cachelet", id.0), &prefix.to_string());
            self.stat_text(&format!("move:{}:side", id.0), side);
        }
        self.line(b"END");
    }
}
