//! A cachelet that begins empty after a loss, and the copies that its earlier owner has made.
//!
//! ```text
//!   new owner: Newborn ── fence: this prefix, this map ──► every other server of the map
//!       │                                                    │ Shadow: no value, and none of a lower grant any more
//!       │ ◄───────────────── fenced ─────────────────────────┘
//!       └─ all have said so, or their leases are over: it serves
//! ```
//! A word of the earlier owner that comes later brings nothing back. Its stamp is of an answer of the shadow's, which is remembered for a lease from
//! then on, with the fence's grant.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, ServerId};

use crate::message::Held;
use crate::{Grant, newborn_rests};

/// A cachelet that serves nothing while a copy may be read that an earlier owner of it has made.
#[derive(Clone, Debug)]
pub struct Newborn {
    /// The lowest grant of its owner. Copies of lower ones have to be gone.
    fence: Grant,
    /// All leases of an earlier owner are over then, whoever is silent.
    until: Instant,
    /// Servers that have not fenced it off yet.
    sides: BTreeMap<ServerId, Ask>,
}

#[derive(Clone, Copy, Debug)]
enum Ask {
    From(Instant),
    InFlight,
}

impl Newborn {
    /// `others`: the other servers of the map by which it is born. Who is not among them is dead, or answers from no copy.
    /// `lease` is a client's.
    pub fn new(
        fence: Grant,
        others: impl IntoIterator<Item = ServerId>,
        lease: Duration,
        now: Instant,
    ) -> Newborn {
        let sides = others.into_iter().map(|server| (server, Ask::From(now)));
        Newborn { fence, until: now + newborn_rests(lease), sides: sides.collect() }
    }

    pub fn fence(&self) -> Grant {
        self.fence
    }

    /// No copy of an earlier owner is read any more: it serves.
    pub fn is_over(&self, now: Instant) -> bool {
        self.until <= now || self.is_fenced() || is_planted(Fault::NewbornServes)
    }

    /// All servers have said so.
    pub fn is_fenced(&self) -> bool {
        self.sides.is_empty()
    }

    /// Servers that are to be asked now. `sends` says whether it could be sent.
    pub fn ask(&mut self, now: Instant, mut sends: impl FnMut(ServerId) -> bool) {
        for (server, ask) in &mut self.sides {
            let is_due = matches!(ask, Ask::From(at) if *at <= now);
            if is_due && sends(*server) {
                *ask = Ask::InFlight;
            }
        }
    }

    /// A server has answered, or will not (`None`). One that knows no fences is asked again, and waited out.
    pub fn heard(&mut self, now: Instant, from: ServerId, held: Option<&Held>) {
        let fenced = Held::fenced(self.fence);
        if held == Some(&fenced) {
            self.sides.remove(&from);
        } else if let Some(ask) = self.sides.get_mut(&from) {
            *ask = Ask::From(now + ASK_AGAIN);
        }
    }
}

/// Who has not answered is asked again so much later.
const ASK_AGAIN: Duration = Duration::from_millis(50);
