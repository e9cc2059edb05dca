//! A ring whose lookup costs the same for any number of servers: points on a circle of 32-bit hashes, with a table of where to
//! begin to look. The kernel's data plane reads it as it is.
//!
//! ```text
//!   hash  0 ───────────────────────────────────────────► 2^32
//!   slots │    0    │    1    │    2    │    3    │           equal shares of the hashes, a power of two
//!   first │    0    │    2    │    2    │    3    │           the first point of the slot, or behind it
//!   points   ·    ·                ·         ·        (·)     a hash belongs to the first one at it or behind it; behind
//!             0    1                2         3        4       the last one begins the circle again: a point more says so
//! ```

use std::fmt;

/// Points that a ring may have: 160 for each of 100 servers, and some.
pub const POINTS_MAX: usize = 16_384;
/// Slots that a ring may have.
pub const SLOTS_MAX: usize = 32_768;
/// Points that a lookup may look at.
pub const STEPS_MAX: usize = 16;

/// The keys whose hash is up to here, and above the point before, go to this upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub at: u32,
    /// Its place in the caller's list.
    pub upstream: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContinuumError {
    NoPoint,
    /// More than [`POINTS_MAX`].
    Points(usize),
    /// More than [`STEPS_MAX`] points are close together.
    Dense(usize),
}

impl fmt::Display for ContinuumError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ContinuumError::NoPoint => write!(f, "a ring without points"),
            ContinuumError::Points(count) => write!(f, "{count} points, at most {POINTS_MAX}"),
            ContinuumError::Dense(count) => {
                write!(f, "{count} points in one slot, at most {STEPS_MAX}")
            }
        }
    }
}

impl std::error::Error for ContinuumError {}

#[derive(Clone, Debug)]
pub struct Continuum {
    /// Of a hash, to its slot.
    shift: u32,
    first: Vec<u16>,
    points: Vec<Point>,
}

impl Continuum {
    /// Of points in any order. Where several are at one place, the first of them counts.
    pub fn new(mut points: Vec<Point>) -> Result<Continuum, ContinuumError> {
        if points.len() > POINTS_MAX {
            return Err(ContinuumError::Points(points.len()));
        }
        points.sort_by_key(|point| point.at);
        points.dedup_by_key(|point| point.at);
        let wraps = points.first().ok_or(ContinuumError::NoPoint)?.upstream;
        let mut slots = (2 * points.len()).next_power_of_two();
        let (shift, steps) = loop {
            let shift = 32 - slots.ilog2();
            let longest = points.chunk_by(|a, b| a.at >> shift == b.at >> shift).map(<[_]>::len);
            // One step more: to the first point of the slots behind.
            let steps = longest.max().expect("there is a point") + 1;
            if steps <= STEPS_MAX || slots == SLOTS_MAX {
                break (shift, steps);
            }
            slots *= 2;
        };
        if steps > STEPS_MAX {
            return Err(ContinuumError::Dense(steps));
        }
        let first = (0..slots as u32)
            .map(|slot| points.partition_point(|point| point.at < slot << shift) as u16)
            .collect();
        points.push(Point { at: u32::MAX, upstream: wraps });
        Ok(Continuum { shift, first, points })
    }

    pub fn upstream(&self, hash: u32) -> u32 {
        let first = usize::from(self.first[(hash >> self.shift) as usize]);
        let found = self.points[first..].iter().find(|point| hash <= point.at);
        found.expect("the last point is at the highest hash").upstream
    }

    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// Of each slot, its place among [`Continuum::points`].
    pub fn first(&self) -> &[u16] {
        &self.first
    }

    /// In order; the last one is the first one again.
    pub fn points(&self) -> &[Point] {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mbal_random::Random;

    /// A lookup finds what a search in all points finds, at the points and beside them.
    #[test]
    fn a_lookup_finds_the_first_point_at_or_behind_a_hash() {
        for servers in [1, 2, 12, 100] {
            let mut random = Random::new(servers);
            let points: Vec<Point> = (0..160 * servers)
                .map(|i| Point { at: random.word() as u32, upstream: (i % servers) as u32 })
                .collect();
            let continuum = Continuum::new(points.clone()).unwrap();
            let search = |hash| {
                let behind = points.iter().filter(|point| point.at >= hash);
                behind.min_by_key(|point| point.at).or(points.iter().min_by_key(|point| point.at))
            };
            let beside =
                |point: &Point| [point.at, point.at.wrapping_sub(1), point.at.wrapping_add(1)];
            let hashes = points.iter().step_by(servers as usize).flat_map(beside);
            let random = (0..1000).map(|_| random.word() as u32).collect::<Vec<_>>();
            for hash in hashes.chain(random).chain([0, u32::MAX]) {
                let expected = search(hash).unwrap().upstream;
                assert_eq!(continuum.upstream(hash), expected, "{servers} servers, {hash:x}");
            }
            assert!(continuum.first().len() <= SLOTS_MAX);
        }
    }

    #[test]
    fn a_ring_has_points_but_not_too_many_nor_too_close() {
        let points =
            |count: u32, step| (0..count).map(move |i| Point { at: i * step, upstream: 0 });
        let error = |points: Vec<Point>| Continuum::new(points).unwrap_err();
        assert_eq!(error(Vec::new()), ContinuumError::NoPoint);
        assert_eq!(error(points(16_385, 1).collect()), ContinuumError::Points(16_385));
        assert_eq!(error(points(16, 1).collect()), ContinuumError::Dense(17));
        assert!(Continuum::new(points(15, 1).collect()).is_ok());
        assert!(Continuum::new(points(16_384, 1 << 18).collect()).is_ok());
    }
}
