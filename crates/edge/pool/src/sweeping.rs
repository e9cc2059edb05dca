//! Deletes what clients do not look for where it is: what a change of the pool left on a server that stays.

use std::thread;

use mbal_routing::ketama::{FILLED, Ring, RingServer};
use mbal_wire::is_meta_key;

use crate::connection::{Connection, Dial, Failed};
use crate::pace::{DELETED_BYTES, Pace};
use crate::survey::list;

/// So many deletes are under way at once.
pub(crate) const DELETES: usize = 256;

/// Deletes keys on a server; how many were found. Stops early where it is told to, and keeps to a rate.
pub(crate) fn delete_all<'a>(
    connection: &mut Connection,
    keys: impl Iterator<Item = &'a [u8]>,
    pace: Option<&Pace>,
) -> Result<u64, Failed> {
    let mut keys = keys.filter(|key| is_meta_key(key)).peekable();
    let (mut found, mut many) = (0, DELETES);
    if let Some(pace) = pace {
        many = many.min(pace.batch_items() * 2);
    }
    while keys.peek().is_some() && !pace.is_some_and(Pace::is_stopped) {
        let batch: Vec<&[u8]> = keys.by_ref().take(many).collect();
        batch.iter().for_each(|key| connection.delete(key));
        found += connection.deleted(batch.len())?;
        if let Some(pace) = pace {
            pace.progress.add(batch.len() as u64, 0);
            pace.take(batch.len() as u64 * DELETED_BYTES);
        }
    }
    Ok(found)
}

/// Deletes from each server of the pool that clients have what the ring has elsewhere; how many there were.
pub fn sweep(pool: &[RingServer], ring: &Ring, dial: Dial, pace: &Pace) -> Result<u64, Failed> {
    pace.progress.begin(0);
    let sweep_one = |number: usize| {
        let mut connection = Connection::open(dial, &pool[number])?;
        let mut strays = Vec::new();
        list(&mut connection, (pace, pool.len()), |line| {
            if ring.owner(&line.key) != number && line.key != FILLED.as_bytes() {
                strays.push(line.key);
            }
        })?;
        delete_all(&mut connection, strays.iter().map(Vec::as_slice), Some(pace))
    };
    thread::scope(|scope| {
        let sweep_one = &sweep_one;
        let threads: Vec<_> =
            (0..pool.len()).map(|number| scope.spawn(move || sweep_one(number))).collect();
        let counts = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        counts.sum()
    })
}
