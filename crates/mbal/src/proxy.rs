//! `mbal proxy`: flags.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use mbal_proxy::{Dialect, Distribution, KeyHash, Limits, Replication, RingServer, Settings};
use mbal_server::{ProxyConfig, UnixSocket, log, resolve, start_proxy};

use crate::flags::duration;
use crate::listen::interfaces;

const EX_USAGE: u8 = 64;
/// An upstream's event loop has looked at all its connections by then.
const DOUBT_NS: u64 = 5_000_000_000;
/// Of the requests, that are looked at for hot keys.
const SAMPLING: f64 = 0.0625;
const BACKLOG: i32 = 1024;

const EXAMPLES: &str = "\
EXAMPLES
  mbal proxy -p 11311 --upstream 10.0.0.1:11211,10.0.0.2:11211
                        clients of this host reach two servers through one port
  mbal proxy -l '*' --upstream cache1:11211,cache2:11211 --eject
                        for other hosts too; a server that fails is left out, and flushed before it comes back";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ProxyFlags {
    /// TCP port to listen on (0: none)
    #[arg(short = 'p', long, value_name = "num", default_value_t = 11211)]
    port: u16,

    /// Where to listen; loopback unless told otherwise, '*' is everywhere
    #[arg(short = 'l', long, value_name = "addr")]
    listen: Vec<String>,

    /// Unix socket to listen on
    #[arg(short = 's', long, value_name = "file")]
    unix_socket: Option<PathBuf>,

    /// Access mask of the unix socket, in octal
    #[arg(short = 'a', long, value_name = "mask", default_value = "700")]
    unix_mask: String,

    /// Servers behind it: HOST:PORT or HOST:PORT:WEIGHT
    #[arg(long, value_name = "host:port", value_delimiter = ',', required = true)]
    upstream: Vec<String>,

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

    /// Leave out upstreams that fail, and flush them before they come back
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
    /// only where nobody else writes the same keys
    #[arg(long, value_name = "num", value_parser = target)]
    imbalance_target: Option<f64>,

    /// What is hot is decided so often
    #[arg(long, value_name = "time", default_value = "1s", value_parser = time, requires = "imbalance_target")]
    interval: Duration,

    /// Clients at a time
    #[arg(short = 'c', long, value_name = "num", default_value_t = 1024)]
    connections: u32,

    /// Largest item, in bytes
    #[arg(short = 'I', long, value_name = "bytes", default_value_t = 1 << 20)]
    max_item_size: usize,
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

pub fn run(flags: &ProxyFlags) -> ExitCode {
    let config = match flags.config() {
        Ok(config) => config,
        Err(why) => {
            log::error("flags_refused", &format!("mbal proxy: {why}"));
            return ExitCode::from(EX_USAGE);
        }
    };
    let upstreams = config.addresses.len();
    let running = match start_proxy(config) {
        Ok(running) => running,
        Err(error) => {
            log::error("not_started", &error.to_string());
            return ExitCode::from(error.exit_code());
        }
    };
    let at: Vec<String> = running.addresses.iter().map(ToString::to_string).collect();
    log::info("started", &format!("mbal proxy: {}, {upstreams} upstreams", at.join(" ")));
    match running.wait() {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            log::error("failed", &error.to_string());
            ExitCode::from(error.exit_code())
        }
    }
}

impl ProxyFlags {
    fn config(&self) -> Result<ProxyConfig, String> {
        let mut servers: Vec<RingServer> = Vec::new();
        for upstream in &self.upstream {
            servers.push(upstream.parse().map_err(|why| format!("--upstream {why}"))?);
        }
        let addresses = servers.iter().map(|server| resolve(&server.host, server.port));
        let addresses = addresses.collect::<Result<_, _>>()?;
        let listen = interfaces(&self.listen, self.port.into(), false);
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mode = u32::from_str_radix(&self.unix_mask, 8).ok().filter(|mode| *mode <= 0o777);
        let mode = mode.ok_or(format!("-a {}: not an access mask in octal", self.unix_mask))?;
        Ok(ProxyConfig {
            settings: Settings {
                servers,
                distribution: match self.placement {
                    Way::Ring(dialect) => Distribution::Ketama(dialect, self.hash),
                    Way::Modula => Distribution::Modula(self.hash.unwrap_or(KeyHash::Fnv1a64)),
                },
                conns_per_server: self.server_connections.into(),
                timeout: nanos(self.timeout),
                eject: self.eject,
                failures_max: self.failures,
                retry: nanos(self.retry),
                limits: Limits { item_bytes_max: self.max_item_size, ..Limits::default() },
                replication: self.imbalance_target.map(|target| Replication {
                    interval: nanos(self.interval),
                    target,
                    sampling: SAMPLING,
                }),
                doubt: DOUBT_NS,
                version: crate::AS_MEMCACHED.to_owned(),
                seed: seed(),
            },
            addresses,
            listen: listen.map_err(|refused| refused.reason)?,
            unix_socket: self.unix_socket.clone().map(|path| UnixSocket { path, mode }),
            connections_max: self.connections,
            backlog: BACKLOG,
        })
    }
}

/// Another one in each process.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}
