//! Stack distances of a cache for as long as it runs: what a server's workers share, and what a proxy has of its pool.
//!
//! A shown request costs 300 to 430 instructions, so it must be few of a busy cache's. They are shown in bursts, with rests
//! between ([`Bursts`]). A sketch forgets no key, so that keys that nobody asks for any more would crowd out the others. Every few
//! hours it has a successor, which learns beside it before it takes its place.

use super::StackDistances;
use super::of_cache::Chosen;
use crate::Curve;

/// Keys that a sketch holds: 0.35 MB, and twice that while it has a successor. As many as fit into its table.
const SAMPLES_MOST: usize = 12_000;
/// Requests that are shown in a burst: ten for each key, so that what was not seen before it matters little.
const BURST: u32 = 1 << 17;
/// A burst is paid for by so many requests for each that it shows, or by time.
const REQUESTS_PER_SHOWN: u64 = 25;
const SHOWN_PER_SECOND: u64 = 500;
/// A sketch counts for so long, and its successor learns for so long before.
const RENEWED_EVERY: u32 = 6 * 3600;
const LEARNS: u32 = 1800;
/// Once a minute what is known weighs so much of itself: a curve tells of the last hour.
const FADES_EVERY: u32 = 60;
const FADES_TO: f64 = 0.983;
/// While a sketch learns it takes many keys for new, which miss at every size. So it tells of the last ten minutes.
const LEARNING_FADES_TO: f64 = 0.9;

/// Sketches that follow one another. Seconds are of any clock that does not go back.
pub struct LastingDistances {
    counting: Sketch,
    learning: Option<Sketch>,
    bursts: Bursts,
    /// The cache's reads that they were told of.
    reads: u64,
    faded: u32,
}

struct Sketch {
    distances: StackDistances,
    /// All reads, seen or not, that fade like those that are counted.
    reads: f64,
    since: u32,
}

impl Sketch {
    fn new(since: u32) -> Sketch {
        Sketch { distances: StackDistances::new(SAMPLES_MOST), reads: 0.0, since }
    }

    fn fade(&mut self, share: f64) {
        self.distances.fade(share);
        self.reads *= share;
    }
}

/// When a cache's requests are shown: so many one after another, and then none until that is paid for.
///
/// ```text
///   shown        BURST   rests                       BURST   rests
///   ─────────── ▆▆▆▆▆▆▆ ··························· ▆▆▆▆▆▆▆ ················
///               requests / 25 + seconds × 500 ≥ BURST
/// ```
///
/// Where less is shown than is paid for, one burst follows on another.
struct Bursts {
    /// When the last one began, and how many requests there were by then.
    began: u32,
    requests: u64,
    left: u32,
}

impl Bursts {
    fn new() -> Bursts {
        Bursts { began: 0, requests: 0, left: BURST }
    }

    fn rests(&self) -> bool {
        self.left == 0
    }

    /// Whether the next one begins.
    fn goes_on(&mut self, second: u32, requests: u64) -> bool {
        let seconds = u64::from(second.saturating_sub(self.began));
        let by_requests = requests.saturating_sub(self.requests) / REQUESTS_PER_SHOWN;
        let paid = by_requests + seconds * SHOWN_PER_SECOND;
        if paid >= u64::from(BURST) {
            *self = Bursts { began: second, requests, left: BURST };
        }
        !self.rests()
    }
}

impl Default for LastingDistances {
    fn default() -> LastingDistances {
        LastingDistances {
            counting: Sketch::new(0),
            learning: None,
            bursts: Bursts::new(),
            reads: 0,
            faded: 0,
        }
    }
}

impl LastingDistances {
    fn sketches(&mut self) -> impl Iterator<Item = &mut Sketch> {
        std::iter::once(&mut self.counting).chain(&mut self.learning)
    }

    /// The sketch that counts; and its successor, while that learns.
    pub fn each(&mut self) -> impl Iterator<Item = &mut StackDistances> {
        self.sketches().map(|sketch| &mut sketch.distances)
    }

    /// It is this second: what is old fades, and who has learned takes over.
    pub fn pass_to(&mut self, second: u32) {
        if self.faded + FADES_EVERY <= second {
            self.faded = second;
            self.sketches().for_each(|sketch| {
                let learns = second < sketch.since + LEARNS;
                sketch.fade(if learns { LEARNING_FADES_TO } else { FADES_TO });
            });
        }
        match &self.learning {
            None if self.counting.since + RENEWED_EVERY <= second => {
                self.learning = Some(Sketch::new(second));
            }
            Some(learning) if learning.since + LEARNS <= second => {
                self.counting = self.learning.take().expect("it has just been seen");
            }
            _ => {}
        }
    }

    /// So many reads in all, ever. Those while it rests are taken to be like the others.
    pub fn count(&mut self, reads: u64) {
        let more = reads - std::mem::replace(&mut self.reads, reads);
        let rests = self.bursts.rests();
        self.sketches().for_each(|sketch| {
            sketch.reads += more as f64;
            sketch.distances.count(if rests { 0 } else { more });
        });
    }

    /// Nothing is shown now.
    #[inline]
    pub fn rests(&self) -> bool {
        self.bursts.rests()
    }

    /// Whether the next burst begins, with so many requests in all. Its reads have been counted.
    pub fn goes_on(&mut self, second: u32, requests: u64) -> bool {
        self.bursts.goes_on(second, requests)
    }

    /// One more request is shown, to each. `reads` in all are counted before it rests.
    #[inline]
    pub fn spend(&mut self, reads: impl FnOnce() -> u64) {
        let shown = 1 + u32::from(self.learning.is_some());
        if self.bursts.left <= shown {
            self.count(reads());
        }
        self.bursts.left = self.bursts.left.saturating_sub(shown);
    }

    /// What any of them samples.
    pub fn chosen(&mut self) -> Chosen {
        Chosen { most: self.each().map(|one| one.chosen().most).max().expect("one counts") }
    }

    /// By bytes, of the last hour.
    pub fn curve(&self) -> Curve {
        self.counting.distances.by_bytes().of_requests(self.counting.reads)
    }

    pub fn state_bytes(&self) -> u64 {
        let learning = self.learning.iter().map(|one| one.distances.state_bytes());
        (self.counting.distances.state_bytes() + learning.sum::<usize>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_paid_for_by_requests_or_by_time() {
        let burst = u64::from(BURST);
        for (seconds, requests, goes_on) in [
            (0, 0, false),
            (1, 24 * burst, false),
            (1, 25 * burst, true),
            (200, 0, false),
            (263, 0, true),
            (132, 25 * burst / 2, true),
        ] {
            let mut bursts = Bursts { began: 1_000, requests: 7, left: 0 };
            assert_eq!(
                bursts.goes_on(1_000 + seconds, 7 + requests),
                goes_on,
                "{seconds} {requests}"
            );
            assert_eq!(bursts.rests(), !goes_on);
        }
    }
}
