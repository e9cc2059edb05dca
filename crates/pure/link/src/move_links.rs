//! The links of one server that carry what the two sides of moves say to each other: one to each other server, which it dials, and one from each.
//! Which of them is meant, who may say what on it, when it has broken, and what that means.
//!
//! ```text
//!    dialed, or accepted ──► up ──► frames: take ──► pong, or whom of a move it tells
//!                             │──► due: ping, or silent
//!                             └──► down ──► dialed again, by who had dialed it
//! ```
//! Sockets and frames' bytes are the caller's, and so is who knows moves.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{MoveLink, ServerId};

use crate::frame::Kind;
use crate::waiting::{Due, Waiting};

const TICK_NS: u64 = 1_000_000_000;
/// A link of another server of which nothing was heard for so long has broken: whoever dialed it asks each second.
const UNUSED_NS_MAX: u64 = 30_000_000_000;

pub struct MoveLinks {
    timeout_ns: u64,
    all: Vec<Link>,
    ever: u64,
    next_tick: u64,
}

struct Link {
    name: MoveLink,
    server: ServerId,
    /// Of one that was dialed here: whether the other side is there.
    waiting: Option<Waiting>,
    heard: u64,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Nothing,
    /// To be answered by a pong.
    Ping,
    /// This server says something of a move that it is the source of.
    Asked(ServerId),
    /// And this one of a move that it is the destination of.
    Answered(ServerId),
}

/// What is to be done about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveLinkDue {
    Ping(MoveLink),
    /// It is to be closed, for this reason.
    Broken(MoveLink, &'static str),
}

/// What a link was that is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Down {
    pub server: ServerId,
    /// It is to be dialed again.
    pub is_dialed: bool,
}

impl MoveLinks {
    /// After so many nanoseconds without a word the other side is taken to be gone.
    pub fn new(timeout_ns: u64) -> MoveLinks {
        MoveLinks { timeout_ns, all: Vec::new(), ever: 0, next_tick: 0 }
    }

    /// Who dials again has given this older link up: it is to be closed before the new one is up.
    pub fn older(&self, server: ServerId, dialed: bool) -> Option<MoveLink> {
        let is_it = |link: &&Link| link.server == server && link.waiting.is_some() == dialed;
        self.all.iter().find(is_it).map(|link| link.name)
    }

    /// A link has shaken hands. Names are not used twice.
    pub fn up(&mut self, now: u64, server: ServerId, dialed: bool) -> MoveLink {
        debug_assert_eq!(self.older(server, dialed), None, "it was closed before");
        self.ever += 1;
        let name = MoveLink(self.ever);
        let waiting = dialed.then(|| Waiting::new(self.timeout_ns));
        self.all.push(Link { name, server, waiting, heard: now });
        name
    }

    /// Something came, whatever it is.
    pub fn heard(&mut self, now: u64, name: MoveLink) {
        let Some(link) = self.all.iter_mut().find(|link| link.name == name) else { return };
        link.heard = now;
        if let Some(waiting) = &mut link.waiting {
            waiting.heard(now);
        }
    }

    /// # Errors
    /// Why the link is to be closed.
    pub fn take(&self, name: MoveLink, kind: Kind) -> Result<Taken, &'static str> {
        let Some(link) = self.all.iter().find(|link| link.name == name) else {
            return Ok(Taken::Nothing);
        };
        match (kind, link.waiting.is_some()) {
            (Kind::Ping, false) => Ok(Taken::Ping),
            (Kind::Pong, true) => Ok(Taken::Nothing),
            (Kind::Move(_), false) => Ok(Taken::Asked(link.server)),
            (Kind::Move(_), true) => Ok(Taken::Answered(link.server)),
            _ => Err("it sent what is not its to send"),
        }
    }

    /// A link has broken, or was closed. Nothing of it is heard any more.
    pub fn down(&mut self, name: MoveLink) -> Option<Down> {
        let at = self.all.iter().position(|link| link.name == name)?;
        let Link { server, waiting, .. } = self.all.swap_remove(at);
        let is_dialed = waiting.is_some() && !is_planted(Fault::BrokenMoveLinksStay);
        Some(Down { server, is_dialed })
    }

    /// When there is something due.
    pub fn next_wake(&self) -> u64 {
        let due = self.all.iter().filter_map(|link| link.waiting.as_ref()?.next(false));
        due.fold(self.next_tick, u64::min)
    }

    /// Asks whether the other side is there, and ends what is silent: one thing after the other, until there is none.
    pub fn due(&mut self, now: u64) -> Option<MoveLinkDue> {
        let ticks = self.next_tick <= now;
        for Link { name, waiting, heard, .. } in &mut self.all {
            let Some(waiting) = waiting else {
                if *heard + UNUSED_NS_MAX <= now {
                    return Some(MoveLinkDue::Broken(*name, "it asks nothing"));
                }
                continue;
            };
            match waiting.due(now, false) {
                Some(Due::Silent) => return Some(MoveLinkDue::Broken(*name, "it does not answer")),
                Some(Due::Ping) => return Some(MoveLinkDue::Ping(*name)),
                Some(Due::Expired(_)) => unreachable!("messages of moves have no deadlines"),
                None if ticks && waiting.is_idle(now) => return Some(MoveLinkDue::Ping(*name)),
                None => {}
            }
        }
        if ticks {
            self.next_tick = now + TICK_NS;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ServerId = ServerId(1);
    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn who_dialed_asks_and_who_accepted_answers() {
        let mut links = MoveLinks::new(SECOND);
        let (to, from) = (links.up(0, A, true), links.up(0, A, false));
        for (link, kind, taken) in [
            (from, Kind::Ping, Ok(Taken::Ping)),
            (to, Kind::Pong, Ok(Taken::Nothing)),
            (from, Kind::Move(32), Ok(Taken::Asked(A))),
            (to, Kind::Move(48), Ok(Taken::Answered(A))),
            (to, Kind::Ping, Err("it sent what is not its to send")),
            (from, Kind::Pong, Err("it sent what is not its to send")),
            (from, Kind::Request, Err("it sent what is not its to send")),
            (MoveLink(9), Kind::Request, Ok(Taken::Nothing)),
        ] {
            assert_eq!(links.take(link, kind), taken, "{link:?} {kind:?}");
        }
        assert_eq!(links.down(from), Some(Down { server: A, is_dialed: false }));
        assert_eq!(links.older(A, true), Some(to));
        assert_eq!(links.down(to), Some(Down { server: A, is_dialed: true }));
        assert_eq!((links.down(to), links.older(A, true)), (None, None));
        assert_eq!(links.up(0, A, true), MoveLink(3), "names are not used twice");
    }

    #[test]
    fn each_second_an_idle_link_is_asked_and_the_silent_one_is_broken() {
        let mut links = MoveLinks::new(4 * SECOND);
        let (to, from) = (links.up(0, A, true), links.up(0, A, false));
        assert_eq!(links.due(0), Some(MoveLinkDue::Ping(to)));
        assert_eq!((links.due(0), links.next_wake()), (None, SECOND));
        links.heard(SECOND / 2, to);
        assert_eq!(links.due(SECOND), Some(MoveLinkDue::Ping(to)));
        assert_eq!((links.due(SECOND), links.due(4 * SECOND)), (None, None));
        assert_eq!(links.due(5 * SECOND), Some(MoveLinkDue::Broken(to, "it does not answer")));
        links.down(to);
        assert_eq!(links.due(29 * SECOND), None);
        assert_eq!(links.due(30 * SECOND), Some(MoveLinkDue::Broken(from, "it asks nothing")));
    }
}
