//! Maps and hints, in any order, and where keys go by them.

use mbal_model::Chain;
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
    assert_eq!(routes.known(ServerId(2)).to_string(), "5.0");
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
    assert_eq!(routes.known(ServerId(0)).to_string(), "1.0");
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
    assert_eq!((routes.known(ServerId(1)).local, routes.heard(ServerId(1)).local), (0, 0));
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

/// Where a hash of the first cachelet goes, in sixteenths of it, and who is waited for.
fn part(routes: &Routes, sixteenth: u64) -> (u16, Option<u16>) {
    let Route { owner, before } = routes.route(sixteenth << 58);
    (owner.server.0, before.map(|before| before.server.0))
}

/// What a server answers to a request for such a hash.
fn told(routes: &mut Routes, sixteenth: u64, asked: u16, hint: &str) -> bool {
    let hint = Hint::parse(hint.as_bytes()).expect("well formed");
    routes.heed(sixteenth << 58, ServerId(asked), hint).moved
}

#[test]
fn what_has_gone_of_a_cachelet_that_moves_is_asked_for_there() {
    let mut routes = routes();
    assert!(told(&mut routes, 4, 1, "5.3.2/1"));
    assert_eq!([3, 4, 5].map(|at| part(&routes, at)), [(2, Some(1)), (2, Some(1)), (1, None)]);
    routes.settled(0, Owner { server: ServerId(1), worker: WorkerId(0) });
    assert_eq!([4, 5].map(|at| part(&routes, at)), [(2, None), (1, None)]);
    assert!(!told(&mut routes, 2, 1, "5.3.2/1"), "it is known");
    let hint = Hint::parse(b"5.3.2/1").expect("well formed");
    let little = routes.heed(9 << 57, ServerId(1), hint);
    assert!(!little.moved, "each step costs a wait");
    assert!(told(&mut routes, 9, 1, "5.3.2/1"));
    assert_eq!([9, 10].map(|at| part(&routes, at)), [(2, Some(1)), (1, Some(2))]);
    // All of it has gone.
    assert!(routes.learn(&view("6.0", ["2/1", "1/1", "2/0", "2/1"]), None, &address("x:1")));
    assert_eq!([3, 10].map(|at| part(&routes, at)), [(2, Some(1)), (2, Some(1))]);
}

#[test]
fn what_has_come_back_is_asked_for_where_it_was() {
    let mut routes = routes();
    assert!(told(&mut routes, 4, 1, "5.3.2/1"));
    routes.settled(0, Owner { server: ServerId(1), worker: WorkerId(0) });
    assert!(!told(&mut routes, 5, 2, "5.3.1/0"), "that was never said to be there");
    assert!(told(&mut routes, 3, 2, "5.3.1/0"));
    assert_eq!([3, 9].map(|at| part(&routes, at)), [(1, Some(2)), (1, Some(2))]);
}

#[test]
fn a_map_in_which_the_cachelet_still_moves_changes_nothing_but_a_server_that_is_gone() {
    let mut routes = routes();
    assert!(told(&mut routes, 4, 1, "5.3.2/1"));
    assert!(routes.learn(&view("6.0", ["1/0", "2/1", "2/0", "2/1"]), None, &address("x:1")));
    assert_eq!(part(&routes, 4), (2, Some(1)));
    let alone = "version 7.0\nserver 1 link a:1 client a:2 workers a:10\ncachelet 0000/2 1/0\n\
        cachelet 4000/2 1/0\ncachelet 8000/2 1/0\ncachelet c000/2 1/0\n";
    let alone = ClusterView::parse(alone).expect("well formed");
    assert!(routes.learn(&alone, None, &address("x:1")));
    assert_eq!(part(&routes, 4).0, 1);
}

/// Who waits as routes say asks for no key at one place while it is unanswered at another, whatever servers say.
#[test]
fn the_requests_for_a_key_are_in_order_whatever_comes() {
    let mut dice = Random::new(2);
    let mut random = move |below: u64| dice.below(below);
    let (mut partly, mut waits) = (0, 0);
    for _ in 0..300 {
        let mut routes = routes();
        let mut unanswered: Vec<(u64, Owner)> = Vec::new();
        for _ in 0..200 {
            let hash = random(16) << 58 | random(4) << 62;
            match random(8) {
                0..4 => {
                    while let Some(before) = routes.route(hash).before {
                        unanswered.retain(|(_, owner)| *owner != before);
                        routes.settled(hash, before);
                        waits += 1;
                    }
                    let owner = routes.route(hash).owner;
                    partly += u32::from(routes.cachelets[routes.index(hash)].gone.is_some());
                    let others = unanswered.iter().filter(|(key, at)| *key == hash && *at != owner);
                    assert_eq!(others.count(), 0);
                    unanswered.push((hash, owner));
                }
                4 => unanswered.truncate(random(20) as usize),
                5 if random(4) == 0 => {
                    let owners = [0; 4].map(|_| format!("{}/{}", 1 + random(2), random(2)));
                    let owners = [0, 1, 2, 3].map(|at| owners[at].as_str());
                    let version = format!("{}.{}", routes.version() + random(2), random(9));
                    let from = [None, Some(ServerId(1)), Some(ServerId(2))][random(3) as usize];
                    routes.learn(&view(&version, owners), from, &address("a:2"));
                }
                _ => {
                    let map = routes.version() + u64::from(random(9) == 0);
                    let hint = match random(3) {
                        0 => format!("{map}.{}.{}", random(9), random(2)),
                        _ => format!("{map}.{}.{}/{}", random(9), 1 + random(2), random(2)),
                    };
                    let hint = Hint::parse(hint.as_bytes()).expect("well formed");
                    routes.heed(hash, ServerId(1 + random(2) as u16), hint);
                }
            }
        }
    }
    assert!(partly > 1_000 && waits > 1_000, "{partly}, {waits}");
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

fn changed(routes: &mut Routes, from: u16, lines: &str) -> bool {
    let changes = Changes::of_view(lines).expect("it is one").expect("well formed");
    routes.change(&changes, ServerId(from), &address("z:9"))
}

#[test]
fn changes_that_fit_are_all_that_is_new() {
    let mut routes = routes();
    heed(&mut routes, 1, 1, "5.4.0");
    assert!(changed(
        &mut routes,
        2,
        "from 5.0\nversion 6.2\ncachelet 0000/2 2/1\ncachelet 8000/2 2/1\ncachelet c000/2 2/0\n"
    ));
    assert_eq!(ports(&routes), ["b:21", "a:10", "b:21", "b:20"], "what a hint has told holds");
    let known = [1, 2].map(|server| routes.known(ServerId(server)).to_string());
    assert_eq!(known, ["6.0", "6.2"], "of the loans of server 1 under this map nothing is known");
    assert_eq!(heed(&mut routes, 1, 1, "5.9.1"), (false, None), "of an older map");
    // Loans alone; then servers that come, and one that goes.
    assert!(changed(&mut routes, 1, "from 6.0\nversion 6.5\ncachelet 4000/2 1/1\n"));
    assert_eq!(ports(&routes)[1], "a:11");
    let moved = "from 6.5\nversion 8.0\nserver 3 client 0.0.0.0:3\ngone 1\ncachelet 4000/2 3/0\n";
    assert!(changed(&mut routes, 3, moved));
    assert_eq!(ports(&routes), ["b:21", "z:3", "b:21", "b:20"]);
    assert_eq!(routes.servers().map(|server| server.0).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn changes_that_do_not_fit_change_nothing() {
    for lines in [
        "from 4.0\nversion 6.0\n",
        "from 6.0\nversion 7.0\n",
        "from 5.3\nversion 4.0\n",
        "from 5.3\nversion 6.0\ngone 2\n",
        "from 5.3\nversion 6.0\ncachelet 0000/3 1/0\n",
        "from 5.3\nversion 6.0\ncachelet 0000/2 7/0\n",
    ] {
        let mut routes = routes();
        assert!(!changed(&mut routes, 1, lines), "{lines}");
        assert_eq!(ports(&routes), ["a:10", "a:11", "b:20", "b:21"], "{lines}");
        assert_eq!(routes.known(ServerId(1)).to_string(), "5.3", "{lines}");
    }
}

/// A server as it sees its cluster.
#[derive(Clone, Default)]
struct Lender {
    local: u64,
    loans: BTreeMap<Prefix, WorkerId>,
}

/// Maps with cachelets that move and split, servers that lend, and clients that ask one of them now and then: by changes they know
/// what the whole document says.
#[test]
fn by_changes_a_client_knows_what_by_whole_documents() {
    let mut dice = Random::new(7);
    let mut random = move |below: u64| dice.below(below);
    let mut cluster = view("1.0", ["1/0", "1/1", "2/0", "2/1"]).cluster;
    let mut lenders = [Lender::default(), Lender::default()];
    let mut chain = Chain::default();
    let at = address("x:1");
    let mut routes = Routes::new(&ClusterView { cluster: cluster.clone(), local: 0 }, &at);
    let (mut by_changes, mut wholes) = (0, 0);
    for round in 0..5_000 {
        let lender = random(2) as usize;
        let own = |(_, owner): &&(Prefix, Owner)| owner.server.0 == lender as u16 + 1;
        let all = cluster.map.cachelets().to_vec();
        let (prefix, owner) = all[random(all.len() as u64) as usize];
        match random(4) {
            0 => {
                let new = Owner { server: ServerId(1 + random(2) as u16), ..owner };
                let parts = match prefix.halves().filter(|_| random(4) == 0 && all.len() < 40) {
                    Some((lower, upper)) => vec![(lower, owner), (upper, new)],
                    None => vec![(prefix, new)],
                };
                let kept = all.into_iter().filter(|one| one.0 != prefix);
                let map = ClusterMap::new(cluster.map.version() + 1, kept.chain(parts).collect());
                let map = std::sync::Arc::new(map.expect("the same hashes"));
                let next = mbal_model::Cluster { map, ..cluster.clone() };
                chain.push(cluster.map.version(), next.difference(&cluster), |_| 1, 3);
                cluster = next;
            }
            1 => {
                let lent: Vec<_> = all.iter().filter(own).collect();
                if !lent.is_empty() {
                    let prefix = lent[random(lent.len() as u64) as usize].0;
                    let Lender { local, loans } = &mut lenders[lender];
                    loans.insert(prefix, WorkerId(random(2) as u16));
                    *local += 1;
                }
            }
            // A hint about what is so.
            2 if owner.server.0 == lender as u16 + 1 => {
                let worker = lenders[lender].loans.get(&prefix).copied().unwrap_or(owner.worker);
                let version =
                    MapVersion { map: cluster.map.version(), local: lenders[lender].local };
                let hint = Hint::Server { version, server: owner.server, worker };
                routes.heed(prefix.first_hash(), ServerId(1), hint);
            }
            _ => {
                let Lender { local, loans } = lenders[lender].clone();
                let shown = |(prefix, owner): &(Prefix, Owner)| {
                    let worker = loans.get(prefix).filter(|_| own(&&(*prefix, *owner)));
                    (*prefix, Owner { worker: worker.copied().unwrap_or(owner.worker), ..*owner })
                };
                let owners = all.iter().map(shown).collect();
                let map = ClusterMap::new(cluster.map.version(), owners).expect("the same hashes");
                let map = std::sync::Arc::new(map);
                let view =
                    ClusterView { cluster: mbal_model::Cluster { map, ..cluster.clone() }, local };
                let server = ServerId(lender as u16 + 1);
                let known = routes.known(server);
                let differences: Option<Vec<_>> = match known.map == cluster.map.version() {
                    true => Some(Vec::new()),
                    false => chain.since(known.map).map(|each| each.cloned().collect()),
                };
                let told = differences.map(|all| view.changes(server, known, &all));
                let changes = told.as_deref().and_then(Changes::of_view);
                match changes {
                    Some(changes) => {
                        let changes = changes.expect("well formed");
                        assert!(routes.change(&changes, server, &at), "round {round}: {told:?}");
                        by_changes += 1;
                    }
                    None => {
                        routes.learn(&view, Some(server), &at);
                        wholes += 1;
                    }
                }
                for (prefix, owner) in view.cluster.map.cachelets() {
                    let route = routes.route(prefix.first_hash()).owner;
                    assert_eq!(route.server, owner.server, "round {round}: {prefix}");
                    if owner.server == server {
                        assert_eq!(route.worker, owner.worker, "round {round}: {prefix}");
                    }
                }
            }
        }
    }
    assert!(by_changes > 1_000 && wholes > 10, "{by_changes} {wholes}");
}
