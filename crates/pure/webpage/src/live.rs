//! Frames, one after the other, each the same for all who watch.
//!
//! Ten viewers cost what one costs, but for the bytes: a frame is made once. Nothing waits for a viewer. One that has not taken the last
//! frame misses the next, and one that takes none for [`STUCK_AFTER`] is let go by whoever has its socket.

use std::time::Duration;

use mbal_control::Overview;

use crate::history::{History, Point};
use crate::shown::{EventTold, Shown, Source};
use crate::sums;

/// Whoever comes when there are so many is told to come again.
pub const VIEWERS_MAX: usize = 64;
/// A viewer that has taken no byte for so long is gone.
pub const STUCK_AFTER: Duration = Duration::from_secs(10);

/// Frames that are short come twice a second, so that a death is seen within two.
const SOON: Duration = Duration::from_millis(500);
/// Long ones, and points of the history while nobody watches.
const USUAL: Duration = Duration::from_secs(1);
const SHORT_BYTES: usize = 32 << 10;

/// What came of looking at the cluster.
#[derive(Debug)]
pub enum Look {
    /// The newest event first.
    Seen(Box<Overview>, Vec<EventTold>),
    /// Nothing is known at this moment, and why: the last numbers stand, and grow old.
    Blind(String),
    /// Another coordinator leads, by its URL if it is known.
    StandsBy(String, Option<String>),
}

/// All that a page needs to know, over time.
#[derive(Debug)]
pub struct Live {
    source: Source,
    /// Changes are let through with a token, which there is.
    can_change: bool,
    history: History,
    number: u64,
    /// The last that was seen, as JSON, and when; nothing before the first look.
    shown: Option<(u64, String)>,
    point: Option<Point>,
    trouble: Option<String>,
    leader: Option<String>,
    frame_bytes: usize,
}

impl Live {
    pub fn new(source: Source, can_change: bool) -> Live {
        Live {
            source,
            can_change,
            history: History::default(),
            number: 0,
            shown: None,
            point: None,
            trouble: None,
            leader: None,
            frame_bytes: 0,
        }
    }

    /// How long until the next look.
    pub fn pause(&self, viewers: usize) -> Duration {
        if viewers > 0 && self.frame_bytes <= SHORT_BYTES { SOON } else { USUAL }
    }

    /// What was seen at `unix_ms`, in milliseconds since 1970.
    pub fn looked(&mut self, unix_ms: u64, look: Look, is_watched: bool) {
        (self.trouble, self.leader) = (None, None);
        match look {
            Look::Seen(overview, events) => {
                let point = sums::point((unix_ms / 1000) as u32, &overview);
                self.history.add(point);
                self.point = Some(point);
                // Nobody reads it: then it is not written.
                self.shown = is_watched.then(|| {
                    let shown = Shown::new(&overview, events);
                    let json = serde_json::to_string(&shown);
                    (unix_ms, json.expect("strings and numbers have a JSON form"))
                });
            }
            Look::Blind(why) => self.trouble = Some(why),
            Look::StandsBy(why, leader) => {
                (self.trouble, self.leader) = (Some(why), leader);
                (self.shown, self.point) = (None, None);
            }
        }
    }

    /// A server-sent event, for all viewers.
    pub fn frame(&mut self, unix_ms: u64) -> String {
        self.number += 1;
        let text = |text: &Option<String>| serde_json::Value::from(text.as_deref());
        let (seen_ms, shown) = match &self.shown {
            Some((seen_ms, shown)) => (*seen_ms, shown.as_str()),
            None => (0, "null"),
        };
        let source = serde_json::to_string(&self.source).expect("a name has a JSON form");
        let frame = format!(
            "id: {}\ndata: {{\"number\":{},\"unix_ms\":{unix_ms},\"seen_ms\":{seen_ms},\"source\":{source},\"can_change\":{},\
             \"trouble\":{},\"leader\":{},\"point\":{},\"shown\":{shown}}}\n\n",
            self.number,
            self.number,
            self.can_change,
            text(&self.trouble),
            text(&self.leader),
            self.point.as_ref().map_or("null".into(), Point::json),
        );
        self.frame_bytes = frame.len();
        frame
    }

    /// A span of the history, as JSON; the shortest, if there is none that lasts so many seconds.
    pub fn history(&self, seconds: u32) -> String {
        self.history.json(seconds)
    }
}

#[cfg(test)]
mod tests {
    use mbal_control::api::{LinkStatus, Status};
    use serde_json::Value;

    use super::*;

    fn seen(why: &str) -> Look {
        let link = LinkStatus { why: why.into(), ..LinkStatus::default() };
        let status =
            Status { cluster: "shop".into(), broken_links: vec![link], ..Status::default() };
        Look::Seen(Box::new(Overview { status, ..Overview::default() }), Vec::new())
    }

    fn told(frame: &str) -> Value {
        let (head, data) = frame.split_once("\ndata: ").expect("a number, then what it says");
        assert!(head.starts_with("id: "), "{head}");
        let data = data.strip_suffix("\n\n").expect("an empty line ends it");
        assert!(!data.contains(['\n', '\r']), "one line: {data}");
        serde_json::from_str(data).expect("it is JSON")
    }

    #[test]
    fn frames_are_numbered_and_one_line_whatever_servers_say() {
        let mut live = Live::new(Source::Coordinator, true);
        live.looked(5_000_250, seen("a\r\n\r\nevent: evil\ndata: </script>\u{2028}"), true);
        let first = told(&live.frame(5_000_300));
        assert_eq!((&first["number"], &first["source"]), (&1.into(), &"coordinator".into()));
        assert_eq!(first["shown"]["status"]["cluster"], "shop");
        assert_eq!((&first["point"]["unix"], &first["seen_ms"]), (&5000.into(), &5_000_250.into()));
        assert_eq!(told(&live.frame(5_001_300))["number"], 2);
    }

    #[test]
    fn who_sees_nothing_says_so_and_shows_what_was() {
        let mut live = Live::new(Source::Coordinator, false);
        let before = told(&live.frame(1000));
        assert_eq!((&before["shown"], &before["point"]), (&Value::Null, &Value::Null));
        live.looked(1_000_000, seen(""), true);
        live.looked(1_009_000, Look::Blind("it waits for its disk".into()), true);
        let blind = told(&live.frame(1_009_000));
        assert_eq!(blind["trouble"], "it waits for its disk");
        assert_eq!((&blind["seen_ms"], &blind["unix_ms"]), (&1_000_000.into(), &1_009_000.into()));
        assert_eq!(blind["shown"]["status"]["cluster"], "shop");
        // Nothing is made up for the time in which nothing was seen.
        let history: Value = serde_json::from_str(&live.history(600)).expect("it is JSON");
        assert_eq!(history["unix"], serde_json::json!([1000]));
        live.looked(1_010_000, seen(""), true);
        assert_eq!(told(&live.frame(1_010_000))["trouble"], Value::Null);
    }

    #[test]
    fn who_stands_by_names_the_leader_and_nothing_old() {
        let mut live = Live::new(Source::Coordinator, false);
        live.looked(1000, seen(""), true);
        let leader = Some("http://10.0.0.2:11210".to_owned());
        live.looked(2000, Look::StandsBy("another one leads".into(), leader), true);
        let frame = told(&live.frame(2000));
        assert_eq!((&frame["shown"], &frame["point"]), (&Value::Null, &Value::Null));
        assert_eq!(frame["leader"], "http://10.0.0.2:11210");
    }

    #[test]
    fn short_frames_come_twice_a_second_and_nobody_costs_nothing() {
        let mut live = Live::new(Source::Server, false);
        assert_eq!((live.pause(0), live.pause(3)), (USUAL, SOON));
        live.looked(1000, seen(""), false);
        assert!(live.shown.is_none(), "nobody reads it");
        let mut big = Overview::default();
        big.status.cluster = "x".repeat(SHORT_BYTES);
        live.looked(2000, Look::Seen(Box::new(big), Vec::new()), true);
        live.frame(2000);
        assert_eq!(live.pause(3), USUAL);
    }
}
