//! What is asked for: shares of cachelets and of the hottest keys, by a law of popularity.

use mbal_model::{Key, Owner, Prefix};
use mbal_random::Random;

use super::situation::{Law, Shift, Situation};

/// Keys that are looked at one by one, the hottest first: what may have copies.
const HOTTEST: usize = 64;

/// Of the keys, where one worker's are hot: the hot ones.
const ONE_WORKERS_KEYS: f64 = 0.05;

/// From one shift to the next.
#[derive(Clone, Debug)]
pub struct Demand {
    /// By cachelet: its part of all operations, that of its hottest keys included.
    pub shares: Vec<f64>,
    pub hottest: Vec<HotKey>,
}

#[derive(Clone, Debug)]
pub struct HotKey {
    pub name: Vec<u8>,
    pub cachelet: usize,
    /// Of all operations.
    pub share: f64,
    /// Of its own operations.
    pub sets: f64,
}

impl Demand {
    /// `cachelets`: the first map. They stay the same as long as nothing is split.
    pub fn new(situation: &Situation, shift: &Shift, cachelets: &[(Prefix, Owner)]) -> Demand {
        let mut random = Random::new(shift.salt);
        let name = |number: u32| format!("k{:x}-{number}", shift.salt & 0xffff).into_bytes();
        let cachelet_of = |name: &[u8]| {
            let hash = Key::new(name).expect("a short name").hash();
            cachelets.partition_point(|(prefix, _)| prefix.first_hash() <= hash) - 1
        };
        let places: Vec<usize> =
            (0..situation.keys).map(|number| cachelet_of(&name(number))).collect();
        let weights = weights(situation, &shift.law, &places, cachelets, &mut random);
        let sum: f64 = weights.iter().sum();
        let own_sets = |number: usize| match shift.law {
            Law::OneKey { sets, .. } if number == 0 => sets,
            _ => situation.sets,
        };
        let mut shares = vec![0.0; cachelets.len()];
        for (place, weight) in places.iter().zip(&weights) {
            shares[*place] += weight / sum;
        }
        let mut order: Vec<usize> = (0..weights.len()).collect();
        let by_weight = |a: &usize, b: &usize| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b));
        if order.len() > HOTTEST {
            order.select_nth_unstable_by(HOTTEST, by_weight);
            order.truncate(HOTTEST);
        }
        order.sort_by(by_weight);
        let hottest = order.into_iter().map(|number| HotKey {
            name: name(number as u32),
            cachelet: places[number],
            share: weights[number] / sum,
            sets: own_sets(number),
        });
        Demand { hottest: hottest.collect(), shares }
    }
}

/// By key.
fn weights(
    situation: &Situation,
    law: &Law,
    places: &[usize],
    cachelets: &[(Prefix, Owner)],
    random: &mut Random,
) -> Vec<f64> {
    let count = places.len();
    let zipf = |exponent: f64| (1..=count).map(move |rank| (rank as f64).powf(-exponent));
    // The share of the first ones, and of the others.
    let parted = |is_hot: &[bool], share: f64| -> Vec<f64> {
        let hot = is_hot.iter().filter(|is_hot| **is_hot).count().max(1) as f64;
        let cold = (count as f64 - hot).max(1.0);
        let weight = |is_hot: &bool| if *is_hot { share / hot } else { (1.0 - share) / cold };
        is_hot.iter().map(weight).collect()
    };
    match *law {
        Law::Zipf { exponent } => zipf(exponent).collect(),
        Law::HotSet { keys, share } => {
            let hot = (count as f64 * keys).ceil() as usize;
            parted(&(0..count).map(|at| at < hot).collect::<Vec<_>>(), share)
        }
        Law::OneKey { share, exponent, .. } => {
            let mut weights: Vec<f64> = zipf(exponent).collect();
            let others: f64 = weights[1..].iter().sum();
            weights[0] = share / (1.0 - share) * others;
            weights
        }
        Law::OneWorker { share } => {
            let worker = random.below(situation.all_workers() as u64) as usize;
            let owner = {
                let mut owners: Vec<Owner> = cachelets.iter().map(|(_, owner)| *owner).collect();
                owners.sort_unstable();
                owners.dedup();
                owners[worker]
            };
            let mut left = (count as f64 * ONE_WORKERS_KEYS).ceil() as usize;
            let is_hot = |place: &usize| {
                let is_hot = left > 0 && cachelets[*place].1 == owner;
                left -= usize::from(is_hot);
                is_hot
            };
            parted(&places.iter().map(is_hot).collect::<Vec<_>>(), share)
        }
    }
}
