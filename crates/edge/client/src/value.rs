//! What is stored, and how.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An item as a `get` finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// What was stored.
    pub bytes: Vec<u8>,
    /// What the client that stored it chose.
    pub flags: u32,
    /// Changes whenever the item does; for [`Client::cas`](crate::Client::cas).
    pub cas: u64,
    /// Somebody has marked it as out of date (`md KEY I`).
    pub stale: bool,
    /// Of all who read it, this one is to store what is new (`W`): nobody else is told so until the mark's time is over.
    pub refill: bool,
}

/// How an item is stored: for how long, with which flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Store {
    ttl: Option<Duration>,
    flags: u32,
}

/// What came of a [`Client::cas`](crate::Client::cas).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cas {
    /// The item was as it had been, and has the new value.
    Stored,
    /// Somebody has changed it since.
    Changed,
    /// It is gone.
    NotFound,
}

impl Store {
    /// For ever, without flags.
    pub const fn forever() -> Store {
        Store { ttl: None, flags: 0 }
    }

    /// For so long; part of a second counts as a second.
    pub const fn ttl(ttl: Duration) -> Store {
        Store { ttl: Some(ttl), flags: 0 }
    }

    /// With these flags.
    pub const fn flags(self, flags: u32) -> Store {
        Store { flags, ..self }
    }

    pub(crate) fn parts(&self) -> (i64, u32) {
        (exptime(self.ttl), self.flags)
    }
}

/// The protocol takes more seconds than this for a date.
const RELATIVE_SECONDS_MAX: u64 = 60 * 60 * 24 * 30;

/// As the protocol has it; 0 is for ever.
pub(crate) fn exptime(ttl: Option<Duration>) -> i64 {
    let since_1970 = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    exptime_at(ttl, since_1970)
}

fn exptime_at(ttl: Option<Duration>, unix_seconds: impl FnOnce() -> u64) -> i64 {
    let Some(ttl) = ttl else { return 0 };
    let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0)).max(1);
    let exptime = match seconds {
        ..=RELATIVE_SECONDS_MAX => seconds,
        _ => seconds.saturating_add(unix_seconds()),
    };
    // A later one does not fit; that is the year 2038 for the server's parser.
    exptime.min(i32::MAX as u64) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_live_is_rounded_up_and_a_long_one_is_a_date() {
        let exptime = |ttl| exptime_at(ttl, || 1_700_000_000);
        for (ttl, expected) in [
            (None, 0),
            (Some(Duration::ZERO), 1),
            (Some(Duration::from_millis(1)), 1),
            (Some(Duration::from_millis(1001)), 2),
            (Some(Duration::from_secs(2_592_000)), 2_592_000),
            (Some(Duration::from_secs(2_592_001)), 1_702_592_001),
            (Some(Duration::MAX), i64::from(i32::MAX)),
        ] {
            assert_eq!(exptime(ttl), expected, "{ttl:?}");
        }
    }
}
