//! One transaction after the other: decide, save, answer. What cannot be saved did not happen.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mbal_control::{Answer, Ask, Coordinator, Micros, Refusal};
use mbal_model::Cluster;
use serde::Serialize;

use crate::metrics;
use crate::state_file::StateFile;

/// Events that are remembered; the log has all.
const EVENTS_MAX: usize = 1000;

/// Takes news for the log.
pub type Say = dyn Fn(&str) + Send;

pub(crate) struct Driver {
    coordinator: Coordinator,
    file: StateFile,
    started: Instant,
    events: VecDeque<Event>,
    events_ever: u64,
    /// How long the last plan took.
    planned_in: Duration,
    say: Box<Say>,
}

/// Something that was decided.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Event {
    pub number: u64,
    /// Seconds since 1970.
    pub unix: u64,
    pub text: String,
}

/// Why there is no answer.
pub(crate) enum Failed {
    Refused(Refusal),
    /// The state could not be saved.
    Unsaved(String),
}

impl Driver {
    pub(crate) fn new(coordinator: Coordinator, file: StateFile, say: Box<Say>) -> Driver {
        Driver {
            coordinator,
            file,
            started: Instant::now(),
            events: VecDeque::new(),
            events_ever: 0,
            planned_in: Duration::ZERO,
            say,
        }
    }

    pub(crate) fn ask(&mut self, ask: Ask) -> Result<Answer, Failed> {
        let now = Micros(self.started.elapsed().as_micros() as u64);
        let done = self.coordinator.handle(now, ask);
        if let Some(before) = done.before {
            if let Err(error) = self.file.save(self.coordinator.state()) {
                self.coordinator.restore(before);
                let why = format!("the coordinator's state cannot be saved: {error}");
                (self.say)(&why);
                return Err(Failed::Unsaved(why));
            }
        }
        done.said.iter().for_each(|text| self.tell(text));
        done.answer.map_err(Failed::Refused)
    }

    /// To the log and to whoever asks for events.
    pub(crate) fn tell(&mut self, text: &str) {
        (self.say)(text);
        self.remember(text.to_owned());
    }

    pub(crate) fn planned_in(&mut self, elapsed: Duration) {
        self.planned_in = elapsed;
    }

    pub(crate) fn metrics(&mut self) -> String {
        let Ok(Answer::Status(status)) = self.ask(Ask::Status) else { return String::new() };
        let (state, balanced) = (self.coordinator.state(), self.coordinator.balanced());
        metrics::page(&status, state, balanced, self.planned_in)
    }

    fn remember(&mut self, text: String) {
        self.events_ever += 1;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.events.push_back(Event { number: self.events_ever, unix, text });
        if self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    pub(crate) fn cluster(&self) -> Option<Cluster> {
        self.coordinator.state().document()
    }

    /// Newest first.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.iter().rev().cloned().collect()
    }
}
