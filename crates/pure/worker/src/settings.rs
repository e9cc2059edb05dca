//! What the operator chose.

use std::net::SocketAddr;
use std::time::Duration;

use mbal_model::Seconds;
use mbal_wire::Login;

/// What the operator chose; `stats settings` tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What `version` answers: the memcached whose protocol this is.
    pub version: &'static str,
    /// `-m`, bytes.
    pub memory_bytes: u64,
    /// `-c`.
    pub connections_max: u32,
    pub tcp_port: u16,
    /// `-U`; 0 is none.
    pub udp_port: u16,
    /// `-l`; `None` is all interfaces.
    pub interface: Option<String>,
    /// `-s`.
    pub socket_path: Option<String>,
    /// `-v`, 0 to 3; `verbosity` changes [`crate::shared::Gauges::verbosity`].
    pub verbosity: u32,
    /// `-t`.
    pub workers: u16,
    /// `-I`, bytes.
    pub item_bytes_max: usize,
    /// False for `-M`.
    pub evict: bool,
    /// `-R`: so many requests of one connection are executed before others get their turn.
    pub requests_per_event: u32,
    /// `-b`.
    pub backlog: i32,
    /// False for `-F`.
    pub flush_enabled: bool,
    /// `-A`.
    pub shutdown_enabled: bool,
    /// `-o debugtime`, for tests: clients may move the clock.
    pub debug_time: bool,
    /// `--worker-ports`: where each worker listens; none without.
    pub worker_addresses: Vec<SocketAddr>,
    /// `--link-timeout`: what another server was asked has failed after it.
    pub link_timeout: Duration,
    /// `--move-budget`: so many percent may moves add to how long requests wait.
    pub move_budget: u32,
    /// `-B`.
    pub protocol: Protocol,
    /// `-S`: a binary client logs in first.
    pub sasl: bool,
    /// `-Y`: a text client logs in first, with what is in this file.
    pub auth_file: Option<String>,
    /// The share of requests that is looked at for `stats hot`, 0 to 1.
    pub hot_sample: f64,
    /// Stack distances of reads are sampled.
    pub stack_distances: bool,
    /// `-a`: permissions of the unix socket.
    pub socket_mode: u32,
    /// False for `-o no_maxconns_fast`.
    pub maxconns_fast: bool,
    /// False for `-X`: no command lists keys.
    pub dump_enabled: bool,
    /// False for `-W`.
    pub watch_enabled: bool,
    /// `-o idle_timeout`, seconds; 0 is none.
    pub idle_timeout: Seconds,
    /// False for `-o no_lru_crawler`, as it is at the start.
    pub crawler_enabled: bool,
    /// `-o track_sizes`.
    pub sizes_enabled: bool,
    /// `-D`: what ends a prefix; prefixes are counted from the start if it is given.
    pub delimiter: Option<u8>,
    /// `-o watcher_logbuf_size`, KiB.
    pub watcher_kib: u32,
    pub echoed: Echoed,
    pub tls: TlsSettings,
}

/// `-Z` and `-o ssl_*`, for `stats settings`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    pub enabled: bool,
    pub chain_cert: Option<String>,
    pub key: Option<String>,
    pub ca_cert: Option<String>,
    pub ciphers: Option<String>,
    /// 0 none, 1 request, 2 require, 3 once.
    pub verify_mode: u32,
    /// 1 is PEM, 2 DER.
    pub key_format: u32,
    /// KiB.
    pub wbuf_kib: u32,
    pub session_cache: bool,
    /// The name of the oldest version that is spoken.
    pub min_version: &'static str,
}

impl Default for TlsSettings {
    fn default() -> TlsSettings {
        TlsSettings {
            enabled: false,
            chain_cert: None,
            key: None,
            ca_cert: None,
            ciphers: None,
            verify_mode: 0,
            key_format: 1,
            wbuf_kib: 16,
            session_cache: false,
            min_version: "tlsv1.2",
        }
    }
}

/// What a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Its first byte decides.
    #[default]
    Auto,
    Text,
    Binary,
}

impl Protocol {
    /// As `stats settings` names it.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Auto => "auto-negotiate",
            Protocol::Text => "ascii",
            Protocol::Binary => "binary",
        }
    }
}

impl Settings {
    pub(crate) fn login(&self) -> Login {
        if self.sasl || self.auth_file.is_some() { Login::Needed } else { Login::NotAsked }
    }
}

/// Settings that are told as they were given, and change nothing here. Fractions are in hundredths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Echoed {
    /// `-f`.
    pub growth_factor: u32,
    /// `-n`.
    pub chunk_size: u32,
    /// False for `-C`.
    pub cas_enabled: bool,
    pub hashpower: u32,
    pub slab_reassign: bool,
    pub slab_automove: u32,
    pub slab_automove_ratio: u32,
    pub slab_automove_window: u32,
    /// KiB.
    pub slab_chunk_max: u32,
    pub lru_crawler_sleep: u32,
    pub lru_crawler_tocrawl: u32,
    pub tail_repair_time: u32,
    pub lru_maintainer: bool,
    pub hot_lru_pct: u32,
    pub warm_lru_pct: u32,
    pub hot_max_factor: u32,
    pub warm_max_factor: u32,
    pub temporary_ttl: Option<u32>,
    /// KiB.
    pub worker_kib: u32,
    /// MiB.
    pub read_buf_mem_limit: u32,
}

impl Default for Echoed {
    fn default() -> Echoed {
        Echoed {
            growth_factor: 125,
            chunk_size: 48,
            cas_enabled: true,
            hashpower: 0,
            slab_reassign: true,
            slab_automove: 1,
            slab_automove_ratio: 80,
            slab_automove_window: 10,
            slab_chunk_max: 512,
            lru_crawler_sleep: 100,
            lru_crawler_tocrawl: 0,
            tail_repair_time: 0,
            lru_maintainer: true,
            hot_lru_pct: 20,
            warm_lru_pct: 40,
            hot_max_factor: 20,
            warm_max_factor: 200,
            temporary_ttl: None,
            worker_kib: 64,
            read_buf_mem_limit: 0,
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            version: "1.6.45",
            memory_bytes: 64 << 20,
            connections_max: 1024,
            tcp_port: 11211,
            udp_port: 0,
            interface: None,
            socket_path: None,
            verbosity: 0,
            workers: 1,
            item_bytes_max: 1 << 20,
            evict: true,
            requests_per_event: 512,
            backlog: 1024,
            flush_enabled: true,
            shutdown_enabled: false,
            debug_time: false,
            worker_addresses: Vec::new(),
            link_timeout: Duration::from_secs(1),
            move_budget: 25,
            protocol: Protocol::Auto,
            sasl: false,
            auth_file: None,
            hot_sample: 0.01,
            stack_distances: false,
            socket_mode: 0o700,
            maxconns_fast: true,
            dump_enabled: true,
            watch_enabled: true,
            idle_timeout: 0,
            crawler_enabled: true,
            sizes_enabled: false,
            delimiter: None,
            watcher_kib: 256,
            echoed: Echoed::default(),
            tls: TlsSettings::default(),
        }
    }
}
