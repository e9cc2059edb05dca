//! What has changed between two documents of a cluster, as text: a few lines where the whole has megabytes.
//!
//! ```text
//! from 7
//! version 8
//! server 3 link 10.0.0.3:11311 client 10.0.0.3:11211      one that has come, or is elsewhere
//! gone 4
//! cachelet 2c00/6 3/0                                      in the place of all that it overlaps
//! ```
//! A server tells its clients the same of its own view: then the versions are `7.2` and `8.3`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{Display, Write};
use std::sync::Arc;

use crate::cluster::{once, parse_addresses, parse_owner, parse_server, write_server};
use crate::{
    Address, Addresses, Cluster, ClusterMap, ClusterView, MAP_VERSION_MAX, MapVersion, Owner,
    Prefix, ServerId, Uncovered,
};

/// What to know of a change, to tell it by what holds now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub servers: Vec<ServerId>,
    /// Of the newer map.
    pub cachelets: Vec<Prefix>,
}

/// What has been told of a change. Later lines of the same server count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    pub from: MapVersion,
    pub version: MapVersion,
    /// `None` has gone.
    pub servers: BTreeMap<ServerId, Option<Addresses>>,
    /// In the prefixes' order.
    pub cachelets: Vec<(Prefix, Owner)>,
}

/// The latest changes, each from the version of the one before: who is further behind is told the whole.
#[derive(Debug)]
pub struct Chain<T> {
    each: VecDeque<(u64, T)>,
}

/// So many are kept.
const CHAIN_MAX: usize = 64;

impl<T> Default for Chain<T> {
    fn default() -> Chain<T> {
        Chain { each: VecDeque::new() }
    }
}

impl<T> Chain<T> {
    /// `size` of all that stay is no more than `most`.
    pub fn push(&mut self, from: u64, change: T, size: impl Fn(&T) -> usize, most: usize) {
        self.each.push_back((from, change));
        while CHAIN_MAX < self.each.len()
            || most < self.each.iter().map(|(_, one)| size(one)).sum::<usize>()
        {
            self.each.pop_front();
        }
    }

    /// All that has changed since that version; `None` if nobody knows any more.
    pub fn since(&self, version: u64) -> Option<impl Iterator<Item = &T>> {
        let first = self.each.iter().position(|(from, _)| *from == version)?;
        Some(self.each.range(first..).map(|(_, one)| one))
    }

    pub fn clear(&mut self) {
        self.each.clear();
    }
}

impl Cluster {
    /// Where this one is another than `before`, an older one of the same name. O(n).
    pub fn difference(&self, before: &Cluster) -> Difference {
        let is_same = |id: &&ServerId| {
            self.servers.get(id).map(written) == before.servers.get(id).map(written)
        };
        let gone = before.servers.keys().filter(|id| !self.servers.contains_key(id));
        let servers = self.servers.keys().chain(gone);
        let mut known = before.map.cachelets().iter().peekable();
        let is_new = |one: &&(Prefix, Owner)| {
            while known.next_if(|known| known.0.first_hash() < one.0.first_hash()).is_some() {}
            known.peek() != Some(one)
        };
        let cachelets = self.map.cachelets().iter().filter(is_new).map(|(prefix, _)| *prefix);
        Difference {
            servers: servers.filter(|id| !is_same(id)).copied().collect(),
            cachelets: cachelets.collect(),
        }
    }

    /// What this one has and `before`, an older one of the same name, has not, for [`Cluster::changed`]. O(n).
    pub fn changes_since(&self, before: &Cluster) -> String {
        let Difference { servers, cachelets } = self.difference(before);
        let cachelets = cachelets.iter().map(|prefix| self.map.at(prefix.first_hash()));
        self.write_changes(before.map.version(), self.map.version(), servers, cachelets)
    }

    fn write_changes(
        &self,
        from: impl Display,
        version: impl Display,
        servers: impl IntoIterator<Item = ServerId>,
        cachelets: impl IntoIterator<Item = (Prefix, Owner)>,
    ) -> String {
        let mut out = format!("from {from}\nversion {version}\n");
        // Nothing that is written to a string fails.
        for id in servers {
            let _ = match self.servers.get(&id) {
                Some(addresses) => write_server(&mut out, id, addresses),
                None => writeln!(out, "gone {}", id.0),
            };
        }
        for (prefix, owner) in cachelets {
            let _ = writeln!(out, "cachelet {prefix} {}/{}", owner.server.0, owner.worker.0);
        }
        out
    }

    /// This one with what [`Cluster::changes_since`] has told. What is wrong with it, or does not fit, is told with its line.
    pub fn changed(&self, changes: &str) -> Result<Cluster, String> {
        let number = |word: &str| Some(MapVersion { map: word.parse().ok()?, local: 0 });
        let changes = Changes::parse(changes, number)?;
        let (from, version) = (changes.from.map, changes.version.map);
        if from != self.map.version() || version <= from {
            let own = self.map.version();
            return Err(format!("changes from {from} to {version} do not fit map {own}"));
        }
        let mut servers = self.servers.clone();
        changes.change_servers(&mut servers, |_, addresses| addresses.clone());
        let kept = self.map.cachelets().iter().filter(|(prefix, _)| !changes.replaces(*prefix));
        let owners: Vec<(Prefix, Owner)> = kept.chain(&changes.cachelets).copied().collect();
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

impl ClusterView {
    /// What is new in it to whom server `here` has told `known`, or who knows that map alone (`.0`). `changed`: from that map to this one.
    pub fn changes(&self, here: ServerId, known: MapVersion, changed: &[Difference]) -> String {
        let (mut servers, mut prefixes) = (BTreeSet::new(), BTreeSet::new());
        for one in changed {
            servers.extend(&one.servers);
            prefixes.extend(&one.cachelets);
        }
        let map = &self.cluster.map;
        let mut cachelets: BTreeMap<Prefix, Owner> =
            prefixes.into_iter().flat_map(|prefix| map.overlapping(prefix)).collect();
        if known.local != self.local {
            // Which of its own others are than they were, nobody remembers.
            let all = map.cachelets().iter().copied();
            cachelets.extend(all.filter(|(_, owner)| owner.server == here));
        }
        self.cluster.write_changes(known, self.version(), servers, cachelets)
    }
}

/// What is told of a server: not what its name was found to stand for.
fn written(at: &Addresses) -> (&Option<Address>, &Address, &[Address]) {
    (&at.link, &at.client, &at.workers)
}

impl Changes {
    /// What [`ClusterView::changes`] has told; `None` is a whole document.
    pub fn of_view(text: &str) -> Option<Result<Changes, String>> {
        let is_one = text.starts_with("from ");
        is_one.then(|| Changes::parse(text, |word| MapVersion::parse(word.as_bytes())))
    }

    fn parse(
        text: &str,
        parse_version: impl Fn(&str) -> Option<MapVersion>,
    ) -> Result<Changes, String> {
        let version_of = |word: &str| {
            let is_one = |version: &MapVersion| (1..=MAP_VERSION_MAX).contains(&version.map);
            parse_version(word).filter(is_one).ok_or("a version is 1 or more, below 2^31")
        };
        let (mut from, mut version) = (None, None);
        let mut servers = BTreeMap::new();
        let mut cachelets: Vec<(Prefix, Owner)> = Vec::new();
        let mut read = |words: &[&str]| match words {
            ["from", word] => once(&mut from, version_of(word)?),
            ["version", word] => once(&mut version, version_of(word)?),
            ["server", id, rest @ ..] => {
                let id = parse_server(id).ok_or("a server is a number to 65534")?;
                servers.insert(id, Some(parse_addresses(rest)?));
                Ok(())
            }
            ["gone", id] => {
                servers.insert(parse_server(id).ok_or("a server is a number to 65534")?, None);
                Ok(())
            }
            ["cachelet", prefix, owner] => {
                let prefix = Prefix::parse(prefix.as_bytes());
                let prefix = prefix.ok_or("a cachelet is named like 2c00/6")?;
                cachelets.push((prefix, parse_owner(owner).ok_or("an owner is server/worker")?));
                Ok(())
            }
            _ => Err("not understood"),
        };
        for (number, line) in (1..).zip(text.lines()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            read(&words).map_err(|why: &str| format!("line {number}: {why}: {line}"))?;
        }
        let (from, version) = (from.ok_or("no version before")?, version.ok_or("no version")?);
        cachelets.sort_unstable_by_key(|(prefix, _)| *prefix);
        Ok(Changes { from, version, servers, cachelets })
    }

    /// Some line stands in the place of this cachelet.
    pub fn replaces(&self, prefix: Prefix) -> bool {
        let at = self.cachelets.partition_point(|(one, _)| one.last_hash() < prefix.first_hash());
        self.cachelets.get(at).is_some_and(|(one, _)| one.first_hash() <= prefix.last_hash())
    }

    pub fn change_servers<T>(
        &self,
        servers: &mut BTreeMap<ServerId, T>,
        mut server: impl FnMut(ServerId, &Addresses) -> T,
    ) {
        for (id, told) in &self.servers {
            match told {
                Some(addresses) => servers.insert(*id, server(*id, addresses)),
                None => servers.remove(id),
            };
        }
    }
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
    fn the_latest_changes_are_known() {
        let mut chain = Chain::default();
        for version in [3, 4, 5, 7] {
            chain.push(version, version + 1, |_| 10, 30);
        }
        let since = |version| chain.since(version).map(|each| each.copied().collect::<Vec<u64>>());
        assert_eq!(
            [3, 4, 5, 6, 7].map(since),
            [None, Some(vec![5, 6, 8]), Some(vec![6, 8]), None, Some(vec![8])]
        );
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
