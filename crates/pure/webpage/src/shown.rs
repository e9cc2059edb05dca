//! What a frame has of a cluster: the API's own answers, bounded, and what no answer of it has.

use mbal_control::api::{HotKeys, RemedyReport, ScaleStatus, Status};
use mbal_control::{Overview, ServerOverview};
use serde::Serialize;

use crate::sums::{quantile, rates};

/// Of a frame; `/v1/hotkeys` and `/v1/events` have the others.
pub const HOT_KEYS_SHOWN: usize = 64;
pub const EVENTS_SHOWN: usize = 60;
/// Of servers and operators, who may say anything: a frame has so many characters of it.
const TEXT_CHARACTERS_MAX: usize = 400;

/// Who serves the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    Coordinator,
    /// It tells of itself alone.
    Server,
}

/// Something that was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EventTold {
    pub number: u64,
    /// Seconds since 1970; 0 is not known.
    pub unix: u64,
    pub text: String,
}

/// A cluster at one moment, as a frame has it.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// As `/v1/status` says it.
    status: Status,
    /// Of the remedies in it, in their order; nothing of who is pending.
    judged: Vec<Option<RemedyOutcome>>,
    scale: ScaleStatus,
    /// As `/v1/hotkeys` says it, the hottest.
    hot: HotKeys,
    hot_all: usize,
    servers: Vec<ServerShown>,
    epoch_ms: u64,
    /// The newest first.
    events: Vec<EventTold>,
}

/// What came of a remedy, as events say it.
#[derive(Clone, Debug, Serialize)]
struct RemedyOutcome {
    words: String,
    came_true: bool,
}

/// What only heartbeats have. Whole numbers are short: loads are in thousandths.
#[derive(Clone, Debug, Serialize)]
struct ServerShown {
    server: u16,
    load: Vec<u32>,
    /// In tenths of a request.
    waiting: Vec<u32>,
    /// Keys a second.
    rate: Vec<u64>,
    reads: u64,
    hits: u64,
    writes: u64,
    used: u64,
    memory: u64,
    /// Nanoseconds.
    p50: u64,
    p99: u64,
    p999: u64,
}

impl Shown {
    /// `events` newest first.
    pub fn new(overview: &Overview, events: impl IntoIterator<Item = EventTold>) -> Shown {
        let hot = &overview.hot;
        let keys = hot.keys.iter().take(HOT_KEYS_SHOWN).cloned().collect();
        let mut status = overview.status.clone();
        for link in &mut status.broken_links {
            link.why = bounded(&link.why);
        }
        let judged = |one: &RemedyReport| {
            one.judged().map(|(words, came_true)| RemedyOutcome { words, came_true })
        };
        let event = |event: EventTold| EventTold { text: bounded(&event.text), ..event };
        Shown {
            judged: status.balance.remedies.iter().map(judged).collect(),
            status,
            scale: overview.scaling.clone(),
            hot: HotKeys { status: hot.status, keys },
            hot_all: hot.keys.len(),
            servers: overview.servers.iter().map(ServerShown::new).collect(),
            epoch_ms: overview.epoch.as_millis() as u64,
            events: events.into_iter().take(EVENTS_SHOWN).map(event).collect(),
        }
    }
}

impl ServerShown {
    fn new(of: &ServerOverview) -> ServerShown {
        let [reads, hits, writes] = rates(of).map(|rate| rate.round() as u64);
        let all: u64 = of.workers.iter().map(|one| one.reads + one.writes).sum();
        let rate = |keys: u64| (of.requests * keys as f64 / all.max(1) as f64).round() as u64;
        let buckets = of.vitals.latency_ns.iter().copied().collect();
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| quantile(&buckets, share) as u64);
        ServerShown {
            server: of.server.0,
            load: of.workers.iter().map(|one| (one.load * 1e3).round() as u32).collect(),
            waiting: of.workers.iter().map(|one| (one.waiting * 10.0).round() as u32).collect(),
            rate: of.workers.iter().map(|one| rate(one.reads + one.writes)).collect(),
            reads,
            hits,
            writes,
            used: of.vitals.used_bytes,
            memory: of.memory_bytes,
            p50,
            p99,
            p999,
        }
    }
}

fn bounded(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use mbal_control::WorkerOverview;
    use mbal_control::api::{CameReport, HotKey, HotReport};
    use mbal_model::ServerId;
    use serde_json::{Value, json};

    use super::*;

    fn told(shown: &Shown) -> Value {
        serde_json::to_value(shown).expect("it has a JSON form")
    }

    #[test]
    fn a_frame_says_what_the_api_says() {
        let status = Status { cluster: "shop".into(), map_version: 7, ..Status::default() };
        let expected = serde_json::to_value(&status).expect("it has a JSON form");
        let overview = Overview { status, ..Overview::default() };
        let shown = told(&Shown::new(&overview, []));
        assert_eq!(shown["status"], expected);
        assert_eq!((&shown["servers"], &shown["events"]), (&json!([]), &json!([])));
    }

    #[test]
    fn what_came_of_remedies_is_judged_as_events_have_it() {
        let remedy = |came| RemedyReport { seen: 3.0, expected: 1.0, came, ..Default::default() };
        let mut overview = Overview::default();
        overview.status.balance.remedies = vec![
            remedy(None),
            remedy(Some((1.2, CameReport::True))),
            remedy(Some((1.3, CameReport::True))),
            remedy(Some((1.2, CameReport::Short))),
            remedy(Some((3.5, CameReport::Worse))),
        ];
        let judged = |words: &str, came_true| json!({ "words": words, "came_true": came_true });
        let expected = json!([
            null,
            judged("it came true", true),
            judged("85% of the relief came", false),
            judged(
                "90% of the relief came, but others pay for it, so it is tried less often",
                false
            ),
            judged("worse, so it goes back", false),
        ]);
        assert_eq!(told(&Shown::new(&overview, []))["judged"], expected);
    }

    #[test]
    fn ten_thousand_hot_keys_and_endless_words_are_bounded() {
        let key = |at: usize| HotKey {
            server: 1,
            report: HotReport { key: format!("<script>{at}"), ..HotReport::default() },
        };
        let hot = HotKeys { keys: (0..10_000).map(key).collect(), ..HotKeys::default() };
        let overview = Overview { hot, ..Overview::default() };
        let event = |number| EventTold { number, unix: 1, text: "\u{fc}".repeat(100_000) };
        let shown = Shown::new(&overview, (0..1000).map(event));
        let (text, shown) = (serde_json::to_string(&shown).expect("a JSON form"), told(&shown));
        assert_eq!(shown["hot_all"], 10_000);
        assert_eq!(shown["hot"]["keys"].as_array().map(Vec::len), Some(HOT_KEYS_SHOWN));
        assert_eq!(shown["hot"]["keys"][0]["key"], "<script>0", "as it is: the page shows text");
        assert_eq!(shown["events"].as_array().map(Vec::len), Some(EVENTS_SHOWN));
        assert!(text.len() < 80_000, "{}", text.len());
    }

    #[test]
    fn sixty_four_servers_of_sixty_four_workers_are_a_hundred_kilobytes() {
        let worker =
            WorkerOverview { load: 0.8765, waiting: 1.25, reads: 900, hits: 800, writes: 100 };
        let server = |id| ServerOverview {
            server: ServerId(id),
            workers: vec![worker; 64],
            requests: 640_000.0,
            ..ServerOverview::default()
        };
        let overview = Overview { servers: (1..=64).map(server).collect(), ..Overview::default() };
        let shown = Shown::new(&overview, []);
        let bytes = serde_json::to_string(&shown).expect("a JSON form").len();
        assert!(bytes < 100_000, "{bytes}");
        let shown = told(&shown);
        let first = &shown["servers"][0];
        assert_eq!(
            (&first["load"][63], &first["waiting"][0], &first["rate"][0], &first["hits"]),
            (&json!(877), &json!(13), &json!(10_000), &json!(512_000))
        );
    }
}
