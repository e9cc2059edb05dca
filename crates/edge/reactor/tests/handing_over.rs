//! A connection changes its worker, and its client does not notice.

mod served;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use mbal_cachelet::{Options, Store};
use mbal_model::WorkerId;
use mbal_reactor::Letter;
use mbal_worker::{Actions, ConnId, Event, Now, OrderId, Settings, Shared, Worker};
use served::{Setup, connect, eventually};

const WORKERS: u16 = 3;

type Handle = Box<dyn FnMut(Event, &mut Actions) + Send>;

/// Real workers of one server.
fn workers() -> impl Fn(usize) -> Handle {
    let settings = Settings { workers: WORKERS, ..Settings::default() };
    let store = Store::new(Options {
        memory_bytes: 16 << 20,
        workers: WORKERS.into(),
        cachelets: 4,
        item_bytes_max: settings.item_bytes_max,
        evict: true,
        generation: 0,
    });
    let server = Arc::new(Shared::new(settings, store));
    move |index| {
        let mut worker = Worker::new(WorkerId(index as u16), Arc::clone(&server));
        let now = Now { second: 2, unix: 1_700_000_000, micros: 0 };
        Box::new(move |event, actions| worker.handle(now, event, actions))
    }
}

fn hand_over(conn: u32, to: u16) -> Letter {
    Letter::Tell(Event::HandOver { order: OrderId(0), conn: ConnId(conn), to: WorkerId(to) })
}

#[test]
fn a_connection_goes_round_while_it_talks() {
    let (setup, address) = Setup::new(WORKERS.into()).listen("127.0.0.1");
    let served = setup.serve(workers());
    let mut stream = connect(address);
    stream.set_nodelay(true).unwrap();
    let value = "v".repeat(3_000);
    for round in 0..300 {
        // Sometimes at rest, sometimes in the middle of a request, sometimes with bytes on their way.
        let request = format!("set k 0 0 3004\r\n{round:04}{value}\r\nget k\r\n");
        let (first, second) = request.split_at(round * 10 % request.len());
        stream.write_all(first.as_bytes()).unwrap();
        for worker in 0..WORKERS {
            served.workers[usize::from(worker)].post(hand_over(0, (worker + 1) % WORKERS));
        }
        stream.write_all(second.as_bytes()).unwrap();
        let reply = format!("STORED\r\nVALUE k 0 3004\r\n{round:04}{value}\r\nEND\r\n");
        let mut got = vec![0; reply.len()];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), reply);
    }
    drop(stream);
    eventually("the connection has left", || served.tally.current() == 0);
    assert_eq!([0, 1, 2].map(|worker| served.tally.of_worker(worker)), [0, 0, 0]);
    served.end();
}

#[test]
fn output_that_its_client_has_not_read_leaves_before_the_connection_does() {
    const REPLIES: usize = 40;
    let (setup, address) = Setup::new(2).listen("127.0.0.1");
    let opened = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let seen = opened.clone();
    let make = workers();
    let served = setup.serve(move |index| {
        let (mut handle, opened) = (make(index), Arc::clone(&opened[index]));
        move |event: Event, actions: &mut Actions| {
            let opens = matches!(event, Event::Opened { .. } | Event::Adopted { .. });
            opened.fetch_add(usize::from(opens), SeqCst);
            handle(event, actions);
        }
    });
    let mut stream = connect(address);
    let value = "v".repeat(900_000);
    stream.write_all(format!("set k 0 0 900000\r\n{value}\r\n").as_bytes()).unwrap();
    let mut stored = [0; 8];
    stream.read_exact(&mut stored).unwrap();
    let from = seen.iter().position(|opened| opened.load(SeqCst) == 1).unwrap();
    let to = 1 - from;
    // More than fits between the two ends, and nobody reads.
    stream.write_all("get k\r\n".repeat(REPLIES).as_bytes()).unwrap();
    served.workers[from].post(hand_over(0, to as u16));
    let reply = format!("VALUE k 0 900000\r\n{value}\r\nEND\r\n");
    let mut got = vec![0; reply.len()];
    for _ in 0..REPLIES {
        stream.read_exact(&mut got).unwrap();
        assert!(got == reply.as_bytes());
    }
    eventually("it has arrived", || seen[to].load(SeqCst) == 1);
    stream.write_all(b"mn\r\n").unwrap();
    let mut reply = [0; 4];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"MN\r\n");
    assert_eq!([served.tally.of_worker(from), served.tally.of_worker(to)], [0, 1]);
    drop(stream);
    served.end();
}
