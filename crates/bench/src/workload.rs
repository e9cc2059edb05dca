//! What is asked of a server: how many keys, how long, how popular, which operations. A preset (`--ycsb`,
//! `--like`), and over it what the flags say.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::args::{Args, HotWorker, ValueBytes};
use crate::follow::Routes;
use crate::mix::{Mix, Op, Ttls};
use crate::popularity::{Popularity, Ranks, Zipfian};
use crate::sizes::Sizes;
use crate::wording::Wording;
use crate::{twitter, ycsb};

#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    pub keys: u64,
    pub key_bytes: Sizes,
    pub value_bytes: Sizes,
    pub law: Law,
    pub mix: Mix,
    pub ttls: Ttls,
    pub scan_max: u32,
}

/// How requests spread over the keys.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Law {
    Uniform,
    Zipf(f64),
    Hotspot {
        keys_share: f64,
        share: f64,
    },
    /// Zipfian over the newest keys.
    Latest(f64),
}

const KEYS: u64 = 100_000;
/// ETC's own ratio of gets to sets (Atikoglu et al. 2012, §3).
const ETC_GETS_PER_SET: f64 = 30.0;
/// Inserts make keys that are this much longer at most.
const DIGITS_GROWN: usize = 2;

impl Workload {
    pub fn new(args: &Args) -> Result<Self, String> {
        let keys = args.keys.unwrap_or(KEYS);
        let mut workload = match (&args.ycsb, &args.like) {
            (Some(name), _) => ycsb::workload(name, keys)?,
            (None, Some(name)) => like(name, keys, args.value_bytes_max)?,
            (None, None) => Self {
                keys,
                key_bytes: Sizes::Constant(16),
                value_bytes: Sizes::Constant(32),
                law: Law::Uniform,
                mix: Mix::all(Op::Get),
                ttls: Ttls::all(0),
                scan_max: 1,
            },
        };
        workload.flags(args)?;
        workload.check()?;
        Ok(workload)
    }

    fn flags(&mut self, args: &Args) -> Result<(), String> {
        self.keys = args.keys.unwrap_or(self.keys);
        self.key_bytes = args.key_bytes.unwrap_or(self.key_bytes);
        match args.value_bytes {
            Some(ValueBytes::Sizes(sizes)) => self.value_bytes = sizes,
            Some(ValueBytes::Etc) => {
                self.value_bytes = Sizes::EtcValues { max: args.value_bytes_max }
            }
            Some(ValueBytes::Trace) | None => {}
        }
        if let Some(theta) = args.zipf {
            if !(theta >= 0.0 && theta.is_finite()) {
                return Err("--zipf is 0 or more".into());
            }
            self.law = if theta > 0.0 { Law::Zipf(theta) } else { Law::Uniform };
        }
        if let Some(hotspot) = args.hotspot {
            self.law = Law::Hotspot { keys_share: hotspot.keys_share, share: hotspot.share };
        }
        if let Some(theta) = args.latest {
            if !(theta > 0.0 && theta.is_finite()) {
                return Err("--latest is above 0".into());
            }
            self.law = Law::Latest(theta);
        }
        if let Some(share) = args.set_share {
            if !(0.0..=1.0).contains(&share) {
                return Err("--set-share is 0 to 1".into());
            }
            self.mix = Mix::new(&[(Op::Get, 1.0 - share), (Op::Set, share)]);
        }
        if let Some(mix) = &args.mix {
            self.mix = mix.clone();
        }
        if let Some(ttls) = &args.ttl {
            self.ttls = ttls.clone();
        }
        Ok(())
    }

    /// What the longest name needs: inserts make new keys, and a counter's has a letter before its digits.
    pub fn digits(&self) -> usize {
        let mut digits = (self.keys - 1).to_string().len();
        if self.mix.things().any(|op| op == Op::Insert) {
            digits += DIGITS_GROWN;
        }
        digits + usize::from(self.mix.things().any(|op| op == Op::Incr))
    }

    fn check(&self) -> Result<(), String> {
        let digits = self.digits();
        let (min, max) = (self.key_bytes.min() as usize, self.key_bytes.max());
        // ETC's short names are lengthened to what the digits need.
        if max > 250 || (min < digits && self.key_bytes != Sizes::EtcKeys) {
            return Err(format!("--key-bytes is {digits} to 250 for these keys"));
        }
        if let Law::Hotspot { keys_share, .. } = self.law {
            if self.hot_keys(keys_share) >= self.keys {
                return Err("a hotspot leaves no cold keys".into());
            }
        }
        Ok(())
    }

    fn hot_keys(&self, share: f64) -> u64 {
        ((self.keys as f64 * share) as u64).max(1)
    }

    /// `newest` counts the keys that there are; of the last ones `unsure` may be on their way.
    pub fn popularity(
        &self,
        hot_worker: Option<HotWorker>,
        layout: Option<&Routes>,
        wording: &Wording,
        newest: &Arc<AtomicU64>,
        unsure: u64,
    ) -> Popularity {
        let ranks = match self.law {
            Law::Uniform => Ranks::Uniform,
            Law::Zipf(theta) => Ranks::Zipfian(Zipfian::new(self.keys, theta)),
            Law::Hotspot { keys_share, share } => {
                Ranks::Hotspot { hot_keys: self.hot_keys(keys_share), share }
            }
            Law::Latest(theta) => {
                return Popularity::latest(self.keys, theta, newest.clone(), unsure);
            }
        };
        let Some(HotWorker { worker, workers }) = hot_worker else {
            return Popularity::scattered(self.keys, ranks);
        };
        let worker_of = |key| {
            let hash = wording.hash(key);
            match layout {
                Some(routes) => routes.worker(hash) as u16,
                // As a new server lays them out: each worker has an equal run of hashes.
                None => ((u128::from(hash) * u128::from(workers)) >> 64) as u16,
            }
        };
        Popularity::of_worker(self.keys, ranks, worker, workers, worker_of)
    }
}

/// `twitter:cluster19` or `etc`.
fn like(name: &str, keys: u64, value_bytes_max: u32) -> Result<Workload, String> {
    match name.split_once(':') {
        Some(("twitter", cluster)) => twitter::workload(cluster, keys),
        None if name == "etc" => Ok(Workload {
            keys,
            key_bytes: Sizes::EtcKeys,
            value_bytes: Sizes::EtcValues { max: value_bytes_max },
            law: Law::Zipf(0.99),
            mix: Mix::new(&[(Op::Get, ETC_GETS_PER_SET), (Op::Set, 1.0)]),
            ttls: Ttls::all(0),
            scan_max: 1,
        }),
        _ => Err(format!("--like {name}: neither twitter:clusterN nor etc")),
    }
}

impl std::fmt::Display for Law {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Uniform => write!(f, "uniform"),
            Self::Zipf(theta) => write!(f, "Zipf {theta}"),
            Self::Latest(theta) => write!(f, "latest, Zipf {theta}"),
            Self::Hotspot { keys_share, share } => {
                let percent = |part: &f64| (part * 1e6).round() / 1e4;
                write!(f, "{}% on {}% of them", percent(share), percent(keys_share))
            }
        }
    }
}
