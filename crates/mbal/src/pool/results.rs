//! What `mbal pool resize` has found, plans and has done, as text and JSON.

use mbal_elastic::pool::Plan;
use mbal_pool::{Counts, Surveyed};
use mbal_routing::ketama::RingServer;
use serde_json::json;

use super::telling::Telling;

impl Telling {
    pub fn members(self, members: &[Surveyed]) {
        let items: usize = members.iter().map(|member| member.listing.items().len()).sum();
        let servers: Vec<_> = members
            .iter()
            .map(|member| {
                json!({ "server": member.server.to_string(), "version": member.version, "items": member.listing.items().len() })
            })
            .collect();
        let text = format!("{} servers with {items} items", members.len());
        self.say(&text, "listed", json!({ "servers": servers }));
    }

    pub fn plan(self, members: &[Surveyed], old: &[RingServer], new: &[RingServer], plan: &Plan) {
        let retire: Vec<RingServer> = old.iter().filter(|old| !has(new, old)).cloned().collect();
        let come: Vec<RingServer> = new.iter().filter(|new| !has(old, new)).cloned().collect();
        let mut text = String::new();
        let (mut items, mut bytes) = (0, 0);
        for (member, carried) in members.iter().zip(&plan.carried) {
            items += carried.len();
            let listing = &member.listing;
            let sizes = carried.iter().map(|&(item, _)| listing.items()[item as usize].bytes);
            bytes += sizes.map(u64::from).sum::<u64>();
        }
        for (what, servers) in [("retire", &retire), ("come", &come)] {
            if !servers.is_empty() {
                text += &format!("{what}: {}\n", listed(servers));
            }
        }
        let strays: usize = plan.strays.iter().map(Vec::len).sum();
        text += &format!(
            "{items} items travel, {:.1} MB; {} are colder than what fits where they would go, {} are displaced there",
            bytes as f64 / 1e6,
            plan.left,
            plan.displaced
        );
        if strays > 0 {
            text += &format!(
                "\n{strays} items are where no client looks for them, and are deleted first"
            );
        }
        let fields = json!({
            "retire": listed(&retire), "come": listed(&come), "servers": listed(new), "items": items, "bytes": bytes,
            "left": plan.left, "displaced": plan.displaced, "strays": strays,
        });
        self.say(&text, "planned", fields);
    }

    pub fn counts(self, event: &str, counts: &Counts) {
        let Counts { copied, bytes, there, gone, refused, outdated, strays } = *counts;
        let mut text = format!("{copied} items were copied, {:.1} MB", bytes as f64 / 1e6);
        for (count, what) in [
            (strays, "strays were deleted"),
            (gone, "had gone meanwhile"),
            (there, "were there"),
            (refused, "were not taken"),
            (outdated, "copies were deleted, since the item was written or has gone"),
        ] {
            if count > 0 {
                text += &format!("; {count} {what}");
            }
        }
        let fields = json!({
            "items": copied, "bytes": bytes, "there": there, "gone": gone, "refused": refused, "outdated": outdated, "strays": strays,
        });
        self.say(&text, event, fields);
    }
}

pub fn is(one: &RingServer, other: &RingServer) -> bool {
    one.host == other.host && one.port == other.port
}

pub fn has(list: &[RingServer], server: &RingServer) -> bool {
    list.iter().any(|one| is(one, server))
}

/// As in the clients' list.
pub fn listed(servers: &[RingServer]) -> String {
    let names: Vec<String> = servers
        .iter()
        .map(|server| {
            let weight =
                if server.weight == 1 { String::new() } else { format!(":{}", server.weight) };
            let name = server.name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
            format!("{server}{weight}{name}")
        })
        .collect();
    names.join(",")
}
