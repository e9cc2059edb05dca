//! A `get` of many keys, or of long values: no more of it is on its way than a client may leave untaken.

mod common;

use common::transcript::World;
use common::{MS, settings};
use mbal_proxy::{ClientId, Event, Limits, Settings};
use mbal_random::Random;

fn keys(count: usize) -> String {
    let keys: Vec<String> = (0..count).map(|at| format!("k{at}")).collect();
    keys.join(" ")
}

fn value(key: &str, bytes: usize) -> String {
    format!("VALUE {key} 0 {bytes}\r\n{}\r\n", "v".repeat(bytes))
}

/// An upstream answers the `get`s that it was asked with values of so many bytes. For how many keys each of them was.
fn answer_at(
    world: &mut World,
    upstream: usize,
    bytes: impl Fn(&str) -> Option<usize>,
) -> Vec<usize> {
    let asked = std::mem::take(&mut world.asked[2 * upstream]);
    let mut counts = Vec::new();
    for line in asked.lines() {
        let keys: Vec<&str> = line.strip_prefix("get ").expect(line).split(' ').collect();
        let values = keys.iter().filter_map(|key| Some(value(key, bytes(key)?)));
        world.replies(upstream, &(values.collect::<String>() + "END\r\n"));
        counts.push(keys.len());
    }
    counts
}

/// The only one does.
fn answer(world: &mut World, bytes: impl Fn(&str) -> Option<usize>) -> Vec<usize> {
    world.wait(MS);
    let counts = answer_at(world, 0, bytes);
    world.wait(MS);
    counts
}

/// Until nothing is asked any more.
fn answer_all(world: &mut World, bytes: impl Fn(&str) -> Option<usize>) -> Vec<usize> {
    let all = std::iter::from_fn(|| Some(answer(world, &bytes)).filter(|some| !some.is_empty()));
    all.flatten().collect()
}

#[test]
fn as_many_values_are_on_their_way_as_a_client_may_leave_untaken() {
    let mut world = World::new(settings(1));
    let client = world.client();
    let all = |bytes: usize, count: usize| {
        let values: String = (0..count).map(|at| value(&format!("k{at}"), bytes)).collect();
        values + "END\r\n"
    };
    let get = |count: usize| format!("get {}\r\n", keys(count));
    // How long they are is not known before the first ones.
    world.says(client, &get(40));
    assert_eq!(answer_all(&mut world, |_| Some(100_000)), [8, 10, 10, 10, 2]);
    world.hears(client, &all(100_000, 40));
    // Short ones are known soon, and asked for at once.
    let short: Vec<Vec<usize>> = (0..40)
        .map(|_| {
            world.says(client, &get(100));
            let counts = answer_all(&mut world, |_| Some(10));
            world.hears(client, &all(10, 100));
            counts
        })
        .collect();
    assert_eq!((short[0].len(), &short[39][..]), (7, &[100][..]));
    // What is as long as all that may be untaken comes alone.
    world.says(client, &get(3));
    assert_eq!(answer_all(&mut world, |_| Some(2_000_000)), [3]);
    world.says(client, &get(3));
    assert_eq!(answer_all(&mut world, |_| Some(2_000_000)), [1, 1, 1]);
    assert_eq!(world.told[client.0 as usize], all(2_000_000, 3).repeat(2));
    assert_eq!(world.paused, []);
    let counters = world.proxy.counters();
    assert_eq!((counters.get_hits, counters.get_misses), (40 + 4_000 + 6, 0));
    assert_eq!(counters.further_keys + 43, 40 + 4_000 + 6);
}

#[test]
fn where_all_is_missed_more_is_asked_for_each_time() {
    let mut world = World::new(settings(1));
    let client = world.client();
    world.says(client, &format!("get {}\r\n", keys(600)));
    assert_eq!(answer_all(&mut world, |_| None), [8, 32, 128, 256, 176]);
    world.hears(client, "END\r\n");
}

#[test]
fn few_clients_ask_for_several_values_before_the_first_and_all_others_for_one() {
    let mut world = World::new(settings(1));
    let clients: Vec<ClientId> = (0..8).map(|_| world.client()).collect();
    clients.iter().for_each(|client| world.says(*client, "get a b c\r\n"));
    assert_eq!(answer(&mut world, |_| Some(1)), [3, 3, 3, 3, 3, 3, 1, 1]);
    assert_eq!(answer_all(&mut world, |_| Some(1)), [2, 2]);
    let abc = ["a", "b", "c"].map(|key| value(key, 1)).concat() + "END\r\n";
    clients.iter().for_each(|client| world.hears(*client, &abc));
    // Who has got values, or is gone, makes room for others.
    let newcomers: Vec<ClientId> = (0..6).map(|_| world.client()).collect();
    newcomers.iter().for_each(|client| world.says(*client, "get a b\r\n"));
    newcomers.iter().for_each(|client| world.event(Event::Closed { client: *client }));
    let last = world.client();
    world.says(last, "get a b\r\n");
    assert_eq!(answer_all(&mut world, |_| Some(1)), [2; 7]);
}

#[test]
fn what_is_asked_before_and_behind_is_answered_before_and_behind() {
    let mut world = World::new(settings(1));
    let client = world.client();
    let long = keys(20);
    world.says(client, &format!("get a\r\nget {long}\r\nget b\r\nget c d\r\n"));
    world.event(Event::HalfClosed { client });
    assert_eq!(answer(&mut world, |_| None), [1]);
    assert_eq!(answer(&mut world, |_| Some(1)), [8]);
    assert_eq!(answer(&mut world, |_| Some(1)), [12]);
    assert_eq!(answer(&mut world, |_| None), [1, 2]);
    let values: String = (0..20).map(|at| value(&format!("k{at}"), 1)).collect();
    world.hears(client, &format!("END\r\n{values}END\r\nEND\r\nEND\r\n"));
    assert_eq!(world.closed, [client]);
}

#[test]
fn an_error_ends_it_behind_the_values_before() {
    let mut world = World::new(settings(1));
    let client = world.client();
    world.says(client, &format!("get {}\r\nget a\r\n", keys(20)));
    answer(&mut world, |_| Some(1));
    let asked = std::mem::take(&mut world.asked[0]);
    assert_eq!(asked.split(' ').count(), 1 + 12);
    world.replies(0, "SERVER_ERROR out of memory\r\n");
    answer_all(&mut world, |_| None);
    let values: String = (0..8).map(|at| value(&format!("k{at}"), 1)).collect();
    world.hears(client, &format!("{values}SERVER_ERROR out of memory\r\nEND\r\n"));
    // A key that is too long is seen before anything is asked.
    world.says(client, &format!("get {} {}\r\n", keys(600), "k".repeat(251)));
    world.hears(client, "CLIENT_ERROR bad command line format\r\n");
    assert_eq!(world.asked[0], "");
    world.says(client, "get a\r\n");
    assert_eq!(answer(&mut world, |_| None), [1]);
    world.hears(client, "END\r\n");
    assert_eq!(world.paused, []);
}

#[test]
fn a_reply_that_is_coming_in_is_not_late() {
    let mut world = World::new(settings(1));
    let client = world.client();
    world.says(client, "get a\r\n");
    for part in ["VALUE a 0 3\r\n", "x", "y", "z", "\r\n", "END\r\n"] {
        world.wait(60 * MS);
        world.replies(0, part);
    }
    world.hears(client, "VALUE a 0 3\r\nxyz\r\nEND\r\n");
}

/// The proxy looked at the connection while the first reply was coming in, and is to look again when the second is late.
#[test]
fn a_reply_behind_one_that_took_long_has_its_time() {
    let mut world = World::new(settings(1));
    let (first, second) = (world.client(), world.client());
    world.says(first, "get a\r\n");
    world.says(second, "get b\r\n");
    for part in ["VALUE a 0 3\r\n", "xy", "z\r\nEND\r\n"] {
        world.wait(60 * MS);
        world.replies(0, part);
    }
    world.wait(60 * MS);
    world.hears(first, "VALUE a 0 3\r\nxyz\r\nEND\r\n");
    world.hears(second, "");
    world.wait(60 * MS);
    world.hears(second, "SERVER_ERROR upstream timed out\r\n");
}

/// Clients that take what they take when they do, and go when they go; each hears what one server would have told it.
#[test]
fn whoever_takes_how_much_when_everybody_hears_all() {
    const CLIENTS: usize = 12;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let limits = Limits { client_output_bytes_max: 2_000, ..Limits::default() };
        let mut world = World::new(Settings { limits, ..settings(3) });
        world.takes = Some(Random::new(seed));
        let bytes_of = |key: &str| {
            let number: usize = key[1..].parse().unwrap();
            [None, Some(10), Some(10), Some(100), Some(1_500)][number % 5]
        };
        let mut clients: Vec<(ClientId, String)> =
            (0..CLIENTS).map(|_| (world.client(), String::new())).collect();
        for step in 0..600 {
            let calm = 500 <= step;
            let at = random.below(CLIENTS as u64) as usize;
            let client = clients[at].0;
            match random.below(20) {
                0 if !calm => {
                    world.event(Event::Closed { client });
                    clients[at] = (world.client(), String::new());
                    world.told[clients[at].0.0 as usize].clear();
                }
                1..6 if !calm => {
                    let most = [1, 5, 30][random.below(3) as usize];
                    let count = 1 + random.below(most) as usize;
                    let keys: Vec<String> =
                        (0..count).map(|_| format!("k{}", random.below(40))).collect();
                    let values = keys.iter().filter_map(|key| Some(value(key, bytes_of(key)?)));
                    clients[at].1 += &(values.collect::<String>() + "END\r\n");
                    world.says(client, &format!("get {}\r\n", keys.join(" ")));
                }
                _ => {}
            }
            world.wait(MS / 4);
            answer_at(&mut world, random.below(3) as usize, bytes_of);
            clients.iter().for_each(|(client, _)| world.takes_more(*client));
        }
        for _ in 0..2_000 {
            world.wait(MS / 4);
            for upstream in 0..3 {
                answer_at(&mut world, upstream, bytes_of);
            }
            clients.iter().for_each(|(client, _)| world.takes_more(*client));
        }
        for (client, expected) in &clients {
            assert!(world.told[client.0 as usize] == *expected, "seed {seed}, {client:?}");
        }
    }
}
