//! Figures for people.

use hdrhistogram::Histogram;

/// What a figure is counted in.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Unit {
    Micros,
    Seconds,
    Count,
    /// 1 is all.
    Share,
    Ratio,
    /// As a count, and 0 is as it should be: told only where it is not.
    Fault,
}

impl Unit {
    /// For people: three digits or more, and the unit that makes them few.
    pub fn shown(self, value: f64) -> String {
        match self {
            _ if !value.is_finite() => "none".into(),
            Self::Micros if value < 1e3 => scaled(value, "µs"),
            Self::Micros if value < 1e6 => scaled(value / 1e3, "ms"),
            Self::Micros => scaled(value / 1e6, "s"),
            Self::Seconds => scaled(value, "s"),
            Self::Count | Self::Fault => grouped(value),
            Self::Ratio => format!("{value:.2}"),
            Self::Share => format!("{:.2}%", value * 100.0),
        }
    }
}

fn scaled(value: f64, unit: &str) -> String {
    match value {
        small if small < 10.0 => format!("{value:.2} {unit}"),
        middle if middle < 100.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

/// Whole, in groups of three.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let first = digits.len() % 3;
    let groups = digits.as_bytes().iter().enumerate().flat_map(|(place, digit)| {
        let comma = place > 0 && place % 3 == first;
        comma.then_some(',').into_iter().chain([char::from(*digit)])
    });
    groups.collect()
}

/// Nothing where nothing was recorded.
pub fn quantile_us(recorded: &Histogram<u64>, quantile: f64) -> Option<f64> {
    (!recorded.is_empty()).then(|| recorded.value_at_quantile(quantile) as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_unit_in_which_they_are_short() {
        for (unit, value, shown) in [
            (Unit::Micros, 0.382, "0.38 µs"),
            (Unit::Micros, 585.7, "586 µs"),
            (Unit::Micros, 1_255.4, "1.26 ms"),
            (Unit::Micros, 28_459.0, "28.5 ms"),
            (Unit::Micros, 1_290_000.0, "1.29 s"),
            (Unit::Seconds, 0.5, "0.50 s"),
            (Unit::Count, 7.0, "7"),
            (Unit::Count, 79_779.4, "79,779"),
            (Unit::Count, 1_000_000.0, "1,000,000"),
            (Unit::Share, 0.0, "0.00%"),
            (Unit::Share, 1.0, "100.00%"),
            (Unit::Micros, f64::NAN, "none"),
        ] {
            assert_eq!(unit.shown(value), shown, "{unit:?} {value}");
        }
    }
}
