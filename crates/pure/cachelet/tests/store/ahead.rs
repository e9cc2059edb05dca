//! Lookups that know their bucket beforehand.

use crate::bounds::{WORKER, get};
use crate::support::options;
use mbal_cachelet::{Ahead, Draft, Miss, Store};
use mbal_model::{Key, Prefix};

fn put(store: &Store, text: &str, value: &[u8]) {
    let key = Key::new(text.as_bytes()).expect("a valid key");
    let draft = Draft { parts: &[value], ..Draft::default() };
    store.lock(key.hash(), 1).put(&key, &draft).expect("there is room");
}

fn look(store: &Store, ahead: Ahead, text: &str, now: u32) -> Result<Vec<u8>, Miss> {
    let key = Key::new(text.as_bytes()).expect("a valid key");
    let mut out = Vec::new();
    let shown =
        store.look_ahead(ahead, &key, now, true, &mut out, |view, out| view.copy_value(out));
    shown.map(|()| out)
}

/// What was done between the two looks is seen by the second one.
#[test]
fn what_is_known_ahead_hides_nothing_that_was_done_since() {
    let store = Store::new(options(64, 1, 1));
    put(&store, "key", b"value");
    let key = Key::new(b"key").expect("a valid key");
    let check = |done: &dyn Fn(), now, expected: Result<&[u8], Miss>| {
        store.enter(WORKER);
        let ahead = store.prefetch_bucket(key.hash());
        store.prefetch_item(key.hash(), ahead);
        done();
        assert_eq!(look(&store, ahead, "key", now), expected.map(<[u8]>::to_vec));
        store.leave(WORKER);
    };
    check(&|| (), 1, Ok(b"value"));
    check(&|| put(&store, "key", b"other"), 1, Ok(b"other"));
    check(&|| put(&store, "key", b"longer than it was"), 1, Ok(b"longer than it was"));
    // Its slice grows, is split, and again, until the directory is another one.
    let grow = || (0..100_000).for_each(|n| put(&store, &format!("{n}"), b""));
    check(&grow, 1, Ok(b"longer than it was"));
    check(&|| _ = store.flush(0, 1), 1, Err(Miss::NotFound));
    check(&|| put(&store, "key", b"again"), 1, Ok(b"again"));
    let remove = || {
        let mut locked = store.lock(key.hash(), 1);
        let found = locked.find(&key).expect("it is there");
        locked.remove(&found);
    };
    check(&remove, 1, Err(Miss::NotFound));
    put(&store, "key", b"value");
    // A flush to come is due when the first of two keys is looked at.
    store.flush(5, 1);
    let first = || assert_eq!(look(&store, Ahead::NONE, "other", 5), Err(Miss::NotFound));
    check(&first, 5, Err(Miss::NotFound));
    assert_eq!(get(&store, "key", 5), None);
}

/// Its slice has moved to the new half, and the split is over.
#[test]
fn what_is_known_ahead_leads_a_writer_to_where_the_key_is_now() {
    let store = Store::new(options(64, 1, 1));
    let names = (0..2_000).map(|n| format!("key:{n}"));
    names.clone().for_each(|name| put(&store, &name, b"before"));
    store.enter(WORKER);
    let ahead: Vec<Ahead> = names
        .clone()
        .map(|name| store.prefetch_bucket(Key::new(name.as_bytes()).expect("a valid key").hash()))
        .collect();
    assert!(store.split(Prefix::ALL, 1));
    while store.split_step(Prefix::ALL, 1) {}
    for (name, ahead) in names.clone().zip(ahead) {
        let key = Key::new(name.as_bytes()).expect("a valid key");
        let mut locked = store.lock_ahead(ahead, key.hash(), 1);
        let found = locked.find(&key);
        assert!(found.is_some(), "{name} is not seen");
        let draft = Draft { parts: &[b"after"], ..Draft::default() };
        locked.put_found(&key, found.as_ref(), &draft).expect("there is room");
    }
    store.leave(WORKER);
    assert!(names.clone().all(|name| get(&store, &name, 1) == Some(b"after".to_vec())));
    assert_eq!(store.stats().items, 2_000);
}
