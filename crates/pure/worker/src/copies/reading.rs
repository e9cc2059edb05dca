//! Reads that are answered from the copy that is here.

use std::sync::Arc;

use mbal_model::{Key, ReplicaVersion};
use mbal_wire::{Binary, Command, Get, Head, Status, push_value};

use crate::commands::context::Context;
use crate::commands::meta_reply::{Shown, push_hit, shows_value};
use crate::commands::tell::Fetched;
use crate::commands::turn::Turn;
use crate::copies::here::Copied;
use crate::copies::read::Read;

/// Answers a read from the copy that is here, unless there is none that may be read, and says what it was. Of a `get` its first key, with `END`.
pub(crate) fn read_copy(
    turn: &mut Turn<'_>,
    read: &Read<'_, '_>,
    key: &Key<'_>,
    seen: ReplicaVersion,
) -> Option<ReplicaVersion> {
    let (copied, replica_version) = copy_here(&turn.on, key, seen)?;
    match read {
        Read::Get(get) => {
            push_copy(turn, get, key, &copied);
            turn.line(b"END");
            return Some(replica_version);
        }
        Read::Meta(meta) => {
            let item = copied.meta(turn.now());
            let with_value = shows_value(meta, &item);
            push_hit(turn.out, meta, &Shown::new(item, key, turn.now().second), with_value, false);
            if with_value {
                turn.out.extend_from_slice(&copied.value);
                turn.out.extend_from_slice(b"\r\n");
            }
        }
        Read::Binary(Binary { frame, command }) => {
            let Command::Get { with_key, with_value, .. } = command else {
                unreachable!("it is a read")
            };
            let head = Head {
                extras: &copied.flags.to_be_bytes(),
                key: if *with_key { key.bytes() } else { b"" },
                value_bytes: if *with_value { copied.value.len() as u32 } else { 0 },
                cas: copied.cas,
            };
            frame.push_head(turn.out, Status::Success, &head);
            if *with_value {
                turn.out.extend_from_slice(&copied.value);
            }
        }
    }
    count_copy(&turn.on, key, &copied);
    Some(replica_version)
}

/// One of the keys of a `get`, without `END`; false if there is no copy.
pub(crate) fn get_copy(turn: &mut Turn<'_>, get: &Get<'_>, key: &Key<'_>) -> bool {
    let copied = copy_here(&turn.on, key, ReplicaVersion::default());
    if let Some((copied, _)) = &copied {
        push_copy(turn, get, key, copied);
    }
    copied.is_some()
}

fn copy_here(
    on: &Context<'_>,
    key: &Key<'_>,
    seen: ReplicaVersion,
) -> Option<(Arc<Copied>, ReplicaVersion)> {
    // Whoever owns the key may not count on this server any more.
    if on.here.lapsed {
        return None;
    }
    let flush_number = on.shared.store.flush_number();
    on.shared.copies.shadows.copy_of(key, seen, on.here.lease_now, flush_number)
}

fn push_copy(turn: &mut Turn<'_>, get: &Get<'_>, key: &Key<'_>, copied: &Copied) {
    let cas = get.cas.then_some(copied.cas);
    push_value(turn.out, key.bytes(), copied.flags, copied.value.len() as u32, cas);
    turn.out.extend_from_slice(&copied.value);
    turn.out.extend_from_slice(b"\r\n");
    count_copy(&turn.on, key, copied);
}

fn count_copy(on: &Context<'_>, key: &Key<'_>, copied: &Copied) {
    let (flags, value_bytes) = (copied.flags, copied.value.len() as u32);
    on.count_get(key, Fetched::Hit { flags, value_bytes });
}
