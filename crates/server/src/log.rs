//! What the process says on standard error: lines for people, or with `--log-format json` an object a line.
//!
//! A process that goes on puts the time before what it says of itself. What memcached says too, and why a command did not
//! start, stays as it is.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use mbal_output::quoted;
use mbal_wire::printable;

static JSON: AtomicBool = AtomicBool::new(false);
static STAMPED: AtomicBool = AtomicBool::new(false);

/// The length of what a line with the time begins with.
pub const STAMP_BYTES: usize = 24;

/// What all lines begin with that are ours and not memcached's.
const OURS: &str = "mbal";

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

/// From now on lines begin with the time, unless the journal reads them, which has its own.
pub fn stamp() {
    STAMPED.store(!is_journal(), Relaxed);
}

/// Whether lines begin with the time.
pub fn is_stamped() -> bool {
    STAMPED.load(Relaxed)
}

/// Says this line of another process, which has its end, as it is.
pub fn relay(line: &[u8]) {
    drop(std::io::stderr().write_all(line));
}

/// systemd says in `$JOURNAL_STREAM` which pipe leads to the journal: a child may have another one.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let file = std::io::stderr().as_fd().try_clone_to_owned().map(File::from);
    let told = file.and_then(|file| file.metadata());
    told.is_ok_and(|told| stream == format!("{}:{}", told.dev(), told.ino()))
}

/// Says `text`, in which what others have said does nothing to a terminal. `event` names what has happened, for programs, and does not change from one release to
/// the next; `fields` are what they need not pick out of the text.
pub fn say(level: Level, event: &str, text: &str, fields: &[(&str, String)]) {
    let mut line = if JSON.load(Relaxed) {
        object(now(), level, event, text, fields)
    } else if is_stamped() && text.starts_with(OURS) {
        format!("{} {}", rfc_3339(SystemTime::now()), printable(text))
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

/// Like `2026-11-28T10:03:39.123Z`, 24 bytes.
fn rfc_3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, ms) = (since.as_secs(), since.subsec_millis());
    let (year, month, day) = date_of(seconds / 86_400);
    let [hour, minute, second] = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
    let mut stamp = String::new();
    write!(stamp, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
        .expect("a String takes all");
    stamp
}

/// Year, month and day, so many days after 1970 began. Years begin in March here, so that the day that some have more is their last.
fn date_of(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // From 0000-03-01.
    let days = days + 719_468;
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, is_next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + is_next, month, day)
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stamp_is_the_time_in_utc() {
        for (ms, stamp) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_735_689_599_001, "2024-12-31T23:59:59.001Z"),
            (1_764_324_219_123, "2025-11-28T10:03:39.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc_3339(UNIX_EPOCH + Duration::from_millis(ms)), stamp);
        }
    }

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
