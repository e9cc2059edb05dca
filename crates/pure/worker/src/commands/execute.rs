//! One request, executed.

use mbal_model::Key;
use mbal_wire::Request;

use crate::commands::admin;
use crate::commands::turn::{Then, Turn};

/// `key` is the request's (first) key, unless that is too long to be one.
#[inline]
pub(crate) fn execute(turn: &mut Turn<'_>, request: &Request<'_>, key: Option<Key<'_>>) -> Then {
    let owner = turn.ahead.owner();
    let then = execute_uncounted(turn, request, key);
    if let Some(room) = turn.no_room.take() {
        return Then::NoRoom(room);
    }
    turn.on.count_executed(key.as_ref(), owner);
    then
}

/// Executes an `mg` that changes nothing of its item, though its flags might. False, and nothing is done, if it is no such request.
pub(crate) fn execute_unchanging(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    key: &Key<'_>,
) -> bool {
    let Request::MetaGet(meta) = request else { return false };
    let owner = turn.ahead.owner();
    let is_done = turn.meta_get_unchanged(meta, key);
    if is_done {
        turn.on.count_executed(Some(key), owner);
    }
    is_done
}

fn execute_uncounted(turn: &mut Turn<'_>, request: &Request<'_>, key: Option<Key<'_>>) -> Then {
    let the_key = || key.expect("the parser measured it");
    match request {
        Request::Get(get) => return turn.get(get, key),
        Request::MetaGet(meta) => turn.meta_get(meta, &the_key()),
        Request::MetaSet(meta, chunk) => turn.meta_set(meta, &the_key(), *chunk),
        Request::MetaDelete(meta) => turn.meta_delete(meta, &the_key()),
        Request::MetaArithmetic(meta) => turn.meta_arithmetic(meta, &the_key()),
        Request::MetaDebug { .. } => turn.meta_debug(&the_key()),
        Request::MetaNoop => turn.line(b"MN"),
        Request::Store(storage) => turn.store(storage, &the_key()),
        Request::Arithmetic { direction, delta, noreply, .. } => {
            turn.arithmetic(&the_key(), *direction, *delta, *noreply);
        }
        Request::Touch { exptime, noreply, .. } => turn.touch(&the_key(), *exptime, *noreply),
        Request::Delete { noreply, .. } => turn.delete(&the_key(), *noreply),
        Request::TooLarge { remove, noreply, .. } => {
            turn.too_large(&the_key(), *remove, *noreply);
        }
        Request::Answer(line) => turn.line(line.as_bytes()),
        Request::Silence => {}
        Request::Version => {
            turn.out.extend_from_slice(b"VERSION ");
            turn.line(turn.on.shared.settings.version.as_bytes());
        }
        Request::Quit => return Then::Close(None),
        Request::Binary(binary) => return turn.binary(binary, key),
        Request::Login { .. } => unreachable!("the batch logs in"),
        Request::Admin { command, noreply } => return admin::execute(turn, command, *noreply),
    }
    Then::Next
}
