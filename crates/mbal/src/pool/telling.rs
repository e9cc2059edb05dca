//! What `mbal cluster scale` says while it works: text with a progress bar, or a JSON object a line.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use mbal_pool::Pace;
use serde_json::{Value, json};

/// How often progress is shown on a terminal, and elsewhere.
const OFTEN: Duration = Duration::from_millis(200);
const RARELY: Duration = Duration::from_secs(5);
const BAR: usize = 24;
const STEP: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
pub struct Telling {
    pub json: bool,
}

impl Telling {
    /// Something has happened: its text for people, its name and fields for programs.
    pub fn say(self, text: &str, event: &str, fields: Value) {
        let mut out = std::io::stdout().lock();
        let line = if self.json { object(event, fields).to_string() } else { text.to_owned() };
        // Whoever has closed stdout does not want it.
        drop(writeln!(out, "{line}").and_then(|()| out.flush()));
    }

    /// Does `work`, and shows meanwhile how far it is.
    pub fn while_doing<T>(self, stage: &str, pace: &Pace, work: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| self.show(stage, pace, &over));
            let done = work();
            over.store(true, Relaxed);
            done
        })
    }

    fn show(self, stage: &str, pace: &Pace, over: &AtomicBool) {
        let bar = std::io::stderr().is_terminal() && !self.json;
        let (begin, bytes_before) = (Instant::now(), pace.progress.bytes.load(Relaxed));
        let mut due = begin + if bar { OFTEN } else { RARELY };
        while !over.load(Relaxed) {
            thread::sleep(STEP);
            if Instant::now() < due {
                continue;
            }
            let seconds = begin.elapsed().as_secs_f64();
            let progress = Shown {
                done: pace.progress.done.load(Relaxed),
                total: pace.progress.total.load(Relaxed),
                bytes_per_second: (pace.progress.bytes.load(Relaxed) - bytes_before) as f64
                    / seconds,
                seconds,
            };
            due += if bar { OFTEN } else { RARELY };
            match (self.json, bar) {
                (true, _) => self.say("", "progress", progress.fields(stage)),
                (false, true) => show(&format!("\r{}\x1b[K", progress.text(stage))),
                (false, false) => show(&format!("{}\n", progress.text(stage))),
            }
        }
        if bar {
            show("\r\x1b[K");
        }
    }
}

/// Whoever has closed stderr does not want it, and ends nothing by that.
fn show(text: &str) {
    drop(std::io::stderr().write_all(text.as_bytes()));
}

fn object(event: &str, fields: Value) -> Value {
    let mut all = json!({ "event": event });
    if let (Value::Object(all), Value::Object(fields)) = (&mut all, fields) {
        all.extend(fields);
    }
    all
}

struct Shown {
    done: u64,
    total: u64,
    bytes_per_second: f64,
    seconds: f64,
}

impl Shown {
    /// By what has been done so far; unknown before anything has.
    fn seconds_left(&self) -> Option<u64> {
        let left = self.total.saturating_sub(self.done) as f64;
        (self.done > 0).then(|| (left / self.done as f64 * self.seconds).ceil() as u64)
    }

    fn share(&self) -> f64 {
        if self.total == 0 { 0.0 } else { (self.done as f64 / self.total as f64).min(1.0) }
    }

    fn text(&self, stage: &str) -> String {
        let full = (self.share() * BAR as f64) as usize;
        let (full, empty) = ("#".repeat(full), ".".repeat(BAR - full));
        let left = self.seconds_left().map_or_else(String::new, |seconds| {
            format!(", {}:{:02} left", seconds / 60, seconds % 60)
        });
        let rate = match self.bytes_per_second {
            rate if rate > 0.0 => format!(", {:.1} MB/s", rate / 1e6),
            _ => String::new(),
        };
        let percent = self.share() * 100.0;
        format!(
            "{stage} [{full}{empty}] {percent:.0}%, {} of {} items{rate}{left}",
            self.done, self.total
        )
    }

    fn fields(&self, stage: &str) -> Value {
        json!({
            "stage": stage, "done": self.done, "total": self.total,
            "bytes_per_second": self.bytes_per_second as u64, "seconds_left": self.seconds_left(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_how_long_it_takes_yet() {
        let shown =
            Shown { done: 25_000, total: 100_000, bytes_per_second: 4_200_000.0, seconds: 30.0 };
        assert_eq!(
            shown.text("copying"),
            "copying [######..................] 25%, 25000 of 100000 items, 4.2 MB/s, 1:30 left"
        );
        let begun = Shown { done: 0, total: 0, bytes_per_second: 0.0, seconds: 0.2 };
        assert_eq!(begun.text("listing"), format!("listing [{}] 0%, 0 of 0 items", ".".repeat(24)));
        assert_eq!(begun.seconds_left(), None);
    }
}
