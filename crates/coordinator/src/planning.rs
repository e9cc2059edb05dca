//! The thread that plans: once an epoch, and when a server is about to end, an outlook, outside of the lock a plan, and back with it.
//!
//! ```text
//!   driver ◄──Ask::Outlook── mbal-planner ──Ask::Planned──► driver: what fits begins, is saved, is told
//!          ◄──Ask::Rates────       │ ClusterPlanner::plan
//!          ◄──Ask::Threshold─       └ copies_threshold
//!          ◄──Ask::Inventory, Ask::Resized: who retires, mbal_control::choose
//! ```
//! Callers of the API wait for neither: the lock is held for short transactions.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mbal_balance::{ClusterPlanner, Thresholds, copies_threshold};
use mbal_control::{Answer, Ask, Rates, choose};
use mbal_locks::{Mutex, ranks};

use crate::driver::Driver;

/// What a copy is to answer at least, as a part of what a server answers on average: below it, its upkeep is more than it helps.
const COPY_WORTH: f64 = 0.02;

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
    let mut planner = ClusterPlanner::new(Thresholds::default());
    let mut number = 0;
    while let Ok(Word::Plan) | Err(RecvTimeoutError::Timeout) = heard.recv_timeout(epoch) {
        number += 1;
        let ask = |ask| driver.lock().ask(ask);
        let (_, Ok(Answer::Outlook(outlook))) = ask(Ask::Outlook(number)) else {
            // Whoever has the say now has seen other epochs than this planner.
            planner = ClusterPlanner::new(Thresholds::default());
            continue;
        };
        let begun = Instant::now();
        let planned = catch_unwind(AssertUnwindSafe(|| planner.plan(&outlook)));
        let Ok(plan) = planned else {
            planner = ClusterPlanner::new(Thresholds::default());
            driver.lock().tell("the planner has failed");
            continue;
        };
        driver.lock().planned_in(begun.elapsed());
        // What cannot be saved has not begun; the next outlook shows it.
        drop(ask(Ask::Planned(plan)));
        if let (_, Ok(Answer::Inventory(Some(inventory)))) = ask(Ask::Inventory) {
            drop(ask(Ask::Resized(inventory.number, choose(&inventory))));
        }
        let (_, Ok(Answer::Rates(Some(rates)))) = ask(Ask::Rates) else { continue };
        let Rates { servers, requests, hottest, target } = rates;
        let least = requests / servers.max(1) as f64 * COPY_WORTH;
        let threshold = copies_threshold(servers, requests, &hottest, target).max(least);
        drop(ask(Ask::Threshold(threshold)));
    }
}
