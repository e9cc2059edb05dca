//! What kind of run a seed makes.

use mbal_cachelet::Options;
use mbal_worker::Settings;

use super::dice::Dice;
use super::history::{Kind, Micros};

pub struct Key {
    pub name: String,
    pub kind: Kind,
}

impl Key {
    pub fn hash(&self) -> u64 {
        mbal_model::Key::new(self.name.as_bytes()).expect("short enough").hash()
    }
}

pub struct Profile {
    pub workers: usize,
    pub cachelets: usize,
    pub memory_bytes: usize,
    /// Memory is short: items are evicted.
    pub tight: bool,
    /// Values need many pages, and output reaches its bound.
    pub long: bool,
    pub item_bytes_max: usize,
    pub requests_per_event: u32,
    /// Values are at most this long, and mostly much shorter.
    pub value_bytes_max: u64,
    pub keys: Vec<Key>,
    pub clients: usize,
    /// Of these, so many know the workers, and ask each for its own.
    pub smart: usize,
    pub strangers: usize,
    /// Requests that a client sends at once, at most.
    pub burst_max: u64,
    /// How long a client waits between two bursts.
    pub think: Micros,
    /// The longest way between client and server.
    pub delay: Micros,
    /// Percent of a worker's turns in which it loses its core, and for how long.
    pub slow_percent: usize,
    pub slow: Micros,
    /// The balancer's.
    pub epoch: Micros,
    pub patience: u32,
    pub rest_epochs: u32,
    /// A virtual worker is slow in the balancer's eyes: each of its moments counts for so many.
    pub heavy: u64,
    /// Between two changes by the operator, at most.
    pub meddle: Micros,
}

const MEMORY_ROOMY: usize = 8 << 20;
const MEMORY_TIGHT: usize = 1 << 20;

impl Profile {
    pub fn roll(dice: &mut Dice) -> Profile {
        let long = dice.percent(8);
        let tight = dice.percent(if long { 60 } else { 25 });
        let workers = dice.between(2..=4) as usize;
        let clients = dice.between(3..=8) as usize;
        Profile {
            workers,
            cachelets: dice.pick(&[4, 8, 16]),
            memory_bytes: if tight { MEMORY_TIGHT << usize::from(long) } else { MEMORY_ROOMY },
            tight,
            long,
            item_bytes_max: if long { 256 << 10 } else { dice.pick(&[1 << 20, 16 << 10]) },
            requests_per_event: dice.pick(&[512, 512, 20, 3]),
            value_bytes_max: if long { 240_000 } else { dice.pick(&[200, 2_000, 8_000]) },
            keys: keys(dice),
            clients,
            smart: dice.below(clients + 1),
            strangers: dice.between(0..=2) as usize,
            burst_max: dice.pick(&[1, 4, 16, 40]),
            think: dice.pick(&[2_000, 50_000, 400_000]),
            delay: dice.pick(&[20, 500, 20_000]),
            slow_percent: dice.pick(&[0, 1, 5]),
            slow: dice.pick(&[2_000, 50_000, 400_000]),
            epoch: dice.pick(&[20_000, 200_000, 1_000_000]),
            patience: dice.pick(&[1, 2, 4]),
            rest_epochs: dice.pick(&[2, 10]),
            heavy: dice.pick(&[1, 100, 2_000]),
            meddle: dice.pick(&[5_000, 50_000, 200_000]),
        }
    }

    pub fn options(&self) -> Options {
        Options {
            memory_bytes: self.memory_bytes,
            workers: self.workers,
            cachelets: self.cachelets,
            item_bytes_max: self.item_bytes_max,
            evict: true,
            generation: 7,
        }
    }

    pub fn settings(&self) -> Settings {
        Settings {
            memory_bytes: self.memory_bytes as u64,
            workers: self.workers as u16,
            item_bytes_max: self.item_bytes_max,
            requests_per_event: self.requests_per_event,
            ..Settings::default()
        }
    }
}

fn keys(dice: &mut Dice) -> Vec<Key> {
    let count = dice.between(12..=48);
    let salt = dice.bits() as u16;
    let key = |index: u64| {
        let kind = match index % 6 {
            0 => Kind::Log,
            1 => Kind::Number,
            _ => Kind::Register,
        };
        let mut name = format!("{kind:?}-{index}-{salt:04x}");
        if index % 7 == 3 {
            name.push_str(&"k".repeat(180));
        }
        Key { name, kind }
    };
    (0..count).map(key).collect()
}
