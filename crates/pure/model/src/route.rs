//! The four answers to the question who serves a key.

use crate::{ServerId, WorkerId};

/// Who serves a key, seen from one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Own,
    /// Another worker of this server: executed by this one all the same.
    Neighbour(WorkerId),
    Peer(ServerId),
    /// On its way between two servers by this move.
    Moving(MoveId),
}

impl Route {
    /// The other server to ask, which for a key on its way is [`ServerId::NOBODY`]: at this moment nobody is known who serves it.
    #[inline]
    pub fn elsewhere(self) -> Option<ServerId> {
        match self {
            Route::Own | Route::Neighbour(_) => None,
            Route::Peer(server) => Some(server),
            Route::Moving(_) => Some(ServerId::NOBODY),
        }
    }
}

/// Where the keys of an absent cachelet are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    Peer(ServerId),
    Moving(MoveId),
}

impl From<Elsewhere> for Route {
    fn from(elsewhere: Elsewhere) -> Route {
        match elsewhere {
            Elsewhere::Peer(server) => Route::Peer(server),
            Elsewhere::Moving(id) => Route::Moving(id),
        }
    }
}

/// A cachelet's move between two servers, named by whoever ordered it; 29 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MoveId(pub u32);

/// One connection between the servers of a move, told apart from those before it. Numbers count up, and are not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MoveLink(pub u64);
