//! Keys of this server that have copies elsewhere: their writes, and what shadows are told.

use mbal_model::{Key, Route};
use mbal_replica::{Announcement, HomeState};
use mbal_wire::{Request, words_of};

use crate::commands::context::Context;
use crate::commands::execute::{execute, execute_unchanging};
use crate::commands::hints::push_hint;
use crate::commands::turn::{Then, Turn};
use crate::sessions::batch::Batch;
use crate::sessions::job::{Job, is_read};

/// How a request touches what copies are of.
enum Touches {
    Nothing,
    /// It writes its key.
    Writes,
    /// It writes several keys at once.
    Several,
}

fn touches(request: &Request<'_>) -> Touches {
    match request {
        _ if !request.writes() => Touches::Nothing,
        Request::Get(get) if !get.further.is_empty() => Touches::Several,
        _ => Touches::Writes,
    }
}

/// Executes a request whose key is here. One that writes a key with copies waits for them, if that is the mode, and tells them.
#[inline(always)]
pub(crate) fn execute_told(
    batch: &mut Batch<'_>,
    request: &Request<'_>,
    key: Option<Key<'_>>,
) -> Then {
    match key {
        Some(_) if reads_several(&batch.turn.on, request) => execute_reads(batch, request, key),
        Some(key) if batch.turn.on.shared.copies.homes.may_have(key.hash()) => {
            execute_copied(batch, request, key)
        }
        // Its first key has no copies; the others are looked at.
        Some(_) if matches!(request, Request::Get(get) if get.touch.is_some() && !get.further.is_empty()) => {
            execute_several(batch, request, key)
        }
        _ => execute(&mut batch.turn, request, key),
    }
}

/// Several keys are read, and some keys have copies.
#[inline]
fn reads_several(on: &Context<'_>, request: &Request<'_>) -> bool {
    matches!(request, Request::Get(get) if get.touch.is_none() && !get.further.is_empty())
        && !on.shared.copies.homes.is_empty()
}

#[cold]
fn execute_copied(batch: &mut Batch<'_>, request: &Request<'_>, key: Key<'_>) -> Then {
    match touches(request) {
        Touches::Nothing => {
            return match may_miss(batch, &key) {
                true => execute(&mut batch.turn, request, Some(key)),
                false => Then::OnItsWay,
            };
        }
        Touches::Several => return execute_several(batch, request, Some(key)),
        Touches::Writes => {}
    }
    // Whoever asks what somebody else has won already waits for nobody.
    if execute_unchanging(&mut batch.turn, request, &key) {
        return Then::Next;
    }
    let shared = batch.turn.on.shared;
    let mut homes = shared.copies.homes.lock(key.hash());
    let one = homes.get_mut(&key.hash()).filter(|one| *one.key == *key.bytes());
    let Some(one) = one else {
        drop(homes);
        return execute(&mut batch.turn, request, Some(key));
    };
    if !one.home.invalidates(batch.turn.on.here.lease_now) {
        batch.sends().say(key.hash(), one);
        return Then::OnItsWay;
    }
    let then = execute(&mut batch.turn, request, Some(key));
    if !matches!(then, Then::NoRoom(_)) {
        one.waited += one.home.waited(batch.turn.on.here.lease_now);
        one.home.written(is_there(&batch.turn.on, &key));
        one.written += 1;
        batch.sends().say(key.hash(), one);
    }
    then
}

/// A read of this key may be executed. One that would find nothing, though the key has copies, waits as a write does: the item
/// has died, was flushed or evicted.
fn may_miss(batch: &mut Batch<'_>, key: &Key<'_>) -> bool {
    let shared = batch.turn.on.shared;
    if !shared.copies.homes.may_have(key.hash()) || is_there(&batch.turn.on, key) {
        return true;
    }
    let mut homes = shared.copies.homes.lock(key.hash());
    let one = homes.get_mut(&key.hash()).filter(|one| *one.key == *key.bytes());
    let Some(one) = one else { return true };
    let may_miss = one.home.missed(batch.turn.on.here.lease_now);
    batch.sends().say(key.hash(), one);
    may_miss
}

#[cold]
fn execute_reads(batch: &mut Batch<'_>, request: &Request<'_>, key: Option<Key<'_>>) -> Then {
    let Request::Get(get) = request else { unreachable!("nothing else has several keys") };
    let mut may_execute = true;
    for key in words_of(get.keys).filter_map(Key::new) {
        may_execute &= may_miss(batch, &key);
    }
    if may_execute { execute(&mut batch.turn, request, key) } else { Then::OnItsWay }
}

fn is_there(on: &Context<'_>, key: &Key<'_>) -> bool {
    let (store, second) = (&on.shared.store, on.now().second);
    store.read(key, second, false, &mut Vec::new(), |_, _| ()).is_some()
}

/// A write of several keys waits until none of them has copies.
#[cold]
fn execute_several(batch: &mut Batch<'_>, request: &Request<'_>, key: Option<Key<'_>>) -> Then {
    let Request::Get(get) = request else { unreachable!("nothing else has several keys") };
    let shared = batch.turn.on.shared;
    let mut waits = false;
    for key in words_of(get.keys).filter_map(Key::new) {
        if shared.copies.homes.may_have(key.hash()) {
            let mut homes = shared.copies.homes.lock(key.hash());
            if let Some(one) = homes.get_mut(&key.hash()) {
                one.cools();
                batch.sends().say(key.hash(), one);
                waits = true;
            }
        }
    }
    if waits { Then::OnItsWay } else { execute(&mut batch.turn, request, key) }
}

/// Adds to the reply of a smart client, which begins at `before`, where copies are that it may read.
#[cold]
pub(crate) fn tell_copies(turn: &mut Turn<'_>, before: usize, job: &Job<'_>, key: &Key<'_>) {
    if turn.on.route(key) != Route::Own {
        return;
    }
    let Some(told) = told_of(&turn.on, &job.request, key) else { return };
    match &job.request {
        Request::Binary(_) => {
            if let Some(data_type) = turn.out.get_mut(before + 5) {
                *data_type = told.gamma();
            }
        }
        _ => push_hint(turn.out, before, told),
    }
}

/// What a client that has just read this key here may know of copies.
pub(crate) fn told_of(
    on: &Context<'_>,
    request: &Request<'_>,
    key: &Key<'_>,
) -> Option<Announcement> {
    let shared = on.shared;
    if !shared.copies.homes.may_have(key.hash()) || !is_read(request) {
        return None;
    }
    let homes = shared.copies.homes.lock(key.hash());
    let one = homes.get(&key.hash()).filter(|one| *one.key == *key.bytes())?;
    let mut told = one.home.told(on.here.lease_now)?;
    // A binary request has no place for what its client has seen.
    if matches!(request, Request::Binary(_)) && one.home.state(on.here.lease_now) != HomeState::Hot
    {
        return None;
    }
    told.lease = shared.copies.terms().lease;
    Some(told)
}
