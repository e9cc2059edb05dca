//! Reads that a copy can answer.

use mbal_wire::{Binary, Command, Get, Meta, Request};

/// How a read shows itself to be one that a copy can answer.
pub(crate) enum Read<'r, 'a> {
    Get(&'r Get<'a>),
    Meta(&'r Meta<'a>),
    Binary(&'r Binary<'a>),
}

impl<'r, 'a> Read<'r, 'a> {
    /// `None` for what writes, or asks for what only the home knows: last access, hits, time to live.
    pub fn of(request: &'r Request<'a>) -> Option<Read<'r, 'a>> {
        match request {
            Request::Get(get) if get.touch.is_none() && !get.discovers() => Some(Read::Get(get)),
            Request::MetaGet(meta) => {
                let asks_home = |letter: &u8| meta.flags.has(*letter);
                let is_read = !meta.get_writes() && !b"hltu".iter().any(asks_home);
                let is_refused =
                    || meta.flags.has(b'O') && meta.words().any(mbal_wire::opaque_too_long);
                (is_read && !is_refused()).then_some(Read::Meta(meta))
            }
            Request::Binary(binary) => matches!(binary.command, Command::Get { touch: None, .. })
                .then_some(Read::Binary(binary)),
            _ => None,
        }
    }
}
