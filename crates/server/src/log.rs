//! What the process says on standard error: lines for people, or with `--log-format json` an object a line.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use mbal_output::json::quoted;
use mbal_wire::printable;

static JSON: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Info,
    Warning,
    Error,
}

/// From now on, for the whole process.
pub fn set(format: Format) {
    JSON.store(format == Format::Json, Relaxed);
}

/// Says `text`, in which what others have said does nothing to a terminal. `event` names what has happened, for programs, and does not change from one release to
/// the next; `fields` are what they need not pick out of the text.
pub fn say(level: Level, event: &str, text: &str, fields: &[(&str, String)]) {
    let mut line = if JSON.load(Relaxed) {
        object(now(), level, event, text, fields)
    } else {
        printable(text)
    };
    // In one piece: several processes may write to the same terminal.
    line.push('\n');
    // Whoever closed standard error does not want to hear.
    drop(std::io::stderr().write_all(line.as_bytes()));
}

/// Says lines that have their ends already, all at once: those of several threads do not mix.
pub fn verbose(lines: &[u8]) {
    if !JSON.load(Relaxed) {
        // As above.
        return drop(std::io::stderr().write_all(lines));
    }
    for line in String::from_utf8_lossy(lines).lines() {
        say(Level::Info, "verbose", line, &[]);
    }
}

pub fn info(event: &str, text: &str) {
    say(Level::Info, event, text, &[]);
}

pub fn warn(event: &str, text: &str) {
    say(Level::Warning, event, text, &[]);
}

pub fn error(event: &str, text: &str) {
    say(Level::Error, event, text, &[]);
}

/// Seconds since 1970, with three digits behind the point.
fn now() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:03}", now.as_secs(), now.subsec_millis())
}

fn object(
    time: String,
    level: Level,
    event: &str,
    text: &str,
    fields: &[(&str, String)],
) -> String {
    let level = match level {
        Level::Info => "info",
        Level::Warning => "warning",
        Level::Error => "error",
    };
    let mut line = format!(
        r#"{{"time":{time},"level":"{level}","event":{},"text":{}"#,
        quoted(event),
        quoted(text)
    );
    for (name, value) in fields {
        line.push_str(&format!(",{}:{}", quoted(name), quoted(value)));
    }
    line.push('}');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_object_whatever_is_said() {
        let fields = [("path", "/tmp/\"a\"\u{7}".to_owned())];
        let line = object("1.500".into(), Level::Warning, "pid_file_stays", "one\ntwo \\", &fields);
        assert_eq!(
            line,
            r#"{"time":1.500,"level":"warning","event":"pid_file_stays","text":"one\ntwo \\","path":"/tmp/\"a\"\u0007"}"#
        );
    }
}
