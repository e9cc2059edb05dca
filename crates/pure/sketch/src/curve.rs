//! Miss-ratio curves, from weighted stack distances in buckets.

/// How often an LRU cache of a given size would miss. The unit of size, items or bytes, is
/// whoever's who made it.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Requests that hit in a cache as large as bucket i's upper edge.
    hits: Vec<f64>,
    requests: f64,
}

/// Sizes below this have a bucket each; above, as many buckets per power of two.
const PER_OCTAVE_LOG: u32 = 7;
const PER_OCTAVE: u64 = 1 << PER_OCTAVE_LOG;
/// Sizes up to 2^44, 16 TiB; what is larger counts as that.
const BUCKETS: usize = ((44 - PER_OCTAVE_LOG as usize) + 1) << PER_OCTAVE_LOG;

/// Sizes of a curve's [points](Curve::points): four for each doubling, from 16 KiB to 16 TiB.
const POINTS: usize = 4 * 30 + 1;

/// The size in bytes of a curve's point.
pub fn point_bytes(at: usize) -> u64 {
    let quarter = [1.0, 1.189_207, std::f64::consts::SQRT_2, 1.681_793][at % 4];
    ((16_384_u64 << (at / 4)) as f64 * quarter) as u64
}

fn bucket_of(size: u64) -> usize {
    if size < PER_OCTAVE {
        return size as usize;
    }
    let octave = 63 - size.leading_zeros() - PER_OCTAVE_LOG;
    let bucket = ((u64::from(octave) + 1) << PER_OCTAVE_LOG) + (size >> octave) - PER_OCTAVE;
    (bucket as usize).min(BUCKETS - 1)
}

/// As [`bucket_of`] its whole part: a float's exponent and first bits of mantissa are its logarithm.
#[inline]
fn bucket_of_float(size: f64) -> usize {
    const FIRST_OCTAVE: u64 = (1_023 + PER_OCTAVE_LOG as u64 - 1) << PER_OCTAVE_LOG;
    if size < PER_OCTAVE as f64 {
        return size as i32 as usize;
    }
    ((size.to_bits() >> (52 - PER_OCTAVE_LOG)) - FIRST_OCTAVE).min(BUCKETS as u64 - 1) as usize
}

/// The largest size in a bucket.
fn upper_edge(bucket: usize) -> u64 {
    let (octave, within) = (bucket as u64 >> PER_OCTAVE_LOG, bucket as u64 & (PER_OCTAVE - 1));
    match octave {
        0 => within,
        octave => ((PER_OCTAVE + within + 1) << (octave - 1)) - 1,
    }
}

/// Weighted stack distances in buckets of under 0.8% of their size.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    weights: Vec<f64>,
    misses: f64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { weights: vec![0.0; BUCKETS], misses: 0.0 }
    }
}

impl Histogram {
    #[inline]
    pub(crate) fn add(&mut self, distance: f64, weight: f64) {
        self.weights[bucket_of_float(distance)] += weight;
    }

    /// A first request misses at any size.
    #[inline]
    pub(crate) fn add_miss(&mut self, weight: f64) {
        self.misses += weight;
    }

    pub(crate) fn fade(&mut self, share: f64) {
        self.weights.iter_mut().for_each(|weight| *weight *= share);
        self.misses *= share;
    }

    pub(crate) fn state_bytes(&self) -> usize {
        self.weights.len() * size_of::<f64>()
    }

    /// `requests` were truly seen, the weights sum to what the samples stood for. The difference is
    /// mostly very hot keys that happened to be in the sample or not, so it is corrected at the
    /// smallest distances (SHARDS's adjustment).
    pub(crate) fn curve(&self, requests: f64) -> Curve {
        let mut sum = requests - self.misses - self.weights.iter().sum::<f64>();
        let hits = self.weights.iter().map(|weight| {
            sum += weight;
            sum.clamp(0.0, requests)
        });
        Curve { hits: hits.collect(), requests }
    }
}

impl Curve {
    /// The share of requests that miss in a cache of `size`; 1 while there were none. O(1).
    pub fn miss_ratio(&self, size: u64) -> f64 {
        if self.requests == 0.0 {
            return 1.0;
        }
        1.0 - self.hits_at(size as f64) / self.requests
    }

    /// The smallest size with at least this hit ratio; `None` if no size has it. O(log sizes).
    pub fn size_for_hit_ratio(&self, hit_ratio: f64) -> Option<u64> {
        let wanted = hit_ratio * self.requests;
        if wanted <= 0.0 {
            return Some(0);
        }
        let bucket = self.hits.partition_point(|&hits| hits < wanted);
        (bucket < BUCKETS).then(|| upper_edge(bucket))
    }

    /// The hit ratio of a cache that never evicts.
    pub fn hit_ratio_most(&self) -> f64 {
        self.hits[BUCKETS - 1] / self.requests.max(1.0)
    }

    pub fn requests(&self) -> f64 {
        self.requests
    }

    /// The same hit ratios, of so many requests: of a part of them it was told.
    pub fn of_requests(mut self, requests: f64) -> Curve {
        if self.requests > 0.0 {
            let part = requests / self.requests;
            self.hits.iter_mut().for_each(|hits| *hits *= part);
            self.requests = requests;
        }
        self
    }

    /// Requests that hit at each of [`point_bytes`], up to where more bytes are no help: what one server tells another of a
    /// curve by bytes.
    pub fn points(&self) -> Vec<u64> {
        let most = self.hits[BUCKETS - 1];
        let mut points = Vec::new();
        for at in 0..POINTS {
            let hits = self.hits_at(point_bytes(at) as f64);
            points.push(hits.round() as u64);
            if hits >= most {
                break;
            }
        }
        points
    }

    /// A curve from its [`points`](Curve::points), straight between them. More hits than requests are cut, and what falls
    /// is made flat: whatever is said, this is a curve.
    pub fn from_points(points: &[u64], requests: f64) -> Curve {
        let points = &points[..points.len().min(POINTS)];
        let (mut at, mut below) = (0, (0, 0.0));
        let hits = (0..BUCKETS).map(|bucket| {
            let size = upper_edge(bucket);
            while at < points.len() && point_bytes(at) <= size {
                below = (point_bytes(at), (points[at] as f64).clamp(below.1, requests));
                at += 1;
            }
            let Some(&next) = points.get(at) else { return below.1 };
            let next = (next as f64).clamp(below.1, requests);
            let part = (size - below.0) as f64 / (point_bytes(at) - below.0) as f64;
            below.1 + (next - below.1) * part
        });
        Curve { hits: hits.collect(), requests }
    }

    /// The curve of a cache that is partitioned by hash, from the curves of its parts, where a
    /// part has `share` of the whole memory.
    ///
    /// Exact for such a cache, which is what a cluster is. For one LRU over all keys it is an
    /// estimate, as good as the parts are alike. O(parts × sizes).
    pub fn merged(parts: &[(Curve, f64)]) -> Curve {
        let hits = (0..BUCKETS).map(|bucket| {
            let size = upper_edge(bucket) as f64;
            parts.iter().map(|(curve, share)| curve.hits_at(size * share)).sum()
        });
        Curve {
            hits: hits.collect(),
            requests: parts.iter().map(|(curve, _)| curve.requests).sum(),
        }
    }

    // Linear between the edges of buckets.
    fn hits_at(&self, size: f64) -> f64 {
        let bucket = bucket_of(size as u64);
        if bucket == 0 {
            return self.hits[0];
        }
        let (low, high) = (upper_edge(bucket - 1) as f64, upper_edge(bucket) as f64);
        let (below, above) = (self.hits[bucket - 1], self.hits[bucket]);
        below + (above - below) * ((size - low) / (high - low)).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_lies_within_its_buckets_edges() {
        for bucket in 1..BUCKETS {
            assert_eq!(bucket_of(upper_edge(bucket)), bucket);
            assert_eq!(bucket_of(upper_edge(bucket - 1) + 1), bucket);
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_float_is_where_its_whole_part_is() {
        let mut bits = crate::Random::new(1);
        for _ in 0..100_000 {
            let size = bits.word() >> (11 + bits.word() % 53);
            let float = (size as f64 + 0.9 * bits.unit()).min((size + 1) as f64 * (1.0 - 1e-15));
            assert_eq!(bucket_of_float(float), bucket_of(size), "{size} {float}");
        }
        assert_eq!(bucket_of_float(1e300), BUCKETS - 1);
    }

    #[test]
    fn buckets_are_under_one_percent_wide() {
        for bucket in PER_OCTAVE as usize..BUCKETS {
            let width = upper_edge(bucket) - upper_edge(bucket - 1);
            assert!(width as f64 <= 0.008 * upper_edge(bucket) as f64 + 1.0);
        }
    }

    #[test]
    fn size_and_ratio_are_each_others_inverse() {
        let mut histogram = Histogram::default();
        (1..=1_000).for_each(|distance| histogram.add(f64::from(distance), 1.0));
        let curve = histogram.curve(1_000.0);
        for percent in 1..=100_u64 {
            let size = curve.size_for_hit_ratio(percent as f64 / 100.0).expect("reachable");
            assert!(size.abs_diff(10 * percent) <= 8, "{percent}%: {size}");
            assert!(curve.miss_ratio(size) <= 1.0 - percent as f64 / 100.0 + 1e-9);
        }
        assert_eq!(histogram.curve(2_000.0).miss_ratio(0), 0.5, "unsampled hot keys hit");
    }

    #[test]
    fn a_curve_is_told_by_few_points() {
        let mut histogram = Histogram::default();
        (1..=1_000).for_each(|distance| histogram.add(f64::from(distance) * 10_000.0, 1.0));
        let curve = histogram.curve(1_250.0);
        let points = curve.points();
        assert!(points.len() < 40, "{points:?}");
        let told = Curve::from_points(&points, curve.requests());
        for size in (50_000..12_000_000).step_by(50_000) {
            let off = told.miss_ratio(size) - curve.miss_ratio(size);
            assert!(off.abs() < 0.005, "{size}: {off}");
        }
    }

    #[test]
    fn points_that_are_no_curve_become_one() {
        for points in [vec![], vec![9, 3, 700, 5], vec![u64::MAX; 200]] {
            let curve = Curve::from_points(&points, 100.0);
            let ratios: Vec<f64> = (10..44).map(|log| curve.miss_ratio(1 << log)).collect();
            assert!(ratios.is_sorted_by(|small, large| small >= large), "{ratios:?}");
            assert!(ratios.iter().all(|ratio| (0.0..=1.0).contains(ratio)), "{ratios:?}");
        }
    }

    #[test]
    fn no_requests_no_hits() {
        let curve = Histogram::default().curve(0.0);
        assert_eq!(curve.miss_ratio(1 << 40), 1.0);
        assert_eq!(curve.hit_ratio_most(), 0.0);
    }
}
