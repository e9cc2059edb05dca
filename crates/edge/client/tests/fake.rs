//! A client against servers that say what a real one does not, or not when a test wants it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

mod faking;

use faking::{Deed, Fake, eventually, key, options, reply};
use mbal_client::{Client, Error, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;

#[tokio::test]
async fn a_key_is_asked_of_its_worker_with_what_is_known_of_the_owners() {
    let fake = Fake::start(1, |_, _| reply("EN\r\n")).await;
    let client = fake.client(options()).await;
    for half in 0..2 {
        assert_eq!(client.get(key(half, 0)).await, Ok(None));
    }
    let expected = [0, 1].map(|half| (half, format!("mg {} v f c L1.0", key(half, 0))));
    assert_eq!(fake.asked(), expected);
    assert_eq!((client.map_version(), client.unreachable_gets()), (1, 0));
}

#[tokio::test]
async fn many_keys_leave_before_the_first_is_answered() {
    const KEYS: usize = 100;
    let waiting = Arc::new(Mutex::new(VecDeque::new()));
    let seen = Arc::clone(&waiting);
    // Nothing is answered before all requests of the worker are there.
    let fake = Fake::start(1, move |_, request| {
        let mut seen = seen.lock().unwrap();
        let name = request.split(' ').nth(1).unwrap().to_owned();
        seen.push_back(format!("VA {} f0 c1\r\n{name}\r\n", name.len()));
        match seen.len() {
            KEYS => Deed::Reply(seen.drain(..).collect()),
            _ => reply(""),
        }
    })
    .await;
    let client = fake.client(options()).await;
    let keys: Vec<String> = (0..KEYS).map(|nth| key(0, nth)).collect();
    let values = client.get_many(&keys).await.unwrap();
    for (key, value) in keys.iter().zip(values) {
        assert_eq!(value.unwrap().bytes, key.as_bytes());
    }
    // So do single gets that are made at once.
    let gets: Vec<_> = keys
        .iter()
        .map(|key| {
            let (client, key) = (client.clone(), key.clone());
            tokio::spawn(async move { client.get(&key).await })
        })
        .collect();
    for (key, get) in keys.iter().zip(gets) {
        assert_eq!(get.await.unwrap().unwrap().unwrap().bytes, key.as_bytes());
    }
}

#[tokio::test]
async fn a_write_whose_connection_broke_is_not_repeated_and_a_read_is() {
    let fake = Fake::start(1, |_, request| match request {
        "mn" => reply("MN\r\n"),
        _ => Deed::Close,
    })
    .await;
    let client = fake.client(options()).await;
    let set = client.set(key(0, 0), "v", Store::forever()).await;
    assert!(matches!(set, Err(Error::Unknown(server)) if server.0 == 3), "{set:?}");
    assert_eq!(fake.count("ms "), 1);
    let counted = client.incr(key(0, 0), 1).await;
    assert!(matches!(counted, Err(Error::Unknown(_))), "{counted:?}");
    assert_eq!(fake.count("ma "), 1);
    assert_eq!(client.get_and_touch(key(0, 0), None).await, Ok(None));
    assert_eq!(fake.count("mg "), 1, "it is a write, too");
    assert_eq!(client.get(key(0, 0)).await, Ok(None));
    assert!(fake.count("mg ") > 2);
    assert_eq!(client.unreachable_gets(), 2);
}

#[tokio::test]
async fn a_silent_server_is_left_alone_until_it_answers_a_probe() {
    let (well, is_well) = watch::channel(false);
    let fake = Fake::start(1, move |_, request| match (*is_well.borrow(), request) {
        (false, _) => Deed::Silence,
        (true, "mn") => reply("MN\r\n"),
        (true, _) => reply("HD\r\n"),
    })
    .await;
    let client = fake.client(options()).await;
    let set = client.set(key(0, 0), "v", Store::forever()).await;
    assert!(matches!(set, Err(Error::Unknown(_))), "{set:?}");
    eventually("it is left alone", async || {
        matches!(client.delete(key(0, 0)).await, Err(Error::Unreachable(_)))
    })
    .await;
    let asked = fake.count("m") - fake.count("mn");
    for nth in 0..50 {
        assert_eq!(client.get(key(nth % 2, nth)).await, Ok(None));
        let set = client.set(key(nth % 2, nth), "v", Store::forever()).await;
        assert!(matches!(set, Err(Error::Unreachable(_))), "{set:?}");
    }
    assert_eq!(fake.count("m") - fake.count("mn"), asked, "nobody was asked");
    eventually("it is probed", async || fake.count("mn") > 1).await;
    well.send(true).unwrap();
    eventually("it is well", async || client.delete(key(0, 0)).await == Ok(true)).await;
}

#[tokio::test]
async fn garbage_is_no_value() {
    for garbage in
        ["VALUE k 0 1\r\nv\r\n", "VA 1\r\nvvv\r\n", "\0\0\0\0\r\n", "HD\r\nHD\r\n", "MN\r\n\r\n"]
    {
        let fake = Fake::start(1, move |_, request| match request {
            "mn" => reply("MN\r\n"),
            request if request.starts_with("md ") => reply("HD\r\n"),
            _ => reply(garbage),
        })
        .await;
        let client = fake.client(options()).await;
        assert_eq!(
            client.get(key(0, 0)).await.map(|value| value.map(|value| value.bytes)),
            Ok(None)
        );
        let set = client.set(key(1, 0), "v", Store::forever()).await;
        let known = set.is_err() || garbage.starts_with("HD");
        assert!(known, "{garbage:?}: {set:?}");
        eventually("it is asked again", async || client.delete(key(0, 0)).await == Ok(true)).await;
    }
}

#[tokio::test]
async fn an_answer_that_comes_late_is_nobody_elses() {
    let (go, go_on) = watch::channel(false);
    let fake = Fake::start(1, move |_, request| match request.split(' ').next() {
        Some("mn") => reply("MN\r\n"),
        Some("ma") => Deed::Wait(go_on.clone(), "VA 1\r\n5\r\n".into()),
        // Something is heard, so it is not silent.
        Some("md") => reply("NF\r\n"),
        _ => reply("VA 1 f0 c1\r\nv\r\n"),
    })
    .await;
    let options = options().connections_per_worker(1);
    let client = fake.client(options).await;
    let counting = tokio::spawn({
        let client = client.clone();
        async move { client.incr(key(0, 0), 1).await }
    });
    eventually("it is asked", async || fake.count("ma ") == 1).await;
    let getting = tokio::spawn({
        let client = client.clone();
        async move { client.get(key(0, 1)).await }
    });
    eventually("or left alone", async || fake.count("mg ") == 1 || counting.is_finished()).await;
    go.send(true).unwrap();
    let (counted, got) = (counting.await.unwrap(), getting.await.unwrap());
    assert!(matches!(counted, Ok(Some(5)) | Err(Error::Unknown(_))), "{counted:?}");
    let got = got.unwrap().map(|value| value.bytes);
    assert!(got.is_none() || got == Some(b"v".to_vec()), "{got:?}");
}

#[tokio::test]
async fn a_hint_sends_the_next_request_to_the_new_worker() {
    let fake = Fake::start(1, |worker, _| match worker {
        0 => reply("EN L1.4.1\r\n"),
        _ => reply("HD\r\n"),
    })
    .await;
    let client = fake.client(options()).await;
    assert_eq!(client.get(key(0, 0)).await, Ok(None));
    assert_eq!(client.delete(key(0, 1)).await, Ok(true));
    let expected =
        [(0, format!("mg {} v f c L1.0", key(0, 0))), (1, format!("md {} L1.4", key(0, 1)))];
    assert_eq!(fake.asked(), expected);
}

#[tokio::test]
async fn the_new_worker_is_asked_when_the_old_one_has_answered() {
    let (go, go_on) = watch::channel(false);
    let slow = key(1, 1);
    let fake = Fake::start(1, move |_, request| match request {
        "mn" => reply("MN\r\n"),
        request if request.contains(&slow) => Deed::Wait(go_on.clone(), "HD\r\n".into()),
        _ => reply("HD L2\r\n"),
    })
    .await;
    let client = fake.client(options().timeout(Duration::from_secs(20))).await;
    let delete = |key: String| {
        let client = client.clone();
        tokio::spawn(async move { client.delete(key).await })
    };
    let waits = delete(key(1, 1));
    eventually("the slow one is asked", async || fake.count("md ") == 1).await;
    *fake.map.lock().unwrap() = ("2.0".into(), [0, 0]);
    eventually("the newer map is known", async || {
        drop(client.delete(key(0, 0)).await);
        client.map_version() == 2
    })
    .await;
    let follows = delete(key(1, 2));
    // It stands behind the slow one, so it is not read before that is answered.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!fake.asked().iter().any(|(_, request)| request.contains(&key(1, 2))));
    go.send(true).unwrap();
    assert_eq!((waits.await.unwrap(), follows.await.unwrap()), (Ok(true), Ok(true)));
    let asked = fake.asked();
    assert_eq!(asked.last(), Some(&(0, format!("md {} L2.0", key(1, 2)))));
    assert!(asked.contains(&(1, "mn".into())), "that is how it knows");
}

#[tokio::test]
async fn a_read_that_missed_by_an_old_map_is_asked_once_more_by_the_newer_one() {
    let fake = Fake::start(1, |worker, _| match worker {
        0 => reply("EN L2\r\n"),
        _ => reply("VA 1 f0 c1\r\nv\r\n"),
    })
    .await;
    let client = fake.client(options()).await;
    *fake.map.lock().unwrap() = ("2.0".into(), [1, 1]);
    assert_eq!(client.get(key(0, 0)).await.unwrap().unwrap().bytes, b"v");
    assert_eq!(client.map_version(), 2);
    let workers: Vec<usize> = fake.asked().iter().map(|(worker, _)| *worker).collect();
    assert_eq!(workers, [0, 1]);
}

#[tokio::test]
async fn what_a_server_refuses_is_told() {
    let fake = Fake::start(1, |_, request| match request.split(' ').next().unwrap() {
        "ms" => reply("SERVER_ERROR object too large for cache\r\n"),
        "ma" => reply("CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        "md" => reply("SERVER_ERROR no route to owner\r\n"),
        "flush_all" => reply("SERVER_ERROR flush_all did not reach 1 of 3 servers\r\n"),
        _ => reply("ERROR\r\n"),
    })
    .await;
    let client = fake.client(options()).await;
    let server = |text: &str| Error::Server(text.into());
    let client_error = |text: &str| Error::Client(text.into());
    let set = client.set(key(0, 0), "v", Store::forever()).await;
    assert_eq!(set, Err(server("object too large for cache")));
    let counted = client.decr(key(0, 0), 1).await;
    assert_eq!(counted, Err(client_error("cannot increment or decrement non-numeric value")));
    let deleted = client.delete(key(0, 0)).await;
    assert!(matches!(deleted, Err(Error::Unknown(_))), "nobody knows: {deleted:?}");
    assert_eq!(client.flush_all().await, Err(server("flush_all did not reach 1 of 3 servers")));
    assert_eq!(client.get(key(0, 0)).await, Err(client_error("ERROR")));
    assert_eq!(client.get("").await, Err(Error::Key));
}

#[tokio::test]
async fn who_gives_no_map_is_named() {
    let memcached = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = memcached.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = memcached.accept().await.unwrap();
            stream.write_all(b"ERROR\r\n").await.unwrap();
            let mut bytes = Vec::new();
            drop(stream.read_to_end(&mut bytes).await);
        }
    });
    let connect = async |seeds: Vec<String>| {
        Client::connect(seeds, options()).await.err().map(|error| error.to_string())
    };
    let told = connect(vec![format!("127.0.0.1:{port}")]).await.unwrap();
    assert!(told.contains(&format!("127.0.0.1:{port}: ")), "{told}");
    assert!(connect(vec![]).await.unwrap().contains("no address"));
    assert!(connect(vec!["a b".into()]).await.unwrap().contains("is no host:port"));
    // The next one is asked.
    let fake = Fake::start(1, |_, _| reply("EN\r\n")).await;
    let both = [port, fake.ports[0]].map(|port| format!("127.0.0.1:{port}"));
    assert!(connect(both.to_vec()).await.is_none());
}
