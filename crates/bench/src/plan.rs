//! The arguments, checked once and turned into loads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use mbal_dial::Speech;

use crate::address::{Address, Target, Way};
use crate::args::{Args, HotWorker, Rate, ReadOnly, ValueBytes, Waiting};
use crate::cpu::Cores;
use crate::follow::Routes;
use crate::load::{Busy, Length, Load};
use crate::mix::Op;
use crate::pace::{Moments, Pace};
use crate::replies::Lengths;
use crate::request::Protocol;
use crate::source::{Drawn, Source};
use crate::timeline::Timeline;
use crate::trace::Trace;
use crate::udp;
use crate::wording::Wording;
use crate::workload::Workload;
use mbal_random::Random;

/// What a run asks of any server: the arguments, checked, with the trace read.
pub struct Plan {
    args: Args,
    workload: Workload,
    trace: Option<Arc<Trace>>,
    moments: Option<Arc<[f64]>>,
    /// Of the longest name.
    digits: usize,
    spin: bool,
    way: Way,
    /// Who serves what as the load begins, where that is known.
    pub layout: Option<Routes>,
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
        if !(args.duration > 0.0 && args.warmup >= 0.0 && args.duration + args.warmup < 1e6) {
            return Err("--duration and --warmup are seconds".into());
        }
        if args.client_threads > args.connections {
            return Err("every client thread needs a connection".into());
        }
        if args.compare.is_empty() && matches!(args.rate, Some(Rate::Share(_))) {
            return Err("--rate N% is of the first --compare peer's peak".into());
        }
        let positive = |seconds: f64| seconds > 0.0 && seconds < 1e6;
        if !args.shift.is_none_or(positive) || !positive(args.interval) {
            return Err("--shift and --interval are seconds".into());
        }
        if !(0.0..60_000.0).contains(&args.store) || !args.own_pace.is_none_or(positive) {
            return Err("--store is up to a minute, --own-pace above 0".into());
        }
        if args.busy.is_some_and(|busy| args.connections < busy.every * args.client_threads) {
            return Err("--busy needs connections of both kinds in every client thread".into());
        }
        if args.follow && !matches!(args.protocol, Protocol::Meta | Protocol::Binary) {
            return Err("--follow speaks meta or binary".into());
        }
        let secured = args.access.is_tls() || args.access.user.is_some();
        if secured && (args.udp || args.protocol == Protocol::Resp) {
            return Err("TLS and logins are for memcached's protocols over TCP".into());
        }
        let speech = match args.protocol {
            Protocol::Binary => Speech::Binary,
            _ => Speech::Text,
        };
        let way = Way { dialer: args.access.open()?, host: None, speech };
        let workload = Workload::new(args)?;
        if args.udp {
            if args.protocol != Protocol::Text && args.multi_get > 1 {
                return Err("--udp takes several keys in one datagram in text alone".into());
            }
            if workload.value_bytes.max() as usize + 512 > udp::BYTES_MAX
                || args.protocol == Protocol::Resp
            {
                return Err("--udp: no RESP, and values that fit a datagram".into());
            }
        }
        let requests_max = args.requests.map_or(usize::MAX, |n| n as usize);
        let trace = match &args.trace {
            Some(path) => Some(Arc::new(Trace::read(path, requests_max)?)),
            None => None,
        };
        let sized = trace.as_ref().is_some_and(|trace| trace.value_bytes.is_some());
        if args.value_bytes == Some(ValueBytes::Trace) && !sized {
            return Err("--value-bytes trace needs a trace with sizes".into());
        }
        let moments = trace.as_ref().and_then(|trace| trace.seconds.clone()).map(Arc::from);
        if args.own_pace.is_some() && moments.is_none() {
            return Err("--own-pace needs a trace with times".into());
        }
        let digits = match &trace {
            Some(trace) => {
                let highest = trace.keys.iter().max().ok_or("the trace is empty")?;
                highest.to_string().len()
            }
            None => workload.digits(),
        };
        if (workload.key_bytes.max() as usize) < digits {
            return Err(format!("--key-bytes is {digits} to 250 for these keys"));
        }
        let apart = |cores: &Cores| args.client_cores.as_ref().is_some_and(|c| c.disjoint(cores));
        let spin = match args.waiting {
            Waiting::Spin => true,
            Waiting::Sleep => false,
            Waiting::Auto => args.server_cores.as_ref().is_some_and(apart),
        };
        Ok(Self { args: args.clone(), workload, trace, moments, digits, spin, way, layout: None })
    }

    /// As the flags have it, a server is spoken to over UDP, TLS, with a login. It is known by this name, if any.
    pub fn enter(&self, target: &mut Target, host: Option<String>) -> Result<(), String> {
        if self.args.udp {
            target.address = target.address.clone().by_udp()?;
        }
        target.way = Way { host, ..self.way.clone() };
        Ok(())
    }

    /// As the arguments have it; a share of a peak is not known here.
    pub fn pace(&self) -> Result<Pace, String> {
        match (self.args.rate, self.args.own_pace) {
            (_, Some(speed)) => Ok(Pace::Recorded { speed }),
            (None, None) => Ok(Pace::Closed),
            (Some(Rate::PerSecond(requests_per_second)), _) => {
                Ok(Pace::Open { requests_per_second })
            }
            (Some(Rate::Ramp(from, to)), _) => {
                Ok(Pace::Ramp { from, to, over: Duration::from_secs_f64(self.args.duration) })
            }
            (Some(Rate::Share(_)), _) => Err("a share of the peak needs --compare".into()),
        }
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
            None => format!("{} keys, {}; {}", self.workload.keys, self.law(), self.workload.mix),
        };
        let value = match args.value_bytes {
            Some(ValueBytes::Trace) => "trace's".into(),
            _ => self.workload.value_bytes.to_string(),
        };
        let protocol = args.protocol;
        let over = if args.access.is_tls() { " over TLS" } else { "" };
        format!(
            "{pace}; {protocol:?}{over}, {what}; {} B keys, {value} B values; {} connections × {} deep × {} keys",
            self.workload.key_bytes, args.connections, args.depth, args.multi_get
        )
    }

    /// How keys are drawn, in words.
    fn law(&self) -> String {
        let mut words = self.workload.law.to_string();
        if let Some(HotWorker { worker, workers }) = self.args.hot_worker {
            words += &format!(", hottest on worker {worker} of {workers}");
        }
        if let Some(ReadOnly { top, share }) = self.args.read_only {
            words += &format!(", {:.0}% of the hottest {top} never written", share * 100.0);
        }
        if let Some(seconds) = self.args.shift {
            words += &format!(", shifting every {seconds} s");
        }
        words
    }

    /// One load per generator thread; connections, rate, keys and requests are shared out.
    pub fn loads(&self, target: &Target, task: Task, round: u64) -> Vec<Load> {
        let threads = self.args.client_threads;
        let cursor = Arc::new(AtomicUsize::new(0));
        let newest = Arc::new(AtomicU64::new(self.workload.keys));
        (0..threads)
            .map(|thread| self.load(target, task, round, thread, &cursor, &newest))
            .collect()
    }

    /// What records the run over time, if somebody wants to know.
    pub fn timeline(&self, task: Task) -> Option<Timeline> {
        let alone = self.args.compare.is_empty();
        let progress = alone && std::io::IsTerminal::is_terminal(&std::io::stderr());
        let Task::Measure(pace) = task else { return None };
        let args = &self.args;
        let wanted = progress || args.over_time.is_some() || args.shift.is_some();
        wanted.then(|| Timeline::new(self.args.interval, self.args.client_threads, progress, pace))
    }

    fn load(
        &self,
        target: &Target,
        task: Task,
        round: u64,
        thread: usize,
        cursor: &Arc<AtomicUsize>,
        newest: &Arc<AtomicU64>,
    ) -> Load {
        let args = &self.args;
        let threads = args.client_threads;
        let seed = Random::new(args.seed ^ (round << 32) ^ thread as u64).word();
        let measured = matches!(task, Task::Measure(_));
        let pace = match task {
            Task::Measure(pace) => pace.of_one(threads),
            Task::Fill | Task::Verify => Pace::Closed,
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
        let labelled = measured && args.value_bytes == Some(ValueBytes::Trace);
        let moments = |seconds: &Arc<[f64]>| Moments {
            seconds: seconds.clone(),
            first: thread,
            step: threads,
        };
        Load {
            target: target.clone(),
            follow: args.follow,
            copies: args.follow && !args.no_copies && args.protocol == Protocol::Meta,
            connections: share(args.connections as u64, threads, thread) as usize,
            depth: match (measured, &target.address) {
                (true, _) => args.depth,
                // A burst of datagrams overflows the server's socket, and memcached forgets what waits behind a
                // request in one TLS record.
                (false, Address::Udp(_)) => 1,
                (false, _) if target.way.dialer.is_tls() => 1,
                (false, _) => FILL_DEPTH,
            },
            busy: args.busy.map(|busy| Busy { share: busy.share, every: busy.every }),
            wording: self.wording(target.protocol.unwrap_or(args.protocol)),
            lengths: if labelled { Lengths::Labelled } else { Lengths::Known },
            keys_per_get: args.multi_get,
            look_aside: measured && (self.replays() || args.look_aside),
            store: Duration::from_secs_f64(args.store / 1e3),
            pace,
            moments: self.moments.as_ref().filter(|_| args.own_pace.is_some()).map(moments),
            spin: self.spin,
            source: self.source(task, seed, thread, cursor, newest),
            shift: args.shift.filter(|_| measured).map(Duration::from_secs_f64),
            warmup: if cold { Duration::ZERO } else { Duration::from_secs_f64(args.warmup) },
            length,
            seed,
        }
    }

    fn wording(&self, protocol: Protocol) -> Wording {
        let Workload { key_bytes, value_bytes, .. } = self.workload;
        Wording::new(protocol, key_bytes, value_bytes).with_digits(self.digits)
    }

    fn source(
        &self,
        task: Task,
        seed: u64,
        thread: usize,
        cursor: &Arc<AtomicUsize>,
        newest: &Arc<AtomicU64>,
    ) -> Source {
        let (args, workload) = (&self.args, &self.workload);
        let (threads, random) = (args.client_threads, Random::new(seed));
        match (task, &self.trace) {
            (Task::Measure(_), Some(trace)) => {
                let own = args.own_pace.is_some();
                Source::Replay {
                    trace: trace.clone(),
                    cursor: if own { Arc::new(AtomicUsize::new(thread)) } else { cursor.clone() },
                    step: if own { threads } else { 1 },
                    value_bytes_max: (args.value_bytes == Some(ValueBytes::Trace))
                        .then_some(args.value_bytes_max),
                    ttl: workload.ttls.things().next().expect("shares are never empty"),
                }
            }
            (Task::Measure(_), None) => {
                let unsure = (args.connections * args.depth) as u64;
                Source::Mix(Drawn {
                    popularity: workload.popularity(
                        args.hot_worker,
                        self.layout.as_ref(),
                        &self.wording(args.protocol),
                        newest,
                        unsure,
                    ),
                    random,
                    mix: workload.mix.clone(),
                    ttls: workload.ttls.clone(),
                    keys: workload.keys,
                    scan_max: workload.scan_max,
                    read_only: args.read_only,
                    newest: newest.clone(),
                })
            }
            (Task::Fill | Task::Verify, _) => Source::Each {
                next: thread as u64,
                step: threads as u64,
                keys: workload.keys,
                op: if task == Task::Fill { Op::Set } else { Op::Get },
                ttls: workload.ttls.clone(),
                random,
            },
        }
    }
}

/// The part of `whole` that falls to one of `threads`.
fn share(whole: u64, threads: usize, thread: usize) -> u64 {
    whole / threads as u64 + u64::from((thread as u64) < whole % threads as u64)
}
