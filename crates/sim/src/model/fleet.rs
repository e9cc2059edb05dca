//! Servers as queues: first come, first served, one at a time (Lindley's recursion).

/// Delays in buckets an eighth of a power of two wide.
#[derive(Clone)]
pub struct Delays {
    buckets: Vec<u64>,
}

/// A bucket's bounds differ by this factor.
const STEPS_PER_DOUBLING: u32 = 8;

impl Default for Delays {
    fn default() -> Delays {
        Delays { buckets: vec![0; 40 * STEPS_PER_DOUBLING as usize] }
    }
}

impl Delays {
    /// `delay` in service times, at least one.
    #[inline]
    pub fn note(&mut self, delay: f64) {
        // The bits of a float are its logarithm, near enough: exponent and three bits of mantissa.
        let bucket = ((delay.max(1.0).to_bits() >> 49) - (1023 << 3)) as usize;
        let last = self.buckets.len() - 1;
        self.buckets[bucket.min(last)] += 1;
    }

    /// That share of all delays is at most this, in service times; linear within a bucket.
    pub fn at(&self, share: f64) -> f64 {
        let total: u64 = self.buckets.iter().sum();
        let mut left = total as f64 * share;
        for (bucket, &count) in self.buckets.iter().enumerate() {
            if left <= count as f64 && total > 0 {
                let edge = |bucket: u64| f64::from_bits((bucket + (1023 << 3)) << 49);
                let (low, high) = (edge(bucket as u64), edge(bucket as u64 + 1));
                return low + (high - low) * left / count as f64;
            }
            left -= count as f64;
        }
        0.0
    }

    pub fn add(&mut self, other: &Delays) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(one, more)| *one += more);
    }

    pub fn clear(&mut self) {
        self.buckets.fill(0);
    }
}

/// Time in service times of one request.
pub struct Fleet {
    free_at: Vec<f64>,
    pub served: Vec<u32>,
    pub delays: Delays,
}

impl Fleet {
    pub fn new(queues: usize) -> Fleet {
        Fleet { free_at: vec![0.0; queues], served: vec![0; queues], delays: Delays::default() }
    }

    /// A request arrives; its delay is waiting and service.
    #[inline]
    pub fn serve(&mut self, queue: usize, now: f64, service: f64) {
        let done = self.free_at[queue].max(now) + service;
        self.free_at[queue] = done;
        self.served[queue] += 1;
        self.delays.note(done - now);
    }

    /// Work that is no request, such as sending a cachelet away.
    pub fn occupy(&mut self, queue: usize, now: f64, services: f64) {
        self.free_at[queue] = self.free_at[queue].max(now) + services;
    }

    /// Work that waits in a queue: how long until it is idle.
    pub fn backlog(&self, queue: usize, now: f64) -> f64 {
        (self.free_at[queue] - now).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_while_another_is_served_waits() {
        let mut fleet = Fleet::new(1);
        fleet.serve(0, 0.0, 1.0);
        fleet.serve(0, 0.5, 1.0);
        assert_eq!(fleet.backlog(0, 0.5), 1.5);
        assert_eq!(fleet.backlog(0, 5.0), 0.0);
    }

    #[test]
    fn a_percentile_is_right_to_two_percent_where_delays_are_dense() {
        let mut delays = Delays::default();
        (1..=1_000).for_each(|delay| delays.note(f64::from(delay)));
        for (share, exact) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0)] {
            let ratio = delays.at(share) / exact;
            assert!((0.98..=1.02).contains(&ratio), "{share}: {ratio}");
        }
    }
}
