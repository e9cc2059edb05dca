//! `-o`: memcached's list of extended options.

use crate::flags::{Refused, failure, usage};

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Extended {
    pub waits_at_limit: bool,
    pub notices: Vec<String>,
}

/// Options about machinery that does not exist here: nothing changes, as nothing needs to.
const WITHOUT_EFFECT: &[&str] = &[
    "hashpower",
    "no_hashexpand",
    "slab_reassign",
    "no_slab_reassign",
    "slab_automove",
    "no_slab_automove",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_automove_freeratio",
    "slab_chunk_max",
    "slab_sizes",
    "tail_repair_time",
    "hash_algorithm",
    "lru_crawler",
    "no_lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "lru_maintainer",
    "no_lru_maintainer",
    "hot_lru_pct",
    "warm_lru_pct",
    "hot_max_factor",
    "warm_max_factor",
    "temporary_ttl",
    "idle_timeout",
    "watcher_logbuf_size",
    "worker_logbuf_size",
    "track_sizes",
    "no_inline_ascii_resp",
    "inline_ascii_resp",
    "no_chunked_items",
    "resp_obj_mem_limit",
    "read_buf_mem_limit",
];

/// Options that are true of this server whether they are given or not.
const TRUE_ANYWAY: &[&str] =
    &["modern", "no_modern", "relaxed_privileges", "drop_privileges", "no_drop_privileges"];

/// Options of features that a server must not pretend to have.
const NOT_BUILT: &[(&str, &str)] =
    &[("ssl_", "TLS"), ("ext_", "extstore"), ("proxy_", "proxy"), ("sock_cookie_id", "cookie")];

impl Extended {
    pub fn parse(lists: &[String]) -> Result<Extended, Refused> {
        let mut extended = Extended::default();
        for option in lists.iter().flat_map(|list| list.split(',')).filter(|one| !one.is_empty()) {
            let name = option.split('=').next().expect("a split has a first part");
            if name == "maxconns_fast" {
                extended.waits_at_limit = false;
            } else if name == "no_maxconns_fast" {
                extended.waits_at_limit = true;
            } else if WITHOUT_EFFECT.contains(&name) {
                extended.notices.push(format!("-o {name}: has no effect here"));
            } else if let Some((_, what)) =
                NOT_BUILT.iter().find(|(prefix, _)| name.starts_with(prefix))
            {
                return Err(usage(format!("This server is not built with {what} support.")));
            } else if !TRUE_ANYWAY.contains(&name) {
                return Err(failure(format!("Illegal suboption \"{option}\"")));
            }
        }
        Ok(extended)
    }
}
