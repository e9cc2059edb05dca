//! The flags of `mbal serve`: memcached's letters, long names, units and limits, and a few of ours.

use std::fs;
use std::num::ParseIntError;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use mbal_server::{
    BalanceConfig, Caller, ClientCertificate, Cluster, ClusterConfig, Config, Control,
    CoordinatorConfig, Echoed, Listen, Login, MapFrom, Mode, Protocol, ServerId, Settings,
    TlsSettings, UnixSocket, log, memory_bytes, secret_of, token_left, token_of,
};

use crate::extended::Extended;
use crate::listen::{http_address, interfaces, worker_ports};
use crate::passwords;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

// Of every process that goes on. No docstring: it would become the help of who has these flags.
#[derive(Args, Clone, Copy, Debug)]
pub struct LogFlags {
    /// What is said on standard error: lines for people, or a JSON object a line
    #[arg(long, env = "MBAL_LOG_FORMAT", value_name = "format", default_value = "text")]
    log_format: LogFormat,
}

impl LogFlags {
    /// From now on, for the whole process.
    pub fn set(self) {
        log::set(match self.log_format {
            LogFormat::Text => log::Format::Text,
            LogFormat::Json => log::Format::Json,
        });
    }

    pub fn is_json(self) -> bool {
        self.log_format == LogFormat::Json
    }
}

/// Why the flags do not make a server: said on stderr, then the process exits.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub reason: String,
    pub exit_code: u8,
}

/// memcached's exit code for a number out of range.
const EX_FAILURE: u8 = 1;
/// memcached's exit code for flags that contradict each other or the build.
const EX_USAGE: u8 = 64;

pub fn failure(reason: impl Into<String>) -> Refused {
    Refused { reason: reason.into(), exit_code: EX_FAILURE }
}

pub fn usage(reason: impl Into<String>) -> Refused {
    Refused { reason: reason.into(), exit_code: EX_USAGE }
}

/// What a server is to do, and what of the flags it does not do.
#[derive(Debug)]
pub struct Checked {
    pub config: Config,
    /// One line per flag that was accepted without effect.
    pub notices: Vec<String>,
}

/// memcached's port.
pub const PORT: i32 = 11211;
const ITEM_BYTES_MIN: u64 = 1024;
const ITEM_BYTES_MAX: u64 = 1 << 30;
/// Guessing a shorter one would pay.
const SECRET_BYTES_MIN: usize = 16;
const DRAIN_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// `-m` up to 64 TiB: beyond that it is a slip of the hand.
const MEMORY_MIB_MAX: u64 = 1 << 26;

#[derive(Args, Debug)]
pub struct Flags {
    /// TCP port; 0 is none, -1 is any free one [default: 11211]
    #[arg(short, long, env = "MBAL_PORT", value_name = "num", allow_hyphen_values = true)]
    port: Option<i32>,

    /// UDP port; 0 is none, -1 is any free one. Without -p it is the TCP port too
    #[arg(
        short = 'U',
        long,
        env = "MBAL_UDP_PORT",
        value_name = "num",
        allow_hyphen_values = true
    )]
    #[arg(default_value_t = 0, hide_default_value = false)]
    udp_port: i32,

    /// Unix socket to listen on, instead of TCP
    #[arg(short = 's', long, env = "MBAL_UNIX_SOCKET", value_name = "file")]
    unix_socket: Option<PathBuf>,

    /// Permissions of the unix socket, in octal
    #[arg(short = 'a', long, env = "MBAL_UNIX_MASK", value_name = "mask", default_value = "700")]
    unix_mask: String,

    /// Address to listen on, `host`, `host:port` or `[v6]:port`; several by comma or repetition,
    /// `*` for all interfaces
    #[arg(short, long, env = "MBAL_LISTEN", value_name = "addr", action = ArgAction::Append)]
    listen: Vec<String>,

    /// Worker i listens on this port + i as well: one hop for clients that know the workers
    #[arg(long, env = "MBAL_WORKER_PORTS", value_name = "base")]
    worker_ports: Option<u16>,

    /// Even out the workers' loads by itself: on, off, or dry-run, which only says what it would do
    #[arg(long, env = "MBAL_BALANCE", value_name = "how", default_value = "on")]
    balance: String,

    /// How often loads are looked at: seconds, or a number with ms or s
    #[arg(long, env = "MBAL_EPOCH", value_name = "time", default_value = "1s")]
    epoch: String,

    /// The part of its time that a worker may be busy before another is to help it
    #[arg(long, env = "MBAL_LOAD_MAX", value_name = "part", default_value_t = 0.75)]
    load_max: f64,

    /// Epochs in a row that something has to be so before it is acted on
    #[arg(long, env = "MBAL_PATIENCE", value_name = "num", default_value_t = 2)]
    patience: u32,

    /// Unix socket for `mbal cluster status`, `move` and `explain`, or off; by default ADDRESS:PORT.control
    /// in /run/mbal, $XDG_RUNTIME_DIR/mbal or /tmp/mbal-UID
    #[arg(long, env = "MBAL_CONTROL", value_name = "file")]
    control: Option<PathBuf>,

    /// Owners changed and connections handed over at random, a second: for tests
    #[arg(long, value_name = "num", default_value_t = 0, hide = true)]
    chaos: u32,

    /// Be one of several servers that share the keys: the coordinator that says which there are, and who has which
    /// cachelets, like http://10.0.0.1:11210; of several, separated by commas, the one that leads
    #[arg(long, env = "MBAL_COORDINATOR", value_name = "url[,url]", requires = "cluster_secret")]
    #[arg(conflicts_with = "cluster")]
    coordinator: Option<String>,

    /// A file with the token that the coordinator asks for
    #[arg(long, env = "MBAL_COORDINATOR_TOKEN", value_name = "file")]
    coordinator_token: Option<PathBuf>,

    /// Name of the coordinator's cluster
    #[arg(long, env = "MBAL_CLUSTER_NAME", value_name = "name", default_value = "mbal")]
    cluster_name: String,

    /// Host by which others reach this server; by default the address that leads to the coordinator, if -l has it, else the first of -l
    #[arg(long, env = "MBAL_ADVERTISE", value_name = "host", requires = "coordinator")]
    advertise: Option<String>,

    /// At SIGTERM, give cachelets to other servers for so long, and serve meanwhile: seconds, or a number with ms or s;
    /// 0 ends at once
    #[arg(long, env = "MBAL_DRAIN_TIMEOUT", value_name = "time", default_value = "30s")]
    drain_timeout: String,

    /// Memory for copies of other servers' hot keys, beside --memory-limit: bytes, or a number with k or m; 0 takes none.
    /// A 64th of --memory-limit unless told otherwise
    #[arg(long, env = "MBAL_REPLICA_MEMORY", value_name = "size", requires = "coordinator")]
    replica_memory: Option<String>,

    /// Be one of several servers without a coordinator: a file that says which there are, and who has which cachelets
    #[arg(long, env = "MBAL_CLUSTER", value_name = "file", requires = "server_id")]
    #[arg(requires = "cluster_secret")]
    cluster: Option<PathBuf>,

    /// Which of the cluster's servers this is; a coordinator gives a number to a server without
    #[arg(long, env = "MBAL_SERVER_ID", value_name = "num")]
    server_id: Option<u16>,

    /// A file with the secret by which the cluster's servers know each other, 16 bytes or more
    #[arg(long, env = "MBAL_CLUSTER_SECRET", value_name = "file")]
    cluster_secret: Option<PathBuf>,

    /// Take other servers' links at this port; by default the one that the cluster's file says, or any free one
    #[arg(long, env = "MBAL_LINK_PORT", value_name = "num")]
    link_port: Option<u16>,

    /// Give up a request that another server has not answered: seconds, or a number with ms or s
    #[arg(long, env = "MBAL_LINK_TIMEOUT", value_name = "time", default_value = "1s")]
    link_timeout: String,

    /// Let moves of cachelets add so many percent to how long clients' requests wait; they slow down at more
    #[arg(long, env = "MBAL_MOVE_BUDGET", value_name = "num", default_value = "25")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1000))]
    move_budget: u32,

    /// Memory for items and their index, in MiB; or auto, three quarters of what this process may use
    #[arg(short, long, env = "MBAL_MEMORY_LIMIT", value_name = "num", allow_hyphen_values = true)]
    #[arg(default_value = "64", value_parser = memory_limit)]
    memory_limit: MemoryLimit,

    /// Answer an error when memory is full, instead of evicting
    #[arg(short = 'M', long, env = "MBAL_DISABLE_EVICTIONS")]
    disable_evictions: bool,

    /// Client connections at a time; one more is told so and closed
    #[arg(short, long, env = "MBAL_CONN_LIMIT", value_name = "num", allow_hyphen_values = true)]
    #[arg(default_value_t = 1024)]
    conn_limit: i64,

    /// Workers; without it as many as the process may use cores (affinity and CPU quota counted)
    #[arg(short, long, env = "MBAL_THREADS", value_name = "num", allow_hyphen_values = true)]
    threads: Option<i64>,

    /// Bind each worker to a core of its own
    #[arg(long, env = "MBAL_PIN")]
    pin: bool,

    /// Largest item, key and header included: bytes, or with k or m (1k to 1024m, at most half of -m)
    #[arg(short = 'I', long, env = "MBAL_MAX_ITEM_SIZE", value_name = "num", default_value = "1m")]
    max_item_size: String,

    /// Requests of one connection before the others have their turn
    #[arg(short = 'R', long, env = "MBAL_MAX_REQS_PER_EVENT", value_name = "num")]
    #[arg(default_value_t = 512)]
    max_reqs_per_event: u32,

    /// Connections that may wait in the kernel to be accepted
    #[arg(
        short = 'b',
        long,
        env = "MBAL_LISTEN_BACKLOG",
        value_name = "num",
        default_value_t = 1024
    )]
    listen_backlog: i32,

    /// Let clients end the server by the `shutdown` command
    #[arg(short = 'A', long, env = "MBAL_ENABLE_SHUTDOWN")]
    enable_shutdown: bool,

    /// Refuse the `flush_all` command
    #[arg(short = 'F', long, env = "MBAL_DISABLE_FLUSH_ALL")]
    disable_flush_all: bool,

    /// Refuse to list keys: `stats cachedump`, `lru_crawler metadump`
    #[arg(short = 'X', long, env = "MBAL_DISABLE_DUMPING")]
    disable_dumping: bool,

    /// Refuse the `watch` command
    #[arg(short = 'W', long, env = "MBAL_DISABLE_WATCH")]
    disable_watch: bool,

    /// Count gets, hits, sets and deletes by key prefix (`stats detail dump`), which this character ends
    #[arg(short = 'D', env = "MBAL_DELIMITER", value_name = "char")]
    delimiter: Option<String>,

    /// TLS on all TCP ports, but those of `-l notls:...`; with -o ssl_chain_cert= and ssl_key=
    #[arg(short = 'Z', long, env = "MBAL_ENABLE_SSL")]
    enable_ssl: bool,

    /// Print the license and exit
    #[arg(short = 'i', long)]
    pub license: bool,

    /// Become this user, if started as root
    #[arg(short, long, env = "MBAL_USER", value_name = "user")]
    user: Option<String>,

    /// Run in the background
    #[arg(short, long, env = "MBAL_DAEMON")]
    daemon: bool,

    /// Write the process id to this file
    #[arg(short = 'P', long, env = "MBAL_PIDFILE", value_name = "file")]
    pidfile: Option<PathBuf>,

    /// Allow core files as large as they get
    #[arg(short = 'r', long, env = "MBAL_ENABLE_COREDUMPS")]
    enable_coredumps: bool,

    /// Keep all memory from being paged out
    #[arg(short = 'k', long, env = "MBAL_LOCK_MEMORY")]
    lock_memory: bool,

    /// Tell metrics to Prometheus on this address, over HTTP: `port`, `host:port` or `[v6]:port`
    #[arg(long, env = "MBAL_METRICS", value_name = "addr")]
    metrics: Option<String>,

    /// Show a web page of this server on this address: `port`, `host:port` or `[v6]:port`; a port alone is one of loopback
    #[arg(long, env = "MBAL_HTTP", value_name = "addr")]
    http: Option<String>,

    /// The share of requests that is looked at for `stats hot` while nobody asks, 0 to 1
    #[arg(long, env = "MBAL_HOT_SAMPLE", value_name = "share", default_value_t = 0.01)]
    hot_sample: f64,

    /// Whether stack distances of reads are sampled, of which a coordinator tells the hit ratio of other sizes: on or off
    #[arg(long, env = "MBAL_STACK_DISTANCES", value_name = "mode", default_value = "on")]
    #[arg(value_parser = on_or_off, action = ArgAction::Set)]
    stack_distances: bool,

    #[command(flatten)]
    pub log: LogFlags,

    /// Say what the balancer decides; twice: connections, requests and replies; three times: what
    /// connections do next, too
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,

    /// memcached's extended options, by comma; here: maxconns_fast, idle_timeout=, track_sizes,
    /// no_lru_crawler, watcher_logbuf_size=, ssl_chain_cert=, ssl_key=, ssl_ca_cert=,
    /// ssl_verify_mode=, ssl_ciphers=, ssl_min_version=, ssl_session_cache
    #[arg(short = 'o', long, env = "MBAL_EXTENDED", value_name = "options", action = ArgAction::Append)]
    extended: Vec<String>,

    /// Protocol: auto, ascii or binary; auto looks at a connection's first byte
    #[arg(short = 'B', long, env = "MBAL_PROTOCOL", value_name = "name")]
    protocol: Option<String>,

    /// Binary clients log in by SASL PLAIN, with what is in the file that MEMCACHED_SASL_PWDB names
    #[arg(short = 'S', long, env = "MBAL_ENABLE_SASL")]
    enable_sasl: bool,

    /// Text clients log in by a first `set`, with what is in this file: user:password, one a line
    #[arg(short = 'Y', long, env = "MBAL_AUTH_FILE", value_name = "file")]
    auth_file: Option<PathBuf>,

    #[command(flatten)]
    without_effect: WithoutEffect,

    #[command(flatten)]
    not_built: NotBuilt,
}

/// What `-m` says.
#[derive(Clone, Copy, Debug)]
pub enum MemoryLimit {
    Mib(u64),
    /// A part of what there is.
    Auto,
}

fn memory_limit(text: &str) -> Result<MemoryLimit, ParseIntError> {
    match text {
        "auto" => Ok(MemoryLimit::Auto),
        number => number.parse().map(MemoryLimit::Mib),
    }
}

impl MemoryLimit {
    /// `there_is` are the bytes that the process could use at most.
    fn mib(self, there_is: impl FnOnce() -> Option<u64>) -> Result<u64, Refused> {
        match self {
            MemoryLimit::Mib(mib) => Ok(mib),
            // The rest is for connections' buffers, copies of other servers' hot keys, threads and code.
            MemoryLimit::Auto => match there_is() {
                Some(bytes) => Ok((bytes >> 20) * 3 / 4),
                None => Err(usage("-m auto: the system does not tell how much memory there is")),
            },
        }
    }
}

/// Flags of memcached that change nothing here; each says so once at the start.
#[derive(Args, Debug)]
#[command(next_help_heading = "Accepted for memcached's sake, without effect")]
struct WithoutEffect {
    /// Slab growth factor; there are no slab classes
    #[arg(short = 'f', long, value_name = "num")]
    slab_growth_factor: Option<f64>,

    /// Slab chunk size; there are no slab classes
    #[arg(short = 'n', long, value_name = "bytes", allow_hyphen_values = true)]
    slab_min_size: Option<i64>,

    /// Large pages
    #[arg(short = 'L', long)]
    enable_largepages: bool,

    /// Do without cas; items have one all the same
    #[arg(short = 'C', long)]
    disable_cas: bool,

    /// NAPI ids; connections go to the worker with the fewest
    #[arg(short = 'N', long = "napi_ids", value_name = "num")]
    napi_ids: Option<u32>,
}

/// Flags that a server must not pass over in silence: it does not start.
#[derive(Args, Debug)]
struct NotBuilt {
    #[arg(short = 'e', long, hide = true)]
    memory_file: Option<String>,
}

/// What a server is told of its cluster.
#[derive(Debug)]
pub struct InCluster {
    pub coordinator: Option<String>,
    pub token: Option<PathBuf>,
    pub secret: Option<PathBuf>,
    pub link_port: Option<u16>,
}

impl Flags {
    /// The flags of a server alone, and what the others say.
    pub fn apart(mut self) -> (Flags, InCluster) {
        self.cluster = None;
        let cluster = InCluster {
            coordinator: self.coordinator.take(),
            token: self.coordinator_token.take(),
            secret: self.cluster_secret.take(),
            link_port: self.link_port,
        };
        (self, cluster)
    }

    /// Checks what memcached checks, in its order where two complaints would compete.
    /// `all_interfaces`: where to listen if nothing is said, else on loopback.
    pub fn check(
        self,
        all_interfaces: bool,
        port_file: Option<PathBuf>,
    ) -> Result<Checked, Refused> {
        self.not_built.check()?;
        let connections_max = match u32::try_from(self.conn_limit) {
            Ok(limit @ 1..) => limit,
            _ => return Err(failure("Maximum connections must be greater than 0")),
        };
        if self.max_reqs_per_event == 0 {
            return Err(failure("Number of requests per event must be greater than 0"));
        }
        let workers = self.workers()?;
        let mut notices = self.without_effect.notices()?;
        if self.delimiter.as_ref().is_some_and(String::is_empty) {
            return Err(failure("No delimiter specified"));
        }
        let extended = Extended::parse(&self.extended)?;
        notices.extend(extended.notices);
        let (protocol, login) = self.protocol_and_login()?;
        let echoed = self.without_effect.echoed(extended.echoed);
        let (memory_bytes, item_bytes_max) = self.sizes()?;
        let balance = self.balance_config()?;
        let cluster = self.cluster_config()?;
        let port = match (self.port, self.udp_port) {
            (None, 0) => PORT,
            (None, udp) => udp,
            (Some(port), _) => port,
        };
        let unix_socket = match self.unix_socket {
            Some(path) => Some(UnixSocket { path, mode: octal(&self.unix_mask)? }),
            None => None,
        };
        let listen = match unix_socket {
            Some(_) => Vec::new(),
            None => interfaces(&self.listen, port, all_interfaces)?,
        };
        let asks =
            |place: &Listen| !matches!(place.tls, None | Some(ClientCertificate::AsConfigured));
        if !self.enable_ssl && listen.iter().any(asks) {
            return Err(usage("-l btls:, mtls: are valid only when SSL is enabled (-Z)"));
        }
        let udp = match unix_socket {
            None if self.udp_port != 0 => interfaces(&self.listen, self.udp_port, all_interfaces)?,
            _ => Vec::new(),
        };
        let control = match self.control {
            None => Control::Default,
            Some(path) if path.as_os_str() == "off" => Control::Off,
            Some(path) => Control::Path(path),
        };
        let worker_ports = match self.worker_ports {
            Some(base) => Some(worker_ports(base, workers, &listen, self.enable_ssl)?),
            None => None,
        };
        let place = |flag, spec: &Option<String>| match spec {
            Some(spec) => http_address(flag, spec).map(Some),
            None => Ok(None),
        };
        let metrics = place("--metrics", &self.metrics)?;
        let http = place("--http", &self.http)?;
        if !(0.0..=1.0).contains(&self.hot_sample) {
            return Err(usage(format!("--hot-sample {}: not a share, 0 to 1", self.hot_sample)));
        }
        let settings = Settings {
            memory_bytes,
            connections_max,
            verbosity: self.verbose.into(),
            workers,
            item_bytes_max,
            evict: !self.disable_evictions,
            requests_per_event: self.max_reqs_per_event,
            backlog: self.listen_backlog,
            flush_enabled: !self.disable_flush_all,
            shutdown_enabled: self.enable_shutdown,
            debug_time: extended.debug_time,
            move_budget: self.move_budget,
            protocol,
            hot_sample: self.hot_sample,
            stack_distances: self.stack_distances && self.coordinator.is_some(),
            maxconns_fast: !extended.waits_at_limit,
            dump_enabled: !self.disable_dumping,
            watch_enabled: !self.disable_watch,
            idle_timeout: extended.idle_timeout,
            crawler_enabled: extended.crawler_enabled,
            sizes_enabled: extended.sizes_enabled,
            delimiter: self.delimiter.as_ref().map(|text| text.as_bytes()[0]),
            watcher_kib: extended.watcher_kib,
            echoed,
            tls: TlsSettings { enabled: self.enable_ssl, ..extended.tls },
            ..Settings::default()
        };
        let config = Config {
            settings,
            listen,
            udp,
            unix_socket,
            worker_ports,
            pin: self.pin,
            login,
            user: self.user,
            daemon: self.daemon,
            pid_file: self.pidfile,
            core_dumps: self.enable_coredumps,
            lock_memory: self.lock_memory,
            balance,
            control,
            metrics,
            http,
            cluster,
            port_file,
        };
        Ok(Checked { config, notices })
    }

    /// Who logs in speaks one protocol; and what is logged in, a datagram could not tell.
    fn protocol_and_login(&self) -> Result<(Protocol, Login), Refused> {
        let asked = match self.protocol.as_deref() {
            None => None,
            Some("auto" | "negotiating") => Some(Protocol::Auto),
            Some("ascii") => Some(Protocol::Text),
            Some("binary") => Some(Protocol::Binary),
            Some(other) => {
                return Err(usage(format!(
                    "Invalid value for binding protocol: {other}\n \
                     -- should be one of auto, binary, or ascii"
                )));
            }
        };
        let udp = self.udp_port != 0;
        match (self.enable_sasl, &self.auth_file) {
            (false, None) => Ok((asked.unwrap_or_default(), Login::NotAsked)),
            (true, _) if asked.unwrap_or(Protocol::Binary) != Protocol::Binary => {
                Err(usage("ERROR: You cannot allow the ASCII protocol while using SASL."))
            }
            (true, _) if udp => {
                Err(usage("ERROR: Cannot enable UDP while using binary SASL authentication."))
            }
            (_, Some(_)) if asked.unwrap_or(Protocol::Text) != Protocol::Text => Err(usage(
                "ERROR: You cannot allow the BINARY protocol while using ascii authentication tokens.",
            )),
            (false, Some(_)) if udp => {
                Err(usage("Cannot use UDP with ascii authentication enabled (-U 0 to disable)"))
            }
            // As in memcached, `-Y` has the last word: nobody can log in by SASL where nobody speaks binary.
            (_, Some(file)) => Ok((Protocol::Text, Login::Text(file.clone()))),
            (true, None) => {
                let file = passwords::sasl_file().ok_or_else(|| {
                    failure(
                        "Error initializing sasl: nobody could log in. MEMCACHED_SASL_PWDB names no file of \
                         user:password lines, nor does the configuration of SASL_CONF_PATH.",
                    )
                })?;
                Ok((Protocol::Binary, Login::Sasl(file)))
            }
        }
    }

    fn workers(&self) -> Result<u16, Refused> {
        const WORKERS_MAX: usize = 1024;
        match self.threads.map(usize::try_from) {
            // Counts the affinity mask and the CPU quota of control groups, and is at least 1.
            None => Ok(thread::available_parallelism().map_or(1, |cores| cores.get() as u16)),
            Some(Ok(workers @ 1..=WORKERS_MAX)) => Ok(workers as u16),
            Some(Ok(0) | Err(_)) => Err(failure("Number of threads must be greater than 0")),
            Some(Ok(_)) => Err(failure(format!("Number of threads must be at most {WORKERS_MAX}"))),
        }
    }

    fn balance_config(&self) -> Result<BalanceConfig, Refused> {
        let mode = match self.balance.as_str() {
            "on" => Mode::On,
            "off" => Mode::Off,
            "dry-run" => Mode::DryRun,
            other => return Err(usage(format!("--balance {other}: it is on, off or dry-run"))),
        };
        let epoch =
            duration(&self.epoch).filter(|epoch| (10..=600_000).contains(&epoch.as_millis()));
        let Some(epoch) = epoch else {
            let text = &self.epoch;
            return Err(usage(format!("--epoch {text}: seconds, or with ms, from 10ms to 600s")));
        };
        let load_max = self.load_max;
        if !(0.05..=1.0).contains(&load_max) {
            return Err(usage(format!("--load-max {load_max}: it is a part of 1, at least 0.05")));
        }
        let (patience, chaos) = (self.patience, self.chaos);
        if !(1..=1000).contains(&patience) {
            return Err(usage(format!("--patience {patience}: it is 1 to 1000 epochs")));
        }
        Ok(BalanceConfig { mode, epoch, load_max, patience, chaos })
    }

    fn cluster_config(&self) -> Result<Option<ClusterConfig>, Refused> {
        let link_timeout = duration(&self.link_timeout)
            .filter(|timeout| (10..=60_000).contains(&timeout.as_millis()));
        let Some(link_timeout) = link_timeout else {
            let text = &self.link_timeout;
            return Err(usage(format!(
                "--link-timeout {text}: seconds, or with ms, from 10ms to 60s"
            )));
        };
        let Some(map) = self.map_from()? else { return Ok(None) };
        let secret = self.cluster_secret.as_ref();
        let secret = secret.ok_or_else(|| usage("a cluster needs --cluster-secret"))?;
        let (flag, path) = ("--cluster-secret", secret);
        let secret = secret_of(flag, path).map_err(usage)?;
        if secret.len() < SECRET_BYTES_MIN {
            let path = path.display();
            let why = format!("{flag} {path}: a secret has {SECRET_BYTES_MIN} bytes or more");
            return Err(usage(why));
        }
        let link_port = self.link_port;
        Ok(Some(ClusterConfig { map, secret, link_port, link_timeout }))
    }

    /// Who says which server has what, if this is one of several.
    fn map_from(&self) -> Result<Option<MapFrom>, Refused> {
        let id = self.server_id.map(ServerId);
        if let Some(url) = &self.coordinator {
            let urls = Caller::checked(url).map_err(usage)?;
            let token = self.coordinator_token.as_ref();
            let token = token.map(|path| token_of("--coordinator-token", path)).transpose();
            let token = token.map(|token| token.or_else(|| token_left(url)));
            return Ok(Some(MapFrom::Coordinator(CoordinatorConfig {
                urls: urls.join(","),
                token: token.map_err(usage)?,
                cluster: self.cluster_name.clone(),
                id,
                advertise: self.advertise.clone(),
                drain_timeout: self.drain_timeout()?,
                replica_memory: self.replica_memory()?,
            })));
        }
        let Some(path) = &self.cluster else { return Ok(None) };
        let here = id.ok_or_else(|| usage("--cluster needs --server-id"))?;
        let refused = |why: String| usage(format!("--cluster {}: {why}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        let cluster = Arc::new(Cluster::parse(&text).map_err(refused)?);
        if !cluster.servers.contains_key(&here) {
            return Err(refused(format!("it has no server {}, which --server-id says", here.0)));
        }
        Ok(Some(MapFrom::File { cluster, here }))
    }

    fn drain_timeout(&self) -> Result<Duration, Refused> {
        let text = &self.drain_timeout;
        duration(text).filter(|timeout| *timeout <= DRAIN_TIMEOUT_MAX).ok_or_else(|| {
            usage(format!(
                "--drain-timeout {text}: seconds, or with ms, at most an hour; 0 is none"
            ))
        })
    }

    fn replica_memory(&self) -> Result<Option<u64>, Refused> {
        let Some(text) = &self.replica_memory else { return Ok(None) };
        let bytes = bytes("--replica-memory", text)?;
        if bytes > self.memory_limit.mib(memory_bytes)? << 20 {
            return Err(usage(format!(
                "--replica-memory {text}: at most as much as --memory-limit"
            )));
        }
        Ok(Some(bytes))
    }

    /// Bytes of `-m` and `-I`.
    fn sizes(&self) -> Result<(u64, usize), Refused> {
        let mib = self.memory_limit.mib(memory_bytes)?;
        if MEMORY_MIB_MAX < mib {
            return Err(usage(format!("-m {mib}: it is in MiB, and at most {MEMORY_MIB_MAX}")));
        }
        let memory = mib << 20;
        let item = bytes("-I", &self.max_item_size)?;
        if item < ITEM_BYTES_MIN {
            return Err(usage("Item max size cannot be less than 1024 bytes."));
        }
        if ITEM_BYTES_MAX < item {
            return Err(usage("Cannot set item size limit higher than a gigabyte."));
        }
        if memory / 2 < item {
            let (text, least) = (&self.max_item_size, (2 * item).div_ceil(1 << 20));
            return Err(usage(format!(
                "Cannot set item size limit higher than 1/2 of memory max.\n\
                 With -I {text} the least -m is {least}."
            )));
        }
        Ok((memory, item as usize))
    }
}

fn bytes(flag: &str, text: &str) -> Result<u64, Refused> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| usage(format!("{flag} {text}: not bytes, nor a number with k or m")))?;
    Ok(number.saturating_mul(unit))
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("on or off".into()),
    }
}

pub(crate) fn duration(text: &str) -> Option<Duration> {
    let (digits, unit) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    Duration::try_from_secs_f64(digits.parse::<f64>().ok()? * unit).ok()
}

fn octal(text: &str) -> Result<u32, Refused> {
    match u32::from_str_radix(text, 8) {
        Ok(mode @ 0..=0o777) => Ok(mode),
        _ => Err(usage(format!("-a {text}: not an access mask in octal"))),
    }
}

impl WithoutEffect {
    /// What `stats settings` tells of them.
    fn echoed(&self, others: Echoed) -> Echoed {
        let hundredths = |factor: f64| (factor * 100.0).round() as u32;
        Echoed {
            growth_factor: self.slab_growth_factor.map_or(others.growth_factor, hundredths),
            chunk_size: self.slab_min_size.map_or(others.chunk_size, |bytes| bytes as u32),
            cas_enabled: !self.disable_cas,
            ..others
        }
    }

    fn notices(&self) -> Result<Vec<String>, Refused> {
        if self.slab_growth_factor.is_some_and(|factor| factor <= 1.0) {
            return Err(failure("Factor must be greater than 1"));
        }
        if self.slab_min_size == Some(0) {
            return Err(failure("Chunk size must be greater than 0"));
        }
        let said = [
            (self.slab_growth_factor.is_some(), "-f: there are no slab classes"),
            (self.slab_min_size.is_some(), "-n: there are no slab classes"),
            (self.enable_largepages, "-L: huge pages are asked for anyway"),
            (self.disable_cas, "-C: items keep their cas"),
            (self.napi_ids.is_some(), "-N: connections go to the worker with the fewest"),
        ];
        Ok(said.iter().filter(|(given, _)| *given).map(|(_, why)| why.to_string()).collect())
    }
}

impl NotBuilt {
    fn check(&self) -> Result<(), Refused> {
        match self.memory_file {
            Some(_) => Err(usage(
                "-e: items are kept in no file here, a restart is cold. Start without it.",
            )),
            None => Ok(()),
        }
    }
}
