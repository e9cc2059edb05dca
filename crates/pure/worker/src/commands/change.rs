//! Changes of one item, and what comes of them.

use mbal_cachelet::{Full, Meta};
use mbal_model::Seconds;
use mbal_wire::Verb;

/// An item to be stored, if its verb's condition holds.
pub(crate) struct Change<'a> {
    pub verb: Verb,
    pub flags: u32,
    pub deadline: Seconds,
    /// 0 asks for none, and never matches in [`Verb::Cas`].
    pub cas: u64,
    /// Meta's E: the cas that the item gets.
    pub new_cas: Option<u64>,
    pub value: &'a [u8],
    /// Meta's N: an append to nothing makes the item.
    pub creates: bool,
    /// Meta's I: an older cas than the item's stores all the same, as stale.
    pub may_be_stale: bool,
    pub binary_key: bool,
}

/// What came of a change.
pub(crate) enum Changed {
    Done {
        cas: u64,
        /// Of the item as it is now.
        value_bytes: usize,
    },
    Exists,
    NotFound,
    /// The verb's condition does not hold, or an append found no room.
    Refused,
    Full(Full),
    /// Nothing was done: see [`crate::commands::turn::Turn::no_room`].
    NoRoom,
}

/// What came of adding or subtracting.
pub(crate) enum Sum {
    /// The value, and what is now known of the item.
    Done {
        value: u64,
        meta: Meta,
    },
    /// There was none: it has the initial value now.
    Created {
        value: u64,
        cas: u64,
    },
    NotNumeric,
    NotFound,
    Exists,
    Full,
    /// Nothing was done: see [`crate::commands::turn::Turn::no_room`].
    NoRoom,
}

/// What an item that is counted gets beside its value.
#[derive(Clone, Copy, Default)]
pub(crate) struct New {
    pub cas: Option<u64>,
    pub deadline: Option<Seconds>,
}

/// What came of a removal.
pub(crate) enum Removed {
    /// What was there.
    Done(Meta),
    NotFound,
    /// Its cas is another.
    Exists,
}
