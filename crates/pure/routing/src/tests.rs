//! Maps and hints, in any order, and where keys go by them.

use mbal_random::Random;

use super::*;

const QUARTERS: [u64; 4] = [0, 1 << 62, 2 << 62, 3 << 62];

/// Two servers with two workers each; the quarters belong to these.
fn view(version: &str, owners: [&str; 4]) -> ClusterView {
    let mut text = format!(
        "version {version}\nserver 1 link a:1 client a:2 workers a:10,a:11\n\
         server 2 link b:1 client b:2 workers b:20,b:21\n"
    );
    for (prefix, owner) in ["0000", "4000", "8000", "c000"].iter().zip(owners) {
        text += &format!("cachelet {prefix}/2 {owner}\n");
    }
    ClusterView::parse(&text).expect("well formed")
}

fn address(text: &str) -> Address {
    Address::parse(text).expect("well formed")
}

/// Known of server 1, which was asked at its own port.
fn routes() -> Routes {
    Routes::new(&view("5.3", ["1/0", "1/1", "2/0", "2/1"]), &address("a:2"))
}

fn ports(routes: &Routes) -> Vec<String> {
    let port = |hash| routes.address(routes.route(hash).owner).expect("it has one").to_string();
    QUARTERS.map(port).to_vec()
}

fn heed(routes: &mut Routes, quarter: usize, asked: u16, hint: &str) -> (bool, Option<u16>) {
    let hint = Hint::parse(hint.as_bytes()).expect("well formed");
    let Heeded { moved, ask } = routes.heed(QUARTERS[quarter] | 7, ServerId(asked), hint);
    (moved, ask.map(|server| server.0))
}

#[test]
fn a_hash_goes_to_the_port_of_its_cachelets_worker() {
    let routes = routes();
    assert_eq!(ports(&routes), ["a:10", "a:11", "b:20", "b:21"]);
    assert_eq!(routes.heard(ServerId(1)).to_string(), "5.3");
    assert_eq!(routes.known(ServerId(2)), None);
    assert_eq!(routes.owners().count(), 4);
}

#[test]
fn a_worker_that_a_server_does_not_have_is_one_that_it_has() {
    let routes = Routes::new(&view("5.0", ["1/2", "1/7", "2/65535", "2/0"]), &address("x:1"));
    assert_eq!(ports(&routes), ["a:10", "a:11", "b:21", "b:20"]);
}

#[test]
fn without_ports_of_workers_there_is_the_servers() {
    let text = "version 1.0\nserver 0 client 0.0.0.0:0\ncachelet 0000/0 0/3\n";
    let alone = ClusterView::parse(text).expect("well formed");
    let routes = Routes::new(&alone, &address("cache.example:11211"));
    assert_eq!(ports(&routes), ["cache.example:11211"; 4]);
    assert_eq!(routes.known(ServerId(0)).map(|known| known.to_string()).as_deref(), Some("1.0"));
}

#[test]
fn a_hint_changes_the_route_of_its_cachelet_if_it_is_not_older() {
    let mut routes = routes();
    assert_eq!(heed(&mut routes, 0, 1, "5.4.1"), (true, None));
    assert_eq!(ports(&routes), ["a:11", "a:11", "b:20", "b:21"]);
    assert_eq!(heed(&mut routes, 0, 1, "5.3.0"), (false, None), "an older reply came later");
    assert_eq!(heed(&mut routes, 0, 1, "4.9.0"), (false, None), "of an older map");
    assert_eq!(routes.heard(ServerId(1)).to_string(), "5.4");
    assert_eq!(heed(&mut routes, 2, 1, "5.2.2/1"), (true, None), "of another server's loan");
    assert_eq!(ports(&routes), ["a:11", "a:11", "b:21", "b:21"]);
}

#[test]
fn under_one_map_a_cachelet_stays_with_its_server() {
    let mut routes = routes();
    assert_eq!(heed(&mut routes, 0, 1, "5.9.2/1"), (false, None));
    assert_eq!(ports(&routes)[0], "a:10");
}

#[test]
fn a_hint_of_a_newer_map_makes_the_client_ask_for_it() {
    let mut routes = routes();
    assert_eq!(heed(&mut routes, 0, 1, "6.0.2/1"), (true, Some(2)));
    assert_eq!(ports(&routes)[0], "b:21");
    assert_eq!(heed(&mut routes, 0, 1, "6"), (false, Some(1)));
    assert_eq!(heed(&mut routes, 0, 1, "5"), (false, None));
    assert_eq!(
        heed(&mut routes, 1, 1, "6.0.9/0"),
        (false, Some(1)),
        "of a server that is not known"
    );
    let newer = view("6.0", ["2/1", "1/1", "2/0", "2/1"]);
    assert!(routes.learn(&newer, Some(ServerId(2)), &address("b:20")));
    assert_eq!(ports(&routes), ["b:21", "a:11", "b:20", "b:21"]);
    assert_eq!(heed(&mut routes, 0, 1, "6"), (false, None));
}

#[test]
fn an_older_map_changes_nothing() {
    let mut routes = routes();
    assert!(!routes.learn(&view("4.99", ["2/1"; 4]), Some(ServerId(1)), &address("a:10")));
    assert_eq!(ports(&routes), ["a:10", "a:11", "b:20", "b:21"]);
}

#[test]
fn a_servers_loans_are_learnt_from_itself() {
    let mut routes = routes();
    let lent = view("5.4", ["1/1", "1/1", "2/1", "2/1"]);
    assert!(!routes.learn(&lent, None, &address("x:1")));
    assert!(routes.learn(&lent, Some(ServerId(1)), &address("a:10")));
    assert_eq!(ports(&routes), ["a:11", "a:11", "b:20", "b:21"]);
    assert!(!routes.learn(&lent, Some(ServerId(1)), &address("a:10")), "it is no news");
    let older = view("5.3", ["1/0", "1/1", "2/0", "2/1"]);
    assert!(!routes.learn(&older, Some(ServerId(1)), &address("a:10")));
    assert!(routes.learn(
        &view("5.0", ["1/0", "1/0", "2/0", "2/0"]),
        Some(ServerId(2)),
        &address("b:2")
    ));
    assert_eq!(ports(&routes), ["a:11", "a:11", "b:20", "b:20"]);
}

#[test]
fn a_hint_that_is_newer_than_a_document_outlives_it() {
    let mut routes = routes();
    heed(&mut routes, 0, 1, "5.9.1");
    assert!(routes.learn(
        &view("5.4", ["1/0", "1/0", "2/0", "2/1"]),
        Some(ServerId(1)),
        &address("a:10")
    ));
    assert_eq!(ports(&routes), ["a:11", "a:10", "b:20", "b:21"]);
}

#[test]
fn a_server_that_starts_anew_counts_from_the_beginning() {
    let mut routes = routes();
    heed(&mut routes, 0, 1, "5.9.1");
    routes.forget(ServerId(1));
    assert_eq!((routes.known(ServerId(1)), routes.heard(ServerId(1)).local), (None, 0));
    assert!(routes.learn(
        &view("5.0", ["1/0", "1/1", "2/0", "2/1"]),
        Some(ServerId(1)),
        &address("a:10")
    ));
    assert_eq!(ports(&routes)[0], "a:10");
    assert_eq!(heed(&mut routes, 0, 1, "5.1.1"), (true, None));
}

#[test]
fn a_cachelet_that_was_split_may_have_two_owners() {
    let mut routes = routes();
    let text = view("5.4", ["1/0", "1/1", "2/0", "2/1"]).to_string();
    let text = text.replace("cachelet 0000/2 1/0\n", "cachelet 0000/3 1/0\ncachelet 2000/3 1/1\n");
    let split = ClusterView::parse(&text).expect("well formed");
    assert!(routes.learn(&split, Some(ServerId(1)), &address("a:10")));
    let worker = |hash: u64| routes.route(hash << 60).owner.worker.0;
    assert_eq!([0, 1, 2, 3, 4].map(worker), [0, 0, 1, 1, 1]);
    assert_eq!(routes.cachelet(2 << 60).to_string(), "2000/3");
}

#[test]
fn a_route_that_has_changed_says_where_to_wait_until_that_is_settled() {
    let mut routes = routes();
    let (old, new) = (routes.route(0).owner, Owner { server: ServerId(1), worker: WorkerId(1) });
    heed(&mut routes, 0, 1, "5.4.1");
    assert_eq!(routes.route(0), Route { owner: new, before: Some(old) });
    assert_eq!(routes.route(1 << 62).before, None);
    routes.settled(0, new);
    assert_eq!(routes.route(0).before, Some(old), "that was another wait");
    routes.settled(0, old);
    assert_eq!(routes.route(0), Route { owner: new, before: None });
    // Back and forth: nothing new has been asked at the place between.
    heed(&mut routes, 1, 1, "5.5.0");
    heed(&mut routes, 1, 1, "5.6.1");
    assert_eq!(routes.route(1 << 62), Route { owner: new, before: None });
}

#[test]
fn a_new_map_says_for_every_part_where_it_was_before() {
    let mut routes = routes();
    let text = "version 6.0\nserver 1 link a:1 client a:2 workers a:10,a:11\n\
        server 2 link b:1 client b:2 workers b:20,b:21\ncachelet 0000/0 2/1\n";
    let one = ClusterView::parse(text).expect("well formed");
    assert!(routes.learn(&one, Some(ServerId(2)), &address("b:20")));
    assert_eq!(ports(&routes), ["b:21"; 4]);
    let before = |hash| routes.route(hash).before.map(|owner| (owner.server.0, owner.worker.0));
    assert_eq!(QUARTERS.map(before), [Some((1, 0)), Some((1, 1)), Some((2, 0)), None]);
}

/// Random hints and documents never leave a hash without somebody who has an address, and a key ends where the newest says.
#[test]
fn every_hash_has_a_port_whatever_comes() {
    let mut routes = routes();
    let mut dice = Random::new(1);
    let mut random = move |below: u64| dice.below(below);
    for round in 0..20_000 {
        let (map, local) = (1 + random(9), random(9));
        if random(3) == 0 {
            let mut owners = [0; 4].map(|_| format!("{}/{}", 1 + random(2), random(3)));
            owners.sort();
            let owners = [0, 1, 2, 3].map(|at| owners[at].as_str());
            let from = [None, Some(ServerId(1)), Some(ServerId(2))][random(3) as usize];
            routes.learn(&view(&format!("{map}.{local}"), owners), from, &address("a:2"));
        } else {
            let hint = match random(3) {
                0 => format!("{map}"),
                1 => format!("{map}.{local}.{}", random(9)),
                _ => format!("{map}.{local}.{}/{}", random(4), random(9)),
            };
            heed(&mut routes, random(4) as usize, 1 + random(2) as u16, &hint);
        }
        if random(9) == 0 {
            routes.forget(ServerId(1 + random(2) as u16));
        }
        for hash in QUARTERS {
            let Route { owner, before } = routes.route(hash);
            assert!(routes.address(owner).is_some(), "round {round}");
            assert_ne!(before, Some(owner));
        }
    }
    assert_eq!(routes.version(), 9);
    let last = view("10.0", ["2/1", "2/0", "1/1", "1/0"]);
    assert!(routes.learn(&last, None, &address("x:1")));
    assert_eq!(ports(&routes), ["b:21", "b:20", "a:11", "a:10"]);
}
