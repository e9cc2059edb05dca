//! Which operation comes next, and for how long what it stores lives: shares, drawn at random.

use std::str::FromStr;

use mbal_random::Random;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Get,
    Set,
    Add,
    Delete,
    /// Adds one to a counter, which is not one of the other keys.
    Incr,
    /// Sets a key that is new.
    Insert,
    /// Gets a key and those after it.
    Scan,
    /// Gets a key, then sets it.
    ReadModifyWrite,
}

pub const OPS: [(&str, Op); 8] = [
    ("get", Op::Get),
    ("set", Op::Set),
    ("add", Op::Add),
    ("delete", Op::Delete),
    ("incr", Op::Incr),
    ("insert", Op::Insert),
    ("scan", Op::Scan),
    ("rmw", Op::ReadModifyWrite),
];

impl Op {
    pub fn reads(self) -> bool {
        matches!(self, Self::Get | Self::Scan | Self::ReadModifyWrite)
    }

    pub fn reads_only(self) -> bool {
        matches!(self, Self::Get | Self::Scan)
    }

    fn name(self) -> &'static str {
        OPS.iter().find(|(_, op)| *op == self).expect("every operation is in the table").0
    }
}

/// Things with a share each; shares sum up to 1.
#[derive(Clone, PartialEq, Debug)]
pub struct Shares<T> {
    /// What each adds to those before it.
    upto: Vec<(f64, T)>,
}

impl<T: Copy + PartialEq> Shares<T> {
    /// Weights of any sum above 0.
    pub fn new(weights: &[(T, f64)]) -> Self {
        let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
        assert!(sum > 0.0, "the caller has checked the weights");
        let upto = weights.iter().filter(|(_, weight)| *weight > 0.0).scan(
            0.0,
            |below, (thing, weight)| {
                *below += weight / sum;
                Some((*below, *thing))
            },
        );
        Self { upto: upto.collect() }
    }

    pub fn all(thing: T) -> Self {
        Self::new(&[(thing, 1.0)])
    }

    pub fn draw(&self, random: &mut Random) -> T {
        let last = self.upto[self.upto.len() - 1].1;
        if self.upto.len() == 1 {
            return last;
        }
        let unit = random.unit();
        self.upto.iter().find(|(upto, _)| unit <= *upto).map_or(last, |(_, thing)| *thing)
    }

    pub fn things(&self) -> impl Iterator<Item = T> {
        self.upto.iter().map(|(_, thing)| *thing)
    }

    /// Each with its share.
    pub fn shares(&self) -> Vec<(T, f64)> {
        let mut below = 0.0;
        self.upto
            .iter()
            .map(|&(upto, thing)| (thing, upto - std::mem::replace(&mut below, upto)))
            .collect()
    }
}

pub type Mix = Shares<Op>;
/// Seconds; 0 is for ever.
pub type Ttls = Shares<u32>;

/// `NAME:SHARE,…`, or a name alone.
fn shares<T: Copy + PartialEq>(text: &str, thing: impl Fn(&str) -> Option<T>) -> Option<Shares<T>> {
    let weight = |part: &str| match part.split_once(':') {
        Some((name, share)) => {
            let share =
                share.parse::<f64>().ok().filter(|share| *share >= 0.0 && share.is_finite())?;
            Some((thing(name)?, share))
        }
        None => Some((thing(part)?, 1.0)),
    };
    let weights = text.split(',').map(weight).collect::<Option<Vec<_>>>()?;
    (weights.iter().map(|(_, weight)| weight).sum::<f64>() > 0.0).then(|| Shares::new(&weights))
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let op = |name: &str| OPS.iter().find(|(known, _)| *known == name).map(|(_, op)| *op);
        let known = OPS.map(|(name, _)| name).join(", ");
        shares(text, op).ok_or_else(|| format!("{text:?} is not like get:0.9,set:0.1, of {known}"))
    }
}

impl FromStr for Ttls {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = |text: &str| text.parse().ok();
        shares(text, seconds).ok_or_else(|| format!("{text:?} is not like 60 or 60:0.5,300:0.5"))
    }
}

impl std::fmt::Display for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        for (index, (op, share)) in self.shares().into_iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{} {:.4}", op.name(), share)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_shares_that_were_asked() {
        let mix: Mix = "get:65,delete:22,set:13".parse().unwrap();
        let mut random = Random::new(5);
        let mut seen = [0f64; 3];
        for _ in 0..100_000 {
            let op = mix.draw(&mut random);
            seen[[Op::Get, Op::Delete, Op::Set].iter().position(|known| *known == op).unwrap()] +=
                1.0;
        }
        for (seen, share) in seen.iter().zip([0.65, 0.22, 0.13]) {
            let sigma = (1e5f64 * share * (1.0 - share)).sqrt();
            assert!((seen - 1e5 * share).abs() < 4.0 * sigma, "{share}: {seen}");
        }
        assert_eq!(mix.to_string(), "get 0.6500, delete 0.2200, set 0.1300");
    }

    #[test]
    fn one_thing_alone_takes_no_random_bits_and_nonsense_is_refused() {
        assert_eq!("60".parse::<Ttls>().unwrap().draw(&mut Random::new(1)), 60);
        for wrong in ["", "get:-1", "get:0", "put:1", "get:1,"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong:?}");
        }
        assert!("60:1,x:1".parse::<Ttls>().is_err());
    }
}
