//! What is asked for: shares of cachelets and of the hottest keys, by a law of popularity.

use std::sync::Arc;

use mbal_model::{Key, Owner, Prefix};
use mbal_random::Scatter;

use super::situation::{Law, Names, Shift, Situation};

/// Keys that are looked at one by one, the hottest first: what may have copies.
const HOTTEST: usize = 64;

/// Of the keys, where one worker's are hot: the hot ones.
pub const ONE_WORKERS_KEYS: f64 = 0.05;

/// Of so many hottest keys every fifth may be read-only.
const PARTLY_READ_ONLY: usize = 500;
const READ_ONLY_EVERY: usize = 5;

/// From one shift to the next.
#[derive(Clone, Debug)]
pub struct Demand {
    /// By cachelet: its part of all operations, that of its hottest keys included.
    pub shares: Vec<f64>,
    pub hottest: Vec<HotKey>,
    /// Of the operations on all other keys.
    pub sets: f64,
    keys: Arc<Vec<HashShare>>,
}

/// A key's hash, and its part of all operations.
#[derive(Clone, Copy, Debug)]
struct HashShare {
    hash: u64,
    share: f64,
}

#[derive(Clone, Debug)]
pub struct HotKey {
    pub name: Vec<u8>,
    pub hash: u64,
    pub cachelet: usize,
    /// Of all operations.
    pub share: f64,
    /// Of its own operations.
    pub sets: f64,
}

impl Demand {
    /// `cachelets`: the first map.
    pub fn new(situation: &Situation, shift: &Shift, cachelets: &[(Prefix, Owner)]) -> Demand {
        let scatter = Scatter::new(u64::from(situation.keys));
        let name = |number: u32| match (situation.names, shift.law) {
            (Names::Drawn, _) => format!("k{:x}-{number}", shift.salt & 0xffff).into_bytes(),
            (Names::Bench { bytes }, Law::OneWorker { .. }) => {
                format!("{number:0bytes$}").into_bytes()
            }
            (Names::Bench { bytes }, _) => {
                format!("{:0bytes$}", scatter.place(u64::from(number))).into_bytes()
            }
        };
        let prefixes: Vec<Prefix> = cachelets.iter().map(|(prefix, _)| *prefix).collect();
        let hash_of = |number: u32| Key::new(&name(number)).expect("a short name").hash();
        let hashes: Vec<u64> = (0..situation.keys).map(hash_of).collect();
        let places: Vec<usize> = hashes.iter().map(|hash| place(&prefixes, *hash)).collect();
        let weights = weights(situation, shift, &places, cachelets);
        let sum: f64 = weights.iter().sum();
        let own_sets = |number: usize| match shift.law {
            Law::OneKey { sets, .. } if number == 0 => sets,
            Law::PartlyReadOnly { .. }
                if number < PARTLY_READ_ONLY && number % READ_ONLY_EVERY == 0 =>
            {
                0.0
            }
            _ => shift.sets,
        };
        let keys = hashes.iter().zip(&weights);
        let keys = keys.map(|(hash, weight)| HashShare { hash: *hash, share: weight / sum });
        let keys: Vec<HashShare> = keys.collect();
        let mut order: Vec<usize> = (0..weights.len()).collect();
        let by_weight = |a: &usize, b: &usize| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b));
        if order.len() > HOTTEST {
            order.select_nth_unstable_by(HOTTEST, by_weight);
            order.truncate(HOTTEST);
        }
        order.sort_by(by_weight);
        let hottest = order.into_iter().map(|number| HotKey {
            name: name(number as u32),
            hash: hashes[number],
            cachelet: places[number],
            share: weights[number] / sum,
            sets: own_sets(number),
        });
        let (hottest, keys) = (hottest.collect(), Arc::new(keys));
        Demand { hottest, shares: Vec::new(), sets: shift.sets, keys }.by(&prefixes)
    }

    /// Of cachelets that nobody splits.
    #[cfg(test)]
    pub fn of_cachelets(shares: Vec<f64>, hottest: Vec<HotKey>) -> Demand {
        Demand { shares, hottest, sets: 0.0, keys: Arc::default() }
    }

    /// The same by other cachelets, in the order of their hashes.
    pub fn by(&self, prefixes: &[Prefix]) -> Demand {
        let mut shares = vec![0.0; prefixes.len()];
        for key in &*self.keys {
            shares[place(prefixes, key.hash)] += key.share;
        }
        let mut hottest = self.hottest.clone();
        hottest.iter_mut().for_each(|key| key.cachelet = place(prefixes, key.hash));
        Demand { shares, hottest, sets: self.sets, keys: Arc::clone(&self.keys) }
    }
}

/// Which of the cachelets has a hash.
fn place(prefixes: &[Prefix], hash: u64) -> usize {
    prefixes.partition_point(|prefix| prefix.first_hash() <= hash) - 1
}

/// By key.
fn weights(
    situation: &Situation,
    shift: &Shift,
    places: &[usize],
    cachelets: &[(Prefix, Owner)],
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
    match shift.law {
        Law::Zipf { exponent } | Law::PartlyReadOnly { exponent } => zipf(exponent).collect(),
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
        Law::OneCachelet { share } => {
            let hot = shift.hot_one_of(cachelets.len());
            parted(&places.iter().map(|place| *place == hot).collect::<Vec<_>>(), share)
        }
        Law::OneWorker { share } => {
            let worker = shift.hot_one_of(situation.all_workers());
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
