//! Reads that are answered from the copy that is here.

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
    let copies = &turn.on.shared.copies;
    let flush_number = turn.on.shared.store.flush_number();
    let (copied, replica_version) =
        copies.shadows.copy_of(key, seen, turn.on.here.lease_now, flush_number)?;
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
    let shared = turn.on.shared;
    let flush_number = shared.store.flush_number();
    let seen = ReplicaVersion::default();
    let copied = shared.copies.shadows.copy_of(key, seen, turn.on.here.lease_now, flush_number);
    if let Some((copied, _)) = &copied {
        push_copy(turn, get, key, copied);
    }
    copied.is_some()
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
