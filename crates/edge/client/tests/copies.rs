//! Copies of hot keys: what a client makes of what homes tell it, of servers that say it when a test wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

mod faking;

use faking::{Deed, Fake, eventually, key, options, reply};
use mbal_client::{Client, Store};
use tokio::sync::watch;

/// Any suffix's copy is on the other one of two servers.
const ATOMIC: &str = "=60000.1,2,3,4,5,6,7,8";
const ASYNC: &str = "~60000.1,2,3,4,5,6,7,8@8.1";

fn hit(token: &str) -> Deed {
    reply(&format!("VA 1 f0 c1{}{token}\r\nv\r\n", if token.is_empty() { "" } else { " L" }))
}

fn is_marked(request: &str) -> bool {
    request.contains('*')
}

/// How often worker 1 was asked by a lease.
fn by_lease(fake: &Fake) -> usize {
    let marked = |(worker, request): &&(usize, String)| *worker == 1 && is_marked(request);
    fake.asked().iter().filter(marked).count()
}

async fn read(client: &Client, key: &str) {
    assert_eq!(client.get(key).await.unwrap().unwrap().bytes, b"v");
}

/// Reads a key of the first server until a read is by a lease: chance may choose the home.
async fn lease(fake: &Fake, client: &Client, key: &str) {
    eventually("it is read by a lease", async || {
        read(client, key).await;
        by_lease(fake) > 0
    })
    .await;
}

#[tokio::test]
async fn reads_go_to_copies_and_writes_home() {
    let fake = Fake::start(2, |worker, request| match (worker, is_marked(request)) {
        (1, true) => hit(""),
        (0, false) if request.starts_with("mg ") => hit(ATOMIC),
        (1, false) if request.starts_with("mg ") => hit(""),
        _ => reply("HD\r\n"),
    })
    .await;
    let client = fake.client(options()).await;
    let hot = key(0, 0);
    for _ in 0..200 {
        read(&client, &hot).await;
    }
    let copies = by_lease(&fake);
    assert!((60..200).contains(&copies), "{copies} of 200 by leases");
    assert_eq!(client.copy_reads(), copies as u64);
    let many = client.get_many([key(0, 0), key(1, 0)]).await.unwrap();
    assert!(many.iter().all(Option::is_some) && by_lease(&fake) > copies);
    assert_eq!(client.copy_reads(), by_lease(&fake) as u64);
    assert!(client.get_and_touch(&hot, None).await.unwrap().is_some());
    client.set(&hot, "v", Store::forever()).await.unwrap();
    assert_eq!(client.delete(&hot).await, Ok(true));
    let asked = fake.asked();
    let is_write = |request: &str| !request.starts_with("mg ") || request.contains(" T0");
    let writes = asked.iter().filter(|(_, request)| is_write(request));
    assert!(writes.clone().count() == 3 && writes.clone().all(|(worker, _)| *worker == 0));
}

#[tokio::test]
async fn what_leaves_together_asks_no_server_more_for_the_sake_of_a_copy() {
    let hot = format!("mg {} ", key(0, 0));
    let fake = Fake::start(2, move |worker, request| {
        let is_home = worker == 0 && request.starts_with(&hot);
        hit(if is_home { ATOMIC } else { "" })
    })
    .await;
    let client = fake.client(options()).await;
    lease(&fake, &client, &key(0, 0)).await;
    for others_server in [0, 1] {
        let before = fake.asked().len();
        for _ in 0..20 {
            let many = client.get_many([key(0, 0), key(others_server, 1)]).await.unwrap();
            assert!(many.iter().all(Option::is_some), "{many:?}");
        }
        let asked = fake.asked().split_off(before);
        assert_eq!(asked.len(), 40);
        assert!(asked.iter().all(|(worker, _)| *worker == others_server), "{asked:?}");
    }
}

#[tokio::test]
async fn who_does_not_want_copies_asks_the_home() {
    let fake = Fake::start(2, |_, _| hit(ATOMIC)).await;
    let client = fake.client(options().read_copies(false)).await;
    for _ in 0..50 {
        read(&client, &key(0, 0)).await;
    }
    assert!(fake.asked().iter().all(|(worker, request)| *worker == 0 && !is_marked(request)));
}

#[tokio::test]
async fn a_client_says_the_newest_that_copies_have_shown() {
    let replica_versions = ["@9.2", "@9.1", "@10.1"];
    let next = AtomicUsize::new(0);
    let fake = Fake::start(2, move |worker, _| match worker {
        1 => hit(replica_versions[next.fetch_add(1, SeqCst).min(2)]),
        _ => hit(ASYNC),
    })
    .await;
    let client = fake.client(options()).await;
    eventually("there were four reads by leases", async || {
        read(&client, &key(0, 0)).await;
        by_lease(&fake) >= 4
    })
    .await;
    let asked = fake.asked();
    let marks = asked.iter().filter_map(|(_, request)| Some(request.split_once('*')?.1));
    assert_eq!(marks.take(4).collect::<Vec<_>>(), ["8.1", "9.2", "9.2", "10.1"]);
    assert_eq!(client.copy_reads(), by_lease(&fake) as u64);
}

#[tokio::test]
async fn a_copy_that_is_passed_on_ends_the_lease() {
    let (over, passed_on) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let fake = Fake::start(2, move |worker, _| match worker {
        1 if is_over.load(SeqCst) => {
            passed_on.store(true, SeqCst);
            hit("1.0.3/0")
        }
        1 => hit("@9.2"),
        _ if passed_on.load(SeqCst) => hit(""),
        _ => hit(ASYNC),
    })
    .await;
    let client = fake.client(options()).await;
    let hot = key(0, 0);
    lease(&fake, &client, &hot).await;
    over.store(true, SeqCst);
    let before = by_lease(&fake);
    eventually("one is passed on", async || {
        read(&client, &hot).await;
        by_lease(&fake) > before
    })
    .await;
    for _ in 0..10 {
        read(&client, &hot).await;
    }
    assert_eq!(by_lease(&fake), before + 1);
    assert_eq!(client.copy_reads(), before as u64);
}

#[tokio::test]
async fn after_a_write_what_was_told_before_it_does_not_count() {
    let (go, go_on) = watch::channel(false);
    let fake = Fake::start(2, move |worker, request| match (worker, request) {
        (1, _) => hit(""),
        (_, request) if request.starts_with("ms ") => reply("HD\r\n"),
        (_, request) if request.contains(" L1.0") && !*go_on.borrow() => {
            Deed::Wait(go_on.clone(), format!("VA 1 f0 c1 L{ASYNC}\r\nv\r\n"))
        }
        _ => hit(""),
    })
    .await;
    let client = fake.client(options().timeout(Duration::from_secs(20))).await;
    let hot = key(0, 0);
    let reading = tokio::spawn({
        let (client, hot) = (client.clone(), hot.clone());
        async move { read(&client, &hot).await }
    });
    eventually("it is asked", async || fake.count("mg ") == 1).await;
    let writing = tokio::spawn({
        let (client, hot) = (client.clone(), hot.clone());
        async move { client.set(&hot, "v", Store::forever()).await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    go.send(true).unwrap();
    reading.await.unwrap();
    writing.await.unwrap();
    for _ in 0..20 {
        read(&client, &hot).await;
    }
    assert_eq!(by_lease(&fake), 0);
}

#[tokio::test]
async fn a_copys_server_that_fails_costs_a_detour() {
    type Fails = fn() -> Deed;
    // Of many keys that are asked at once nobody is told what a silent server has.
    let fails: [(bool, Fails); 4] = [
        (false, || Deed::Silence),
        (true, || Deed::Close),
        (true, || reply("SERVER_ERROR no route to owner\r\n")),
        (true, || reply("EN\r\n")),
    ];
    for (is_known, fail) in fails {
        let fake = Fake::start(2, move |worker, _| match worker {
            1 => fail(),
            _ => hit(ATOMIC),
        })
        .await;
        let client = fake.client(options()).await;
        lease(&fake, &client, &key(0, 0)).await;
        for _ in 0..5 {
            read(&client, &key(0, 0)).await;
        }
        if is_known {
            let many = client.get_many(vec![key(0, 0); 3]).await.unwrap();
            assert!(many.iter().all(Option::is_some), "{many:?}");
        }
        assert_eq!(client.copy_reads(), 0);
    }
}
