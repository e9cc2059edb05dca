//! An axis: its range, its ticks and their labels.

use super::{TEXT_SIZE, text_width};

/// Labels on one axis: more of them are read by nobody.
const TICKS_MAX: usize = 9;
/// Between two labels.
const AIR: f64 = 6.0;

pub struct Axis {
    low: f64,
    high: f64,
    log: bool,
    /// All values are whole: so are the ticks.
    whole: bool,
    /// Pixels; upright if it goes from a larger to a smaller one.
    from: f64,
    to: f64,
}

impl Axis {
    /// Linear ones begin at 0, logarithmic ones at the least value.
    pub fn over(values: impl Iterator<Item = f64>, log: bool, from: f64, to: f64) -> Axis {
        let (mut low, mut high) = (if log { f64::INFINITY } else { 0.0 }, f64::NEG_INFINITY);
        let mut whole = true;
        for value in values.filter(|value| value.is_finite() && (!log || *value > 0.0)) {
            low = low.min(value);
            high = high.max(value);
            whole &= value.fract() == 0.0;
        }
        if !low.is_finite() {
            low = 1.0;
        }
        Axis { low, high: if high > low { high } else { low + 1.0 }, log, whole, from, to }
    }

    pub fn shows(&self, value: f64) -> bool {
        value.is_finite() && (!self.log || value > 0.0)
    }

    pub fn place(&self, value: f64) -> f64 {
        let share = match self.log {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.from + share * (self.to - self.from)
    }

    pub fn widest_label(&self) -> f64 {
        self.ticks().into_iter().map(|at| text_width(&label(at), TEXT_SIZE)).fold(0.0, f64::max)
    }

    /// Of a logarithmic axis 1, 2 and 5 in each decade, or 1 and 3, or decades, or every so many of them: the first
    /// that fit and are at least three. A short one, and a linear one, have equal steps.
    pub fn ticks(&self) -> Vec<f64> {
        let equal = [6.0, 4.0, 3.0, 2.0].map(|steps| self.equal_steps(steps));
        let mut choices = if self.log { self.decades() } else { Vec::new() };
        choices.retain(|ticks| self.fits(ticks));
        let in_decades = choices.iter().find(|ticks| ticks.len() >= 3).cloned();
        let in_steps = || equal.into_iter().find(|ticks| ticks.len() >= 2 && self.fits(ticks));
        let two = || choices.iter().find(|ticks| ticks.len() == 2).cloned();
        in_decades.or_else(in_steps).or_else(two).unwrap_or_else(|| vec![self.high])
    }

    fn decades(&self) -> Vec<Vec<f64>> {
        let steps: [(&[f64], usize); 6] = [
            (&[1.0, 2.0, 5.0], 1),
            (&[1.0, 3.0], 1),
            (&[1.0], 1),
            (&[1.0], 2),
            (&[1.0], 3),
            (&[1.0], 5),
        ];
        let ticks = |(steps, every): (&[f64], usize)| {
            let powers = (-30..30).step_by(every);
            self.within(powers.flat_map(|power| steps.iter().map(move |s| s * 10f64.powi(power))))
        };
        steps.map(ticks).into()
    }

    fn within(&self, values: impl Iterator<Item = f64>) -> Vec<f64> {
        // A decade is seldom exactly what it was computed to.
        let (low, high) = (self.low * (1.0 - 1e-9), self.high * (1.0 + 1e-9));
        values.filter(|at| (low..=high).contains(at)).collect()
    }

    /// About so many, or fewer.
    fn equal_steps(&self, count: f64) -> Vec<f64> {
        let rough = (self.high - self.low) / count;
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| *step >= rough).expect("ten times is enough");
        let step = if self.whole { step.max(1.0) } else { step };
        let first = (self.low / step).ceil() as i64;
        (first..).map(|index| index as f64 * step).take_while(|at| *at <= self.high).collect()
    }

    /// Are they few, do all read differently, and does no label touch the next?
    fn fits(&self, ticks: &[f64]) -> bool {
        let extent = |at: f64| match self.to < self.from {
            true => TEXT_SIZE,
            false => text_width(&label(at), TEXT_SIZE),
        };
        let touches = |pair: &[f64]| {
            let [one, next] = [pair[0], pair[1]];
            let apart = (self.place(next) - self.place(one)).abs();
            label(one) == label(next) || apart < (extent(one) + extent(next)) / 2.0 + AIR
        };
        ticks.len() <= TICKS_MAX && !ticks.windows(2).any(touches)
    }
}

/// Four digits, and the unit's letter or exponent.
pub fn label(value: f64) -> String {
    let digits = |value: f64| (value * 1e4).round() / 1e4;
    match value.abs() {
        0.0 => "0".into(),
        big if big >= 1e9 => format!("{}G", digits(value / 1e9)),
        big if big >= 1e6 => format!("{}M", digits(value / 1e6)),
        big if big >= 1e4 => format!("{}k", digits(value / 1e3)),
        small if small < 1e-3 => {
            let few: f64 = format!("{value:.3e}").parse().expect("a number was printed");
            format!("{few:e}")
        }
        _ => digits(value).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(low: f64, high: f64, log: bool, length: f64) -> Vec<String> {
        let axis = Axis::over([low, high].into_iter(), log, 0.0, length);
        axis.ticks().into_iter().map(label).collect()
    }

    #[test]
    fn a_short_logarithmic_axis_has_ticks() {
        assert_eq!(labels(8.61, 9.34, true, 222.0), ["8.8", "9", "9.2"]);
        assert_eq!(labels(650.5, 820.5, true, 284.0), ["700", "750", "800"]);
    }

    #[test]
    fn decades_below_a_thousandth_are_told_apart() {
        let ticks = ["1e-6", "1e-5", "1e-4", "0.001", "0.01", "0.1", "1"];
        assert_eq!(labels(1e-6, 1.0, true, 400.0), ticks);
    }

    #[test]
    fn there_are_no_half_threads() {
        assert_eq!(labels(1.0, 2.0, false, 284.0), ["0", "1", "2"]);
    }

    #[test]
    fn ticks_are_few_distinct_and_apart_whatever_the_range() {
        for log in [false, true] {
            for low in [1e-9, 0.000_12, 0.7, 3.0, 127.3, 1e6] {
                for factor in [1.000_1, 1.3, 2.5, 9.0, 300.0, 1e5, 1e9] {
                    for (from, to) in [(0.0, 284.0), (222.0, 0.0), (0.0, 544.0)] {
                        let axis = Axis::over([low, low * factor].into_iter(), log, from, to);
                        let ticks = axis.ticks();
                        let what = format!("{low} times {factor}, log {log}: {ticks:?}");
                        assert!((1..=TICKS_MAX).contains(&ticks.len()), "{what}");
                        assert!(axis.fits(&ticks), "{what}");
                        assert!(ticks.len() > 1 || factor < 1.001, "{what}");
                        let frame = from.min(to) - 0.1..=from.max(to) + 0.1;
                        assert!(ticks.iter().all(|at| frame.contains(&axis.place(*at))), "{what}");
                    }
                }
            }
        }
    }
}
