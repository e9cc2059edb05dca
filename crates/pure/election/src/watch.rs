//! Whether a server's ownership is over for certain: what a leading coordinator sees of one server's key.
//!
//! A server counts its lease from etcd's last renewal, or from a round of coordinators of which none led. The
//! leader knows of each of them a moment after which there was none; then it waits for the lease, and the drift of clocks.

use std::time::Duration;

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};

use crate::lease::over_after;

/// What a linearizable look has shown of a server's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySeen {
    /// There is none, or another process's.
    Absent,
    /// It is there. Its lease was not renewed for so long, at least, before the look.
    Present { unrenewed: Duration },
}

/// What one leader knows of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// It led, and heard of the server, at this moment last: no round of coordinators was in vain before it, as far as it knows.
    heard: Instant,
    /// There was no renewal since, as far as etcd knows.
    unrenewed_since: Instant,
    is_absent: bool,
    /// When the last look was asked for.
    looked: Instant,
}

impl Watch {
    /// From when this leader leads, or has registered the server: nothing is known of the time before.
    pub fn new(now: Instant) -> Watch {
        Watch { heard: now, unrenewed_since: now, is_absent: false, looked: now }
    }

    /// A heartbeat of the server was accepted. What it has written into etcd since counts from this moment.
    pub fn heard(&mut self, now: Instant) {
        self.heard = self.heard.max(now);
    }

    /// A look that was asked for at `begun` shows this at `now`. True if the server owns nothing any more, and never will as this process.
    pub fn looked(&mut self, begun: Instant, now: Instant, key: KeySeen, lease: Duration) -> bool {
        match key {
            KeySeen::Absent => {
                if !self.is_absent {
                    self.unrenewed_since = now;
                }
            }
            KeySeen::Present { unrenewed } => {
                let since = now - unrenewed;
                // What was known before holds on, if there was no renewal since the last look.
                let holds = since <= self.looked && !self.is_absent;
                self.unrenewed_since = if holds { since.min(self.unrenewed_since) } else { since };
            }
        }
        self.is_absent = key == KeySeen::Absent;
        self.looked = begun;
        if self.is_absent && is_planted(Fault::DeadWhenGone) {
            return true;
        }
        let heard = if is_planted(Fault::DeadThoughHeard) { Instant::ZERO } else { self.heard };
        heard.max(self.unrenewed_since) + over_after(lease) <= begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(3);

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    fn present(unrenewed_ms: u64) -> KeySeen {
        KeySeen::Present { unrenewed: Duration::from_millis(unrenewed_ms) }
    }

    #[test]
    fn a_server_whose_lease_is_not_renewed_is_over_after_lease_and_drift() {
        let mut watch = Watch::new(at(0));
        assert!(!watch.looked(at(10_000), at(10_001), present(0), LEASE));
        // It was renewed at 9,990 the last time; etcd says it in whole seconds.
        for ms in [10_995, 11_250, 11_500] {
            assert!(!watch.looked(at(ms), at(ms + 1), present(1_000), LEASE));
        }
        assert!(!watch.looked(at(13_295), at(13_296), present(3_000), LEASE));
        assert!(watch.looked(at(13_297), at(13_298), present(3_000), LEASE));
    }

    #[test]
    fn a_renewal_between_two_looks_begins_anew() {
        let mut watch = Watch::new(at(0));
        assert!(!watch.looked(at(3_000), at(3_001), present(2_000), LEASE));
        assert!(!watch.looked(at(4_299), at(4_300), present(0), LEASE));
        assert!(!watch.looked(at(7_599), at(7_600), present(3_000), LEASE));
        assert!(watch.looked(at(7_900), at(7_901), present(3_300), LEASE));
    }

    #[test]
    fn a_key_that_is_gone_is_waited_for_from_the_first_look_that_missed_it() {
        let mut watch = Watch::new(at(0));
        assert!(!watch.looked(at(20_000), at(20_001), KeySeen::Absent, LEASE));
        assert!(!watch.looked(at(23_300), at(23_301), KeySeen::Absent, LEASE));
        assert!(watch.looked(at(23_301), at(23_302), KeySeen::Absent, LEASE));
    }

    #[test]
    fn who_was_heard_of_is_not_over() {
        let mut watch = Watch::new(at(0));
        watch.looked(at(20_000), at(20_001), KeySeen::Absent, LEASE);
        watch.heard(at(22_000));
        assert!(!watch.looked(at(25_299), at(25_300), KeySeen::Absent, LEASE));
        assert!(watch.looked(at(25_300), at(25_301), KeySeen::Absent, LEASE));
    }

    #[test]
    fn a_new_leader_waits_as_long() {
        let mut watch = Watch::new(at(1_000));
        assert!(!watch.looked(at(1_100), at(1_101), present(5_000), LEASE));
        assert!(!watch.looked(at(4_299), at(4_300), present(5_000), LEASE));
        assert!(watch.looked(at(4_300), at(4_301), present(5_000), LEASE));
    }
}
