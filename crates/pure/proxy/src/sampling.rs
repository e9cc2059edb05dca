//! What an autoscaler reads of a pool: stack distances of the requests that pass, and how long a missed key takes until it is stored.
//!
//! Keys are sampled by their hash, so all requests for a sampled key that pass this proxy are seen. A read is shown when it is answered:
//! only then it is known whether the pool had the key. A write is shown when it is asked. Requests in binary are not shown.
//!
//! A request costs a hash of its key and a comparison, and next to nothing while the sketch rests ([`LastingDistances`]).

use std::collections::VecDeque;
use std::time::Duration;

use mbal_model::{Instant, KEY_BYTES_MAX, Key};
use mbal_sketch::{Chosen, Curve, Found, LastingDistances};
use mbal_wire::{Chunk, ReplyKind, Request, Storage, Verb, base64_decode};

use crate::counting::Latency;

/// Of memcached's item beside key and value: its head with a cas number, and the ends of the key and of the value.
const ITEM_OVERHEAD_BYTES: usize = 48 + 8 + 1 + 2;
/// memcached's chunks by default: the least, and each a quarter larger than the one before, in steps of 8.
const CHUNK_BYTES_MIN: usize = 96;
const CHUNK_BYTES_MAX: usize = 512 << 10;
const CHUNK_STEP: usize = 8;
/// So many misses are remembered whose keys may be stored.
const MISSES_MAX: usize = 256;
/// A key that is stored later was not read from the database for that miss.
const FILLS_WITHIN: Duration = Duration::from_secs(10);
/// No pool has more: until it is known, an item that was there before hits nowhere.
const POOL_BYTES_UNKNOWN: u64 = 1 << 50;
/// A longer exptime is a moment of the calendar.
const RELATIVE_SECONDS_MAX: i64 = 60 * 60 * 24 * 30;

pub(crate) struct DistanceSampler {
    lasting: LastingDistances,
    chosen: Chosen,
    /// Nothing is shown before that second.
    rests_until: u32,
    /// To which the sketch has been told to pass.
    second: u32,
    /// Of keys in text and meta, ever.
    reads: u64,
    /// What all servers of the pool have: an item that was there before hits where there is so much. Whoever reads the curve tells it.
    pool_bytes: u64,
    /// Sampled keys that were missed, by hash, and when.
    missed: VecDeque<(u64, Instant)>,
    /// From a miss until its key is stored.
    fills: Latency,
    /// The calendar's second at which the clock began.
    started_at: u64,
}

/// A sampled read whose reply has not come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampledRead {
    hash: u64,
    key_bytes: u8,
}

/// What a request does to an item.
enum Does {
    Reads,
    Stores { value_bytes: usize, exptime: i64 },
    Removes,
    Other,
}

impl DistanceSampler {
    pub fn new(started_at: u64) -> DistanceSampler {
        let mut lasting = LastingDistances::default();
        let chosen = lasting.chosen();
        DistanceSampler {
            lasting,
            chosen,
            rests_until: 0,
            second: 0,
            reads: 0,
            pool_bytes: POOL_BYTES_UNKNOWN,
            missed: VecDeque::new(),
            fills: Latency::default(),
            started_at,
        }
    }

    /// A request of one key is asked, of so many requests ever. What is to be told when it is answered.
    #[inline]
    pub fn asked(
        &mut self,
        request: &Request<'_>,
        (key, base64): (&[u8], bool),
        now: Instant,
        requests: u64,
    ) -> Option<SampledRead> {
        if second(now) < self.rests_until {
            return None;
        }
        let mut decoded = [0; KEY_BYTES_MAX];
        let length = if base64 { base64_decode(key, &mut decoded) } else { None };
        let key = Key::new(length.map_or(key, |length| &decoded[..length]))?;
        if !self.chosen.has(key.hash()) {
            return None;
        }
        self.asked_chosen(request, &key, now, requests)
    }

    #[cold]
    fn asked_chosen(
        &mut self,
        request: &Request<'_>,
        key: &Key<'_>,
        now: Instant,
        requests: u64,
    ) -> Option<SampledRead> {
        if !self.shows(now, requests) {
            return None;
        }
        let (hash, key_bytes) = (key.hash(), key.bytes().len());
        match done_by(request) {
            Does::Reads => return Some(SampledRead { hash, key_bytes: key_bytes as u8 }),
            Does::Stores { value_bytes, exptime } => {
                self.filled(hash, now);
                self.spend();
                let bytes = chunk_bytes(key_bytes + value_bytes);
                let deadline = self.deadline(exptime, now);
                self.lasting.each().for_each(|one| one.write(hash, bytes, deadline));
                self.chosen = self.lasting.chosen();
            }
            Does::Removes => {
                self.spend();
                self.lasting.each().for_each(|one| one.remove(hash));
            }
            Does::Other => {}
        }
        None
    }

    /// A key of several was answered: with so many bytes of a value and its line, or not found.
    #[inline]
    pub fn answered_one_of(
        &mut self,
        key: &[u8],
        found: Option<usize>,
        now: Instant,
        requests: u64,
    ) {
        if second(now) < self.rests_until {
            return;
        }
        let Some(key) = Key::new(key).filter(|key| self.chosen.has(key.hash())) else { return };
        if self.shows(now, requests) {
            let read = SampledRead { hash: key.hash(), key_bytes: key.bytes().len() as u8 };
            let value_bytes = found.map(|bytes| value_bytes(read, bytes));
            self.show(read, value_bytes, now);
        }
    }

    /// The reply to a sampled read, which has found its key or has not.
    #[cold]
    pub fn answered(
        &mut self,
        read: SampledRead,
        kind: ReplyKind,
        reply: &[u8],
        found: bool,
        now: Instant,
    ) {
        let bytes = match (found, kind) {
            (false, _) => None,
            (true, ReplyKind::Values) => Some(value_bytes(read, reply.len() - b"END\r\n".len())),
            (true, _) => Some(value_bytes(SampledRead { key_bytes: 0, ..read }, reply.len())),
        };
        self.show(read, bytes, now);
    }

    /// So many reads of keys were answered.
    #[inline]
    pub fn count(&mut self, reads: u64) {
        self.reads += reads;
    }

    /// Everything is flushed.
    pub fn flush(&mut self) {
        self.lasting.each().for_each(mbal_sketch::StackDistances::flush);
    }

    /// `pool_bytes` if who asks knows it.
    pub fn curve(&mut self, pool_bytes: Option<u64>, now: Instant) -> Curve {
        self.pool_bytes = pool_bytes.unwrap_or(self.pool_bytes);
        self.pass_to(second(now));
        self.lasting.curve()
    }

    pub fn state_bytes(&self) -> u64 {
        self.lasting.state_bytes()
    }

    pub fn fills(&self) -> &Latency {
        &self.fills
    }

    fn show(&mut self, read: SampledRead, found: Option<usize>, now: Instant) {
        let SampledRead { hash, key_bytes } = read;
        self.spend();
        if found.is_none() {
            if self.missed.len() == MISSES_MAX {
                self.missed.pop_front();
            }
            self.missed.push_back((hash, now));
        }
        let second = second(now);
        let within = self.pool_bytes;
        let found = found.map(|value_bytes| Found {
            bytes: chunk_bytes(usize::from(key_bytes) + value_bytes),
            deadline: 0,
            within,
        });
        self.lasting.each().for_each(|distances| {
            distances.read(hash, second, || found);
        });
        self.chosen = self.lasting.chosen();
    }

    /// Whether requests are shown now. Begins a burst if it is time.
    fn shows(&mut self, now: Instant, requests: u64) -> bool {
        let second = second(now);
        if self.second != second {
            self.pass_to(second);
        }
        if !self.lasting.rests() {
            return true;
        }
        self.lasting.count(self.reads);
        let goes_on = self.lasting.goes_on(second, requests);
        if !goes_on {
            self.rests_until = second + 1;
        }
        goes_on
    }

    fn pass_to(&mut self, second: u32) {
        self.second = second;
        // What is counted fades like what was shown.
        self.lasting.count(self.reads);
        self.lasting.pass_to(second);
        self.chosen = self.lasting.chosen();
    }

    fn spend(&mut self) {
        let reads = self.reads;
        self.lasting.spend(|| reads);
    }

    fn filled(&mut self, hash: u64, now: Instant) {
        let Some(at) = self.missed.iter().rposition(|missed| missed.0 == hash) else { return };
        let took = now - self.missed.remove(at).expect("it is there").1;
        if took <= FILLS_WITHIN {
            self.fills.record(took.as_nanos() as u64);
        }
    }

    /// In the sketch's seconds; 0 is never.
    fn deadline(&self, exptime: i64, now: Instant) -> u32 {
        let now = second(now);
        match exptime {
            0 => 0,
            ..0 => 1,
            1..=RELATIVE_SECONDS_MAX => now.saturating_add(exptime as u32),
            moment => {
                let since = (moment as u64).saturating_sub(self.started_at);
                u32::try_from(since).unwrap_or(u32::MAX).max(1)
            }
        }
    }
}

/// Of the proxy's clock. The first is 1: a deadline of 0 is none.
fn second(now: Instant) -> u32 {
    now.as_secs() as u32 + 1
}

/// Of a value with its line: `VALUE key flags bytes\r\n`, or `VA bytes flags\r\n`, with flags and lengths of usual sizes.
fn value_bytes(read: SampledRead, with_line: usize) -> usize {
    let line = match read.key_bytes {
        0 => b"VA 000\r\n".len(),
        key_bytes => b"VALUE  0 000\r\n".len() + usize::from(key_bytes),
    };
    with_line.saturating_sub(line + b"\r\n".len())
}

/// What an item takes of a memcached's memory: a chunk of its class.
fn chunk_bytes(key_and_value: usize) -> u32 {
    let bytes = ITEM_OVERHEAD_BYTES + key_and_value;
    let mut chunk = CHUNK_BYTES_MIN;
    while chunk < bytes && chunk < CHUNK_BYTES_MAX {
        chunk = (chunk + chunk / 4).next_multiple_of(CHUNK_STEP);
    }
    chunk.max(bytes).min(u32::MAX as usize) as u32
}

fn done_by(request: &Request<'_>) -> Does {
    match request {
        Request::Get(_) => Does::Reads,
        Request::MetaGet(meta) if !meta.get_writes() => Does::Reads,
        Request::Store(Storage { verb: Verb::Append | Verb::Prepend, .. }) => Does::Other,
        Request::Store(Storage { chunk: Chunk::Value(value), exptime, .. }) => {
            Does::Stores { value_bytes: value.len(), exptime: *exptime }
        }
        // Without a mode it sets.
        Request::MetaSet(meta, Chunk::Value(value)) if matches!(meta.mode, 0 | b'S' | b's') => {
            Does::Stores { value_bytes: value.len(), exptime: meta.exptime.into() }
        }
        Request::Delete { .. } | Request::TooLarge { remove: true, .. } => Does::Removes,
        // With I, D or others it is made stale, or has another value.
        Request::MetaDelete(meta) if meta.words.is_empty() => Does::Removes,
        _ => Does::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn read(sampling: &mut DistanceSampler, number: u64, found: Option<usize>, now: Instant) {
        let key = format!("key:{number}");
        sampling.answered_one_of(key.as_bytes(), found, now, 0);
        sampling.count(1);
    }

    fn set(sampling: &mut DistanceSampler, number: u64, bytes: usize, now: Instant) {
        let (key, value) = (format!("key:{number}"), vec![b'v'; bytes]);
        let storage = Storage {
            verb: Verb::Set,
            key: key.as_bytes(),
            flags: 0,
            exptime: 0,
            cas: 0,
            chunk: Chunk::Value(&value),
            noreply: false,
        };
        sampling.asked(&Request::Store(storage), (key.as_bytes(), false), now, 0);
    }

    /// As `memcached -vv` tells its classes.
    #[test]
    fn an_item_takes_a_chunk_of_its_class() {
        for (key_and_value, chunk) in
            [(0, 96), (37, 96), (38, 120), (61, 120), (62, 152), (1_000, 1_184), (1_125, 1_184)]
        {
            assert_eq!(chunk_bytes(key_and_value), chunk, "{key_and_value}");
        }
        assert_eq!(chunk_bytes(1 << 20), (1 << 20) + ITEM_OVERHEAD_BYTES as u32);
    }

    /// 100 items in a loop, each missed once and then stored: they hit where all fit, and nowhere below.
    #[test]
    fn the_curve_of_a_loop_is_a_step() {
        let mut sampling = DistanceSampler::new(0);
        for number in 0..100 {
            read(&mut sampling, number, None, at(1));
            set(&mut sampling, number, 1_000, at(2));
        }
        for round in 0..9 {
            (0..100).for_each(|number| read(&mut sampling, number, Some(1_020), at(3 + round)));
        }
        let curve = sampling.curve(None, at(20));
        assert_eq!(curve.requests(), 1_000.0);
        let chunk = u64::from(chunk_bytes(1_006));
        assert!(1.0 - curve.miss_ratio(90 * chunk) < 0.02, "{}", curve.miss_ratio(90 * chunk));
        assert!((1.0 - curve.miss_ratio(110 * chunk) - 0.9).abs() < 1e-9);
    }

    /// Of a pool that is warm.
    #[test]
    fn what_was_there_before_hits_where_there_is_as_much_as_the_pool_has() {
        let mut sampling = DistanceSampler::new(0);
        sampling.curve(Some(1 << 24), at(0));
        for round in 0..4 {
            (0..50).for_each(|number| read(&mut sampling, number, Some(100), at(round)));
        }
        let curve = sampling.curve(None, at(20));
        for (bytes, hit_ratio) in [(1 << 20, 0.75), (1 << 25, 1.0)] {
            assert!((1.0 - curve.miss_ratio(bytes) - hit_ratio).abs() < 1e-9, "{bytes}");
        }
    }

    #[test]
    fn a_fill_takes_from_the_miss_until_the_key_is_stored() {
        let mut sampling = DistanceSampler::new(0);
        read(&mut sampling, 1, None, at(100));
        read(&mut sampling, 2, None, at(100));
        set(&mut sampling, 1, 10, at(103));
        set(&mut sampling, 1, 10, at(104));
        set(&mut sampling, 3, 10, at(104));
        set(&mut sampling, 2, 10, at(20_000));
        assert_eq!((sampling.fills().count(), sampling.fills().sum_ns()), (1, 3_000_000));
    }

    #[test]
    fn misses_that_nobody_fills_are_forgotten() {
        let mut sampling = DistanceSampler::new(0);
        (0..10 * MISSES_MAX as u64).for_each(|number| read(&mut sampling, number, None, at(1)));
        assert_eq!(sampling.missed.len(), MISSES_MAX);
        set(&mut sampling, 1, 10, at(2));
        assert_eq!(sampling.fills().count(), 0);
    }

    /// The clock began at second 1,000,000,000 of the calendar.
    #[test]
    fn a_moment_of_the_calendar_is_one_of_the_clock() {
        let sampling = DistanceSampler::new(1_000_000_000);
        for (exptime, deadline) in
            [(0, 0), (-1, 1), (60, 71), (1_000_000_050, 50), (999_999_999, 1)]
        {
            assert_eq!(sampling.deadline(exptime, at(10_000)), deadline, "{exptime}");
        }
    }
}
