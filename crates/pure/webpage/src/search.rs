//! Where a key is, and what is known of it: who owns it, who has copies, what moves it, what was decided about it.

use mbal_control::api::{HotKey, MoveStatus};
use mbal_control::{Overview, Subject};
use mbal_model::Cluster;
use serde::Serialize;

use crate::shown::EventTold;

/// Decisions that are told of, the newest first.
const EVENTS_MAX: usize = 50;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// As lists of hot keys write it; none of who asked for a cachelet.
    pub key: Option<String>,
    /// 16 hexadecimal digits.
    pub hash: String,
    pub cachelet: String,
    pub server: u16,
    pub worker: u16,
    /// Where clients reach that server.
    pub client: String,
    pub state: String,
    /// One of the hottest keys of its server, with its copies.
    pub hot: Option<HotKey>,
    pub moves: Vec<MoveStatus>,
    pub events: Vec<EventTold>,
}

/// `what` is a key, as it is or with `%` and two digits for bytes; or a cachelet of the map, like `2c00/6`. `events` newest first.
pub fn search(
    what: &str,
    map: &Cluster,
    overview: &Overview,
    events: &[EventTold],
) -> Result<Found, &'static str> {
    let subject = Subject::of(what, &map.map)?;
    let Subject { hash, owner, .. } = subject;
    let (server, cachelet) = (owner.server.0, subject.cachelet.to_string());
    let is_it =
        |one: &&HotKey| one.server == server && Some(&one.report.key) == subject.key.as_ref();
    let hot = overview.hot.keys.iter().find(is_it).cloned();
    let status = overview.status.servers.iter().find(|one| one.id == server);
    let moves = overview.status.moves.iter().filter(|one| one.prefix == cachelet);
    let concerns = |event: &&EventTold| subject.is_in(&event.text);
    Ok(Found {
        hash: format!("{hash:016x}"),
        server,
        worker: owner.worker.0,
        client: map
            .servers
            .get(&owner.server)
            .map_or(String::new(), |addresses| addresses.client.to_string()),
        state: status.map_or_else(String::new, |one| one.state.clone()),
        hot,
        moves: moves.cloned().collect(),
        events: events.iter().filter(concerns).take(EVENTS_MAX).cloned().collect(),
        key: subject.key,
        cachelet,
    })
}

#[cfg(test)]
mod tests {
    use mbal_control::api::{HotKeys, HotReport, HotState, MoveDecision};
    use mbal_model::Key;

    use super::*;

    const MAP: &str = "cluster shop\nversion 7\nserver 1 link 10.0.0.1:11311 client 10.0.0.1:11211\n\
        server 2 link 10.0.0.2:11311 client 10.0.0.2:11211\nequal 2\n";

    fn found(what: &str) -> Result<Found, &'static str> {
        let map = Cluster::parse(MAP).expect("well formed");
        let report = HotReport {
            key: "a%20b".into(),
            state: Some(HotState::Hot),
            copies: vec![2],
            ..HotReport::default()
        };
        let mut overview = Overview::default();
        let server = map.map.at(Key::new(b"a b").expect("a key").hash()).1.server.0;
        overview.hot = HotKeys { keys: vec![HotKey { server, report }], ..HotKeys::default() };
        overview.status.moves = vec![MoveStatus {
            number: 2,
            prefix: "4000/2".into(),
            from: 2,
            to: 1,
            word: MoveDecision::Go,
            report: None,
        }];
        let event = |number, text: String| EventTold { number, unix: 5, text };
        let events = [
            event(3, format!("key a%20b of server {server} is hot: 900 reads/s")),
            event(2, "move 2: 4000/2 from server 2 to 1: to lighten its worker".into()),
            event(1, "the first map: 4 cachelets".into()),
        ];
        search(what, &map, &overview, &events)
    }

    #[test]
    fn a_key_is_found_with_its_copies_and_what_was_decided() {
        for written in ["a%20b", "a b"] {
            let found = found(written).expect("it is a key");
            assert_eq!(found.key.as_deref(), Some("a%20b"));
            assert_eq!(found.hot.expect("it is hot").report.copies, [2]);
            assert_eq!(found.events.iter().map(|one| one.number).collect::<Vec<_>>(), [3]);
            assert_eq!(found.client, format!("10.0.0.{}:11211", found.server));
        }
        // The hash of `a` begins with e6.
        let cold = found("a").expect("it is a key");
        assert_eq!((cold.hash.as_str(), cold.hot), ("e6c632b61e964e1f", None));
    }

    #[test]
    fn a_cachelet_is_found_with_its_move_and_why() {
        let found = found("4000/2").expect("it is one");
        assert_eq!((found.key, found.moves.len(), found.events[0].number), (None, 1, 2));
    }

    #[test]
    fn what_is_neither_is_refused_and_what_looks_like_markup_is_a_key() {
        assert!(found("").is_err() && found(&"k".repeat(251)).is_err());
        let found = found("<img src=x onerror=alert(1)>\u{1b}[2J").expect("it is a key");
        assert_eq!(found.key.as_deref(), Some("<img%20src=x%20onerror=alert(1)>%1B[2J"));
    }
}
