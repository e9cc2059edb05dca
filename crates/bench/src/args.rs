//! The command line, checked once and turned into loads.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use mbal_model::Key;

use crate::address::Target;
use crate::cpu::Cores;
use crate::generator::{Length, Load};
use crate::pace::Pace;
use crate::popularity::Popularity;
use crate::random::Random;
use crate::replies::Lengths;
use crate::source::{Ask, Sizes, Source};
use crate::trace::Trace;
use crate::wording::{Protocol, Wording};

const EXAMPLES: &str = "\
EXAMPLES
  How fast is the server on port 11211, 50 connections, single gets?
    mbal bench --prefill
  The same at 20000 requests per second, latency from the moment each was due:
    mbal bench --prefill --rate 20000
  Ten to one gets to sets, Zipf 0.99 over a million keys, 16 deep:
    mbal bench --prefill --keys 1000000 --zipf 0.99 --set-share 0.09 --depth 16
  Multi-gets of 100 keys, in the classic protocol, over a unix socket:
    mbal bench --server /tmp/cache.sock --prefill --protocol text --multi-get 100
  Two servers in alternating rounds, each on core 0, with CPU per key and ratios to the first:
    mbal bench --compare 'memcached -t {threads} -p {port}' --rounds 15 --server-cores 0 --client-cores 1
  Give a peer twice to see what of a ratio is noise. At half of the first peer's peak:
    mbal bench --compare 'memcached -p {port}' --compare 'memcached -p {port}' --serve '' --rate 50%
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
    /// Server to load: HOST:PORT, or the path of a unix socket
    #[arg(long, default_value = "127.0.0.1:11211", conflicts_with = "compare")]
    pub server: String,
    /// Process whose CPU time is counted (known by itself with --compare)
    #[arg(long, conflicts_with = "compare")]
    pub server_pid: Option<u32>,

    /// Command of a peer to start and compare with; repeatable. {port} or {socket}, {threads} and {memory}
    /// are filled in; run by root, a memcached without -u gets `-u root`. With {worker_ports} each connection
    /// goes to a worker's own port and asks for this worker's keys only. redis-server is spoken to by RESP
    #[arg(long, value_name = "COMMAND")]
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

    #[arg(long, value_enum, default_value_t = Protocol::Meta)]
    pub protocol: Protocol,
    #[arg(long, default_value_t = 50, value_parser = positive)]
    pub connections: usize,
    /// Unanswered requests per connection (pipelining)
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub depth: usize,
    /// Keys per get
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub multi_get: usize,
    /// Number of different keys
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    #[arg(long, default_value_t = 16, value_parser = positive)]
    pub key_bytes: usize,
    /// Bytes of every value, or `trace`: as the trace says
    #[arg(long, default_value = "32")]
    pub value_bytes: ValueBytes,
    /// Larger values of a trace are cut to this
    #[arg(long, default_value_t = 1_000_000)]
    pub value_bytes_max: u32,
    /// Zipf's constant: 0 is uniform, 0.99 is YCSB's, 1 and more are fine
    #[arg(long, default_value_t = 0.0)]
    pub zipf: f64,
    /// Share of requests that are sets, 0 to 1
    #[arg(long, default_value_t = 0.0)]
    pub set_share: f64,
    /// Replay this trace: .u32le, .i32be or .txt, plain, .xz or .gz. A miss is followed by a set. Compared
    /// servers are started anew for every round
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prefill", "set_share", "multi_get", "zipf"])]
    pub trace: Option<PathBuf>,

    /// Set every key once before measuring, and count what is there (always done with --compare)
    #[arg(long)]
    pub prefill: bool,
    /// Requests per second, or with --compare N%: of the first peer's peak in closed loop, taken first
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
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Name of this load in tables and files
    #[arg(long, default_value = "load")]
    pub name: String,
    /// Append a row per round and server
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,
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
        match text.strip_suffix('%') {
            Some(percent) => Ok(Self::Share(positive(percent)? / 100.0)),
            None => Ok(Self::PerSecond(positive(text)?)),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ValueBytes {
    Constant(u32),
    Trace,
}

impl FromStr for ValueBytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("trace", _) => Ok(Self::Trace),
            (_, Ok(bytes)) => Ok(Self::Constant(bytes)),
            _ => Err(format!("{text:?} is neither a number of bytes nor `trace`")),
        }
    }
}

/// What a run asks of any server: the arguments, checked, with the trace read.
pub struct Plan {
    args: Args,
    trace: Option<Arc<Trace>>,
    spin: bool,
}

/// What the generator is to do with the keys.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Task {
    /// Set every key once.
    Fill,
    /// Get every key once.
    Verify,
    Measure(Pace),
}

/// Depth of filling and verifying.
const FILL_DEPTH: usize = 32;

impl Plan {
    pub fn new(args: &Args) -> Result<Self, String> {
        let share = 0.0..=1.0;
        if !share.contains(&args.set_share) || args.zipf < 0.0 || !args.zipf.is_finite() {
            return Err("--set-share is 0 to 1, --zipf is 0 or more".into());
        }
        if !(args.duration > 0.0 && args.warmup >= 0.0 && args.duration + args.warmup < 1e6) {
            return Err("--duration and --warmup are seconds".into());
        }
        if args.client_threads > args.connections {
            return Err("every client thread needs a connection".into());
        }
        if args.compare.is_empty() && matches!(args.rate, Some(Rate::Share(_))) {
            return Err("--rate N% is of the first --compare peer's peak".into());
        }
        let requests_max = args.requests.map_or(usize::MAX, |n| n as usize);
        let trace = match &args.trace {
            Some(path) => Some(Arc::new(Trace::read(path, requests_max)?)),
            None => None,
        };
        let sized = trace.as_ref().is_some_and(|trace| trace.value_bytes.is_some());
        if args.value_bytes == ValueBytes::Trace && !sized {
            return Err("--value-bytes trace needs a trace with sizes".into());
        }
        let highest = match &trace {
            Some(trace) => trace.keys.iter().max().copied().ok_or("the trace is empty")?,
            None => args.keys - 1,
        };
        let digits = highest.to_string().len();
        if args.key_bytes > 250 || args.key_bytes < digits {
            return Err(format!("--key-bytes is {digits} (for key {highest}) to 250"));
        }
        let apart = |cores: &Cores| args.client_cores.as_ref().is_some_and(|c| c.disjoint(cores));
        let spin = match args.waiting {
            Waiting::Spin => true,
            Waiting::Sleep => false,
            Waiting::Auto => args.server_cores.as_ref().is_some_and(apart),
        };
        Ok(Self { args: args.clone(), trace, spin })
    }

    pub fn replays(&self) -> bool {
        self.trace.is_some()
    }

    /// The load in a line, for headings and files.
    pub fn describe(&self, pace: Pace) -> String {
        let args = &self.args;
        let what = match &args.trace {
            Some(path) => {
                let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
                format!("look-aside replay of {file}")
            }
            None => format!("{} keys, Zipf {}, {} sets", args.keys, args.zipf, args.set_share),
        };
        let value = match args.value_bytes {
            ValueBytes::Constant(bytes) => bytes.to_string(),
            ValueBytes::Trace => "trace's".into(),
        };
        let pace = match pace {
            Pace::Closed => "closed loop".into(),
            Pace::Open { requests_per_second } => format!("open loop {requests_per_second:.0}/s"),
        };
        format!(
            "{pace}; {:?} {what}; {} B keys, {value} B values; {} connections × {} deep × {} keys",
            args.protocol, args.key_bytes, args.connections, args.depth, args.multi_get
        )
    }

    /// One load per generator thread; connections, rate, keys and requests are shared out.
    pub fn loads(&self, target: &Target, task: Task, round: u64) -> Vec<Load> {
        let threads = self.args.client_threads;
        let cursor = Arc::new(AtomicUsize::new(0));
        let workers = self.workers(target);
        (0..threads)
            .map(|thread| self.load(target, task, round, thread, &cursor, &workers))
            .collect()
    }

    /// By key, the worker that serves it, where connections go to workers' own ports.
    fn workers(&self, target: &Target) -> Arc<[u16]> {
        let Some(ports) = target.own_ports else { return Arc::default() };
        let wording = Wording::new(self.args.protocol, self.args.key_bytes, 0);
        let worker_of = |key| {
            let name = wording.name(key);
            ports.worker_of(Key::new(&name).expect("its length was checked").hash())
        };
        (0..self.args.keys).map(worker_of).collect()
    }

    fn load(
        &self,
        target: &Target,
        task: Task,
        round: u64,
        thread: usize,
        cursor: &Arc<AtomicUsize>,
        workers: &Arc<[u16]>,
    ) -> Load {
        let args = &self.args;
        let threads = args.client_threads;
        let (value_bytes, sizes) = match args.value_bytes {
            ValueBytes::Constant(bytes) => (bytes, Sizes::Constant(bytes)),
            ValueBytes::Trace => (0, Sizes::FromTrace { value_bytes_max: args.value_bytes_max }),
        };
        let seed = Random::new(args.seed ^ (round << 32) ^ thread as u64).word();
        let measured = matches!(task, Task::Measure(_));
        let source = match (task, &self.trace) {
            (Task::Measure(_), Some(trace)) => {
                Source::Replay { trace: trace.clone(), cursor: cursor.clone(), sizes }
            }
            (Task::Measure(_), None) => Source::Mix {
                popularity: Popularity::new(args.keys, args.zipf),
                random: Random::new(seed),
                set_share: args.set_share,
                value_bytes,
            },
            (Task::Fill | Task::Verify, _) => Source::Each {
                next: thread as u64,
                step: threads as u64,
                keys: args.keys,
                ask: Ask { set: task == Task::Fill, value_bytes },
            },
        };
        let pace = match task {
            Task::Measure(Pace::Open { requests_per_second }) => {
                Pace::Open { requests_per_second: requests_per_second / threads as f64 }
            }
            Task::Measure(Pace::Closed) | Task::Fill | Task::Verify => Pace::Closed,
        };
        let requests = match (args.requests, measured) {
            (Some(requests), true) => Some(share(requests, threads, thread)),
            (None, true) => None,
            (_, false) => Some(u64::MAX),
        };
        let length = match requests {
            _ if measured && self.replays() => Length::Requests(u64::MAX),
            Some(requests) => Length::Requests(requests),
            None => Length::Time(Duration::from_secs_f64(args.duration)),
        };
        let cold = !measured || self.replays();
        Load {
            target: target.clone(),
            workers: workers.clone(),
            connections: share(args.connections as u64, threads, thread) as usize,
            depth: if measured { args.depth } else { FILL_DEPTH },
            wording: Wording::new(
                target.protocol.unwrap_or(args.protocol),
                args.key_bytes,
                value_bytes,
            ),
            lengths: match sizes {
                Sizes::Constant(_) => Lengths::Constant,
                Sizes::FromTrace { .. } => Lengths::Labelled,
            },
            keys_per_get: args.multi_get,
            look_aside: measured && self.replays(),
            pace,
            spin: self.spin,
            source,
            warmup: if cold { Duration::ZERO } else { Duration::from_secs_f64(args.warmup) },
            length,
            seed,
        }
    }
}

/// The part of `whole` that falls to one of `threads`.
fn share(whole: u64, threads: usize, thread: usize) -> u64 {
    whole / threads as u64 + u64::from((thread as u64) < whole % threads as u64)
}
