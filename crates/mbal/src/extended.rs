//! `-o`: memcached's list of extended options.

use mbal_server::{Echoed, TlsSettings};

use crate::flags::{Refused, failure, usage};

#[derive(Debug)]
pub struct Extended {
    pub waits_at_limit: bool,
    pub crawler_enabled: bool,
    pub sizes_enabled: bool,
    pub debug_time: bool,
    /// Seconds; 0 is none.
    pub idle_timeout: u32,
    pub watcher_kib: u32,
    pub echoed: Echoed,
    pub tls: TlsSettings,
    pub notices: Vec<String>,
}

/// Options about machinery that does not exist here: `stats settings` tells them, nothing else changes.
const WITHOUT_EFFECT: &[(&str, Echo)] = &[
    ("hashpower", |echoed, text| set(&mut echoed.hashpower, text)),
    ("slab_automove", |echoed, text| match text {
        None => set(&mut echoed.slab_automove, Some("1")),
        text => set(&mut echoed.slab_automove, text),
    }),
    ("slab_automove_ratio", |echoed, text| set_fraction(&mut echoed.slab_automove_ratio, text)),
    ("slab_automove_window", |echoed, text| set(&mut echoed.slab_automove_window, text)),
    ("slab_chunk_max", |echoed, text| set(&mut echoed.slab_chunk_max, text)),
    ("lru_crawler_sleep", |echoed, text| set(&mut echoed.lru_crawler_sleep, text)),
    ("tail_repair_time", |echoed, text| set(&mut echoed.tail_repair_time, text)),
    ("hot_lru_pct", |echoed, text| set(&mut echoed.hot_lru_pct, text)),
    ("warm_lru_pct", |echoed, text| set(&mut echoed.warm_lru_pct, text)),
    ("hot_max_factor", |echoed, text| set_fraction(&mut echoed.hot_max_factor, text)),
    ("warm_max_factor", |echoed, text| set_fraction(&mut echoed.warm_max_factor, text)),
    ("temporary_ttl", |echoed, text| set(echoed.temporary_ttl.get_or_insert_default(), text)),
    ("worker_logbuf_size", |echoed, text| set(&mut echoed.worker_kib, text)),
    ("read_buf_mem_limit", |echoed, text| set(&mut echoed.read_buf_mem_limit, text)),
    ("slab_reassign", |echoed, _| switch(&mut echoed.slab_reassign, true)),
    ("no_slab_reassign", |echoed, _| switch(&mut echoed.slab_reassign, false)),
    ("no_slab_automove", |echoed, _| set(&mut echoed.slab_automove, Some("0"))),
    ("lru_maintainer", |echoed, _| switch(&mut echoed.lru_maintainer, true)),
    ("no_lru_maintainer", |echoed, _| switch(&mut echoed.lru_maintainer, false)),
    ("no_hashexpand", nothing),
    ("slab_automove_freeratio", nothing),
    ("slab_sizes", nothing),
    ("hash_algorithm", |_, text| {
        text.filter(|name| ["jenkins", "murmur3", "xxh3"].contains(name)).map(drop)
    }),
    ("no_inline_ascii_resp", nothing),
    ("inline_ascii_resp", nothing),
    ("no_chunked_items", nothing),
    ("resp_obj_mem_limit", nothing),
    ("sock_cookie_id", nothing),
    ("ssl_kernel_tls", nothing),
    // What tunes external storage, while nobody asks for it by ext_path.
    ("ext_page_size", nothing),
    ("ext_wbuf_size", nothing),
    ("ext_threads", nothing),
    ("ext_item_size", nothing),
    ("ext_item_age", nothing),
    ("ext_low_ttl", nothing),
    ("ext_drop_unread", nothing),
    ("ext_recache_rate", nothing),
    ("ext_compact_under", nothing),
    ("ext_drop_under", nothing),
    ("ext_max_frag", nothing),
    ("ext_max_sleep", nothing),
];

/// Takes over what stands behind the `=`, if it is well-formed.
type Echo = fn(&mut Echoed, Option<&str>) -> Option<()>;

fn nothing(_: &mut Echoed, _: Option<&str>) -> Option<()> {
    Some(())
}

fn set(number: &mut u32, text: Option<&str>) -> Option<()> {
    *number = text?.parse().ok()?;
    Some(())
}

fn switch(on: &mut bool, to: bool) -> Option<()> {
    *on = to;
    Some(())
}

fn set_fraction(hundredths: &mut u32, text: Option<&str>) -> Option<()> {
    let fraction: f64 = text?.parse().ok()?;
    *hundredths = (fraction * 100.0).round() as u32;
    Some(())
}

/// Options that are true of this server whether they are given or not.
const TRUE_ANYWAY: &[&str] =
    &["modern", "relaxed_privileges", "drop_privileges", "no_drop_privileges"];

/// Options of features that a server must not pretend to have.
const NOT_BUILT: &[(&str, &str)] = &[("ext_path", "extstore"), ("proxy_", "proxy")];

impl Extended {
    pub fn parse(lists: &[String]) -> Result<Extended, Refused> {
        let mut extended = Extended {
            waits_at_limit: false,
            crawler_enabled: true,
            sizes_enabled: false,
            debug_time: false,
            idle_timeout: 0,
            watcher_kib: 256,
            echoed: Echoed::default(),
            tls: TlsSettings::default(),
            notices: Vec::new(),
        };
        for option in lists.iter().flat_map(|list| list.split(',')).filter(|one| !one.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            extended.take(name, value, option)?;
        }
        Ok(extended)
    }

    fn take(&mut self, name: &str, value: Option<&str>, option: &str) -> Result<(), Refused> {
        let number = |number: &mut u32| {
            set(number, value).ok_or_else(|| failure(format!("could not parse argument to {name}")))
        };
        match name {
            "maxconns_fast" => self.waits_at_limit = false,
            "no_maxconns_fast" => self.waits_at_limit = true,
            "lru_crawler" => self.crawler_enabled = true,
            "no_lru_crawler" => self.crawler_enabled = false,
            "track_sizes" => self.sizes_enabled = true,
            "debugtime" => self.debug_time = true,
            "idle_timeout" => number(&mut self.idle_timeout)?,
            "watcher_logbuf_size" => number(&mut self.watcher_kib)?,
            "lru_crawler_tocrawl" => number(&mut self.echoed.lru_crawler_tocrawl)?,
            // What memcached did by itself before 1.5.
            "no_modern" => {
                self.waits_at_limit = true;
                self.crawler_enabled = false;
                self.echoed.slab_chunk_max = 1024;
                self.echoed.slab_reassign = false;
                self.echoed.slab_automove = 0;
                self.echoed.lru_maintainer = false;
            }
            _ if TRUE_ANYWAY.contains(&name) => {}
            _ if name.starts_with("ssl_") && name != "ssl_kernel_tls" => {
                return self.take_tls(name, value, option);
            }
            _ => return self.take_without_effect(name, value, option),
        }
        Ok(())
    }

    fn take_tls(&mut self, name: &str, value: Option<&str>, option: &str) -> Result<(), Refused> {
        let missing = || failure(format!("Missing {name} argument"));
        let text = || value.filter(|text| !text.is_empty()).map(str::to_owned).ok_or_else(missing);
        let number =
            || text()?.parse::<u32>().map_err(|_| failure(format!("could not parse {name}")));
        let tls = &mut self.tls;
        match name {
            "ssl_chain_cert" => tls.chain_cert = Some(text()?),
            "ssl_key" => tls.key = Some(text()?),
            "ssl_ca_cert" => tls.ca_cert = Some(text()?),
            "ssl_ciphers" => tls.ciphers = Some(text()?),
            "ssl_session_cache" => tls.session_cache = true,
            "no_ssl_session_cache" => tls.session_cache = false,
            "ssl_wbuf_size" => tls.wbuf_kib = number()?,
            "ssl_verify_mode" => match number()? {
                mode @ 0..=3 => tls.verify_mode = mode,
                mode => return Err(failure(format!("Illegal ssl_verify_mode: {mode}"))),
            },
            "ssl_keyformat" => match text()?.as_str() {
                "1" | "PEM" => tls.key_format = 1,
                "2" | "DER" => tls.key_format = 2,
                other => return Err(failure(format!("Unsupported ssl_keyformat: {other}"))),
            },
            // What is older than 1.2 is not spoken, whoever asks for it.
            "ssl_min_version" => match number()? {
                0..=2 => tls.min_version = "tlsv1.2",
                3 => tls.min_version = "tlsv1.3",
                other => return Err(failure(format!("Unsupported ssl_min_version: {other}"))),
            },
            _ => return Err(failure(format!("Illegal suboption \"{option}\""))),
        }
        Ok(())
    }

    fn take_without_effect(
        &mut self,
        name: &str,
        value: Option<&str>,
        option: &str,
    ) -> Result<(), Refused> {
        if let Some((_, echo)) = WITHOUT_EFFECT.iter().find(|(known, _)| *known == name) {
            self.notices.push(format!("-o {name}: has no effect here"));
            return echo(&mut self.echoed, value)
                .ok_or_else(|| failure(format!("could not parse argument to {name}")));
        }
        Err(match NOT_BUILT.iter().find(|(prefix, _)| name.starts_with(prefix)) {
            Some((_, what)) => usage(format!("This server is not built with {what} support.")),
            None => failure(format!("Illegal suboption \"{option}\"")),
        })
    }
}
