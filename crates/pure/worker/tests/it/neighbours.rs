//! Servers of one cluster: workers without sockets, whose network is the test.

use std::sync::Arc;
use std::time::Duration;

use crate::rig::{CONN, Rig};
use mbal_model::{Cluster, ClusterMap, Key, MoveId, Owner, Prefix, Route, ServerId, WorkerId};
use mbal_wire::PeerRequest;
use mbal_worker::{Action, Actions, Event, Ticket, Ticketed};

pub const HERE: ServerId = ServerId(1);

pub const PEERS: [ServerId; 2] = [ServerId(2), ServerId(3)];

/// Four cachelets: the first two of server 1, then one each of 2 and 3.
pub fn map() -> Arc<ClusterMap> {
    let owner = |server| Owner { server: ServerId(server), worker: WorkerId(0) };
    let owners = Prefix::equal(2).zip([1, 1, 2, 3].map(owner)).collect();
    Arc::new(ClusterMap::new(9, owners).expect("they cover all"))
}

pub fn cluster() -> Arc<Cluster> {
    Arc::new(Cluster::without_addresses(ClusterMap::clone(&map())))
}

/// The `nth` key that `server` owns.
pub fn key(server: u16, nth: usize) -> String {
    let map = map();
    let owned = |word: &String| {
        let key = Key::new(word.as_bytes()).expect("short");
        map.at(key.hash()).1.server == ServerId(server)
    };
    (0..).map(|number| format!("k{number}")).filter(owned).nth(nth).expect("endless")
}

/// A server, the requests that it has on its links, and what its client has got.
pub struct Client {
    pub rig: Rig,
    pub forwarded: Vec<(ServerId, Ticket, Vec<u8>)>,
    pub replies: String,
    pub closed: bool,
    pub paused: bool,
}

impl Client {
    pub fn new(credits: u32) -> Client {
        let mut rig = Rig::new();
        rig.handle(Event::Mapped { here: HERE, cluster: cluster() });
        for server in PEERS {
            rig.handle(Event::LinkUp { server, credits });
        }
        Client { rig, forwarded: vec![], replies: String::new(), closed: false, paused: false }
    }

    pub fn event(&mut self, event: Event<'_>) {
        let Actions { bytes, requests, list } = self.rig.handle(event);
        let mut stalled = false;
        for action in list {
            match action {
                Action::Send { bytes: range, .. } => {
                    self.replies += std::str::from_utf8(&bytes[range]).expect("text");
                }
                Action::Forward { server, ticket, request, .. } => {
                    self.forwarded.push((server, ticket, requests[request].to_vec()));
                }
                Action::Close { .. } => self.closed = true,
                Action::Datagram { .. } => unreachable!("no datagram has come"),
                Action::Pause { .. } => assert!(!std::mem::replace(&mut self.paused, true)),
                Action::Resume { .. } => assert!(std::mem::replace(&mut self.paused, false)),
                Action::Stall { .. } => stalled = true,
                Action::Answer { .. }
                | Action::RefreshCerts { .. }
                | Action::Shutdown { .. }
                | Action::HandOver { .. }
                | Action::Nudge { .. }
                | Action::TellMove { .. }
                | Action::BreakMoveLink { .. }
                | Action::Say { .. }
                | Action::Report(_) => panic!("nobody asked"),
            }
        }
        if stalled {
            self.event(Event::Drained { conn: CONN });
        }
    }

    pub fn unreachable(&mut self) -> u64 {
        self.rig.server.sums().get_unreachable
    }

    pub fn send(&mut self, input: &str) {
        self.event(Event::Received { conn: CONN, bytes: input.as_bytes() });
    }

    /// Answers the request that was forwarded `nth` of those that are unanswered.
    pub fn answer(&mut self, nth: usize, reply: &str) {
        let (server, ticket, _) = self.forwarded.remove(nth);
        self.event(Event::Answered { server, replies: &[Ticketed::new(ticket, reply.as_bytes())] });
    }

    pub fn requests(&self) -> Vec<(u16, String)> {
        let text = |bytes: &[u8]| {
            let peer = PeerRequest::decode(bytes).expect("well formed");
            assert_eq!((peer.hops, peer.map_version), (1, 9));
            String::from_utf8(peer.request.to_vec()).expect("text")
        };
        self.forwarded.iter().map(|(server, _, bytes)| (server.0, text(bytes))).collect()
    }

    #[track_caller]
    pub fn check(&mut self, replies: &str) {
        assert_eq!(std::mem::take(&mut self.replies), replies);
    }
}

/// What `rig` answers server 7, whose request has ticket 70, or passes on: to whom, by which ticket.
pub fn ask(rig: &mut Rig, hops: u8, request: &str) -> Result<String, (ServerId, Ticket, Vec<u8>)> {
    let mut bytes = Vec::new();
    PeerRequest::new(hops, 9, request.as_bytes()).encode(&mut bytes);
    let requests = [Ticketed::new(Ticket(70), &bytes)];
    let actions = rig.handle(Event::Forwarded { server: ServerId(7), requests: &requests });
    match &actions.list[..] {
        [Action::Forward { server, ticket, request, .. }] => {
            Err((*server, *ticket, actions.requests[request.clone()].to_vec()))
        }
        _ => Ok(answer(&actions)),
    }
}

/// What server 7 is told, by the ticket of its request.
pub fn answer(actions: &Actions) -> String {
    let [Action::Answer { server: ServerId(7), ticket: Ticket(70), reply }] = &actions.list[..]
    else {
        panic!("{:?}", actions.list)
    };
    String::from_utf8(actions.bytes[reply.clone()].to_vec()).expect("text")
}

/// All slices of the cachelet that has the key are frozen, or gone.
pub fn begin_to_move(client: &Client, key: &str) -> Prefix {
    let store = &client.rig.server.store;
    let hash = Key::new(key.as_bytes()).expect("short").hash();
    let prefix = store.prefixes().into_iter().find(|prefix| prefix.contains(hash)).expect("here");
    let now = client.rig.now.second;
    assert!(store.begin_to_leave(prefix, MoveId(1)));
    assert!(store.freeze(prefix, now).is_some());
    let serves = Route::Moving(MoveId(1));
    assert_eq!(store.route(WorkerId(0), hash), serves);
    prefix
}

/// Until whoever waits for a slice has waited long enough.
pub fn a_second_later(client: &mut Client) {
    let end = client.rig.now.instant() + Duration::from_millis(1_100);
    while let Some(wake) = client.rig.worker.next_wake().filter(|wake| *wake < end) {
        client.rig.pass_until(wake);
        client.event(Event::Woken);
    }
}
