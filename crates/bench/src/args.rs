//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use mbal_dial::{Access, At};

use crate::cpu::Cores;
use crate::mix::{Mix, Ttls};
use crate::request::Protocol;
use crate::sizes::Sizes;

const EXAMPLES: &str = "\
EXAMPLES
  How fast is the server on port 11211, 50 connections, single gets?
    mbal bench --prefill
  The same at 20000 requests per second, latency from the moment each was due:
    mbal bench --prefill --rate 20000
  Ten to one gets to sets, Zipf 0.99 over a million keys, 16 deep:
    mbal bench --prefill --keys 1000000 --zipf 0.99 --set-share 0.09 --depth 16
  Multi-gets of 100 keys, in the classic protocol, over a unix socket:
    mbal bench unix:/tmp/cache.sock --prefill --protocol text --multi-get 100
  Two servers in alternating rounds, each on core 0, with CPU per key and ratios to the first:
    mbal bench --compare 'memcached -t {threads} -p {port}' --rounds 15 --server-cores 0 --client-cores 1
  Give a peer twice to see what of a ratio is noise. At half of the first peer's peak:
    mbal bench --compare 'memcached -p {port}' --compare 'memcached -p {port}' --serve '' --rate 50%
  95% of the requests on 5% of the keys, all of worker 0 of 4, from a smart client, second by second:
    mbal bench --prefill --smart --hotspot 95:5 --hot-worker 0/4 --set-share 0.05 --over-time seconds.csv
  SPORE's mixed load (Figure 8) from smart clients: a fifth of the 500 hottest keys is only read, of the others half of the requests:
    mbal bench --prefill --smart --keys 1000000 --key-bytes 7-10 --value-bytes 200 --zipf 0.99 --set-share 0.5 --read-only 500:20
  One key has 60% of all gets; what each server of the cluster does:
    mbal bench --prefill --smart --keys 1000000 --hotspot 60:0.0001 --per-server
  A recorded trace, where every miss is followed by a set, through both in 8 MB:
    mbal bench --compare 'memcached -m {memory} -p {port}' --memory 8 --trace sprite.txt.gz --value-bytes 1000

READING THE RESULT
  A closed loop (no --rate) shows the peak, but hides stalls: while the server stands still nobody asks.
  The open loop (--rate) asks at random moments, whatever the server does; a request that waits counts from
  the moment it was due. Wrong values, errors and missing replies are printed and make the exit code 1.
  Server and generator on the same cores disturb each other's latency; then compare CPU per key.";

/// Loads a memcached-compatible server and reports rate, latency, hit ratio and the server's CPU time
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub at: At,
    /// Process whose CPU time is counted (known by itself with --compare); repeatable, for the sum of several
    #[arg(long, conflicts_with = "compare")]
    pub server_pid: Vec<u32>,

    /// Command of a peer to start and compare with; repeatable. {port} or {socket}, {threads} and {memory}
    /// are filled in; run by root, a memcached without -u gets `-u root`. With {worker_ports} each connection
    /// goes to a worker's own port and asks for this worker's keys only. redis-server is spoken to by RESP
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["named", "flagged"])]
    pub compare: Vec<String>,
    /// Command of our own server, compared last; '' for none [default: this binary's `serve`]
    #[arg(long, value_name = "COMMAND", requires = "compare")]
    pub serve: Option<String>,
    /// Measured rounds per server, in rotating order
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// What {threads} stands for
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// What {memory} stands for, in MB
    #[arg(long, default_value_t = 1024)]
    pub memory: usize,
    /// Cores of the compared servers, as in 0,2-3
    #[arg(long)]
    pub server_cores: Option<Cores>,
    /// Cores of the generator
    #[arg(long)]
    pub client_cores: Option<Cores>,
    /// Threads of the generator
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub client_threads: usize,

    /// What is spoken
    #[arg(long, value_enum, default_value_t = Protocol::Meta)]
    pub protocol: Protocol,
    /// By datagrams in memcached's frames; what gets lost is counted, and given up after half a second
    #[arg(long, conflicts_with = "follow")]
    pub udp: bool,
    /// Connections, over all threads of the generator
    #[arg(long, default_value_t = 50, value_parser = positive)]
    pub connections: usize,
    /// Be a smart client: ask the server which worker of which server serves what, go to workers' own ports, and
    /// obey what replies say about moves. A client has a connection to each worker. Ordinary where the server cannot
    #[arg(long = "smart", visible_alias = "follow")]
    pub follow: bool,
    /// As a smart client, ask the owners of hot keys alone, never their copies on other servers
    #[arg(long, requires = "follow")]
    pub no_copies: bool,
    /// Ask every server of the cluster for `stats`, twice a second: gets and sets by server, and the busiest one's of the average
    #[arg(long, conflicts_with_all = ["compare", "udp"])]
    pub per_server: bool,
    /// Share the keys among the servers of this cluster document, and never hear of a change, as clients with consistent
    /// hashing do: for servers that know of no map. Each server's `workers` are where it is asked
    #[arg(long, value_name = "FILE", conflicts_with_all = ["follow", "compare", "udp"])]
    pub map: Option<PathBuf>,
    /// SHARE% of an open loop goes by every Nth connection, as in 95:4; the rest by the others
    #[arg(long, value_name = "SHARE:N", requires = "rate", conflicts_with = "follow")]
    pub busy: Option<BusyConnections>,
    /// Unanswered requests per connection (pipelining)
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub depth: usize,
    /// Keys per get
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub multi_get: usize,
    /// YCSB's workload A to F, or a YCSB property file; other flags say what differs
    #[arg(long, value_name = "A-F|FILE", conflicts_with = "like")]
    pub ycsb: Option<String>,
    /// Keys, sizes, TTLs, popularity and operations like those of a known cache: twitter:cluster1 to
    /// twitter:cluster54, or etc (Facebook's). Other flags say what differs
    #[arg(long, value_name = "CACHE")]
    pub like: Option<String>,
    /// Number of different keys [default: 100000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: Option<u64>,
    /// Bytes of a key: N, N-M (uniform, by key) or etc [default: 16]
    #[arg(long, value_name = "SIZES", value_parser = key_sizes)]
    pub key_bytes: Option<Sizes>,
    /// Bytes of a value: N, N-M, etc (generalized Pareto), or `trace`: as the trace says [default: 32]
    #[arg(long, value_name = "SIZES")]
    pub value_bytes: Option<ValueBytes>,
    /// Larger values of a trace or of ETC's law are cut to this
    #[arg(long, default_value_t = 1_000_000)]
    pub value_bytes_max: u32,
    /// Zipf's constant: 0 is uniform, 0.99 is YCSB's, 1 and more are fine [default: 0]
    #[arg(long)]
    pub zipf: Option<f64>,
    /// The newest keys are the hottest, by Zipf's law with this constant; inserts make new ones
    #[arg(long, value_name = "ZIPF", conflicts_with_all = ["zipf", "hotspot", "hot_worker"])]
    pub latest: Option<f64>,
    /// OPS% of the requests on KEYS% of the keys, as in 95:5
    #[arg(long, value_name = "OPS:KEYS", conflicts_with = "zipf")]
    pub hotspot: Option<Hotspot>,
    /// Let the hottest keys be those of worker N of W, as in 0/4: all servers' workers in one row, by the map as the load
    /// begins, if a --smart client or --map knows it; else as cachelets lie in a new server
    #[arg(long, value_name = "N/W")]
    pub hot_worker: Option<HotWorker>,
    /// Let other keys become the hot ones every so many seconds; with --hot-worker those of the next worker. Tells how long the
    /// rate needs to be within 10% of the steady one again, to an --interval
    #[arg(long, value_name = "SECONDS")]
    pub shift: Option<f64>,
    /// Share of requests that are sets, 0 to 1; the rest are gets
    #[arg(long, conflicts_with = "mix")]
    pub set_share: Option<f64>,
    /// SHARE% of the TOP hottest keys, the hottest of all among them, are never written, as in 500:20: what would write them reads
    #[arg(long, value_name = "TOP:SHARE", conflicts_with_all = ["latest", "trace"])]
    pub read_only: Option<ReadOnly>,
    /// Operations with their shares: get, set, add, delete, incr, insert (a new key), scan, rmw (get, then set)
    #[arg(long, value_name = "OP:SHARE,…")]
    pub mix: Option<Mix>,
    /// Seconds that what is set lives, as in 60 or 60:0.9,3600:0.1 [default: for ever]
    #[arg(long, value_name = "SECONDS:SHARE,…")]
    pub ttl: Option<Ttls>,
    /// A get that misses is followed by a set (always so in a trace)
    #[arg(long)]
    pub look_aside: bool,
    /// Milliseconds that the store behind the cache takes: the set after a miss comes so much later
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    pub store: f64,
    /// Replay this trace: .u32le, .i32be or .txt, plain, .xz or .gz. A miss is followed by a set. Compared
    /// servers are started anew for every round
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prefill", "set_share", "mix", "multi_get", "zipf", "ycsb", "like"])]
    pub trace: Option<PathBuf>,
    /// Send a trace's requests when they came, SPEED times as fast; for traces of `time key bytes`
    #[arg(long, value_name = "SPEED", num_args = 0..=1, default_missing_value = "1", requires = "trace", conflicts_with = "rate")]
    pub own_pace: Option<f64>,

    /// Set every key once before measuring, and count what is there (always done with --compare)
    #[arg(long)]
    pub prefill: bool,
    /// Requests per second; N-M is a ramp from one rate to another; or with --compare N%: of the first peer's peak
    /// in closed loop, taken first
    #[arg(long)]
    pub rate: Option<Rate>,
    /// Seconds measured
    #[arg(long, default_value_t = 5.0)]
    pub duration: f64,
    /// Seconds of load before measuring
    #[arg(long, default_value_t = 0.5)]
    pub warmup: f64,
    /// Measure so many requests instead of a time; of a trace the first so many
    #[arg(long)]
    pub requests: Option<u64>,
    /// How the generator waits; auto spins where it has cores that no compared server has
    #[arg(long, value_enum, default_value_t = Waiting::Auto)]
    pub waiting: Waiting,
    /// The same seed makes the same requests, of the same keys
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Name of this load in tables and files
    #[arg(long, default_value = "load")]
    pub name: String,
    /// Append a row per round and server
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a row per --interval of the measured time, as CSV
    #[arg(long, value_name = "FILE")]
    pub over_time: Option<PathBuf>,
    /// Seconds of a row over time, and of a progress line
    #[arg(long, default_value_t = 1.0)]
    pub interval: f64,
    /// Print HDR's table of percentiles too
    #[arg(long)]
    pub percentiles: bool,
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub access: Access,
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or_else(|| "must be a whole number above 0".into())
}

#[derive(Clone, Copy, PartialEq, Debug, clap::ValueEnum)]
pub enum Waiting {
    Auto,
    Spin,
    Sleep,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rate {
    PerSecond(f64),
    /// From the start of the measured time to its end.
    Ramp(f64, f64),
    /// Of the first peer's peak; 1.0 is all of it.
    Share(f64),
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let positive = |number: &str| {
            let number = number.parse::<f64>().ok().filter(|n| *n > 0.0 && n.is_finite());
            number.ok_or_else(|| format!("{text:?} is neither a rate nor a percentage"))
        };
        match (text.strip_suffix('%'), text.split_once('-')) {
            (Some(percent), _) => Ok(Self::Share(positive(percent)? / 100.0)),
            (None, Some((from, to))) => Ok(Self::Ramp(positive(from)?, positive(to)?)),
            (None, None) => Ok(Self::PerSecond(positive(text)?)),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ValueBytes {
    Sizes(Sizes),
    Etc,
    Trace,
}

impl FromStr for ValueBytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "trace" => Ok(Self::Trace),
            "etc" => Ok(Self::Etc),
            _ => text.parse().map(Self::Sizes),
        }
    }
}

fn key_sizes(text: &str) -> Result<Sizes, String> {
    if text == "etc" { Ok(Sizes::EtcKeys) } else { text.parse() }
}

/// `OPS:KEYS` in percent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Hotspot {
    pub share: f64,
    pub keys_share: f64,
}

impl FromStr for Hotspot {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = |text: &str| text.parse::<f64>().ok().filter(|n| *n > 0.0 && *n <= 100.0);
        let both = text.split_once(':').map(|(ops, keys)| (percent(ops), percent(keys)));
        match both {
            Some((Some(ops), Some(keys))) => {
                Ok(Self { share: ops / 100.0, keys_share: keys / 100.0 })
            }
            _ => Err(format!("{text:?} is not OPS:KEYS in percent, as in 95:5")),
        }
    }
}

/// `TOP:SHARE`: so many percent of the hottest keys.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReadOnly {
    pub top: u64,
    pub share: f64,
}

impl ReadOnly {
    /// Evenly spread over the ranks, and the first of each few: of 20% ranks 0, 5, 10 and so on.
    pub fn has(&self, rank: u64) -> bool {
        let below = |rank: u64| (rank as f64 * self.share - 1e-9).ceil();
        rank < self.top && below(rank) < below(rank + 1)
    }
}

impl FromStr for ReadOnly {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let both = text.split_once(':').and_then(|(top, share)| {
            let share = share.parse::<f64>().ok().filter(|n| (0.0..=100.0).contains(n))?;
            Some(Self { top: top.parse().ok()?, share: share / 100.0 })
        });
        both.ok_or_else(|| format!("{text:?} is not TOP:SHARE in percent, as in 500:20"))
    }
}

/// Worker `worker` of `workers`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HotWorker {
    pub worker: u16,
    pub workers: u16,
}

impl FromStr for HotWorker {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let both = text.split_once('/').and_then(|(n, w)| Some((n.parse().ok()?, w.parse().ok()?)));
        match both {
            Some((worker, workers)) if worker < workers => Ok(Self { worker, workers }),
            _ => Err(format!("{text:?} is not N/W with N below W, as in 0/4")),
        }
    }
}

/// `SHARE:N`: so many percent of the requests by every Nth connection.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BusyConnections {
    pub share: f64,
    pub every: usize,
}

impl FromStr for BusyConnections {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not SHARE:N, as in 95:4");
        let (share, every) = text.split_once(':').ok_or_else(bad)?;
        let share = share.parse::<f64>().ok().filter(|n| (0.0..=100.0).contains(n));
        let every = every.parse::<usize>().ok().filter(|n| *n > 1);
        let (share, every) = share.zip(every).ok_or_else(bad)?;
        Ok(Self { share: share / 100.0, every })
    }
}
