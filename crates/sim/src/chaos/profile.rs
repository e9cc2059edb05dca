//! What kind of run a seed makes.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use mbal_cachelet::Options;
use mbal_control::api::HotMode;
use mbal_control::{Member, State};
use mbal_model::{Address, Addresses, ClusterMap, Owner, Prefix, WorkerId};
use mbal_worker::Settings;

use super::dice::Dice;
use super::history::{Kind, Micros};
use super::hosts::id_of;

pub struct Key {
    pub name: String,
    pub kind: Kind,
    hash: u64,
}

/// A few keys are asked for so often that they are copied.
#[derive(Clone, Debug)]
pub struct Hot {
    pub mode: HotMode,
    pub lease: Micros,
    /// Which keys.
    pub keys: Vec<usize>,
    /// For copies, of each server.
    pub memory_bytes: u64,
}

pub struct Profile {
    pub servers: usize,
    /// Of each server.
    pub workers: usize,
    /// Those that the first map waits for; others join later.
    pub servers_first: usize,
    /// By server: its clock gains so many microseconds a second.
    pub drifts: Vec<i64>,
    /// By client, the same.
    pub client_drifts: Vec<i64>,
    pub hot: Option<Hot>,
    /// Servers own by leases in etcd, each of so long.
    pub ownership: Option<Micros>,
    /// What the coordinator begins with, if there are several servers; `None`: without a past.
    pub state: Option<State>,
    /// Between two heartbeats, and two epochs of the coordinator's planner.
    pub heartbeat: Micros,
    /// Operators have the cluster scaled, and between two looks of the autoscaler.
    pub autoscales: bool,
    pub look: Micros,
    /// The longest way to the coordinator, and the longest that it takes to save.
    pub call_delay: Micros,
    pub save: Micros,
    /// Between two wishes of the cluster's operators, at most.
    pub wish: Micros,
    /// Of a hundred troubles, so many kill a server, and so many stop one.
    pub deaths: usize,
    pub stops: usize,
    /// Requests on a link that may be unanswered.
    pub credits: u32,
    /// The longest way between two servers.
    pub link_delay: Micros,
    /// A request that is not answered for so long has failed.
    pub link_timeout: Micros,
    /// Between two troubles, at most, and how long one lasts.
    pub trouble: Micros,
    pub outage: Micros,
    pub cachelets: usize,
    /// Cachelets as narrow as this are not split.
    pub cachelet_bits_max: u32,
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

/// Of the cachelets that a server begins with; those of a map have its version, which is higher.
const GENERATION: u16 = 7;
const MAP_VERSION: u64 = 8;
/// Of a map.
const CACHELETS: RangeInclusive<u64> = 4..=12;
pub const BITS_MAX: u32 = 12;

/// Of clocks, in microseconds a second: far more than those of machines.
const DRIFTS: [i64; 4] = [0, 500, -500, 10_000];

/// Of a hundred runs of several servers so many have hot keys.
const HOT_PERCENT: usize = 20;
/// And in so many servers own by leases.
const OWNERSHIP_PERCENT: usize = 15;
/// And in so many an autoscaler says how many servers there are.
const AUTOSCALED_PERCENT: usize = 30;
const OWNERSHIP_LEASES: [Micros; 2] = [1_500_000, 3_000_000];
/// Clocks run apart by a tenth at most: what leases leave to them (docs/design/hotkeys.md).
const DRIFTS_OF_LEASES: [i64; 5] = [0, 20_000, -20_000, 45_000, -45_000];

const LINK_TIMEOUT_MIN: Micros = 500;
const LINK_TIMEOUT_MAX: Micros = 10_000_000;

const MEMORY_ROOMY: usize = 8 << 20;
const MEMORY_TIGHT: usize = 1 << 20;

impl Key {
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

impl Profile {
    /// `servers`: so many; any number if absent.
    pub fn roll(dice: &mut Dice, servers: Option<usize>) -> Profile {
        let servers = servers.unwrap_or_else(|| dice.pick(&[1, 1, 2, 3]));
        let is_hot = servers > 1 && dice.percent(HOT_PERCENT);
        let owns_by_leases = servers > 1 && dice.percent(OWNERSHIP_PERCENT);
        let long = !is_hot && dice.percent(8);
        // An item that is evicted at home is not told of to its copies.
        let tight = !is_hot && dice.percent(if long { 60 } else { 25 });
        let workers = dice.between(2..=if servers > 1 { 3 } else { 4 }) as usize;
        let clients = dice.between(3..=8) as usize;
        let cachelets: usize = dice.pick(&[4, 8, 16]);
        let keys = keys(dice);
        let link_delay =
            dice.pick(if is_hot { &[500, 20_000, 100_000] } else { &[20, 500, 20_000] });
        // Keys become hot within tenths of a second, and leases end within a second.
        let think = dice.pick(if is_hot || owns_by_leases {
            &[500_000, 1_000_000]
        } else if servers > 1 {
            &[10_000, 50_000, 400_000]
        } else {
            &[2_000, 50_000, 400_000]
        });
        let joins = servers > 1 && dice.percent(15);
        let servers_first = if joins { servers - 1 } else { servers };
        let is_old = servers > 1 && (tight || !dice.percent(8));
        let state = is_old.then(|| {
            let map = map(dice, &keys, servers_first, workers);
            state(servers_first, workers, Arc::new(map))
        });
        let has_leases = is_hot || owns_by_leases;
        let autoscales = servers > 1 && dice.percent(AUTOSCALED_PERCENT);
        let drifts: &[i64] = match dice.percent(if has_leases { 50 } else { 15 }) {
            true if has_leases => &DRIFTS_OF_LEASES,
            true => &DRIFTS,
            false => &[0],
        };
        let heartbeat = match has_leases {
            true => dice.pick(&[100_000, 200_000]),
            // A change of the size takes some twenty of them.
            false if autoscales => (think / 4).clamp(2_000, 50_000),
            false => (think * dice.pick(&[1, 2, 10])).clamp(2_000, 1_000_000),
        };
        Profile {
            servers,
            workers,
            servers_first,
            drifts: (0..servers).map(|_| dice.pick(drifts)).collect(),
            client_drifts: (0..clients).map(|_| dice.pick(drifts)).collect(),
            hot: is_hot.then(|| hot(dice, keys.len())),
            ownership: owns_by_leases.then(|| dice.pick(&OWNERSHIP_LEASES)),
            heartbeat,
            autoscales,
            look: 3 * heartbeat,
            call_delay: dice.pick(if autoscales { &[200, 5_000] } else { &[200, 5_000, 100_000] }),
            save: dice.pick(if autoscales { &[500, 5_000] } else { &[500, 20_000, 500_000] }),
            wish: match has_leases {
                true => 2_000_000,
                false if autoscales => think * 40,
                false => think * dice.pick(&[1, 4, 20]),
            },
            deaths: dice.pick(if autoscales { &[0, 0, 3] } else { &[0, 0, 3, 15] }),
            // A process that was stopped for longer than its lease goes on.
            stops: match owns_by_leases {
                true => dice.pick(&[10, 30, 45]),
                false => dice.pick(&[0, 0, 3, 15]),
            },
            credits: dice.pick(&[1, 4, 64, 1024]),
            link_delay,
            link_timeout: (link_delay * dice.pick(&[4, 50, 500]))
                .clamp(LINK_TIMEOUT_MIN, LINK_TIMEOUT_MAX),
            trouble: match has_leases {
                true if owns_by_leases => dice.pick(&[2_000_000, 5_000_000]),
                true => dice.pick(&[5_000_000, 20_000_000]),
                false if autoscales => think * dice.pick(&[20, 200]),
                false => think * dice.pick(&[2, 20, 200]),
            },
            outage: dice.pick(if owns_by_leases {
                &[2_000_000, 8_000_000]
            } else if is_hot {
                &[50_000, 1_000_000, 2_000_000]
            } else {
                &[1_000, 50_000, 2_000_000]
            }),
            cachelets,
            cachelet_bits_max: cachelets.trailing_zeros() + if servers > 1 { 10 } else { 4 },
            state,
            memory_bytes: if tight { MEMORY_TIGHT << usize::from(long) } else { MEMORY_ROOMY },
            tight,
            long,
            item_bytes_max: if long { 256 << 10 } else { dice.pick(&[1 << 20, 16 << 10]) },
            requests_per_event: dice.pick(&[512, 512, 20, 3]),
            value_bytes_max: if long { 240_000 } else { dice.pick(&[200, 2_000, 8_000]) },
            keys,
            clients,
            smart: dice.below(clients + 1),
            strangers: dice.between(0..=2) as usize,
            burst_max: dice.pick(if is_hot { &[2, 6] } else { &[1, 4, 16, 40] }),
            think,
            delay: dice.pick(&[20, 500, 20_000]),
            slow_percent: dice.pick(&[0, 1, 5]),
            slow: dice.pick(&[2_000, 50_000, 400_000]),
            epoch: match has_leases {
                true => 200_000,
                false => (think * dice.pick(&[2, 10, 50])).clamp(20_000, 1_000_000),
            },
            patience: dice.pick(&[1, 2, 4]),
            rest_epochs: dice.pick(&[2, 10]),
            heavy: dice.pick(if is_hot { &[10_000, 30_000] } else { &[1, 100, 2_000] }),
            meddle: dice.pick(&[5_000, 50_000, 200_000]).max(think / 10),
        }
    }

    pub fn options(&self) -> Options {
        Options {
            memory_bytes: self.memory_bytes,
            workers: self.workers,
            cachelets: self.cachelets,
            item_bytes_max: self.item_bytes_max,
            evict: true,
            generation: GENERATION,
        }
    }

    pub fn settings(&self) -> Settings {
        Settings {
            memory_bytes: self.memory_bytes as u64,
            workers: self.workers as u16,
            item_bytes_max: self.item_bytes_max,
            requests_per_event: self.requests_per_event,
            link_timeout: Duration::from_micros(self.link_timeout),
            stack_distances: self.autoscales,
            hot_sample: if self.hot.is_some() { 1.0 } else { Settings::default().hot_sample },
            ..Settings::default()
        }
    }
}

fn hot(dice: &mut Dice, keys: usize) -> Hot {
    let count = dice.pick(&[1, 2, 3]);
    Hot {
        mode: dice.pick(&[HotMode::Async, HotMode::Atomic]),
        lease: dice.pick(&[200_000, 500_000, 1_000_000]),
        // Registers.
        keys: (0..count).map(|_| dice.below(keys / 6) * 6 + 2 + dice.below(4)).collect(),
        memory_bytes: dice.pick(&[1 << 20, 1 << 20, 4_000]),
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
        let hash = mbal_model::Key::new(name.as_bytes()).expect("short enough").hash();
        Key { name, kind, hash }
    };
    (0..count).map(key).collect()
}

/// Cachelets of any widths, dealt out to all servers. Some are so narrow that a route to them is found in two steps.
fn map(dice: &mut Dice, keys: &[Key], servers: usize, workers: usize) -> ClusterMap {
    let mut prefixes = vec![Prefix::ALL];
    for _ in 1..dice.between(CACHELETS) {
        let at = dice.below(prefixes.len());
        halve(&mut prefixes, at);
    }
    let hash = keys[dice.below(keys.len())].hash();
    for _ in 0..dice.pick(&[0, 0, BITS_MAX]) {
        let at = prefixes.iter().position(|prefix| prefix.contains(hash)).expect("they cover all");
        halve(&mut prefixes, at);
    }
    dice.shuffle(&mut prefixes);
    let owners = prefixes.into_iter().enumerate().map(|(at, prefix)| {
        let server = if at < servers { at } else { dice.below(servers) };
        let worker = WorkerId(dice.below(workers) as u16);
        (prefix, Owner { server: id_of(server), worker })
    });
    ClusterMap::new(MAP_VERSION, owners.collect()).expect("halves cover what the whole did")
}

/// The state of a coordinator whose servers have all been there before.
fn state(servers: usize, workers: usize, map: Arc<ClusterMap>) -> State {
    let address = |text: String| Address::parse(&text).expect("a name and a port");
    let member = |host: usize| {
        let number = id_of(host).0;
        let addresses = Addresses {
            link: Some(address(format!("h{number}:11311"))),
            client: address(format!("h{number}:11211")),
            workers: (0..workers).map(|at| address(format!("h{number}:{}", 11300 + at))).collect(),
            resolved: None,
        };
        let incarnation = (1u64 << 63 | u64::from(number)).into();
        (
            id_of(host),
            Member {
                incarnation,
                ended: Member::DEAD,
                retired: false,
                addresses,
                memory_bytes: 0,
                moves: true,
                lease_ms: 0,
                coordinators: Vec::new(),
            },
        )
    };
    let members = Arc::new((0..servers).map(member).collect());
    State { cluster: "mbal".into(), members, map: Some(map), ..State::default() }
}

fn halve(prefixes: &mut Vec<Prefix>, at: usize) {
    if prefixes[at].bits() < BITS_MAX {
        let (lower, upper) = prefixes[at].halves().expect("it is wide enough");
        prefixes[at] = lower;
        prefixes.push(upper);
    }
}
