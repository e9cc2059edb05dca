//! A process whose lines are read as they come.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::running::MBAL;

/// Killed with the test.
pub struct Heard {
    pub child: Child,
    /// Those that were not looked at yet.
    pub lines: Receiver<String>,
}

impl Heard {
    pub fn start(words: &[&str]) -> Heard {
        let mut command = Command::new(MBAL);
        command.args(words).env_remove("JOURNAL_STREAM").stdin(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program is there");
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // Until the last of those who write there has ended.
            stderr.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
        Heard { child, lines }
    }

    /// The next line that has all of these in it.
    pub fn hear(&self, parts: &[&str]) -> String {
        let mut others = Vec::new();
        loop {
            let Ok(line) = self.lines.recv_timeout(Duration::from_secs(30)) else {
                panic!("no line with {parts:?} among {others:#?}");
            };
            if parts.iter().all(|part| line.contains(part)) {
                return line;
            }
            others.push(line);
        }
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
