//! What a shadow knows of one copy, beside the value.

use std::time::Duration;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, ReplicaVersion};

use crate::message::{Held, Hold, HoldWhat, Outcome, Stamp};
use crate::{Grant, Version};

/// One key at a server that is not its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow {
    grant: Grant,
    version: Version,
    /// It has a value of that version.
    has: bool,
    /// It may answer before this moment.
    until: Instant,
    /// Until then it remembers what it has let go, lest something that was sent before brings it back.
    remembers_until: Instant,
}

/// What becomes of the value that came with a [`Hold`], and of the one that was here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Both stay as they are: the one here, and nothing came.
    Same,
    /// What came takes its place.
    New,
    /// What was here goes.
    Nothing,
}

impl Shadow {
    /// Of a key that nothing is known of.
    pub fn unknown() -> Shadow {
        Shadow {
            grant: Grant(0),
            version: Version(0),
            has: false,
            until: Instant::ZERO,
            remembers_until: Instant::ZERO,
        }
    }

    /// Its key has a later owner, whose grants are this one and higher: nothing that an earlier one has said, or says yet, is read again. False if that
    /// is so already.
    pub fn fence(&mut self, grant: Grant) -> bool {
        let is_older = self.grant < grant && !is_planted(Fault::FencedIsRead);
        if is_older {
            (self.grant, self.version) = (grant, Version(0));
            self.loses_value();
        }
        is_older
    }

    /// Takes a home's word. `process` is this one, by its stamps. `fits`: there is room for the item that came, if one did.
    pub fn take(&mut self, now: Instant, process: u16, hold: &Hold<'_>, fits: bool) -> Kept {
        let (known, said) = ((self.grant, self.version), (hold.grant, hold.version));
        if said < known && !is_planted(Fault::OlderCopyTaken) {
            return Kept::Same;
        }
        let lease = Duration::from_millis(hold.lease_ms.into());
        // Whatever was said before under this grant, its lease counts from an earlier stamp than now.
        self.remembers_until = self.remembers_until.max(now + lease);
        let stamp = hold.stamp.moment(process);
        // Of an item that dies it has to be known how long it was on its way.
        let is_dated = |ttl: Option<u32>| {
            ttl.is_none() || stamp.is_some() || is_planted(Fault::TtlFromArrival)
        };
        let kept = match hold.what {
            HoldWhat::Keep if said == known && self.has => Kept::Same,
            // It never had that version. The home will hear of it, and sends the item.
            HoldWhat::Keep | HoldWhat::Want | HoldWhat::Fence => return Kept::Same,
            HoldWhat::Invalidate | HoldWhat::Drop => Kept::Nothing,
            HoldWhat::Item(_) if said == known && self.has => Kept::Same,
            HoldWhat::Item(item) if fits && is_dated(item.ttl) => Kept::New,
            HoldWhat::Item(_) => Kept::Nothing,
        };
        (self.grant, self.version) = said;
        self.has = kept != Kept::Nothing;
        if let (Some(stamp), true) = (stamp, self.has) {
            let from = if is_planted(Fault::ShadowLeaseFromNow) { now } else { stamp };
            self.until = self.until.max(from + lease);
        }
        if !self.has {
            self.until = Instant::ZERO;
        }
        kept
    }

    /// The answer to a [`Hold`] that has just been taken.
    pub fn held(&self, now: Instant, process: u16, reads: u32, refused: bool) -> Held {
        let outcome = match (self.has, refused) {
            (true, _) => Outcome::Has,
            (false, true) => Outcome::Refused,
            (false, false) => Outcome::Invalidate,
        };
        let stamp = Stamp::new(process, now);
        Held { grant: self.grant, version: self.version, stamp, reads, outcome }
    }

    /// It may answer from its value somebody who has seen that much of the key.
    pub fn may_answer(&self, now: Instant, seen: ReplicaVersion) -> bool {
        let is_older = self.replica_version() < seen && !is_planted(Fault::OlderCopyAnswers);
        self.has && !is_older && (now < self.until || is_planted(Fault::ReadAfterLease))
    }

    /// What its value is.
    pub fn replica_version(&self) -> ReplicaVersion {
        ReplicaVersion { grant: self.grant.0, version: self.version.0 }
    }

    /// Its value is gone, for want of room or since its time to live is over.
    pub fn loses_value(&mut self) {
        self.has = false;
        self.until = Instant::ZERO;
    }

    /// Nothing of it has to be remembered any more.
    pub fn is_over(&self, now: Instant) -> bool {
        self.until <= now && self.remembers_until <= now
    }

    pub fn grant(&self) -> Grant {
        self.grant
    }
}
