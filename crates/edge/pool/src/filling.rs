//! What proxies are told of servers that were filled, and whether these still have what they got.

use mbal_routing::ketama::{FILLED, RingServer};

use crate::connection::{Connection, Dial, Failed, Value};

/// Proxies have read the new list by then.
const TOLD_SECONDS: i64 = 3600;

/// A process's, and how often it was flushed: what it had before a change is gone after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pid: u64,
    flushes: u64,
}

/// Tells proxies that had these servers before that they have what they have to have now.
pub fn tell_filled<'a>(
    servers: impl Iterator<Item = &'a RingServer>,
    dial: Dial,
) -> Result<(), Failed> {
    for server in servers {
        let mut connection = Connection::open(dial, server)?;
        let value = Value { bytes: vec![b'1'], flags: 0, ttl: None, cas: 0 };
        connection.delete(FILLED.as_bytes());
        connection.deleted(1)?;
        connection.add(FILLED.as_bytes(), &value, TOLD_SECONDS);
        connection.added(1)?;
    }
    Ok(())
}

/// They have not: clients do not get the list.
pub fn untell_filled<'a>(
    servers: impl Iterator<Item = &'a RingServer>,
    dial: Dial,
) -> Result<(), Failed> {
    for server in servers {
        let mut connection = Connection::open(dial, server)?;
        connection.delete(FILLED.as_bytes());
        connection.deleted(1)?;
    }
    Ok(())
}

pub fn lives(servers: &[RingServer], dial: Dial) -> Result<Vec<Life>, Failed> {
    let life = |server| {
        let stats = Connection::open(dial, server)?.stats("")?;
        let number = |name: &str| stats.get(name).and_then(|told| told.parse().ok()).unwrap_or(0);
        Ok(Life { pid: number("pid"), flushes: number("cmd_flush") })
    };
    servers.iter().map(life).collect()
}
