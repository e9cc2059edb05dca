//! Hot keys: which get copies, and how many. One policy for servers, which copy their own keys to each other, and for a proxy, which
//! copies those of its upstreams; how a copy is made, read and ended is their own.
//!
//! ```text
//!   rates of the hottest keys, servers, target ──► threshold ──► T
//!   T, what a write costs, rates of one key    ──► Policy, Upkeep ──► how many copies, or that they go
//! ```

use mbal_sketch::Rates;

use crate::balls::{Demand, Prediction, Threshold, choose_threshold, copies_threshold};

mod backoff;
mod one_machine;

pub use backoff::CopyBackoff;
pub use one_machine::{Effort, OneMachine};

/// What a copy is to answer at least, as a part of what a server answers on average: below it, its upkeep is more than it helps.
pub const COPY_WORTH: f64 = 0.02;

/// The least T, whatever the target: requests that a copy is to answer.
fn least(servers: usize, requests: f64) -> f64 {
    requests / servers.max(1) as f64 * COPY_WORTH
}

/// T where a key has one copy a server at most: requests a second that one of them is to have at most.
pub fn threshold(servers: usize, requests: f64, hottest: &[f64], target: f64) -> f64 {
    copies_threshold(servers, requests, hottest, target).max(least(servers, requests))
}

/// T where copies are virtual: they lie where the hash of their names says, and several may lie on one server.
pub fn virtual_threshold(demand: &Demand, target: f64) -> Threshold {
    let chosen = choose_threshold(demand, target, Prediction::Typical);
    let least = least(demand.bins, demand.requests);
    Threshold { requests_per_copy: chosen.requests_per_copy.max(least), ..chosen }
}

/// Of a worker: a key that takes so much of one is hot, whatever else is known.
const OWN_PART: f64 = 0.25;

/// T as a server knows it by itself, whose workers answer so many requests a second with so much of their time.
pub fn own_threshold(requests: f64, busy: f64) -> f64 {
    if busy > 0.0 { requests / busy * OWN_PART } else { f64::INFINITY }
}

/// Of a server's own T: a key of which it has a copy heats it still from there on, since without the copy it would cost more.
pub const STILL_HOT: f64 = 0.4;

/// A value of so many bytes costs as much to answer as the request itself.
const VALUE_BYTES_OF_A_REQUEST: f64 = 4096.0;
/// Of copies that a server may make of one key.
const COPIES_MAX: f64 = 255.0;
/// Of T: who has so much in the last epochs is hot, and not by chance.
const SURE: f64 = 1.5;

/// How many copies keys are to have, one a server at most.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// T. Infinity: nothing is copied.
    pub threshold: f64,
    /// Reads for each write and each copy, at least: what it costs that a copy is told of a write.
    pub reads_per_write: f64,
}

/// Reads for each write and each copy, at least, where copies are told afterwards (decision 0471), and where they let go first (0496).
const READS_PER_WRITE: [f64; 2] = [3.0, 12.0];

impl Policy {
    pub fn new(threshold: f64, writes_wait: bool) -> Policy {
        Policy { threshold, reads_per_write: READS_PER_WRITE[usize::from(writes_wait)] }
    }

    /// How many copies, the original included, a key of these rates is to have: as many as T says, and no more than its writes allow.
    pub fn copies(&self, rates: &Rates, value_bytes: u32) -> usize {
        let weight = 1.0 + f64::from(value_bytes) / VALUE_BYTES_OF_A_REQUEST;
        let rate = rates.all() * weight;
        if !rate.is_finite() || rate <= self.threshold {
            return 1;
        }
        (rate / self.threshold).ceil().min(self.allowed(rates)).min(COPIES_MAX) as usize
    }

    /// How many its writes allow, however hot it is.
    fn allowed(&self, rates: &Rates) -> f64 {
        1.0 + (rates.reads / (self.reads_per_write * rates.writes)).floor()
    }

    /// Whether a key may have a copy that another server asks for.
    pub fn allows(&self, rates: &Rates) -> bool {
        let written = Rates { writes: rates.writes + rates.sample, ..*rates };
        self.allowed(&written) >= 2.0
    }

    /// The same of a key that has none yet, by its rates of the last epochs and those of the last second or so. An epoch has some ten
    /// samples of a key at T. So what is far over T is copied at once, and the rest when it has lasted: else chance would copy what is not hot.
    /// Nor what is written: among twenty samples of a key that is written in one of ten requests there is no write in one of eight epochs. So one
    /// write more is taken for granted.
    pub fn copies_for_new(&self, now: &Rates, lately: Option<&Rates>, value_bytes: u32) -> usize {
        let worth = |rates: &Rates, policy: &Policy| {
            policy.copies(&Rates { writes: rates.writes + rates.sample, ..*rates }, value_bytes)
        };
        let sure = Policy { threshold: self.threshold * SURE, ..*self };
        match worth(now, &sure) {
            1 => lately.map_or(1, |rates| worth(rates, self)),
            _ => worth(now, self),
        }
    }
}

/// Of what was counted before the last look.
const LEDGER_KEEPS: f64 = 0.9;
/// Fewer writes are chance.
const WRITES_THAT_SHOW: f64 = 8.0;
/// The part of the time in which writes may wait for copies. These are told as long again afterwards, and until then all reads go home: copies
/// that are read for less than three quarters of the time gain little, and every client that writes has waited. One write that a silent copy
/// holds up is no more than this on average.
const WAITING_MAX: f64 = 0.125;
/// A key loses its copies when it had less than half of what gives them, at so many looks.
const COOL_LOOKS: u32 = 5;

/// How many rounds of letting go a time would have if none waited for another: each is followed by one as long in which copies are told, so writes
/// wait for half of the time at most.
fn rounds(waiting: f64) -> f64 {
    let waiting = waiting.clamp(0.01, 0.49);
    waiting / (1.0 - 2.0 * waiting)
}

/// What is known of a key that has copies.
#[derive(Clone, Copy, Debug)]
pub struct Upkeep {
    /// Requests a second at the last look, those that copies have answered included.
    pub rates: Rates,
    /// Reads a second that copies answer, on average.
    elsewhere: f64,
    /// What copies have answered and what was written lately, counted exactly: an older look weighs less.
    answered: f64,
    written: f64,
    /// The part of the time in which writes wait for copies, on average.
    waiting: f64,
    /// Looks at which it was not hot any more, one after the other.
    cool: u32,
    /// See [`Upkeep::writes_bearable`].
    writes_bearable: f64,
}

/// What was seen of a key with copies since the last look.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub seconds: f64,
    /// Reads a second at home.
    pub reads: f64,
    /// Reads that copies have answered, and writes that were executed.
    pub answered: f64,
    pub written: f64,
    /// Seconds in which a write waited until no copy was read any more.
    pub waited: f64,
    pub value_bytes: u32,
    /// There are so many copies beside the original.
    pub copies: usize,
    /// Servers that it heats ask for copies.
    pub is_wanted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is to have so many copies at least, the original included.
    Copies(usize),
    /// It has no copies any more; `back_off` if it was written too often, and is to have none for a while.
    Cools { back_off: bool },
}

impl Upkeep {
    /// Of a key that is to get copies.
    pub fn new(rates: Rates) -> Upkeep {
        let (elsewhere, answered, written, waiting) = (0.0, 0.0, 0.0, 0.0);
        let writes_bearable = f64::INFINITY;
        Upkeep { rates, elsewhere, answered, written, waiting, cool: 0, writes_bearable }
    }

    /// Reads a second that copies answer, on average; of all that [`Upkeep::rates`] says.
    pub fn elsewhere(&self) -> f64 {
        self.elsewhere.min(self.rates.reads)
    }

    /// Writes a second that would wait for copies for as long as they may, by what those of this key have shown that waited for longer. Infinity:
    /// none has.
    pub fn writes_bearable(&self) -> f64 {
        self.writes_bearable
    }

    /// What is to become of the copies.
    pub fn look(&mut self, policy: &Policy, seen: &Seen) -> Verdict {
        let Seen { seconds, answered, written, waited, value_bytes, .. } = *seen;
        let waits = (waited / seconds).min(1.0);
        self.waiting += (waits - self.waiting) / 8.0;
        self.answered = self.answered * LEDGER_KEEPS + answered;
        self.written = self.written * LEDGER_KEEPS + written;
        // Shadows tell of their reads a few times a second.
        self.elsewhere += (answered / seconds - self.elsewhere) / 2.0;
        self.rates.writes += (written / seconds - self.rates.writes) / 4.0;
        let reads = seen.reads + self.elsewhere;
        // An epoch has some ten samples of a key at T: copies would come and go by chance. No chance halves what is read.
        let share = if 2.0 * reads < self.rates.reads { 2.0 } else { 4.0 };
        self.rates.reads += (reads - self.rates.reads) / share;
        let twice = Rates { reads: self.rates.reads * 2.0, ..self.rates };
        // Until its shadows have let go it is looked at again.
        let has_ended = self.cool >= COOL_LOOKS;
        let is_a_loss = self.is_a_loss(policy, seen.copies) || self.waiting > WAITING_MAX;
        if is_a_loss && waits > WAITING_MAX {
            let writes = (written / seconds).max(f64::MIN_POSITIVE);
            self.writes_bearable = writes * rounds(WAITING_MAX) / rounds(waits);
        }
        let is_hot = policy.copies(&twice, value_bytes) > 1
            || seen.is_wanted && policy.allowed(&twice) >= 2.0;
        match is_hot {
            _ if has_ended || is_a_loss => self.cool = COOL_LOOKS,
            false => self.cool += 1,
            true => self.cool = 0,
        }
        if self.cool < COOL_LOOKS {
            return Verdict::Copies(policy.copies(&self.rates, value_bytes));
        }
        let is_read = Rates { writes: 0.0, ..twice };
        let is_written = is_a_loss || seen.is_wanted || policy.copies(&is_read, value_bytes) > 1;
        Verdict::Cools { back_off: !has_ended && is_written }
    }

    /// Copies have answered less than half of what so many of them are to: averages hear of that late.
    fn is_a_loss(&self, policy: &Policy, copies: usize) -> bool {
        let due = policy.reads_per_write * copies as f64 * self.written;
        self.written >= WRITES_THAT_SHOW && 2.0 * self.answered < due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP: Policy = Policy { threshold: 100.0, reads_per_write: 9.0 };
    const DEAR: Policy = Policy { threshold: 100.0, reads_per_write: 18.0 };

    fn rates(reads: f64, writes: f64) -> Rates {
        Rates { reads, writes, sample: 0.0 }
    }

    #[test]
    fn a_copy_answers_a_part_of_what_a_server_does_whatever_the_target() {
        assert_eq!(threshold(4, 1e6, &[0.0], 1.05), f64::INFINITY);
        let least = 5_000.0;
        assert_eq!(threshold(4, 1e6, &[100.0; 50], 0.5), least);
        let demand = Demand { tracked: vec![100.0; 50], requests: 1e6, keys: 1e6, bins: 4 };
        assert_eq!(virtual_threshold(&demand, 0.5).requests_per_copy, least);
    }

    #[test]
    fn a_key_has_as_many_copies_as_t_says_and_its_writes_allow() {
        let cases = [
            (CHEAP, 100.0, 0.0, 0, 1),
            (CHEAP, 101.0, 0.0, 0, 2),
            (CHEAP, 1_000.0, 0.0, 0, 10),
            (CHEAP, 100.0, 0.0, 4096, 2),
            (CHEAP, 990.0, 10.0, 0, 10),
            (CHEAP, 9_900.0, 100.0, 0, 12),
            (DEAR, 9_900.0, 100.0, 0, 6),
            (CHEAP, 900.0, 100.0, 0, 2),
            (DEAR, 900.0, 100.0, 0, 1),
            (CHEAP, 890.0, 110.0, 0, 1),
            (CHEAP, 0.0, 1_000.0, 0, 1),
            (CHEAP, 1e9, 0.0, 0, 255),
            (CHEAP, f64::NAN, 0.0, 0, 1),
        ];
        for case @ (policy, reads, writes, bytes, wanted) in cases {
            assert_eq!(policy.copies(&rates(reads, writes), bytes), wanted, "{case:?}");
        }
    }

    #[test]
    fn a_key_that_is_a_little_over_t_has_copies_when_that_has_lasted() {
        let copies = |now, lately: Option<f64>| {
            let lately = lately.map(|reads| rates(reads, 0.0));
            CHEAP.copies_for_new(&rates(now, 0.0), lately.as_ref(), 0)
        };
        let cases = [
            (140.0, None, 1),
            (140.0, Some(99.0), 1),
            (140.0, Some(101.0), 2),
            (80.0, Some(101.0), 2),
            (160.0, None, 2),
            (450.0, Some(99.0), 5),
        ];
        for case @ (now, lately, wanted) in cases {
            assert_eq!(copies(now, lately), wanted, "{case:?}");
        }
    }

    #[test]
    fn a_key_in_whose_few_samples_no_write_fell_is_not_copied_by_chance() {
        let copies = |policy: Policy, samples: f64, writes: f64, sample: f64| {
            let (reads, writes) = ((samples - writes) * sample, writes * sample);
            let rates = Rates { reads, writes, sample };
            policy.copies_for_new(&rates, Some(&rates), 0)
        };
        let cases = [
            (CHEAP, 8.0, 0.0, 50.0, 1),
            (CHEAP, 9.0, 0.0, 50.0, 2),
            (CHEAP, 30.0, 1.0, 50.0, 2),
            (DEAR, 17.0, 0.0, 50.0, 1),
            (DEAR, 18.0, 0.0, 50.0, 2),
            (DEAR, 90.0, 0.0, 50.0, 6),
            (DEAR, 90.0, 4.0, 50.0, 1),
        ];
        for case @ (policy, samples, writes, sample, wanted) in cases {
            assert_eq!(copies(policy, samples, writes, sample), wanted, "{case:?}");
        }
    }

    /// Looks of a fifth of a second at a key with one copy.
    fn seen(reads: f64, answered: f64, written: f64) -> Seen {
        let (seconds, waited, value_bytes, copies, is_wanted) = (0.2, 0.0, 0, 1, false);
        Seen { seconds, reads, answered, written, waited, value_bytes, copies, is_wanted }
    }

    #[test]
    fn copies_go_when_their_key_was_not_hot_for_five_looks() {
        let mut upkeep = Upkeep::new(rates(1_000.0, 0.0));
        let verdicts = [(); 12].map(|()| upkeep.look(&CHEAP, &seen(0.0, 0.0, 0.0)));
        assert_eq!(verdicts[..8], [5, 3, 2, 1, 1, 1, 1, 1].map(Verdict::Copies));
        assert_eq!(verdicts[8..], [Verdict::Cools { back_off: false }; 4]);
    }

    #[test]
    fn reads_that_copies_answer_keep_them() {
        let mut upkeep = Upkeep::new(rates(300.0, 0.0));
        for _ in 0..50 {
            assert_eq!(upkeep.look(&CHEAP, &seen(150.0, 30.0, 0.0)), Verdict::Copies(3));
        }
        assert_eq!(upkeep.rates.reads.round(), 300.0);
    }

    #[test]
    fn copies_stay_as_long_as_a_server_wants_one_unless_writes_forbid_it() {
        let last = |written| {
            let mut upkeep = Upkeep::new(rates(90.0, 0.0));
            let seen = Seen { is_wanted: true, ..seen(0.0, 18.0, written) };
            [(); 40].map(|()| upkeep.look(&CHEAP, &seen))[39]
        };
        assert_eq!(last(0.0), Verdict::Copies(1));
        assert_eq!(last(6.0), Verdict::Cools { back_off: false }, "it has cooled before");
        assert!(CHEAP.allows(&rates(9.0, 1.0)) && !CHEAP.allows(&rates(8.0, 1.0)));
    }

    #[test]
    fn a_key_is_hot_by_itself_when_it_takes_a_quarter_of_a_worker() {
        // Two workers answer 30,000 requests a second in one and a half seconds.
        assert_eq!(own_threshold(30_000.0, 1.5), 5_000.0);
        assert_eq!(own_threshold(0.0, 0.0), f64::INFINITY);
    }

    #[test]
    fn a_key_that_is_written_too_often_cools_and_is_left_alone_for_a_while() {
        let mut upkeep = Upkeep::new(rates(1_000.0, 0.0));
        let cools = Verdict::Cools { back_off: true };
        let at = (0..20).position(|_| upkeep.look(&CHEAP, &seen(500.0, 0.0, 60.0)) == cools);
        assert!(at.is_some(), "300 writes a second for 500 reads");
        assert_eq!(upkeep.look(&CHEAP, &seen(500.0, 0.0, 0.0)), Verdict::Cools { back_off: false });
    }

    #[test]
    fn copies_that_answer_less_than_half_of_what_their_writes_cost_are_a_loss() {
        let is_a_loss = |policy: Policy, answered: f64, written: f64, copies| {
            let mut upkeep = Upkeep::new(rates(1e6, 0.0));
            let seen = Seen { copies, ..seen(1e6, answered, written) };
            [(); 3].map(|()| upkeep.look(&policy, &seen))[2] == Verdict::Cools { back_off: true }
        };
        let cases = [
            (DEAR, 0.0, 2.0, 1, false),
            (DEAR, 0.0, 3.0, 1, true),
            (DEAR, 26.0, 3.0, 1, true),
            (DEAR, 28.0, 3.0, 1, false),
            (DEAR, 28.0, 3.0, 2, true),
            (CHEAP, 13.0, 3.0, 1, true),
            (CHEAP, 14.0, 3.0, 1, false),
        ];
        for case @ (policy, answered, written, copies, expected) in cases {
            assert_eq!(is_a_loss(policy, answered, written, copies), expected, "{case:?}");
        }
    }

    #[test]
    fn copies_go_when_writes_wait_for_them_for_an_eighth_of_the_time() {
        let cools_at = |waited: [f64; 10]| {
            let mut upkeep = Upkeep::new(rates(1e6, 0.0));
            let look = |waited| {
                let seen = Seen { waited, ..seen(1e6, 1e6, 1.0) };
                upkeep.look(&DEAR, &seen) == Verdict::Cools { back_off: true }
            };
            waited.map(look).iter().position(|cools| *cools)
        };
        assert_eq!(cools_at([0.02; 10]), None, "a tenth of a look");
        assert_eq!(cools_at([0.1; 10]), Some(2), "half of it");
        let mut once = [0.0; 10];
        once[0] = 0.83;
        assert_eq!(cools_at(once), None, "a copy was silent");
    }

    #[test]
    fn copies_tell_how_many_writes_would_wait_for_as_long_as_they_may() {
        let mut upkeep = Upkeep::new(rates(1e6, 0.0));
        assert_eq!(upkeep.writes_bearable(), f64::INFINITY);
        // A round of letting go takes 2 ms, one of telling as long: of 100 writes in a fifth of a second most wait with others.
        let waited = 0.2 * (0.002 * 500.0) / (1.0 + 2.0 * 0.002 * 500.0);
        while upkeep.look(&DEAR, &Seen { waited, ..seen(1e6, 1e6, 100.0) })
            != (Verdict::Cools { back_off: true })
        {}
        let bearable = upkeep.writes_bearable();
        assert!((75.0..95.0).contains(&bearable), "{bearable}: an eighth of the time");
    }
}
