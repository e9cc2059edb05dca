//! Links between servers, as servers tell of them: which are broken, and what to do.

use std::collections::{BTreeMap, BTreeSet};

use mbal_model::ServerId;

use crate::api::{LinkReport, LinkStatus};
use crate::coordinator::{Coordinator, Micros};

/// A link that is down for so long does not just come up.
const BROKEN_AFTER_MS: u64 = 3000;

impl Coordinator {
    /// Those that servers miss which are heard, to others that are heard: what is silent is told of otherwise.
    pub(crate) fn broken_links(&self, now: Micros) -> Vec<LinkStatus> {
        let all = self.heard.iter().filter(|(from, _)| self.is_here(now, **from));
        let broken = all.flat_map(|(from, heard)| {
            let of = heard.links.iter().filter(|link| self.is_broken(now, *from, link));
            of.map(|link| LinkStatus {
                from: from.0,
                to: link.server,
                seconds: link.down_ms / 1000,
                why: link.why.clone(),
                mend: mending(&link.why).into(),
            })
        });
        broken.collect()
    }

    fn is_here(&self, now: Micros, server: ServerId) -> bool {
        self.state.members.get(&server).is_some_and(|member| member.is_alive())
            && self.is_heard(now, server)
    }

    fn is_broken(&self, now: Micros, from: ServerId, link: &LinkReport) -> bool {
        link.down_ms >= BROKEN_AFTER_MS
            && link.server != from.0
            && self.is_here(now, ServerId(link.server))
    }

    /// Those that are heard and cut off from most others, so that most keys that clients ask them for are missed, and writes fail. O(links that are down + n log n).
    pub(crate) fn unlinked_now(&self, now: Micros) -> BTreeSet<ServerId> {
        let here: BTreeSet<ServerId> =
            self.state.members.keys().copied().filter(|id| self.is_here(now, *id)).collect();
        // Whichever of both misses it.
        let mut pairs = BTreeSet::new();
        for (from, heard) in self.heard.iter().filter(|(from, _)| here.contains(from)) {
            let broken = heard.links.iter().filter(|link| self.is_broken(now, *from, link));
            pairs.extend(broken.map(|link| {
                let to = ServerId(link.server);
                (to.min(*from), to.max(*from))
            }));
        }
        let mut broken: BTreeMap<ServerId, usize> = BTreeMap::new();
        for server in pairs.into_iter().flat_map(|(one, other)| [one, other]) {
            *broken.entry(server).or_default() += 1;
        }
        let others = here.len().saturating_sub(1);
        broken.into_iter().filter(|(_, broken)| 2 * broken > others).map(|(id, _)| id).collect()
    }

    /// Says once that a link is broken, and that it is there again.
    pub(crate) fn tell_changes_of_links(&mut self, now: Micros, from: ServerId) {
        let links = self.heard.get(&from).map_or(Vec::new(), |heard| heard.links.clone());
        let broken = links.iter().filter(|link| self.is_broken(now, from, link));
        let broken: Vec<(ServerId, &LinkReport)> =
            broken.map(|link| (ServerId(link.server), link)).collect();
        let told: Vec<ServerId> =
            self.unlinked.iter().filter(|(one, _)| *one == from).map(|(_, to)| *to).collect();
        for (to, link) in &broken {
            if self.unlinked.insert((from, *to)) {
                let (why, mend) = (&link.why, mending(&link.why));
                self.said.push(format!(
                    "server {} has no link to server {}: {why}; {mend}",
                    from.0, to.0
                ));
            }
        }
        for to in told.into_iter().filter(|to| broken.iter().all(|(one, _)| one != to)) {
            self.unlinked.remove(&(from, to));
            if self.is_here(now, to) {
                self.said.push(format!("server {} is linked to server {} again", from.0, to.0));
            }
        }
    }
}

/// What operators do about it, by what the server has found.
fn mending(why: &str) -> &'static str {
    const STEPS: [(&str, &str); 6] = [
        ("secret", "give all servers the same --cluster-secret"),
        ("versions", "upgrade the older of them"),
        ("another cluster", "give all servers the same --cluster-name"),
        ("wants, server", "give each server an address and a --server-id of its own"),
        ("TLS", "give -Z to all servers or to none"),
        ("protocol of links", "give -Z to all servers or to none, and say their --link-port"),
    ];
    let step = STEPS.iter().find(|(word, _)| why.contains(word));
    step.map_or("let each server reach the others' --link-port", |(_, step)| step)
}
