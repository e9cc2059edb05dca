//! What the replies to meta commands say of an item, in the order of the flags.

use mbal_cachelet::Meta as Item;
use mbal_model::{Key, Seconds};
use mbal_wire::{Meta, base64_encode, push_u64};

pub(crate) const OPAQUE_TOO_LONG: &[u8] = b"CLIENT_ERROR opaque token too long";

/// An item as a reply shows it.
pub(crate) struct Shown<'a> {
    pub item: Item,
    pub key: &'a [u8],
    pub base64: bool,
    /// Made by this very request (N).
    pub created: bool,
    pub now: Seconds,
    /// What T and N set, told by a `t` that stands behind them.
    pub exptime: Seconds,
    pub vivify: Seconds,
}

impl<'a> Shown<'a> {
    pub fn new(item: Item, key: &Key<'a>, now: Seconds) -> Shown<'a> {
        let base64 = item.binary_key;
        let key = key.bytes();
        Shown { item, key, base64, created: false, now, exptime: 0, vivify: 0 }
    }
}

/// What is known of an item before it is there.
pub(crate) fn absent(now: Seconds) -> Item {
    Item {
        flags: 0,
        deadline: 0,
        cas: 0,
        last_access: now,
        fetched: false,
        stale: false,
        win: false,
        binary_key: false,
        value_bytes: 0,
    }
}

/// A client that names the item's cas has the value.
#[inline]
pub(crate) fn shows_value(meta: &Meta<'_>, item: &Item) -> bool {
    meta.flags.has(b'v') && !(meta.flags.has(b'C') && meta.cas == item.cas)
}

/// The first line of a hit: status, what the flags ask for, and the marks.
#[inline]
pub(crate) fn push_hit(
    out: &mut Vec<u8>,
    meta: &Meta<'_>,
    shown: &Shown<'_>,
    with_value: bool,
    won: bool,
) {
    if with_value {
        out.extend_from_slice(b"VA ");
        push_u64(out, u64::from(shown.item.value_bytes));
    } else {
        out.extend_from_slice(b"HD");
    }
    push_words(out, meta, shown, true);
    if shown.item.win {
        out.extend_from_slice(b" Z");
    }
    if shown.item.stale {
        out.extend_from_slice(b" X");
    }
    if won {
        out.extend_from_slice(b" W");
    }
    out.extend_from_slice(b"\r\n");
}

/// What the flags ask for, in their order; `all` of them, or those that `ma` answers.
#[inline]
pub(crate) fn push_words(out: &mut Vec<u8>, meta: &Meta<'_>, shown: &Shown<'_>, all: bool) {
    let item = &shown.item;
    let mut deadline = item.deadline;
    for word in meta.words() {
        match word[0] {
            b'v' => {}
            letter if !all && !b"ctOkTN".contains(&letter) => {}
            b'T' => deadline = shown.exptime,
            b'N' if shown.created => deadline = shown.vivify,
            b's' => push_number(out, b's', u64::from(item.value_bytes)),
            b't' if deadline == 0 => out.extend_from_slice(b" t-1"),
            b't' => push_number(out, b't', u64::from(deadline.wrapping_sub(shown.now))),
            b'c' => push_number(out, b'c', item.cas),
            b'f' => push_number(out, b'f', u64::from(item.flags)),
            b'l' => push_number(out, b'l', u64::from(shown.now.wrapping_sub(item.last_access))),
            b'h' => push_number(out, b'h', u64::from(item.fetched)),
            _ => push_sent(out, word, shown.key, shown.base64),
        }
    }
}

pub(crate) fn push_number(out: &mut Vec<u8>, letter: u8, number: u64) {
    out.extend_from_slice(&[b' ', letter]);
    push_u64(out, number);
}

/// Repeats what the client sent: an opaque as it is; for `k` the key, marked if in base64.
pub(crate) fn push_sent(out: &mut Vec<u8>, word: &[u8], key: &[u8], base64: bool) {
    match word[0] {
        b'O' => {
            out.push(b' ');
            out.extend_from_slice(word);
        }
        b'k' => {
            out.extend_from_slice(b" k");
            if base64 {
                base64_encode(key, out);
                out.extend_from_slice(b" b");
            } else {
                out.extend_from_slice(key);
            }
        }
        _ => {}
    }
}
