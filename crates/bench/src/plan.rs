//! The arguments, checked once and turned into loads.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crate::address::Target;
use crate::args::{Args, HotWorker, Hotspot, Rate, ValueBytes, Waiting};
use crate::cpu::Cores;
use crate::generator::{Busy, Length, Load};
use crate::pace::Pace;
use crate::popularity::{Law, Popularity, Zipfian};
use crate::random::Random;
use crate::replies::Lengths;
use crate::source::{Ask, Sizes, Source};
use crate::timeline::Timeline;
use crate::trace::Trace;
use crate::wording::{Protocol, Wording};

/// What a run asks of any server: the arguments, checked, with the trace read.
pub struct Plan {
    args: Args,
    trace: Option<Arc<Trace>>,
    popularity: Popularity,
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
        let positive = |seconds: f64| seconds > 0.0 && seconds < 1e6;
        if !args.shift.is_none_or(positive) || !positive(args.interval) {
            return Err("--shift and --interval are seconds".into());
        }
        if args.busy.is_some_and(|busy| args.connections < busy.every * args.client_threads) {
            return Err("--busy needs connections of both kinds in every client thread".into());
        }
        if args.follow && args.protocol != Protocol::Meta {
            return Err("--follow speaks meta".into());
        }
        let popularity = popularity(args)?;
        Ok(Self { args: args.clone(), trace, popularity, spin })
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
            None => format!("{} keys, {}, {} sets", args.keys, law(args), args.set_share),
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
        (0..threads).map(|thread| self.load(target, task, round, thread, &cursor)).collect()
    }

    /// What records the run over time, if somebody wants to know.
    pub fn timeline(&self, task: Task) -> Option<Timeline> {
        let alone = self.args.compare.is_empty();
        let progress = alone && std::io::IsTerminal::is_terminal(&std::io::stderr());
        let wanted =
            matches!(task, Task::Measure(_)) && (progress || self.args.over_time.is_some());
        wanted.then(|| Timeline::new(self.args.interval, self.args.client_threads, progress))
    }

    fn load(
        &self,
        target: &Target,
        task: Task,
        round: u64,
        thread: usize,
        cursor: &Arc<AtomicUsize>,
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
                popularity: self.popularity.clone(),
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
            follow: args.follow,
            connections: share(args.connections as u64, threads, thread) as usize,
            depth: if measured { args.depth } else { FILL_DEPTH },
            busy: args.busy.map(|busy| Busy { share: busy.share, every: busy.every }),
            wording: Wording::new(target.protocol.unwrap_or(args.protocol), args.key_bytes),
            lengths: match sizes {
                Sizes::Constant(_) => Lengths::Constant,
                Sizes::FromTrace { .. } => Lengths::Labelled,
            },
            keys_per_get: args.multi_get,
            look_aside: measured && self.replays(),
            pace,
            spin: self.spin,
            source,
            shift: args.shift.filter(|_| measured).map(Duration::from_secs_f64),
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

fn popularity(args: &Args) -> Result<Popularity, String> {
    let law = match args.hotspot {
        Some(Hotspot { share, keys_share }) => {
            let hot_keys = ((args.keys as f64 * keys_share) as u64).max(1);
            if hot_keys == args.keys {
                return Err("--hotspot leaves no cold keys".into());
            }
            Law::Hotspot { hot_keys, share }
        }
        None if args.zipf > 0.0 => Law::Zipfian(Zipfian::new(args.keys, args.zipf)),
        None => Law::Uniform,
    };
    let Some(HotWorker { worker, workers }) = args.hot_worker else {
        return Ok(Popularity::scattered(args.keys, law));
    };
    let wording = Wording::new(args.protocol, args.key_bytes);
    // As a new server lays them out: each worker has an equal run of hashes.
    let worker_of = |key| ((u128::from(wording.hash(key)) * u128::from(workers)) >> 64) as u16;
    Ok(Popularity::of_worker(args.keys, law, worker, workers, worker_of))
}

/// How keys are drawn, in words.
fn law(args: &Args) -> String {
    let mut words = match args.hotspot {
        Some(Hotspot { share, keys_share }) => {
            format!("{:.0}% on {:.0}% of them", share * 100.0, keys_share * 100.0)
        }
        None => format!("Zipf {}", args.zipf),
    };
    if let Some(HotWorker { worker, workers }) = args.hot_worker {
        words += &format!(", hottest on worker {worker} of {workers}");
    }
    if let Some(seconds) = args.shift {
        words += &format!(", shifting every {seconds} s");
    }
    words
}
