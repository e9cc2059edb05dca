//! Where a smart client's batch reads keys that have copies: at workers that it asks for other keys anyway, if any of them has one
//! ([`mbal_replica::choose_place`]). There a read costs a key, elsewhere a turn.
//!
//! Workers are asked as if independently of each other, as everywhere in mean values.

use super::network::involved;

/// By worker: its share of keys, and how likely a batch asks it for any.
#[derive(Clone, Debug, Default)]
pub struct BatchShares {
    pub shares: Vec<f64>,
    pub often: Vec<f64>,
}

/// Points at which the mean of a choice is taken, and their weights (Gauss and Legendre, eight of them, in 0 to 1).
const POINTS: [(f64, f64); 8] = [
    (0.019855, 0.050614),
    (0.101667, 0.111191),
    (0.237234, 0.156853),
    (0.408283, 0.181342),
    (0.591717, 0.181342),
    (0.762766, 0.156853),
    (0.898333, 0.111191),
    (0.980145, 0.050614),
];

impl BatchShares {
    /// Whoever has keys is asked for them.
    pub fn by_chance(shares: Vec<f64>, batch: f64) -> BatchShares {
        let often = shares.iter().map(|share| involved(*share, batch)).collect();
        BatchShares { shares, often }
    }

    /// A key with this share of reads joins, which any of these places may answer. Returns which part each answers.
    pub fn join(&mut self, places: &[usize], share: f64, batch: f64) -> Vec<f64> {
        let comes = involved(share, batch);
        // How likely each is asked for other keys, in a batch that has the key.
        let without = |place: &usize| {
            let apart = 1.0 - (1.0 - self.often[*place]).powf(1.0 / batch);
            let neither = (1.0 - apart - share).max(0.0).powf(batch);
            (((1.0 - apart).powf(batch) - neither) / comes.max(1e-12)).clamp(0.0, 1.0)
        };
        let without: Vec<f64> = places.iter().map(without).collect();
        let nobody: f64 = without.iter().product();
        let each = nobody / places.len() as f64;
        // One among those that are asked: the mean of 1 / (1 + others that are) is an integral over t of all (1 - a + a t).
        let all_at = |t: f64| without.iter().map(|not| not + (1.0 - not) * t).product::<f64>();
        let points = POINTS.map(|(t, weight)| (t, weight * all_at(t)));
        let among = |not: &f64| {
            let sum: f64 = points.iter().map(|(t, all)| all / (not + (1.0 - not) * t)).sum();
            (1.0 - not) * sum + each
        };
        let parts: Vec<f64> = without.iter().map(among).collect();
        let sum: f64 = parts.iter().sum();
        for (place, part) in places.iter().zip(&parts) {
            self.shares[*place] += share * part / sum;
            self.often[*place] = (self.often[*place] + comes * each).min(1.0);
        }
        parts.iter().map(|part| part / sum).collect()
    }
}

#[cfg(test)]
mod tests {
    use mbal_random::Random;
    use mbal_replica::choose_place;

    use super::*;

    /// The same by drawing batches: the last key's reads by place, and how often each worker is asked.
    fn drawn(own: &[f64], places: &[usize], batch: usize) -> (Vec<f64>, Vec<f64>) {
        const BATCHES: usize = 40_000;
        let mut random = Random::new(5);
        let (mut reads, mut often) = (vec![0.0; places.len()], vec![0.0; own.len()]);
        for _ in 0..BATCHES {
            let mut asked = vec![false; own.len()];
            let mut copied = 0;
            for _ in 0..batch {
                let mut left = random.unit();
                let worker = own.iter().position(|share| {
                    left -= share;
                    left <= 0.0
                });
                worker.map_or_else(|| copied += 1, |worker| asked[worker] = true);
            }
            for _ in 0..copied {
                let word = random.word() as u32;
                let at = choose_place(places.len(), |at| asked[places[at]], word);
                asked[places[at]] = true;
                reads[at] += 1.0;
            }
            asked.iter().zip(&mut often).for_each(|(is, often)| *often += f64::from(u8::from(*is)));
        }
        let all: f64 = reads.iter().sum();
        reads.iter_mut().for_each(|one| *one /= all);
        often.iter_mut().for_each(|one| *one /= BATCHES as f64);
        (reads, often)
    }

    #[test]
    fn means_are_as_drawn_batches_have_them() {
        let cases: [(&[f64], &[usize], usize); 4] = [
            (&[0.1, 0.1, 0.1, 0.1], &[0, 1, 2, 3], 1),
            (&[0.02, 0.1, 0.2, 0.1], &[0, 1, 2], 4),
            (&[0.05, 0.3, 0.02, 0.03], &[0, 2, 3], 12),
            (&[0.2, 0.1, 0.1, 0.1], &[1, 3], 30),
        ];
        for case @ (own, places, batch) in cases {
            let mut asked = BatchShares::by_chance(own.to_vec(), batch as f64);
            let share = 1.0 - own.iter().sum::<f64>();
            let parts = asked.join(places, share, batch as f64);
            let (reads, often) = drawn(own, places, batch);
            for (mean, drawn) in parts.iter().chain(&asked.often).zip(reads.iter().chain(&often)) {
                assert!(
                    (mean - drawn).abs() < 0.03,
                    "{case:?}: {parts:?} {asked:?} {reads:?} {often:?}"
                );
            }
        }
    }
}
