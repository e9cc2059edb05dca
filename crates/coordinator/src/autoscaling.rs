//! The thread that scales: `mbal_planning`'s [`Pilot`], with a clock and with machines.
//!
//! ```text
//!   driver ◄── Request ── mbal-autoscaler: Pilot ── start, stop ──► machines
//! ```

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mbal_locks::{Mutex, ranks};
use mbal_planning::autoscaling::{Action, Event, Pauses, Pilot, Time};

use crate::driver::Driver;
use crate::machines::Machines;

/// Scales until it is dropped.
pub(crate) struct Autoscaling {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Autoscaling {
    pub(crate) fn start(
        driver: Arc<Mutex<ranks::Driver, Driver>>,
        autoscale: Autoscale,
        cluster: String,
    ) -> io::Result<Autoscaling> {
        let (stop, stopped) = channel();
        let thread = thread::Builder::new()
            .name("mbal-autoscaler".into())
            .spawn(move || scale(&driver, &autoscale, &cluster, &stopped))?;
        Ok(Autoscaling { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Autoscaling {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn scale(
    driver: &Mutex<ranks::Driver, Driver>,
    Autoscale { machines, every }: &Autoscale,
    cluster: &str,
    stopped: &Receiver<()>,
) {
    let begun = Instant::now();
    let time = || Time {
        now: mbal_model::Instant::ZERO + begun.elapsed(),
        unix: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
    };
    let mut pilot = Pilot::new(Pauses::of(*every), machines.stoppable(), time().now);
    let mut actions = Vec::new();
    loop {
        let pause = pilot.next_wake().map(|at| at - time().now).unwrap_or_default();
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        pilot.handle(time(), Event::Woken, &mut actions);
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                let event = match action {
                    Action::Tell(text) => {
                        driver.lock().tell(&text);
                        continue;
                    }
                    Action::Ask(ask) => {
                        let answer = driver.lock().ask(ask).1;
                        Event::Answered(answer.map_err(|why| why.to_string()))
                    }
                    Action::Start { count, more } => {
                        Event::Done(machines.start(cluster, count, more))
                    }
                    Action::Stop { count, leavers } => {
                        Event::Done(machines.stop(cluster, count, &leavers))
                    }
                };
                pilot.handle(time(), event, &mut actions);
            }
        }
    }
}

/// How its owner sets it up.
#[derive(Debug)]
pub struct Autoscale {
    pub machines: Machines,
    /// Between two looks; a minute but for tests.
    pub every: Duration,
}

impl Default for Autoscale {
    fn default() -> Autoscale {
        Autoscale { machines: Machines::Nobody, every: Duration::from_secs(60) }
    }
}
