//! A smart client against a server of two workers, one of which gives its cachelet away.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::spawn;
use std::time::Duration;

use crate::address::Address;
use crate::against_servers::args;
use crate::measure::measure;
use crate::pace::Pace;
use crate::plan::{Plan, Task};

/// Where this table is to be had.
pub fn table_at(page: String) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "config get mbal 0.0\r\n");
            write!(stream, "CONFIG mbal 0 {}\r\n{page}\r\nEND\r\n", page.len()).unwrap();
        }
    });
    Address::Tcp(address)
}

/// Two workers, each with a port; the upper half of all hashes is a cachelet that worker 0 lends to worker 1.
#[derive(Default)]
struct TwoWorkers {
    lent: AtomicBool,
    /// By worker: the requests that it got for the lent cachelet before and after it was lent.
    got: [[AtomicU64; 2]; 2],
    requests: AtomicU64,
    /// Worker 0 ends when it has nothing left, as an emptied server does, and gets the cachelet back later.
    ends: bool,
}

impl TwoWorkers {
    const LENDS_AFTER: u64 = 1_000;
    const BACK_AFTER: u64 = 3_000;

    /// The common port, where the table is to be had.
    fn listen(self: Arc<Self>) -> Address {
        let ports: Vec<u16> = (0..2).map(|worker| self.clone().listen_as(worker)).collect();
        let page = format!(
            "version 1.5\nserver 0 client 0.0.0.0:0 workers 127.0.0.1:{},127.0.0.1:{}\n\
             cachelet 0000/1 0/1\ncachelet 8000/1 0/0\n",
            ports[0], ports[1]
        );
        table_at(page)
    }

    fn listen_as(self: Arc<Self>, worker: usize) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        spawn(move || {
            for stream in listener.incoming() {
                let (all, stream) = (self.clone(), stream.unwrap());
                spawn(move || all.serve(worker, stream));
            }
        });
        port
    }

    /// Everything is a miss; what matters is who was asked, and what the token says.
    fn serve(&self, worker: usize, mut stream: TcpStream) {
        if self.ends && worker == 0 {
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        }
        let mut input = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        while input.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [_, key, "v", token] = words[..] else { panic!("{line:?}") };
            let hash = mbal_model::Key::new(key.as_bytes()).unwrap().hash();
            let number = self.requests.fetch_add(1, Ordering::SeqCst);
            if number == Self::LENDS_AFTER {
                self.lent.store(true, Ordering::SeqCst);
            }
            let back = self.ends && number >= Self::BACK_AFTER;
            let lent = self.lent.load(Ordering::SeqCst);
            let told = ["L1.5", "L1.6", "L1.7"].iter().position(|known| *known == token);
            assert!(told.expect(token) <= usize::from(lent) + usize::from(back), "{line:?}");
            let mut reply = "EN\r\n";
            if hash >> 63 == 1 {
                self.got[worker][usize::from(lent)].fetch_add(1, Ordering::SeqCst);
                reply = match (lent, back, worker) {
                    (true, false, 0) => "EN L1.6.1\r\n",
                    (_, true, 1) => "EN L1.7.0\r\n",
                    _ => reply,
                };
            }
            line.clear();
            if stream.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    }
}

#[test]
fn a_smart_client_goes_to_the_owner_and_after_a_move_to_the_new_one() {
    let server = Arc::new(TwoWorkers::default());
    let address = server.clone().listen();
    let flags = "--follow --connections 4 --depth 2 --keys 1000 --warmup 0 --requests 4000";
    let plan = Plan::new(&args(flags)).unwrap();
    let task = Task::Measure(Pace::Closed);
    let loads = plan.loads(&address.into(), task, 1);
    let round = measure(loads, None, &[], &AtomicBool::new(false)).unwrap();
    assert_eq!((round.tally.counts.requests, round.tally.wrong), (4_000, 0));
    let got = |worker: usize, lent: usize| server.got[worker][lent].load(Ordering::SeqCst);
    assert!(got(0, 0) > 300, "{}", got(0, 0));
    assert_eq!(got(1, 0), 0);
    // What was on its way as the cachelet went, at most: 4 connections, 2 deep.
    assert!((1..=8).contains(&got(0, 1)), "{}", got(0, 1));
    assert!(got(1, 1) > 1_000, "{}", got(1, 1));
}

#[test]
fn a_server_that_is_empty_may_end_and_come_back() {
    let server = Arc::new(TwoWorkers { ends: true, ..TwoWorkers::default() });
    let address = server.clone().listen();
    let flags = "--follow --connections 4 --keys 1000 --warmup 0 --rate 8000 --requests 5000";
    let plan = Plan::new(&args(flags)).unwrap();
    let loads =
        plan.loads(&address.into(), Task::Measure(Pace::Open { requests_per_second: 8_000.0 }), 1);
    let round = measure(loads, None, &[], &AtomicBool::new(false)).unwrap();
    assert_eq!((round.tally.counts.requests, round.tally.wrong), (5_000, 0));
    let last = server.got[0][1].load(Ordering::SeqCst);
    assert!(last > 300, "{last} requests when it was back");
}
