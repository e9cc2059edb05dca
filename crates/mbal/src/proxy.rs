//! `mbal proxy`: flags.

mod cluster;
mod discover;
mod twemproxy;
mod upstreams;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cluster::ClusterMap;
use discover::Discovery;

use clap::{Args, Command, FromArgMatches};
use mbal_proxy::{
    Dialect, Distribution, KeyHash, Limits, Peers, PoolTold, Replication, RingServer, Settings,
    SwitchSettings,
};
use mbal_server::{
    ClientCertificate, Listen, ProxyConfig, Source, TOKEN_BYTES_MIN, TlsSettings, UnixSocket,
    Upstreams, UpstreamsFile, XdpConfig, log, resolve, start_proxy, token_of,
};

use crate::config;
use crate::extended::Extended;
use crate::flags::{LogFlags, PORT, Refused, duration};
use crate::listen::{http_address, interfaces};

const EX_USAGE: u8 = 64;
/// An upstream's event loop has looked at all its connections by then.
const DOUBT: Duration = Duration::from_secs(5);
/// Of the requests, that are looked at for hot keys.
const SAMPLING: f64 = 0.0625;
const BACKLOG: i32 = 1024;
/// A map that is older costs a hop between servers.
const MAP_EVERY: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
EXAMPLES
  mbal proxy -p 11311 --upstream 10.0.0.1:11211,10.0.0.2:11211
                        clients of this host reach two servers through one port
  mbal proxy -l '*' --upstream cache1:11211,cache2:11211 --eject
                        for other hosts too; a server that fails is left out, and deletes what it has missed before it comes back
  mbal proxy --upstreams-file /etc/mbal/pool --metrics 9151
                        a server a line, read again at SIGHUP; metrics for Prometheus
  mbal proxy --twemproxy nutcracker.yml --pool alpha -p 11311
                        in place of twemproxy, or beside it at another port; --print shows the equal flags
  mbal proxy --discover cache.example.com:11211
                        the servers of a cluster, as `config get cluster` tells them
  mbal proxy --sidecar -s /run/mbal.sock -p 0
                        beside an application: the cluster that MBAL_COORDINATOR names, each key asked of the worker that has it

UPSTREAMS
  They come and go without losing a request: at SIGHUP, and with --discover each 10 s. Keys that move begin
  cold. `stats` tells of each; `mbal cluster explain KEY --proxy HOST:PORT` says where a key is, and why.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ProxyFlags {
    /// TCP port; 0 is none, -1 is any free one [default: 11211]
    #[arg(short = 'p', long, value_name = "num", allow_hyphen_values = true)]
    port: Option<i32>,

    /// UDP port; 0 is none, -1 is any free one. Without -p it is the TCP port too
    #[arg(short = 'U', long, value_name = "num", allow_hyphen_values = true, default_value_t = 0)]
    udp_port: i32,

    /// Where to listen; loopback unless told otherwise, '*' is everywhere
    #[arg(short = 'l', long, value_name = "addr")]
    listen: Vec<String>,

    /// Unix socket to listen on
    #[arg(short = 's', long, value_name = "file")]
    unix_socket: Option<PathBuf>,

    /// Access mask of the unix socket, in octal
    #[arg(short = 'a', long, value_name = "mask", default_value = "700")]
    unix_mask: String,

    /// TLS on all TCP ports, but those of `-l notls:...`; with -o ssl_chain_cert= and ssl_key=
    #[arg(short = 'Z', long)]
    enable_ssl: bool,

    /// By comma: ssl_chain_cert=, ssl_key=, ssl_ca_cert=, ssl_verify_mode=, ssl_ciphers=, ssl_min_version=, ssl_session_cache
    #[arg(short = 'o', long, value_name = "options")]
    extended: Vec<String>,

    /// Servers behind it: HOST:PORT or HOST:PORT:WEIGHT
    #[arg(long, value_name = "host:port", value_delimiter = ',')]
    #[arg(required_unless_present_any = ["upstreams_file", "twemproxy", "discover", "coordinator", "sidecar"])]
    upstream: Vec<String>,

    #[command(flatten)]
    files: FileFlags,

    #[command(flatten)]
    cluster: ClusterFlags,

    /// Do what this configuration of twemproxy says; flags given beside it win. Its servers are read again at SIGHUP
    #[arg(long, value_name = "file", conflicts_with = "upstreams_file")]
    twemproxy: Option<PathBuf>,

    /// Which pool of twemproxy's, if there are several
    #[arg(long, value_name = "name", requires = "twemproxy")]
    pool: Option<String>,

    /// Print the command line that does what --twemproxy says, and exit
    #[arg(long, requires = "twemproxy")]
    print: bool,

    /// Place keys as these clients do: twemproxy, libmemcached, libmemcached-unweighted, spymemcached; or twemproxy's modula
    #[arg(long, value_name = "way", default_value = "twemproxy", value_parser = way)]
    placement: Way,

    /// Hash of keys where it is not the client's own: md5, fnv1a_64, fnv1a_32, one_at_a_time
    #[arg(long, value_name = "hash")]
    hash: Option<KeyHash>,

    /// Connections to each upstream
    #[arg(long, value_name = "num", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    server_connections: u16,

    /// An upstream that has not answered for so long has failed
    #[arg(long, value_name = "time", default_value = "400ms", value_parser = time)]
    timeout: Duration,

    /// Leave out upstreams that fail; what was written meanwhile they delete before they come back
    #[arg(long)]
    eject: bool,

    /// Failures in a row after which an upstream is left out
    #[arg(long, value_name = "num", default_value_t = 2, requires = "eject")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    failures: u32,

    /// An upstream that failed is tried again so often
    #[arg(long, value_name = "time", default_value = "1s", value_parser = time)]
    retry: Duration,

    /// Copy hot keys until the busiest upstream is predicted to have at most so many times the average's requests, 1.01 to 100;
    /// only where nobody else writes the same keys but --peers
    #[arg(long, value_name = "num", value_parser = target)]
    imbalance_target: Option<f64>,

    /// What is hot is decided so often
    #[arg(long, value_name = "time", default_value = "1s", value_parser = time, requires = "imbalance_target")]
    interval: Duration,

    /// All proxies of these upstreams, this one included: HOST:PORT where each hears the others; let nobody else reach it
    #[arg(
        long,
        value_name = "host:port",
        value_delimiter = ',',
        requires = "own",
        requires = "imbalance_target"
    )]
    #[arg(conflicts_with_all = ["eject", "upstreams_file", "discover"])]
    peers: Vec<String>,

    /// Which of --peers this one is
    #[arg(long = "self", value_name = "host:port", requires = "peers")]
    own: Option<String>,

    /// How long writes of a hot key may be refused when its proxy has died; and how long a proxy waits when it starts
    #[arg(long, value_name = "time", default_value = "2s", value_parser = lease, requires = "peers")]
    peer_lease: Duration,

    /// Send reads by UDP on to their upstreams, which answer the clients, before they are out of this network interface's driver; with
    /// --imbalance-target hot keys are answered there. -U and -l with the IPv4 address are needed (docs/how-to/proxy.md)
    #[arg(long, value_name = "interface", conflicts_with = "peers")]
    xdp: Option<String>,

    /// The upstreams have the address of -l too: they answer in its name
    #[arg(long, requires = "xdp")]
    direct_return: bool,

    /// Tell metrics to Prometheus on this address, over HTTP: `port`, `host:port` or `[v6]:port`
    #[arg(long, value_name = "addr")]
    metrics: Option<String>,

    /// Clients at a time
    #[arg(short = 'c', long, value_name = "num", default_value_t = 1024)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,

    /// Largest item, in bytes
    #[arg(short = 'I', long, value_name = "bytes", default_value_t = 1 << 20)]
    max_item_size: usize,
}

// A cluster as upstreams: its servers, or its workers by its map. No docstring: it would become the help of who has these flags.
#[derive(Args, Debug)]
struct ClusterFlags {
    /// Ask a server of a cluster for the others, by `config get cluster`: HOST:PORT, several by comma. Placed as --placement says
    #[arg(long, value_name = "host:port", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["upstream", "upstreams_file", "twemproxy"])]
    discover: Vec<String>,

    /// So often; and at SIGHUP
    #[arg(long, value_name = "time", default_value = "10s", value_parser = time, requires = "discover")]
    discover_interval: Duration,

    /// The cluster of this coordinator, http://HOST:PORT, several by comma: each key is asked of the worker that has it by the
    /// cluster's map, and hot keys of their copies too
    #[arg(long, value_name = "url[,url]")]
    #[arg(conflicts_with_all = ["upstream", "upstreams_file", "twemproxy", "discover", "placement", "hash", "eject", "failures", "imbalance_target", "peers", "xdp"])]
    coordinator: Option<String>,

    /// The same of the coordinator that MBAL_COORDINATOR names
    #[arg(long)]
    #[arg(conflicts_with_all = ["upstream", "upstreams_file", "twemproxy", "discover", "placement", "hash", "eject", "failures", "imbalance_target", "peers", "xdp"])]
    sidecar: bool,

    /// A file with the token that the coordinator asks for
    #[arg(long, env = "MBAL_COORDINATOR_TOKEN", value_name = "file")]
    coordinator_token: Option<PathBuf>,
}

impl ClusterFlags {
    /// Who says which upstreams there are, if that is a cluster.
    fn source(&self) -> Result<Option<Source>, String> {
        if !self.discover.is_empty() {
            let discovery = Discovery::new(self.discover.clone());
            return Ok(Some(Box::new(move || discovery.servers().map(PoolTold::from))));
        }
        let Some(urls) = self.coordinators()? else { return Ok(None) };
        let token = self.coordinator_token.as_ref();
        let token = token.map(|path| token_of("--coordinator-token", path)).transpose()?;
        let mut map = ClusterMap::new(&urls, token)?;
        Ok(Some(Box::new(move || map.pool())))
    }

    /// Of the cluster behind it, if it is to be known by its map.
    fn coordinators(&self) -> Result<Option<String>, String> {
        if !self.sidecar {
            return Ok(self.coordinator.clone());
        }
        let said = std::env::var("MBAL_COORDINATOR").ok().filter(|urls| !urls.is_empty());
        let urls = self.coordinator.clone().or(said);
        urls.map(Some).ok_or_else(|| "--sidecar: MBAL_COORDINATOR names no coordinator".into())
    }

    /// How often it is asked.
    fn poll(&self) -> Option<Duration> {
        match self.sidecar || self.coordinator.is_some() {
            true => Some(MAP_EVERY),
            false => (!self.discover.is_empty()).then_some(self.discover_interval),
        }
    }
}

/// The list of upstreams as a file, who may change it, and what that is decided by.
#[derive(Args, Debug)]
struct FileFlags {
    // By hand: brackets are links in a docstring.
    #[arg(
        help = "Servers behind it, HOST:PORT[:WEIGHT][ NAME] a line; read again at SIGHUP",
        long,
        value_name = "file",
        conflicts_with = "upstream"
    )]
    upstreams_file: Option<PathBuf>,

    /// Who knows this file's token may change the list while clients write: mbal pool resize --through
    #[arg(long, value_name = "file", requires = "upstreams_file")]
    resize_token_file: Option<PathBuf>,

    /// Sample stack distances of reads in text and meta: mbal pool autoscale reads them
    #[arg(long, conflicts_with = "xdp")]
    stack_distances: bool,
}

impl FileFlags {
    /// What a switch of the pool needs, and the list's file.
    fn switch(&self) -> Result<Option<(SwitchSettings, UpstreamsFile)>, String> {
        let Some(path) = &self.upstreams_file else { return Ok(None) };
        let file = UpstreamsFile::new(path.clone());
        let record = file.record();
        let Some(token) = &self.resize_token_file else {
            return match record.exists() {
                true => Err(format!(
                    "{} is there: a resize is not over. Give --resize-token-file, and run mbal pool resize again; \
                     or delete it if all proxies have the same list",
                    record.display()
                )),
                false => Ok(None),
            };
        };
        let token = token_of("--resize-token-file", token)?.into_bytes();
        if token.len() < TOKEN_BYTES_MIN || token.contains(&b' ') {
            return Err(format!(
                "--resize-token-file: {TOKEN_BYTES_MIN} bytes or more, without blanks"
            ));
        }
        let interrupted = match record.exists() {
            true => Some(upstreams::of_file(&record)?),
            false => None,
        };
        if interrupted.is_some() {
            let text = format!(
                "mbal proxy: {} is there: keys that move are not served until mbal pool resize is run again",
                record.display()
            );
            log::warn("resize_not_over", &text);
        }
        Ok(Some((SwitchSettings { token, interrupted }, file)))
    }
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Ring(Dialect),
    Modula,
}

fn way(text: &str) -> Result<Way, String> {
    match text {
        "modula" => Ok(Way::Modula),
        _ => text.parse().map(Way::Ring).map_err(|why| format!("{why}, modula")),
    }
}

fn target(text: &str) -> Result<f64, String> {
    let target = text.parse().ok().filter(|target| (1.01..=100.0).contains(target));
    target.ok_or_else(|| "a number from 1.01 to 100".into())
}

fn time(text: &str) -> Result<Duration, String> {
    let time = duration(text).filter(|time| Duration::from_millis(1) <= *time);
    time.ok_or_else(|| "seconds, or with ms, from 1ms".into())
}

fn lease(text: &str) -> Result<Duration, String> {
    let time = duration(text).filter(|time| Duration::from_millis(100) <= *time);
    time.ok_or_else(|| "seconds, or with ms, from 100ms".into())
}

pub fn command() -> Command {
    LogFlags::augment_args(ProxyFlags::augment_args(Command::new("proxy"))).arg(config::flag())
}

/// `words` are those of the flags, a configuration file's among them.
pub fn run(flags: ProxyFlags, log_flags: LogFlags, words: &[OsString]) -> ExitCode {
    log_flags.set();
    let flags = match flags.expanded(words) {
        Ok(Some(flags)) => flags,
        Ok(None) => return ExitCode::SUCCESS,
        Err(why) => {
            log::error("flags_refused", &format!("mbal proxy: {why}"));
            return ExitCode::from(EX_USAGE);
        }
    };
    let config = match flags.config() {
        Ok(config) => config,
        Err(why) => {
            log::error("flags_refused", &format!("mbal proxy: {why}"));
            return ExitCode::from(EX_USAGE);
        }
    };
    let upstreams = config.settings.servers.len();
    let socket = config.unix_socket.as_ref().map(|socket| socket.path.display().to_string());
    let running = match start_proxy(config) {
        Ok(running) => running,
        Err(error) => {
            log::error("not_started", &error.to_string());
            return ExitCode::from(error.exit_code());
        }
    };
    let at = running.addresses.iter().map(ToString::to_string);
    let at: Vec<String> = at.chain(socket).collect();
    let metrics =
        running.metrics.map_or(String::new(), |at| format!(", metrics on http://{at}/metrics"));
    let started = format!("mbal proxy: {}, {upstreams} upstreams{metrics}", at.join(" "));
    log::stamp();
    log::info("started", &started);
    match running.wait() {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            log::error("failed", &error.to_string());
            ExitCode::from(error.exit_code())
        }
    }
}

impl ProxyFlags {
    /// With what twemproxy's configuration says; none if it was only to be shown.
    fn expanded(self, own: &[OsString]) -> Result<Option<ProxyFlags>, String> {
        let Some(path) = &self.twemproxy else { return Ok(Some(self)) };
        if !self.upstream.is_empty() {
            return Err("--twemproxy has upstreams of its own".into());
        }
        let pool = twemproxy::read(path, self.pool.as_deref())?;
        let warn = |notice: &String| {
            let text = format!("mbal proxy: {}: {notice}", path.display());
            log::warn("flag_without_effect", &text);
        };
        pool.notices.iter().for_each(warn);
        if self.print {
            println!("mbal proxy {}", twemproxy::quoted(&pool.flags(true)));
            return Ok(None);
        }
        let listens = self.listen.is_empty() && self.port.is_none() && self.unix_socket.is_none();
        let of_pool = pool.flags(listens).into_iter().map(OsString::from);
        let own = own.iter().cloned();
        let words = std::iter::once("mbal proxy".into()).chain(of_pool).chain(own);
        let matches = command()
            .args_override_self(true)
            .try_get_matches_from(words)
            .map_err(|why| why.to_string())?;
        ProxyFlags::from_arg_matches(&matches).map(Some).map_err(|why| why.to_string())
    }

    /// Who says which upstreams there are.
    fn source(&self) -> Result<Source, String> {
        if let Some(path) = self.twemproxy.clone() {
            let pool = self.pool.clone();
            let read = move || twemproxy::servers(&path, pool.as_deref()).map(PoolTold::from);
            return Ok(Box::new(read));
        }
        if let Some(path) = self.files.upstreams_file.clone() {
            return Ok(Box::new(move || upstreams::of_file(&path).map(PoolTold::from)));
        }
        if let Some(source) = self.cluster.source()? {
            return Ok(source);
        }
        let parsed = self.upstream.iter().map(|one| one.parse::<RingServer>());
        let servers = parsed.collect::<Result<Vec<_>, _>>();
        let servers = servers.map_err(|why| format!("--upstream {why}"))?;
        Ok(Box::new(move || Ok(servers.clone().into())))
    }

    /// As `mbal serve` has it.
    fn tls(&self, listen: &[Listen]) -> Result<TlsSettings, String> {
        let options = self.extended.iter().flat_map(|list| list.split(','));
        if let Some(other) = options.into_iter().find(|option| !option.starts_with("ssl_")) {
            return Err(format!("-o {other}: of these options a proxy knows ssl_* alone"));
        }
        let asks =
            |place: &Listen| !matches!(place.tls, None | Some(ClientCertificate::AsConfigured));
        if !self.enable_ssl && listen.iter().any(asks) {
            return Err("-l btls:, mtls: are valid only when SSL is enabled (-Z)".into());
        }
        let extended = Extended::parse(&self.extended).map_err(|refused| refused.reason)?;
        Ok(TlsSettings { enabled: self.enable_ssl, ..extended.tls })
    }

    fn config(&self) -> Result<ProxyConfig, String> {
        let mut upstreams = Upstreams::read(self.source()?)?;
        let switch = match self.files.switch()? {
            Some((switch, file)) => {
                upstreams = upstreams.with_file(file, switch.interrupted.is_some());
                Some(switch)
            }
            None => None,
        };
        let reason = |refused: Refused| refused.reason;
        let port = match (self.port, self.udp_port) {
            (None, 0) => PORT,
            (None, udp) => udp,
            (Some(port), _) => port,
        };
        let listen = interfaces(&self.listen, port, false).map_err(reason)?;
        let udp = match self.udp_port {
            0 => Vec::new(),
            port => interfaces(&self.listen, port, false).map_err(reason)?,
        };
        let tls = self.tls(&listen)?;
        let metrics = self.metrics.as_deref().map(|spec| http_address("--metrics", spec));
        let peers = match &self.own {
            Some(own) => Some(Peers::new(self.peers.clone(), own, self.peer_lease)?),
            None => None,
        };
        let names = peers.iter().flat_map(|peers| &peers.names);
        let named = names.map(|name| name.parse().map_err(|why| format!("--peers {why}")));
        let peers_at = match named.collect::<Result<Vec<RingServer>, _>>()? {
            named if named.is_empty() => Vec::new(),
            named => resolve(named)?,
        };
        let mode = u32::from_str_radix(&self.unix_mask, 8).ok().filter(|mode| *mode <= 0o777);
        let mode = mode.ok_or(format!("-a {}: not an access mask in octal", self.unix_mask))?;
        Ok(ProxyConfig {
            settings: Settings {
                servers: upstreams.servers(),
                slots: upstreams.slots(),
                distribution: match self.placement {
                    Way::Ring(dialect) => Distribution::Ketama(dialect, self.hash),
                    Way::Modula => Distribution::Modula(self.hash.unwrap_or(KeyHash::Fnv1a64)),
                },
                conns_per_server: self.server_connections.into(),
                timeout: self.timeout,
                eject: self.eject,
                failures_max: self.failures,
                retry: self.retry,
                limits: Limits { item_bytes_max: self.max_item_size, ..Limits::default() },
                replication: self.imbalance_target.map(|target| Replication {
                    interval: self.interval,
                    target,
                    sampling: SAMPLING,
                }),
                peers,
                switch,
                stack_distances: self.files.stack_distances,
                doubt: DOUBT,
                pid: std::process::id(),
                started_at: started_at(),
                version: crate::AS_MEMCACHED.to_owned(),
                seed: seed(),
            },
            upstreams,
            poll: self.cluster.poll(),
            peers: peers_at,
            listen,
            udp,
            tls,
            unix_socket: self.unix_socket.clone().map(|path| UnixSocket { path, mode }),
            metrics: metrics.transpose().map_err(reason)?,
            port_file: std::env::var_os("MEMCACHED_PORT_FILENAME").map(Into::into),
            connections_max: self.connections,
            backlog: BACKLOG,
            xdp: self
                .xdp
                .clone()
                .map(|interface| XdpConfig { interface, direct_return: self.direct_return }),
        })
    }
}

fn started_at() -> u64 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

/// Another one in each process.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}
