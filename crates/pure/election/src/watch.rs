//! Whether a server's ownership is over for certain: what a leading coordinator sees of one server's key.
//!
//! A server counts its lease from etcd's last renewal, or from a round of coordinators of which none led. The
//! leader knows of each of them a moment after which there was none; then it waits for the lease, and the drift of clocks.

use std::time::Duration;

use mbal_model::planted::{Fault, is_planted};

use crate::Moment;
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
    heard: Moment,
    /// There was no renewal since, as far as etcd knows.
    unrenewed_since: Moment,
    is_absent: bool,
    /// When the last look was asked for.
    looked: Moment,
}

impl Watch {
    /// From when this leader leads, or has registered the server: nothing is known of the time before.
    pub fn new(now: Moment) -> Watch {
        Watch { heard: now, unrenewed_since: now, is_absent: false, looked: now }
    }

    /// A heartbeat of the server was accepted. What it has written into etcd since counts from this moment.
    pub fn heard(&mut self, now: Moment) {
        self.heard = self.heard.max(now);
    }

    /// A look that was asked for at `begun` shows this at `now`. True if the server owns nothing any more, and never will as this process.
    pub fn looked(&mut self, begun: Moment, now: Moment, key: KeySeen, lease: Duration) -> bool {
        match key {
            KeySeen::Absent => {
                if !self.is_absent {
                    self.unrenewed_since = now;
                }
            }
            KeySeen::Present { unrenewed } => {
                let since = now.saturating_sub(unrenewed);
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
        let heard = if is_planted(Fault::DeadThoughHeard) { Moment::ZERO } else { self.heard };
        heard.max(self.unrenewed_since) + over_after(lease) <= begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(3);

    fn ms(ms: u64) -> Moment {
        Duration::from_millis(ms)
    }

    fn present(unrenewed_ms: u64) -> KeySeen {
        KeySeen::Present { unrenewed: ms(unrenewed_ms) }
    }

    #[test]
    fn a_server_whose_lease_is_not_renewed_is_over_after_lease_and_drift() {
        let mut watch = Watch::new(ms(0));
        assert!(!watch.looked(ms(10_000), ms(10_001), present(0), LEASE));
        // It was renewed at 9,990 the last time; etcd says it in whole seconds.
        for at in [10_995, 11_250, 11_500] {
            assert!(!watch.looked(ms(at), ms(at + 1), present(1_000), LEASE));
        }
        assert!(!watch.looked(ms(13_295), ms(13_296), present(3_000), LEASE));
        assert!(watch.looked(ms(13_297), ms(13_298), present(3_000), LEASE));
    }

    #[test]
    fn a_renewal_between_two_looks_begins_anew() {
        let mut watch = Watch::new(ms(0));
        assert!(!watch.looked(ms(3_000), ms(3_001), present(2_000), LEASE));
        assert!(!watch.looked(ms(4_299), ms(4_300), present(0), LEASE));
        assert!(!watch.looked(ms(7_599), ms(7_600), present(3_000), LEASE));
        assert!(watch.looked(ms(7_900), ms(7_901), present(3_300), LEASE));
    }

    #[test]
    fn a_key_that_is_gone_is_waited_for_from_the_first_look_that_missed_it() {
        let mut watch = Watch::new(ms(0));
        assert!(!watch.looked(ms(20_000), ms(20_001), KeySeen::Absent, LEASE));
        assert!(!watch.looked(ms(23_300), ms(23_301), KeySeen::Absent, LEASE));
        assert!(watch.looked(ms(23_301), ms(23_302), KeySeen::Absent, LEASE));
    }

    #[test]
    fn who_was_heard_of_is_not_over() {
        let mut watch = Watch::new(ms(0));
        watch.looked(ms(20_000), ms(20_001), KeySeen::Absent, LEASE);
        watch.heard(ms(22_000));
        assert!(!watch.looked(ms(25_299), ms(25_300), KeySeen::Absent, LEASE));
        assert!(watch.looked(ms(25_300), ms(25_301), KeySeen::Absent, LEASE));
    }

    #[test]
    fn a_new_leader_waits_as_long() {
        let mut watch = Watch::new(ms(1_000));
        assert!(!watch.looked(ms(1_100), ms(1_101), present(5_000), LEASE));
        assert!(!watch.looked(ms(4_299), ms(4_300), present(5_000), LEASE));
        assert!(watch.looked(ms(4_300), ms(4_301), present(5_000), LEASE));
    }
}
