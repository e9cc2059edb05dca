//! A stream with the shape that NetKV (ICAC 2016) §IV.B publishes for Wikipedia: of 28 million
//! requests the top 25 keys make 22%, and 3.2 million keys have at most ten.
//!
//! Both facts fix the two parameters of a Zipf distribution, its exponent and its number of keys.

use mbal_sketch::Random;

pub const REQUESTS: usize = 28_000_000;
const TOP_SHARE: f64 = 0.22;
const RARE_KEYS: f64 = 3.2e6;

/// Zipf over `keys` ranks with `exponent`.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub exponent: f64,
    pub keys: usize,
}

/// The exponent and number of keys that match both facts, by bisection.
pub fn shape() -> Shape {
    let keys = bisect(1e6, 2e7, |keys| rare_keys(matching_exponent(keys as usize)) < RARE_KEYS);
    matching_exponent(keys as usize)
}

fn matching_exponent(keys: usize) -> Shape {
    let exponent = bisect(0.5, 1.5, |exponent| {
        let shape = Shape { exponent, keys };
        shape.weight(25) / shape.weight(keys) < TOP_SHARE
    });
    Shape { exponent, keys }
}

// Expected number of keys that occur between once and ten times.
fn rare_keys(shape: Shape) -> f64 {
    let per_weight = REQUESTS as f64 / shape.weight(shape.keys);
    let mut rare = 0.0;
    let (mut rank, mut step) = (1.0_f64, 1.0_f64);
    while rank < shape.keys as f64 {
        let expected = per_weight * (rank + step / 2.0).powf(-shape.exponent);
        if expected < 60.0 {
            let (mut term, mut sum) = ((-expected).exp(), 0.0);
            for times in 1..=10 {
                term *= expected / f64::from(times);
                sum += term;
            }
            rare += sum * step;
        }
        rank += step;
        step = (rank / 200.0).max(1.0);
    }
    rare
}

fn bisect(mut low: f64, mut high: f64, too_low: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if too_low(middle) { low = middle } else { high = middle }
    }
    low
}

impl Shape {
    // Σ rank^-exponent to `rank`: exact for the head, Euler and Maclaurin for the tail.
    fn weight(&self, rank: usize) -> f64 {
        let head = rank.min(1_000);
        let sum: f64 = (1..=head).map(|rank| (rank as f64).powf(-self.exponent)).sum();
        if rank == head {
            return sum;
        }
        let (low, high, power) = (head as f64, rank as f64, 1.0 - self.exponent);
        let integral = if power.abs() < 1e-9 {
            (high / low).ln()
        } else {
            (high.powf(power) - low.powf(power)) / power
        };
        sum + integral + (high.powf(-self.exponent) - low.powf(-self.exponent)) / 2.0
    }

    /// Draws ranks from 1, O(1) each (Walker's alias method).
    pub fn ranks(self) -> Ranks {
        let weights: Vec<f64> =
            (1..=self.keys).map(|rank| (rank as f64).powf(-self.exponent)).collect();
        Ranks::new(&weights)
    }
}

pub struct Ranks {
    keep: Vec<f32>,
    alias: Vec<u32>,
}

impl Ranks {
    pub fn new(weights: &[f64]) -> Ranks {
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        let mut scaled: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..weights.len() as u32).partition(|&at| scaled[at as usize] < 1.0);
        let mut ranks =
            Ranks { keep: vec![1.0; weights.len()], alias: (0..weights.len() as u32).collect() };
        while let (Some(low), Some(&high)) = (small.pop(), large.last()) {
            ranks.keep[low as usize] = scaled[low as usize] as f32;
            ranks.alias[low as usize] = high;
            scaled[high as usize] -= 1.0 - scaled[low as usize];
            if scaled[high as usize] < 1.0 {
                large.pop();
                small.push(high);
            }
        }
        ranks
    }

    #[inline]
    pub fn draw(&self, bits: &mut Random) -> usize {
        let random = bits.word();
        let at = (((random >> 32) * self.keep.len() as u64) >> 32) as usize;
        let kept = (random as u32 as f32) * (1.0 / 4_294_967_296.0) < self.keep[at];
        1 + if kept { at } else { self.alias[at] as usize }
    }
}
