//! The thread that plans: once an epoch, and when a server is about to end, outside of the lock.
//!
//! ```text
//!   driver ◄── Request ── mbal-planner: mbal_planning::Planning
//!          ── Response ──►
//! ```
//! Callers of the API do not wait for it: the lock is held for short transactions.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mbal_balance::Thresholds;
use mbal_control::Response;
use mbal_locks::{Mutex, ranks};

use crate::driver::Driver;

/// Plans until it is dropped.
pub(crate) struct Planning {
    words: Sender<Word>,
    thread: Option<JoinHandle<()>>,
}

/// Sooner than the end of the epoch.
pub(crate) enum Word {
    Plan,
    Stop,
}

impl Planning {
    pub(crate) fn start(
        driver: Arc<Mutex<ranks::Driver, Driver>>,
        epoch: Duration,
    ) -> io::Result<Planning> {
        let (words, heard) = channel();
        driver.lock().planned_by(words.clone());
        let thread = thread::Builder::new()
            .name("mbal-planner".into())
            .spawn(move || plan(&driver, epoch, &heard))?;
        Ok(Planning { words, thread: Some(thread) })
    }
}

impl Drop for Planning {
    fn drop(&mut self) {
        drop(self.words.send(Word::Stop));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn plan(driver: &Mutex<ranks::Driver, Driver>, epoch: Duration, heard: &Receiver<Word>) {
    let mut planning = mbal_planning::Planning::new(Thresholds::default(), 1);
    while let Ok(Word::Plan) | Err(RecvTimeoutError::Timeout) = heard.recv_timeout(epoch) {
        let mut next = Some(planning.epoch());
        while let Some(ask) = next {
            let answer = driver.lock().ask(ask).1.ok();
            let (begun, plans) = (Instant::now(), matches!(answer, Some(Response::Outlook(_))));
            let asks = catch_unwind(AssertUnwindSafe(|| planning.answered(answer)));
            if plans {
                driver.lock().planned_in(begun.elapsed());
            }
            next = asks.unwrap_or_else(|_| {
                planning.begin_anew();
                driver.lock().tell("the planner has failed");
                None
            });
        }
    }
}
