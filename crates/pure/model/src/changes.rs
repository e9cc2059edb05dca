//! What has changed between two documents of a cluster, as text: a few lines where the whole has megabytes.
//!
//! ```text
//! from 7
//! version 8
//! server 3 link 10.0.0.3:11311 client 10.0.0.3:11211      one that has come, or is elsewhere
//! gone 4
//! cachelet 2c00/6 3/0                                      in the place of all that it overlaps
//! ```

use std::fmt::Write;
use std::sync::Arc;

use crate::cluster::{once, parse_addresses, parse_owner, parse_server, write_server};
use crate::{Cluster, ClusterMap, MAP_VERSION_MAX, Owner, Prefix, Uncovered};

impl Cluster {
    /// What this one has and `before`, an older one of the same name, has not, for [`Cluster::changed`]. O(n log n).
    pub fn changes_since(&self, before: &Cluster) -> String {
        let mut out = format!("from {}\nversion {}\n", before.map.version(), self.map.version());
        for (id, addresses) in &self.servers {
            if before.servers.get(id) != Some(addresses) {
                let _ = write_server(&mut out, *id, addresses);
            }
        }
        for id in before.servers.keys().filter(|id| !self.servers.contains_key(id)) {
            let _ = writeln!(out, "gone {}", id.0);
        }
        for (prefix, owner) in self.map.cachelets() {
            if before.map.at(prefix.first_hash()) != (*prefix, *owner) {
                let _ = writeln!(out, "cachelet {prefix} {}/{}", owner.server.0, owner.worker.0);
            }
        }
        out
    }

    /// This one with what [`Cluster::changes_since`] has told. What is wrong with it, or does not fit, is told with its line.
    pub fn changed(&self, changes: &str) -> Result<Cluster, String> {
        let mut servers = self.servers.clone();
        let (mut from, mut version) = (None, None);
        let mut changed: Vec<(Prefix, Owner)> = Vec::new();
        let mut read = |words: &[&str]| match words {
            ["from", word] => once(&mut from, version_of(word)?),
            ["version", word] => once(&mut version, version_of(word)?),
            ["server", id, rest @ ..] => {
                let id = parse_server(id).ok_or("a server is a number to 65534")?;
                servers.insert(id, parse_addresses(rest)?);
                Ok(())
            }
            ["gone", id] => {
                let id = parse_server(id).ok_or("a server is a number to 65534")?;
                servers.remove(&id);
                Ok(())
            }
            ["cachelet", prefix, owner] => {
                let prefix = Prefix::parse(prefix.as_bytes());
                let prefix = prefix.ok_or("a cachelet is named like 2c00/6")?;
                changed.push((prefix, parse_owner(owner).ok_or("an owner is server/worker")?));
                Ok(())
            }
            _ => Err("not understood"),
        };
        for (number, line) in (1..).zip(changes.lines()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            read(&words).map_err(|why: &str| format!("line {number}: {why}: {line}"))?;
        }
        let (from, version) = (from.ok_or("no version before")?, version.ok_or("no version")?);
        if from != self.map.version() || version <= from {
            let own = self.map.version();
            return Err(format!("changes from {from} to {version} do not fit map {own}"));
        }
        changed.sort_unstable_by_key(|(prefix, _)| *prefix);
        let is_replaced = |prefix: &Prefix| {
            let at = changed.partition_point(|(one, _)| one.last_hash() < prefix.first_hash());
            changed.get(at).is_some_and(|(one, _)| one.first_hash() <= prefix.last_hash())
        };
        let kept = self.map.cachelets().iter().filter(|(prefix, _)| !is_replaced(prefix));
        let owners: Vec<(Prefix, Owner)> = kept.chain(&changed).copied().collect();
        if let Some((prefix, owner)) =
            owners.iter().find(|(_, owner)| !servers.contains_key(&owner.server))
        {
            return Err(format!("cachelet {prefix} is of server {}, unknown", owner.server.0));
        }
        let map = ClusterMap::new(version, owners).map_err(|Uncovered(hash)| {
            format!("cachelets leave a gap, or overlap, from {:04x}", hash >> 48)
        })?;
        Ok(Cluster { name: self.name.clone(), map: Arc::new(map), servers })
    }
}

fn version_of(word: &str) -> Result<u64, &'static str> {
    let version = word.parse().ok().filter(|version| (1..=MAP_VERSION_MAX).contains(version));
    version.ok_or("a version is 1 or more, below 2^31")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "cluster shop\nversion 7\nserver 1 link a:1 client a:2\nserver 2 link b:1 client b:2\n\
        server 4 link d:1 client d:2\ncachelet 0000/2 1/0\ncachelet 4000/2 2/0\ncachelet 8000/1 2/1\n";

    #[test]
    fn changes_make_the_one_of_the_other() {
        let before = Cluster::parse(BEFORE).expect("well formed");
        for (after, lines) in [
            ("cachelet 0000/2 1/0\ncachelet 4000/2 1/0\ncachelet 8000/1 2/1\n", 1),
            (
                "cachelet 0000/2 1/0\ncachelet 4000/3 2/0\ncachelet 6000/3 4/0\ncachelet 8000/1 2/1\n",
                2,
            ),
            ("cachelet 0000/1 1/0\ncachelet 8000/1 2/1\n", 1),
            ("cachelet 0000/0 2/0\n", 1),
        ] {
            let after = BEFORE[..BEFORE.find("cachelet").expect("it is there")].to_owned() + after;
            let after =
                Cluster::parse(&after.replace("version 7", "version 9")).expect("well formed");
            let changes = after.changes_since(&before);
            assert_eq!(changes.lines().count(), 2 + lines, "{changes}");
            assert_eq!(before.changed(&changes), Ok(after));
        }
        // Servers that come, go and are elsewhere.
        let after =
            BEFORE.replace("version 7", "version 8").replace("server 4 link d:1 client d:2\n", "");
        let after = after.replace("link b:1", "link b:9") + "";
        let after = after.replace(
            "cachelet 0000/2",
            "server 3 link c:1 client c:2 workers c:3,c:4\ncachelet 0000/2",
        );
        let after = Cluster::parse(&after).expect("well formed");
        let changes = after.changes_since(&before);
        assert_eq!(
            changes,
            "from 7\nversion 8\nserver 2 link b:9 client b:2\nserver 3 link c:1 client c:2 workers c:3,c:4\ngone 4\n"
        );
        assert_eq!(before.changed(&changes), Ok(after));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let before = Cluster::parse(BEFORE).expect("well formed");
        for (changes, why) in [
            ("", "no version before"),
            ("from 7\n", "no version"),
            ("from 6\nversion 7\n", "changes from 6 to 7 do not fit map 7"),
            ("from 7\nversion 7\n", "changes from 7 to 7 do not fit map 7"),
            ("from 7\nversion 0\n", "line 2: a version is 1 or more, below 2^31: version 0"),
            ("from 7\nversion 8\nversion 8\n", "line 3: once is enough: version 8"),
            ("from 7\nversion 8\ngone x\n", "line 3: a server is a number to 65534: gone x"),
            ("from 7\nversion 8\ngone 1\n", "cachelet 0000/2 is of server 1, unknown"),
            (
                "from 7\nversion 8\ncachelet 4000/3 1/0\n",
                "cachelets leave a gap, or overlap, from 6000",
            ),
            ("from 7\nversion 8\nequal 3\n", "line 3: not understood: equal 3"),
        ] {
            assert_eq!(before.changed(changes), Err(why.to_owned()), "{changes}");
        }
    }
}
