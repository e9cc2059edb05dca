//! How long a change of ranks is felt: from the moment that other keys become the hot ones until the rate is what it is
//! otherwise.

use crate::summary::Spread;
use crate::timeline::Row;

/// Relief is a rate of at least this part of the steady one.
const RELIEVED: f64 = 0.9;
/// A single interval above may be chance.
const INTERVALS: usize = 2;

/// Seconds from each change, every `period` seconds, to the start of the first intervals that are relieved; a change that never
/// was counts as a whole period. The steady rate is the median of all intervals in the second halves of the periods. The start
/// of the run is no change.
pub fn seconds(rows: &[Row], period: f64) -> Option<Spread> {
    let width = rows.first()?.second;
    let begins = |row: &Row| row.second - width;
    let late = rows.iter().filter(|row| begins(row) % period >= period / 2.0);
    let steady = Spread::of(late.map(|row| row.requests_per_second).collect())?.median;
    let end = rows.last()?.second;
    let changes = (1..).map(|nth| f64::from(nth) * period);
    let changes = changes.take_while(|at| at + period <= end + width / 2.0);
    let relief = changes.map(|at| {
        // An interval that the change falls into is of both.
        let after = |row: &&Row| at - 1e-6 <= begins(row) && row.second <= at + period + 1e-6;
        let after: Vec<&Row> = rows.iter().filter(after).collect();
        let is_well = |row: &&Row| row.requests_per_second >= RELIEVED * steady;
        let found = after.windows(INTERVALS).find(|some| some.iter().all(is_well));
        found.map_or(period, |some| begins(some[0]) - at)
    });
    Spread::of(relief.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rates: &[f64]) -> Vec<Row> {
        let row = |(at, rate): (usize, &f64)| Row {
            second: (at + 1) as f64 * 0.5,
            requests_per_second: *rate,
            offered_per_second: None,
            keys_per_second: *rate,
            hit_ratio: None,
            latency_us: None,
            lag_p99_us: None,
            workers_per_second: Vec::new(),
        };
        rates.iter().enumerate().map(row).collect()
    }

    #[test]
    fn relief_is_two_intervals_near_the_steady_rate() {
        let period = |dip: &[f64]| [dip, &vec![100.0; 8 - dip.len()]].concat();
        let all = [period(&[10.0; 4]), period(&[20.0, 30.0]), period(&[20.0, 95.0, 40.0, 80.0])];
        let spread = seconds(&rows(&all.concat()), 4.0).unwrap();
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 1.5, 2.0));
    }

    #[test]
    fn who_is_never_relieved_counts_as_a_period_and_a_part_of_one_does_not() {
        let all = [vec![100.0; 16], vec![50.0; 8], vec![100.0; 8], vec![10.0; 4]].concat();
        let spread = seconds(&rows(&all), 4.0).unwrap();
        assert_eq!((spread.min, spread.median, spread.max), (0.0, 0.0, 4.0));
        assert_eq!(seconds(&rows(&[100.0; 4]), 4.0), None);
    }
}
