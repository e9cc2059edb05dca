//! Links between servers, as servers tell of them: which are broken, and what to do.

use std::collections::{BTreeMap, BTreeSet};

use mbal_model::ServerId;

use crate::api::{LinkReport, LinkStatus};
use crate::ledger::Ledger;

/// A link that is down for so long does not just come up.
const BROKEN_AFTER_MS: u64 = 3000;

/// What was said of links since this process began.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// Servers that miss a link to another one.
    broken: BTreeSet<(ServerId, ServerId)>,
}

/// Those that servers miss which are heard, to others that are heard: what is silent is told of otherwise.
pub(crate) fn broken_links(ledger: &Ledger) -> Vec<LinkStatus> {
    let all = ledger.all_heard().filter(|(from, _)| is_here(ledger, *from));
    let broken = all.flat_map(|(from, heard)| {
        let of = heard.last.links.iter().filter(move |link| is_broken(ledger, from, link));
        of.map(move |link| LinkStatus {
            from: from.0,
            to: link.server,
            seconds: link.down_ms / 1000,
            why: link.why.clone(),
            mend: mending(&link.why).into(),
        })
    });
    broken.collect()
}

fn is_here(ledger: &Ledger, server: ServerId) -> bool {
    ledger.state().members.get(&server).is_some_and(|member| member.is_alive())
        && ledger.is_heard(server)
}

fn is_broken(ledger: &Ledger, from: ServerId, link: &LinkReport) -> bool {
    link.down_ms >= BROKEN_AFTER_MS
        && link.server != from.0
        && is_here(ledger, ServerId(link.server))
}

/// Those that are heard and cut off from most others, so that most keys that clients ask them for are missed, and writes fail. O(links that are down + n log n).
pub(crate) fn unlinked(ledger: &Ledger) -> BTreeSet<ServerId> {
    let members = ledger.state().members.keys().copied();
    let here: BTreeSet<ServerId> = members.filter(|id| is_here(ledger, *id)).collect();
    // Whichever of both misses it.
    let mut pairs = BTreeSet::new();
    for (from, heard) in ledger.all_heard().filter(|(from, _)| here.contains(from)) {
        let links = heard.last.links.iter();
        let broken = links.filter(|link| is_broken(ledger, from, link));
        pairs.extend(broken.map(|link| {
            let to = ServerId(link.server);
            (to.min(from), to.max(from))
        }));
    }
    let mut broken: BTreeMap<ServerId, usize> = BTreeMap::new();
    for server in pairs.into_iter().flat_map(|(one, other)| [one, other]) {
        *broken.entry(server).or_default() += 1;
    }
    let others = here.len().saturating_sub(1);
    broken.into_iter().filter(|(_, broken)| 2 * broken > others).map(|(id, _)| id).collect()
}

impl Links {
    /// Says once that a link is broken, and that it is there again.
    pub fn tell_changes(&mut self, ledger: &mut Ledger, from: ServerId) {
        let links = ledger.heard(from).map_or(Vec::new(), |heard| heard.last.links.clone());
        let broken = links.iter().filter(|link| is_broken(ledger, from, link));
        let broken: Vec<(ServerId, &LinkReport)> =
            broken.map(|link| (ServerId(link.server), link)).collect();
        let told: Vec<ServerId> =
            self.broken.iter().filter(|(one, _)| *one == from).map(|(_, to)| *to).collect();
        for (to, link) in &broken {
            if self.broken.insert((from, *to)) {
                let (why, mend) = (&link.why, mending(&link.why));
                ledger.say(format!(
                    "server {} has no link to server {}: {why}; {mend}",
                    from.0, to.0
                ));
            }
        }
        for to in told.into_iter().filter(|to| broken.iter().all(|(one, _)| one != to)) {
            self.broken.remove(&(from, to));
            if is_here(ledger, to) {
                ledger.say(format!("server {} is linked to server {} again", from.0, to.0));
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
