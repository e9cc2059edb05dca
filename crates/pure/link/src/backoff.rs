//! How long to wait before a link is tried again.

/// Before the first attempt that follows a failure, at most.
const PAUSE_NS_MIN: u64 = 20_000_000;
/// However many have failed.
pub const PAUSE_NS_MAX: u64 = 1_000_000_000;
/// More change nothing.
const DOUBLINGS_MAX: u32 = 16;

/// Twice as long after every failure, up to a bound, and a part of it by chance: the links of many workers to a server
/// that returns do not all knock at the same moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Nanoseconds until the next attempt, after one more failure. `jitter` is any number.
    pub fn failed(&mut self, jitter: u64) -> u64 {
        let pause = (PAUSE_NS_MIN << self.failures).min(PAUSE_NS_MAX);
        self.failures = (self.failures + 1).min(DOUBLINGS_MAX);
        pause / 2 + jitter % (pause / 2)
    }

    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second_and_half_of_each_is_chance() {
        let mut backoff = Backoff::default();
        for pause_ms in [20, 40, 80, 160, 320, 640, 1000, 1000] {
            let (mut least, mut most) = (backoff, backoff);
            assert_eq!(least.failed(0), pause_ms * 500_000);
            assert_eq!(most.failed(pause_ms * 500_000 - 1), pause_ms * 1_000_000 - 1);
            backoff.failed(5);
        }
        for _ in 0..200 {
            assert!(backoff.failed(u64::MAX) < PAUSE_NS_MAX);
        }
        backoff.succeeded();
        assert_eq!(backoff.failed(0), 10_000_000);
    }
}
