//! The thread that looks at servers' keys in etcd, while this coordinator leads: whose lease is over is dead.
//!
//! ```text
//!   driver ◄──Request::Owners── mbal-leases ──look──► etcd
//!      ▲──────Request::KeysSeen──────┘
//! ```

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mbal_control::{Request, Response};
use mbal_etcd::OwnersKeys;
use mbal_locks::{Mutex, ranks};

use crate::driver::Driver;

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Looks until it is dropped.
pub(crate) struct Watching {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watching {
    pub(crate) fn start(
        driver: Arc<Mutex<ranks::Driver, Driver>>,
        keys: OwnersKeys,
    ) -> io::Result<Watching> {
        let (stop, stopped) = channel();
        let thread = thread::Builder::new()
            .name("mbal-leases".into())
            .spawn(move || watch(&driver, &keys, &stopped))?;
        Ok(Watching { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn watch(driver: &Mutex<ranks::Driver, Driver>, keys: &OwnersKeys, stopped: &Receiver<()>) {
    let driver = || driver.lock();
    while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        let (term, Ok(Response::Owners(owners))) = driver().ask(Request::Owners) else { continue };
        if owners.servers.is_empty() {
            continue;
        }
        let of = owners.servers.iter();
        let of: BTreeMap<_, _> = of
            .map(|(server, (incarnation, asks))| (*server, (incarnation.to_string(), *asks)))
            .collect();
        // Whoever leads hears of an etcd that does not answer by itself.
        let Ok(seen) = keys.look(&of) else { continue };
        let seen = seen.into_iter();
        let seen = seen.map(|(server, key)| (server, (owners.servers[&server].0, key))).collect();
        // What was seen in one term says nothing in another, whose time begins anew.
        let mut driver = driver();
        if driver.term() == term {
            drop(driver.ask(Request::KeysSeen(owners.at, seen)));
        }
    }
}
