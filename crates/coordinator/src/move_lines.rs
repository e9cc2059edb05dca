//! What the log says of moves: a line for those that go on together. A drain is some ninety moves, and their lines would hide
//! what was decided. Events have each of them.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_model::Instant;

/// After so long without a move, or in the midst of them after so much longer, it is said what has moved.
const QUIET: Duration = Duration::from_secs(1);
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Moves of which the log has heard nothing yet.
#[derive(Default)]
pub(crate) struct MoveLines {
    /// By source, destination and reason.
    begun: BTreeMap<(String, String, String), usize>,
    ended: usize,
    /// Of the first and the last.
    since: Option<Instant>,
    last: Instant,
}

impl MoveLines {
    /// Keeps what is told of a single move; false of what the log is to have as it is.
    pub(crate) fn keeps(&mut self, text: &str, now: Instant) -> bool {
        if let Some(route) = begun(text) {
            *self.begun.entry(route).or_default() += 1;
        } else if is_end(text) {
            self.ended += 1;
        } else {
            return false;
        }
        self.since.get_or_insert(now);
        self.last = now;
        true
    }

    /// The line that is due, if any.
    pub(crate) fn due(&mut self, now: Instant) -> Option<String> {
        let since = self.since?;
        if now < self.last + QUIET && now < since + SAID_EVERY {
            return None;
        }
        let MoveLines { begun, ended, .. } = std::mem::take(self);
        let total: usize = begun.values().sum();
        let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for ((from, to, why), count) in begun {
            let route = format!("{count} from server {from} to {to}");
            by_reason.entry(why).or_default().push(route);
        }
        let whys = by_reason.into_iter().map(|(why, routes)| match why.is_empty() {
            true => routes.join(", "),
            false => format!("{}: {why}", routes.join(", ")),
        });
        let routes: Vec<String> = whys.collect();
        Some(match total {
            0 => format!("{ended} more moves have ended"),
            _ => format!("{total} moves have begun and {ended} ended: {}", routes.join("; ")),
        })
    }
}

/// `move 1: 0200/7 from server 2 to 1: server 2 is to be emptied; it has load 0.1`: source, destination, and why.
fn begun(text: &str) -> Option<(String, String, String)> {
    let (_, rest) = of_move(text)?.split_once(" from server ")?;
    let (from, rest) = rest.split_once(" to ")?;
    let (to, why) = rest.split_once(": ").unwrap_or((rest, ""));
    let why = why.split_once(';').map_or(why, |(why, _)| why);
    Some((from.into(), to.into(), why.into()))
}

fn is_end(text: &str) -> bool {
    of_move(text).is_some_and(|rest| rest.ends_with(" has moved"))
}

fn of_move(text: &str) -> Option<&str> {
    let (number, rest) = text.strip_prefix("move ")?.split_once(": ")?;
    number.parse::<u32>().ok().map(|_| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_that_go_on_together_are_one_line() {
        let mut lines = MoveLines::default();
        let at = Instant::from_millis;
        let why = "server 2 is to be emptied; it has load 0.000 and 0 bytes";
        assert!(lines.keeps(&format!("move 1: 0200/7 from server 2 to 1: {why}"), at(0)));
        assert!(lines.keeps(&format!("move 2: 0e00/7 from server 2 to 1: {why}"), at(0)));
        assert!(lines.keeps(&format!("move 3: 1a00/7 from server 2 to 3: {why}"), at(100)));
        assert!(lines.keeps("move 4: 2800/5 from server 1 to 3", at(200)));
        for number in 1..=3 {
            assert!(lines.keeps(&format!("move {number}: 0200/7 has moved"), at(900)));
        }
        for other in [
            "server 2 is to be emptied",
            "move 4: 2800/5 stays where it was: it is full",
            "moves have ended",
        ] {
            assert!(!lines.keeps(other, at(900)), "{other}");
        }
        assert_eq!(lines.due(at(1500)), None);
        assert_eq!(
            lines.due(at(1900)).as_deref(),
            Some(
                "4 moves have begun and 3 ended: 1 from server 1 to 3; \
                 2 from server 2 to 1, 1 from server 2 to 3: server 2 is to be emptied"
            )
        );
        assert_eq!(lines.due(at(9000)), None, "it was said");
    }

    #[test]
    fn while_moves_follow_each_other_a_line_comes_now_and_then() {
        let mut lines = MoveLines::default();
        let seconds = (0..30).map(|tick| Instant::from_millis(tick * 500));
        let said = seconds.filter_map(|now| {
            assert!(lines.keeps("move 9: 0200/7 has moved", now));
            lines.due(now)
        });
        assert_eq!(said.collect::<Vec<_>>(), ["21 more moves have ended"]);
    }
}
