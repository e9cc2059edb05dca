//! Where a key's owner is, told to clients that know the workers: in `L` tokens, and for vbuckets.

use std::sync::Arc;

use mbal_model::{Cluster, Key, MapVersion, MoveId, Prefix, ServerId, WorkerId};
use mbal_wire::PeerRequest;
use mbal_worker::{Action, Actions, Event, OrderId, Settings, Ticket, Ticketed};

use crate::rig::{CONN, Rig};

const DOCUMENT: &str = "version 9\nserver 1 link a:1 client a:2\nserver 2 link b:1 client b:2\n\
    cachelet 0000/2 1/0\ncachelet 4000/2 1/1\ncachelet 8000/2 2/1\ncachelet c000/2 2/0\n";

/// Worker 0 of server `here`, which has two.
fn rig(here: u16) -> Rig {
    let mut rig = Rig::with(Settings { workers: 2, ..Settings::default() });
    let cluster = Arc::new(Cluster::parse(DOCUMENT).expect("well formed"));
    rig.handle(Event::Mapped { here: ServerId(here), cluster });
    let other = ServerId(3 - here);
    rig.handle(Event::LinkUp { server: other, credits: 9 });
    rig
}

/// A key of the cachelet that has this place among the four.
fn key(place: u64) -> String {
    let is_there = |word: &String| Key::new(word.as_bytes()).expect("short").hash() >> 62 == place;
    (0..).map(|number| format!("k{number}")).find(is_there).expect("endless")
}

/// What a server says to a request that another one has passed on.
fn forwarded(rig: &mut Rig, request: &str) -> String {
    let mut bytes = Vec::new();
    PeerRequest::new(1, 9, request.as_bytes()).encode(&mut bytes);
    let requests = [Ticketed::new(Ticket(1), &bytes)];
    let Actions { bytes, list, .. } =
        rig.handle(Event::Forwarded { server: ServerId(7), requests: &requests });
    let [Action::Answer { reply, .. }] = &list[..] else { panic!("{list:?}") };
    String::from_utf8(bytes[reply.clone()].to_vec()).expect("text")
}

fn local(rig: &Rig) -> u64 {
    rig.server.store.version()
}

#[test]
fn who_executes_a_forwarded_request_names_its_server_its_versions_and_the_owner() {
    let mut rig = rig(2);
    let (upper, last) = (key(2), key(3));
    let local = local(&rig);
    for (request, reply) in [
        (format!("mg {last} v L9.0\r\n"), format!("EN L9.{local}.2/0\r\n")),
        (format!("ms {last} 1 L8.5\r\nv\r\n"), format!("HD L9.{local}.2/0\r\n")),
        (format!("mg {last} v L9.0 k\r\n"), format!("VA 1 k{last} L9.{local}.2/0\r\nv\r\n")),
        (format!("ms {upper} 1 L9.0\r\nv\r\n"), format!("HD L9.{local}.2/1\r\n")),
        (format!("md {upper} L9.0\r\n"), format!("HD L9.{local}.2/1\r\n")),
        (format!("ma {upper} L9.0\r\n"), format!("NF L9.{local}.2/1\r\n")),
        (format!("mg {last}\r\n"), "HD\r\n".into()),
        (format!("mg {last} Lx\r\n"), "HD\r\n".into()),
        (format!("mg {upper} q L9.0\r\n"), String::new()),
    ] {
        assert_eq!(forwarded(&mut rig, &request), reply, "{request}");
    }
}

#[test]
fn the_hint_of_another_server_reaches_the_client_as_it_is() {
    let mut rig = rig(1);
    let actions = rig.handle(Event::Received {
        conn: CONN,
        bytes: format!("mg {} v L9.0\r\n", key(3)).as_bytes(),
    });
    let ticket = actions.list.iter().find_map(|action| match action {
        Action::Forward { ticket, request, .. } => {
            let sent =
                PeerRequest::decode(&actions.requests[request.clone()]).expect("well formed");
            assert_eq!(sent.request, format!("mg {} v L9.0\r\n", key(3)).as_bytes());
            Some(*ticket)
        }
        _ => None,
    });
    let replies = [Ticketed::new(ticket.expect("it is another's"), b"EN L9.4.2/1\r\n")];
    let actions = rig.handle(Event::Answered { server: ServerId(2), replies: &replies });
    assert_eq!(actions.bytes, b"EN L9.4.2/1\r\n");
}

#[test]
fn a_client_of_an_older_map_whose_key_has_no_reachable_owner_is_told_of_the_newer_one() {
    let mut rig = rig(1);
    rig.handle(Event::LinkBroken { server: ServerId(2) });
    let key = key(2);
    for (request, reply) in [
        (format!("mg {key} v L8.7\r\n"), "EN L9\r\n".to_owned()),
        (format!("mg {key} v L8.7 k\r\n"), format!("EN k{key} L9\r\n")),
        (format!("mg {key} v q L8.7\r\nmn\r\n"), "MN\r\n".into()),
        (format!("mg {key} v L9.0\r\n"), "EN\r\n".into()),
        (format!("mg {key} v\r\n"), "EN\r\n".into()),
        (format!("ms {key} 1 L8.7\r\nv\r\n"), "SERVER_ERROR no route to owner\r\n".into()),
    ] {
        rig.check(&request, &reply);
    }
}

/// The status and the value of the reply to a binary get that names a vbucket.
fn get(rig: &mut Rig, key: &str, vbucket: u16) -> (u8, String) {
    let mut request = vec![0x80, 0, 0, key.len() as u8, 0, 0];
    request.extend(vbucket.to_be_bytes());
    request.extend((key.len() as u32).to_be_bytes());
    request.extend([0; 12]);
    request.extend(key.as_bytes());
    let reply = rig.send(&request);
    (reply[7], String::from_utf8(reply[24..].to_vec()).expect("text"))
}

#[test]
fn a_vbucket_of_another_workers_or_another_servers_cachelet_is_not_served_but_referred() {
    let mut rig = rig(1);
    let local = local(&rig);
    let vbucket = |place: usize, bits: u32| Prefix::nth(place, bits).vbucket();
    let not_found = (1, "Not found".to_owned());
    assert_eq!(get(&mut rig, &key(0), vbucket(0, 2)), not_found);
    // A wider name is the name of the first half; a narrower one of a wider cachelet is the key's own.
    assert_eq!(get(&mut rig, &key(0), vbucket(0, 1)), not_found);
    let narrow = Prefix::of(Key::new(key(0).as_bytes()).expect("short").hash(), 9);
    assert_eq!(get(&mut rig, &key(0), narrow.vbucket()), not_found);
    for (place, hint) in [(1, format!("9.{local}.1")), (2, "9.0.2/1".into()), (3, "9.0.2/0".into())]
    {
        assert_eq!(get(&mut rig, &key(place), vbucket(place as usize, 2)), (7, hint));
    }
    assert_eq!(get(&mut rig, &key(2), vbucket(0, 2)).0, 7, "named by mistake");
    // By a newer map it is elsewhere.
    let newer = DOCUMENT.replace("version 9", "version 10").replace("0000/2 1/0", "0000/2 2/5");
    let cluster = Arc::new(Cluster::parse(&newer).expect("well formed"));
    rig.handle(Event::Mapped { here: ServerId(1), cluster });
    assert_eq!(get(&mut rig, &key(0), vbucket(0, 2)), (7, "10.0.2/5".into()));
}

/// A client of Couchbase's numbers its buckets as it likes.
#[test]
fn a_server_alone_without_ports_of_its_workers_passes_over_vbuckets() {
    let with_ports = |worker_addresses| {
        Rig::with(Settings { workers: 2, worker_addresses, ..Settings::default() })
    };
    let (key, mut plain) = (key(0), with_ports(Vec::new()));
    // Of a cachelet in the upper half, where the key is not.
    for vbucket in [0, 1, 7, 0x1234, 0x8001, u16::MAX] {
        assert_eq!(get(&mut plain, &key, vbucket), (1, "Not found".into()), "{vbucket:x}");
    }
    let ports = [1, 2].map(|port| ([127, 0, 0, 1], port).into());
    let mut smart = with_ports(ports.into());
    assert_eq!(get(&mut smart, &key, 0), (1, "Not found".into()));
    assert_eq!(get(&mut smart, &key, 0x8001).0, 7, "its client is to ask again");
}

#[test]
fn a_vbucket_of_a_cachelet_that_is_lent_is_referred_with_the_newest_local_version() {
    let mut rig = rig(1);
    let (cachelet, to, seen) = (Prefix::nth(0, 2), WorkerId(1), local(&rig));
    rig.handle(Event::Lend { order: OrderId(0), cachelet, to, seen });
    let version = MapVersion { map: 9, local: seen + 1 };
    assert_eq!(get(&mut rig, &key(0), cachelet.vbucket()), (7, format!("{version}.1")));
}

#[test]
fn a_vbucket_of_a_cachelet_on_its_way_finds_nobody() {
    let mut rig = rig(1);
    let cachelet = Prefix::nth(0, 2);
    let store = &rig.server.store;
    assert!(store.begin_to_leave(cachelet, MoveId(1)));
    assert!(store.freeze(cachelet, rig.now.second).is_some());
    let vbucket = cachelet.vbucket();
    // It waits for a second, as anybody would.
    assert_eq!(get(&mut rig, &key(0), vbucket), (1, "Not found".into()));
}
