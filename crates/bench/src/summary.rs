//! Many rounds as a few numbers: medians, spreads, and ratios of what was measured side by side.

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` without values. The median of an even number is the mean of the middle two.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let lower = if values.len() % 2 == 0 { middle - 1 } else { middle };
        Some(Self { median: (values[lower] + values[middle]) / 2.0, min, max })
    }

    /// Of each round's ratio to the first peer's figure in that same round, which drift cannot bend.
    /// Rounds where the base is zero or either figure is missing have none.
    pub fn of_paired_ratios(figures: &[Option<f64>], base: &[Option<f64>]) -> Option<Self> {
        let ratio = |pair: (&Option<f64>, &Option<f64>)| match pair {
            (Some(figure), Some(base)) if *base != 0.0 => Some(figure / base),
            _ => None,
        };
        Self::of(figures.iter().zip(base).filter_map(ratio).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        let spread = |median, min, max| Some(Spread { median, min, max });
        assert_eq!(Spread::of(vec![]), None);
        assert_eq!(Spread::of(vec![3.0, 1.0, 9.0]), spread(3.0, 1.0, 9.0));
        assert_eq!(Spread::of(vec![3.0, 1.0, 9.0, 5.0]), spread(4.0, 1.0, 9.0));
    }

    #[test]
    fn ratios_are_taken_within_a_round_before_their_median() {
        // Each round is 10% better although the machine slows down threefold: the medians' ratio would say less.
        let base = [Some(10.0), Some(20.0), Some(30.0), None, Some(0.0)];
        let figures = [Some(9.0), Some(18.0), Some(27.0), Some(1.0), Some(1.0)];
        let ratio = Spread::of_paired_ratios(&figures, &base).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (0.9, 0.9, 0.9));
    }
}
