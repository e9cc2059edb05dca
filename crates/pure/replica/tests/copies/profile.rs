//! What differs from seed to seed, clocks included.

use std::time::Duration;

use mbal_model::Instant;
use mbal_random::Random;
use mbal_replica::Terms;
use mbal_testkit::Sim;

use crate::world::{Event, MILLISECOND, SECOND};

/// A clock that runs by its own rate.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    offset: u64,
    /// Its microseconds in a second of true time.
    rate: u64,
}

impl Clock {
    /// Any two of them run apart by less than a tenth.
    pub fn new(random: &mut Random) -> Clock {
        let rate = match random.below(4) {
            0 => 954_000,
            1 => 1_047_000,
            2 => 1_000_000,
            _ => 954_000 + random.below(93_000),
        };
        Clock { offset: random.below(1_000 * SECOND), rate }
    }

    pub fn local(self, now: u64) -> Instant {
        Instant::from_micros(self.offset + (now as u128 * self.rate as u128 / 1_000_000) as u64)
    }

    /// The first moment of true time at which it shows this.
    pub fn when(self, local: u64) -> u64 {
        let since = local.saturating_sub(self.offset);
        (since as u128 * 1_000_000).div_ceil(self.rate as u128) as u64
    }
}

/// What happens more often in some seeds, since it takes several things in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    Nothing,
    /// What lives for seconds gets copies on servers that are stopped.
    Dying,
    /// Homes die, their shadows own the key, and give it away.
    Owners,
}

/// What differs from seed to seed.
pub struct Profile {
    /// A client's lease; a shadow's is in the terms.
    pub lease: Duration,
    pub terms: Terms,
    pub hosts: u64,
    pub keys: u64,
    pub clients: u64,
    pub ops: u64,
    pub op_gap: u64,
    pub trouble_gap: u64,
    pub delay: u64,
    /// A map reaches every server within this.
    pub map_delay: u64,
    pub focus: Focus,
    /// Of a hundred requests.
    pub writes: u64,
    /// Of a thousand messages.
    pub lost: u64,
    pub late: u64,
    pub late_max: u64,
    pub doubled: u64,
    pub link_timeout: u64,
    /// When a client gives up.
    pub patience: u64,
    /// Seconds to live that an item is given, at most; 0: all live for ever.
    pub ttl_max: u64,
    /// Requests of who has gone are not executed any more.
    pub drops_waiting: bool,
}

impl Profile {
    pub fn new(sim: &mut Sim<Event>) -> Profile {
        let mut one_of = |choices: &[u64]| sim.one_of(choices);
        let lease = Duration::from_millis(one_of(&[200, 1_000, 1_000]));
        let ttl_max = one_of(&[0, 0, 4, 30]);
        // Clocks have run apart by more than a second when what lives long dies.
        let op_gap = if ttl_max > 20 { 120 } else { one_of(&[2, 5, 20]) } * MILLISECOND;
        let mut profile = Profile {
            focus: match one_of(&[0, 0, 0, 0, 0, 0, 1, 2]) {
                0 => Focus::Nothing,
                1 => Focus::Dying,
                _ => Focus::Owners,
            },
            map_delay: one_of(&[20, 300]) * MILLISECOND,
            lease,
            terms: Terms { atomic: one_of(&[0, 1]) == 1, lease: lease * 3 / 4 },
            hosts: one_of(&[2, 3, 4, 5]),
            keys: one_of(&[1, 1, 2, 3]),
            clients: one_of(&[2, 4, 6]),
            ops: one_of(&[300, 600]),
            op_gap,
            trouble_gap: op_gap * one_of(&[5, 15, 50]),
            delay: one_of(&[100, 1_000, 10_000]),
            writes: one_of(&[3, 15, 50]),
            lost: one_of(&[0, 10, 100]),
            late: one_of(&[0, 30, 200]),
            late_max: one_of(&[50, 500, 2_500]) * MILLISECOND,
            doubled: one_of(&[0, 30, 200]),
            link_timeout: one_of(&[50, 300, 1_000]) * MILLISECOND,
            patience: one_of(&[100, 1_000, 4_000]) * MILLISECOND,
            ttl_max,
            drops_waiting: one_of(&[0, 1]) == 1,
        };
        profile.heeds_focus();
        profile
    }

    fn heeds_focus(&mut self) {
        match self.focus {
            Focus::Nothing => {}
            Focus::Dying => {
                (self.writes, self.ttl_max, self.op_gap) = (1, 4, 40 * MILLISECOND);
                (self.keys, self.lost, self.trouble_gap) = (1, 0, 2_000 * MILLISECOND);
            }
            Focus::Owners => {
                (self.writes, self.op_gap, self.map_delay) = (8, 3 * MILLISECOND, 20 * MILLISECOND);
                (self.keys, self.lost, self.trouble_gap) = (1, 0, 60 * MILLISECOND);
            }
        }
    }
}
