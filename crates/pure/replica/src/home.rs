//! What a key's home knows of its copies, and what it says to the servers that have them.

use std::time::Duration;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, ReplicaVersion, ServerId};

use crate::message::{Announcement, Held, Outcome, Stamp};
use crate::{Grant, Version, over_after};

/// What holds for all keys of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Writes wait for shadows to let go (SE-SPORE); else they are told afterwards (SPORE).
    pub atomic: bool,
    pub lease: Duration,
}

/// SPORE's states (§3.4, Figure 5) but for INVALID and COLD, in which there is no [`Home`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeState {
    HotPending,
    Hot,
    ColdPending,
}

/// What a shadow is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Say {
    pub to: ServerId,
    pub grant: Grant,
    pub version: Version,
    pub stamp: Stamp,
    pub lease_ms: u32,
    pub what: What,
}

/// As [`crate::HoldWhat`], without the item: whoever sends it has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Keep,
    Invalidate,
    Drop,
    Item,
}

/// What the newest version is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Newest {
    Item,
    Invalidate,
    Drop,
}

#[derive(Clone, Debug)]
struct Side {
    server: ServerId,
    suffix: u8,
    /// The newest version that it is known to have, and to have let go.
    acknowledged: Version,
    /// The newest that it was told, and nothing speaks for its being lost.
    said: Version,
    in_flight: u32,
    stamp: Stamp,
    /// When the home heard of the stamp: not before it was taken.
    stamped: Instant,
    /// Its lease is over at this moment, whatever of what was said has reached it.
    until: Instant,
    /// When its lease was last prolonged.
    renewed: Instant,
    /// Nothing is said before.
    again_at: Instant,
    /// It has no room, or knows of a newer grant.
    out: bool,
}

impl Side {
    fn new(suffix: u8, server: ServerId) -> Side {
        Side {
            server,
            suffix,
            acknowledged: Version(0),
            said: Version(0),
            in_flight: 0,
            stamp: Stamp(0),
            stamped: Instant::ZERO,
            until: Instant::ZERO,
            renewed: Instant::ZERO,
            again_at: Instant::ZERO,
            out: false,
        }
    }
}

/// Words to one shadow that may be unanswered; later ones are left out until then, but for what lets go.
const IN_FLIGHT_MAX: u32 = 4;

/// One key that has copies.
#[derive(Clone, Debug)]
pub struct Home {
    terms: Terms,
    grant: Grant,
    version: Version,
    newest: Newest,
    /// The last version that was no item.
    gone: Version,
    /// A request waits for shadows to let go, and has asked for it at this moment.
    asked: Option<Instant>,
    /// Since when a write waits for them.
    waits_since: Option<Instant>,
    sides: Vec<Side>,
}

impl Home {
    /// Makes copies on these servers, at the places of these suffixes. [`Home::say`] tells what is to be sent.
    pub fn new(terms: Terms, grant: Grant, shadows: &[(u8, ServerId)]) -> Home {
        let sides = shadows.iter().map(|&(suffix, server)| Side::new(suffix, server)).collect();
        let (version, gone, newest) = (Version(1), Version(0), Newest::Item);
        Home { terms, grant, version, newest, gone, asked: None, waits_since: None, sides }
    }

    /// Makes a copy on one more server, unless there is one. The others are read meanwhile.
    pub fn widen(&mut self, suffix: u8, server: ServerId) {
        if self.sides.iter().all(|side| side.server != server) {
            self.sides.push(Side::new(suffix, server));
        }
    }

    pub fn grant(&self) -> Grant {
        self.grant
    }

    pub fn state(&self, now: Instant) -> HomeState {
        match self.newest {
            Newest::Drop => HomeState::ColdPending,
            Newest::Item if self.is_hot(now) => HomeState::Hot,
            Newest::Item | Newest::Invalidate => HomeState::HotPending,
        }
    }

    /// Where copies are, or are to be.
    pub fn shadows(&self) -> impl Iterator<Item = (u8, ServerId)> + '_ {
        self.sides.iter().filter(|side| !side.out).map(|side| (side.suffix, side.server))
    }

    fn is_hot(&self, now: Instant) -> bool {
        let is_settled = |side: &Side| side.acknowledged == self.version || side.until <= now;
        self.sides.iter().all(is_settled)
            && self.sides.iter().any(|side| self.answers(side, self.version, now))
    }

    /// It has this version at least, and its lease lasts for a while.
    fn answers(&self, side: &Side, version: Version, now: Instant) -> bool {
        let lasts = now + self.terms.lease / 4 < side.until;
        !side.out && version <= side.acknowledged && lasts
    }

    /// What a client that has just read here may know of copies. If writes do not wait for shadows it may know of older ones, too: it will say
    /// that it has seen the newest version, and who has another one passes the read on. Who cannot say that has to wait for [`HomeState::Hot`].
    pub fn told(&self, now: Instant) -> Option<Announcement> {
        let oldest = if self.terms.atomic { self.version } else { Version(self.gone.0 + 1) };
        let is_told = match self.terms.atomic {
            true => self.state(now) == HomeState::Hot,
            false => self.newest == Newest::Item,
        };
        let answers = |side: &&Side| is_told && self.answers(side, oldest, now);
        let suffixes: Vec<u8> = self.sides.iter().filter(answers).map(|side| side.suffix).collect();
        let newest = ReplicaVersion { grant: self.grant.0, version: self.version.0 };
        let newest = (!self.terms.atomic).then_some(newest);
        (!suffixes.is_empty()).then_some(Announcement { lease: self.terms.lease, newest, suffixes })
    }

    /// The key has been written here: shadows are to have what is there now, or that nothing is.
    pub fn written(&mut self, is_there: bool) {
        if self.newest == Newest::Drop {
            return;
        }
        (self.asked, self.waits_since) = (None, None);
        self.is_news(if is_there { Newest::Item } else { Newest::Invalidate });
    }

    /// It is said at once, whatever has failed before.
    fn is_news(&mut self, newest: Newest) {
        self.version.0 += 1;
        self.newest = newest;
        if newest != Newest::Item {
            self.gone = self.version;
        }
        self.sides.iter_mut().for_each(|side| side.again_at = Instant::ZERO);
    }

    /// Before a write, if writes are atomic: true once no shadow can answer any more. Until then, what is to be said is said.
    pub fn invalidates(&mut self, now: Instant) -> bool {
        if !self.terms.atomic || is_planted(Fault::WritesDoNotWait) {
            return true;
        }
        self.wants_let_go(now);
        self.waits_since.get_or_insert(now);
        self.have_let_go(now)
    }

    /// How long writes have waited for shadows to let go, up to the one that is about to be executed.
    pub fn waited(&self, now: Instant) -> Duration {
        self.waits_since.map_or(Duration::ZERO, |since| now - since)
    }

    fn wants_let_go(&mut self, now: Instant) {
        if self.newest == Newest::Item {
            self.is_news(Newest::Invalidate);
            self.asked = Some(now);
        } else if self.asked.is_some() {
            self.asked = Some(now);
        }
    }

    /// A read has found nothing here: the key has died, was flushed or evicted. True once that may be told: if writes are atomic, when no
    /// shadow can answer with what was here.
    pub fn missed(&mut self, now: Instant) -> bool {
        if is_planted(Fault::MissDoesNotWait) {
            return true;
        }
        self.wants_let_go(now);
        !self.terms.atomic || self.have_let_go(now)
    }

    fn have_let_go(&self, now: Instant) -> bool {
        let has = |side: &Side| side.acknowledged == self.version || side.until <= now;
        self.sides.iter().all(has)
    }

    /// The key is to have no copies any more.
    pub fn cools(&mut self) {
        if self.newest != Newest::Drop {
            self.is_news(Newest::Drop);
        }
    }

    /// It has cooled, and no shadow can answer any more.
    pub fn is_over(&self, now: Instant) -> bool {
        self.newest == Newest::Drop && self.have_let_go(now)
    }

    /// What there is to say at this moment. Each is to be sent, or [`Home::failed`].
    pub fn say(&mut self, now: Instant, mut to: impl FnMut(Say)) {
        let lease = self.terms.lease;
        // Whoever waits asks again sooner than that: nobody does any more.
        let is_given_up = |asked: Instant| asked + over_after(lease) <= now;
        if self.newest == Newest::Invalidate
            && self.asked.is_some_and(is_given_up)
            && !is_planted(Fault::GivenUpStaysLetGo)
        {
            self.written(true);
        }
        for side in self.sides.iter_mut().filter(|side| !side.out) {
            let is_news = side.said < self.version && side.acknowledged < self.version;
            let ends = is_news && self.newest != Newest::Item;
            if side.again_at > now || side.in_flight >= IN_FLIGHT_MAX && !ends {
                continue;
            }
            // What was said by an older stamp has given little, or nothing.
            let is_short =
                side.until <= now + lease / 4 && side.until < side.stamped + over_after(lease);
            let is_due = side.stamp.0 > 0 && (side.renewed + lease / 3 <= now || is_short);
            let what = match self.newest {
                Newest::Drop if is_news => What::Drop,
                Newest::Invalidate if is_news => What::Invalidate,
                Newest::Item if is_news => What::Item,
                // One word at a time prolongs it: of several the first stamp would count.
                Newest::Item
                    if side.acknowledged == self.version && side.in_flight == 0 && is_due =>
                {
                    What::Keep
                }
                _ => continue,
            };
            let leases = matches!(what, What::Keep | What::Item) && side.stamp.0 > 0;
            if leases {
                side.renewed = now;
                let over =
                    if is_planted(Fault::HomeForgetsDrift) { lease / 2 } else { over_after(lease) };
                // Not from now: who is silent would be waited for anew with each word.
                let from = if is_planted(Fault::SilentIsGivenMore) { now } else { side.stamped };
                side.until = side.until.max(from + over);
            }
            side.said = self.version;
            side.in_flight += 1;
            to(Say {
                to: side.server,
                grant: self.grant,
                version: self.version,
                stamp: side.stamp,
                lease_ms: lease.as_millis() as u32,
                what,
            });
        }
    }

    /// A shadow has answered.
    pub fn heard(&mut self, now: Instant, from: ServerId, held: &Held) {
        let Some(side) = self.sides.iter_mut().find(|side| side.server == from) else { return };
        side.in_flight = side.in_flight.saturating_sub(1);
        if held.grant > self.grant {
            // Somebody else is home. What it has of this grant has gone.
            side.out = true;
            side.until = Instant::ZERO;
            return;
        }
        let (is_first, is_news) = (side.stamp.0 == 0, held.stamp.is_news_after(side.stamp));
        if is_news {
            (side.stamp, side.stamped) = (held.stamp, now);
        }
        if held.grant < self.grant || held.outcome == Outcome::Refused {
            // A shadow without room; or one that knows nothing of this grant, or did not when it answered.
            side.out = held.outcome == Outcome::Refused;
            if is_news && !is_planted(Fault::RestartedIsKept) {
                side.acknowledged = Version(0);
            }
            side.said = side.said.min(side.acknowledged);
            side.again_at = now + self.terms.lease / 16;
            return;
        }
        let is_newest = match self.newest {
            Newest::Item => held.outcome == Outcome::Has,
            Newest::Invalidate | Newest::Drop => held.outcome == Outcome::Invalidate,
        };
        if held.version == self.version && is_newest {
            side.acknowledged = self.version;
            return;
        }
        let had =
            side.acknowledged == self.version && is_news && !is_planted(Fault::RestartedIsKept);
        if held.version == self.version || had {
            // It had it, and has lost it; or has not kept what came without a stamp.
            (side.acknowledged, side.said) = (Version(0), Version(0));
            side.again_at = if is_first { now } else { now + self.terms.lease / 16 };
        } else if side.in_flight == 0 {
            // What was said was lost.
            side.said = held.version;
        }
    }

    /// What was said did not arrive, or nobody knows whether it did.
    pub fn failed(&mut self, now: Instant, to: ServerId) {
        let Some(side) = self.sides.iter_mut().find(|side| side.server == to) else { return };
        side.in_flight = side.in_flight.saturating_sub(1);
        side.said = side.said.min(side.acknowledged);
        side.again_at = now + self.terms.lease / 16;
    }
}
