//! What clients see of an event loop, over real sockets.

mod served;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use mbal_reactor::{Clock, Ended, EventLoop, Letter, Mailbox, Post, Tally, socket};
use mbal_worker::{Action, Actions, Background, Event};
use served::{Served, Setup, connect, echo, eventually, free_port, send};

fn answer_of(stream: &mut (impl Read + Write), request: &[u8]) -> Vec<u8> {
    stream.write_all(request).unwrap();
    let mut answer = vec![0; request.len()];
    stream.read_exact(&mut answer).unwrap();
    answer
}

#[test]
fn answers_over_ipv4_and_ipv6_at_once() {
    let (setup, v4) = Setup::new(1).listen("127.0.0.1");
    let (setup, v6) = setup.listen("[::1]");
    let served = setup.serve(echo);
    assert_eq!(answer_of(&mut connect(v4), b"four"), b"four");
    assert_eq!(answer_of(&mut connect(v6), b"six"), b"six");
    assert_eq!(served.end(), Ended::Normally);
}

#[test]
fn a_unix_socket_has_the_mode_asked_for_and_replaces_a_stale_one() {
    let path = std::env::temp_dir().join(format!("mbal-reactor-{}.sock", std::process::id()));
    drop(socket::listen_unix(&path, 0o700, 16).unwrap());
    assert!(path.exists(), "the stale socket is still there");

    let mut setup = Setup::new(1);
    setup.listening.push(socket::listen_unix(&path, 0o750, 16).unwrap().into());
    let metadata = fs::symlink_metadata(&path).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o750);
    let served = setup.serve(echo);
    assert_eq!(answer_of(&mut UnixStream::connect(&path).unwrap(), b"local"), b"local");
    served.end();

    fs::remove_file(&path).unwrap();
    fs::write(&path, "precious").unwrap();
    socket::listen_unix(&path, 0o700, 16).expect_err("a file is not a stale socket");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_client_that_closed_its_half_gets_what_it_asked_for() {
    const ASKED: usize = 3_000_000;
    let (setup, address) = Setup::new(1).listen("127.0.0.1");
    let served = setup.serve(echo);
    let mut stream = connect(address);
    let mut writer = stream.try_clone().unwrap();
    let writing = thread::spawn(move || {
        writer.write_all(&vec![b'x'; ASKED]).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), ASKED);
    writing.join().unwrap();
    eventually("the connection has left", || served.tally.current() == 0);
    served.end();
}

#[test]
fn a_client_that_does_not_read_is_not_read() {
    const REPLY_BYTES: usize = 1 << 20;
    const REQUESTS: usize = 64;
    let (setup, address) = Setup::new(1).listen("127.0.0.1");
    let received = Arc::new(AtomicUsize::new(0));
    let served = setup.serve(|_| {
        let received = Arc::clone(&received);
        move |event: Event, actions: &mut Actions| {
            if let Event::Received { conn, bytes } = event {
                for byte in bytes {
                    received.fetch_add(1, SeqCst);
                    send(conn, &vec![*byte; REPLY_BYTES], actions);
                }
            }
        }
    });
    let mut stream = connect(address);
    stream.set_nodelay(true).unwrap();
    for request in 0..REQUESTS {
        stream.write_all(&[request as u8]).unwrap();
        // Apart in time, so that each would be a receive of its own.
        thread::sleep(Duration::from_millis(2));
    }
    // The kernel's buffers take a few replies; the rest of the requests must still lie unread.
    assert!(received.load(SeqCst) < REQUESTS / 2, "{} were read", received.load(SeqCst));

    let mut reply = vec![0; REPLY_BYTES];
    for request in 0..REQUESTS {
        stream.read_exact(&mut reply).unwrap();
        assert!(reply.iter().all(|&byte| byte == request as u8), "reply {request} is whole");
    }
    served.end();
}

#[test]
fn a_stalled_worker_is_told_when_its_output_has_left() {
    const PART_BYTES: usize = 500_000;
    let (setup, address) = Setup::new(1).listen("127.0.0.1");
    let served = setup.serve(|_| {
        let mut parts = 0;
        move |event: Event, actions: &mut Actions| match event {
            Event::Received { conn, .. } | Event::Drained { conn } if parts < 20 => {
                parts += 1;
                send(conn, &[parts; PART_BYTES], actions);
                actions.list.push(Action::Stall { conn });
            }
            Event::Drained { conn } => actions.list.push(Action::Close { conn }),
            _ => {}
        }
    });
    let mut stream = connect(address);
    stream.write_all(b"go\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let parts: Vec<u8> = answer.chunks(PART_BYTES).map(|part| part[PART_BYTES - 1]).collect();
    assert_eq!(parts, (1..=20).collect::<Vec<u8>>());
    served.end();
}

#[test]
fn a_connection_closes_after_its_last_bytes_have_left() {
    const LAST_WORDS: usize = 8 << 20;
    let (setup, address) = Setup::new(1).listen("127.0.0.1");
    let closed = Arc::new(AtomicUsize::new(0));
    let served = setup.serve(|_| {
        let closed = Arc::clone(&closed);
        move |event: Event, actions: &mut Actions| match event {
            Event::Received { conn, .. } => {
                send(conn, &vec![b'z'; LAST_WORDS], actions);
                actions.list.push(Action::Close { conn });
            }
            Event::Closed { .. } => {
                closed.fetch_add(1, SeqCst);
            }
            _ => {}
        }
    });
    let mut stream = connect(address);
    stream.write_all(b"quit\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), LAST_WORDS);
    eventually("the worker knows", || closed.load(SeqCst) == 1);
    served.end();
}

#[test]
fn a_number_is_given_away_only_after_its_last_owner_closed() {
    let (setup, address) = Setup::new(1).listen("127.0.0.1");
    let served = setup.serve(|_| {
        let mut open = Vec::new();
        move |event: Event, actions: &mut Actions| match event {
            Event::Opened { conn, .. } => {
                assert!(!open.contains(&conn), "{conn:?} is open already");
                open.push(conn);
            }
            Event::Received { conn, bytes } => {
                assert!(open.contains(&conn), "{conn:?} is not open");
                send(conn, bytes, actions);
            }
            Event::Closed { conn } => {
                let before = open.len();
                open.retain(|other| *other != conn);
                assert_eq!(open.len() + 1, before, "{conn:?} closes once");
            }
            _ => {}
        }
    });
    for round in 0..50u8 {
        let mut streams: Vec<_> = (0..20).map(|_| connect(address)).collect();
        for stream in &mut streams {
            assert_eq!(answer_of(stream, &[round; 7]), [round; 7]);
        }
    }
    eventually("all have left", || served.tally.current() == 0);
    assert_eq!(served.tally.total(), 1000);
    served.end();
}

#[test]
fn sixteen_connections_on_four_workers_are_four_each() {
    let (setup, address) = Setup::new(4).listen("127.0.0.1");
    let served = setup.serve(echo);
    let streams: Vec<_> = (0..16).map(|_| connect(address)).collect();
    eventually("all are assigned", || served.tally.total() == 16);
    assert_eq!([0, 1, 2, 3].map(|worker| served.tally.of_worker(worker)), [4; 4]);
    drop(streams);
    served.end();
}

/// Both workers lose all their connections at once, and one is too busy to have noticed when the next ones come.
/// Connections at this port whose client has closed, and whose server has not.
fn half_closed(port: u16) -> usize {
    const CLOSE_WAIT: &str = "08";
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let is_one = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[1].ends_with(&format!(":{port:04X}")) && words[3] == CLOSE_WAIT
    };
    table.lines().skip(1).filter(is_one).count()
}

#[test]
fn who_has_left_unnoticed_does_not_count() {
    let (setup, address) = Setup::new(2).listen("127.0.0.1");
    let (begun, busy) = mpsc::channel();
    let (done, wait) = mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    let served = setup.serve(|worker| {
        let (begun, wait) = (begun.clone(), Arc::clone(&wait));
        move |event: Event, actions: &mut Actions| match event {
            Event::Received { bytes: b"who", conn } => send(conn, &[worker as u8], actions),
            Event::Received { .. } => {
                begun.send(()).unwrap();
                wait.lock().unwrap().recv().unwrap();
            }
            _ => {}
        }
    });
    let per_worker = |served: &Served| [0, 1].map(|worker| served.tally.of_worker(worker));
    let worker_of = |stream: &mut TcpStream| {
        stream.write_all(b"who").unwrap();
        let mut worker = [0];
        stream.read_exact(&mut worker).unwrap();
        worker[0]
    };
    let mut first: Vec<_> = (0..8).map(|_| connect(address)).collect();
    let at_1 = first.iter_mut().position(|stream| worker_of(stream) == 1).unwrap();
    first[at_1].write_all(b"be busy").unwrap();
    busy.recv().unwrap();
    drop(first);
    eventually("the idle worker has noticed", || per_worker(&served) == [0, 4]);
    // On a busy machine the kernel may deliver what a close sends a moment later.
    eventually("the busy worker's clients have left", || half_closed(address.port()) == 4);

    let second: Vec<_> = (0..8).map(|_| connect(address)).collect();
    eventually("all are assigned", || served.tally.total() == 16);
    done.send(()).unwrap();
    eventually("the busy worker has noticed", || served.tally.current() == 8);
    assert_eq!(per_worker(&served), [4, 4]);
    drop(second);
    served.end();
}

#[test]
fn one_connection_too_many_is_told_so() {
    let (mut setup, address) = Setup::new(2).listen("127.0.0.1");
    setup.limit = 3;
    let served = setup.serve(echo);
    let mut streams: Vec<_> = (0..3).map(|_| connect(address)).collect();
    for stream in &mut streams {
        answer_of(stream, b"in");
    }
    let mut answer = String::new();
    connect(address).read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "ERROR Too many open connections\r\n");
    assert_eq!((served.tally.current(), served.tally.rejected()), (3, 1));

    streams.pop();
    eventually("a place is free", || served.tally.current() == 2);
    assert_eq!(answer_of(&mut connect(address), b"next"), b"next");
    served.end();
}

#[test]
fn a_client_waits_at_the_limit_if_it_is_to() {
    let (mut setup, address) = Setup::new(1).listen("127.0.0.1");
    (setup.limit, setup.waits_at_limit) = (1, true);
    let served = setup.serve(echo);
    let mut first = connect(address);
    answer_of(&mut first, b"in");
    let mut second = connect(address);
    second.write_all(b"later").unwrap();
    eventually("accepting pauses", || !served.tally.accepting());
    assert_eq!((served.tally.current(), served.tally.rejected()), (1, 0));
    drop(first);
    let mut answer = [0; 5];
    second.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"later");
    served.end();
}

#[test]
fn a_connection_to_a_workers_own_port_stays_with_it() {
    let (mut setup, _) = Setup::new(3).listen("127.0.0.1");
    let mut addresses = Vec::new();
    for _ in 0..3 {
        let (socket, address) = free_port("127.0.0.1");
        setup.own_ports.push(socket);
        addresses.push(address);
    }
    let served = setup.serve(|worker| {
        move |event: Event, actions: &mut Actions| {
            if let Event::Received { conn, .. } = event {
                send(conn, &[b'0' + worker as u8], actions);
            }
        }
    });
    let mut streams = Vec::new();
    for (worker, count) in [(2, 5), (0, 1)] {
        for _ in 0..count {
            let mut stream = connect(addresses[worker]);
            assert_eq!(answer_of(&mut stream, b"?"), [b'0' + worker as u8]);
            streams.push(stream);
        }
    }
    assert_eq!([0, 1, 2].map(|worker| served.tally.of_worker(worker)), [1, 0, 5]);
    served.end();
}

/// Without TCP_NODELAY every other reply waits 40 ms for an acknowledgement.
#[test]
fn replies_leave_at_once() {
    let listener = socket::listen_tcp("127.0.0.1:0".parse().unwrap(), 16).unwrap();
    listener.set_nonblocking(false).unwrap();
    let _client = connect(listener.local_addr().unwrap());
    let (accepted, _) = listener.accept().unwrap();
    assert!(accepted.nodelay().unwrap());
}

/// Between two ticks, a second apart, a worker that has nothing to do wakes up for the second one alone.
#[test]
fn an_idle_worker_sleeps() {
    let (setup, address) = Setup::new(1).listen("127.0.0.1");
    let (ticks, rests) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let served = setup.serve(|_| {
        let (ticks, rests) = (Arc::clone(&ticks), Arc::clone(&rests));
        move |event: Event, actions: &mut Actions| match event {
            Event::Received { conn, bytes } => send(conn, bytes, actions),
            Event::Tick => drop(ticks.fetch_add(1, SeqCst)),
            Event::Rests { .. } => drop(rests.fetch_add(1, SeqCst)),
            _ => {}
        }
    });
    answer_of(&mut connect(address), b"awake");
    eventually("the connection has left", || served.tally.current() == 0);
    let before = rests.load(SeqCst);
    let ticked = ticks.load(SeqCst);
    eventually("two ticks", || ticks.load(SeqCst) >= ticked + 2);
    let (ticked, woken) = (ticks.load(SeqCst) - ticked, rests.load(SeqCst) - before);
    assert!(woken <= 2 * ticked + 4, "{woken} wake-ups in {ticked} ticks");
    assert!(0 < served.background_calls.load(SeqCst));
    served.end();
}

#[test]
fn a_worker_may_end_the_server() {
    let (setup, address) = Setup::new(2).listen("127.0.0.1");
    let served = setup.serve(|_| {
        |event: Event, actions: &mut Actions| {
            if let Event::Received { .. } = event {
                actions.list.push(Action::Shutdown { graceful: true });
            }
        }
    });
    connect(address).write_all(b"shutdown\r\n").unwrap();
    assert_eq!(served.wait_for_end(), Ended::Gracefully);
}

#[test]
fn what_a_letter_begins_goes_on_without_waiting_for_the_tick() {
    const ROUNDS: u32 = 30;
    let (setup, _) = Setup::new(1).listen("127.0.0.1");
    let served = setup.serve(echo);
    let tell = || served.workers[0].post(Letter::Tell(Event::Woken));
    let calls = || served.background_calls.load(SeqCst);
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        // The second comes when the background has just had its turn, and said that it rests.
        for _ in 0..2 {
            let before = calls();
            tell();
            while calls() == before {
                thread::yield_now();
            }
        }
    }
    // Ticks are a second apart.
    assert!(begin.elapsed() < Duration::from_secs(ROUNDS.into()) / 2, "{:?}", begin.elapsed());
    served.end();
}

#[test]
fn who_is_woken_after_its_thread_stood_still_is_told_the_time_anew() {
    const STOOD_STILL: Duration = Duration::from_millis(30);
    let (mailbox, tally) = (Mailbox::new().unwrap(), Arc::new(Tally::new(1, 8, false)));
    let post = Post {
        main: Mailbox::new().unwrap(),
        workers: vec![mailbox.clone()].into(),
        balancer: Arc::new(|_| ()),
        migrator: None,
        said: Arc::new(|_| {}),
    };
    let event_loop = EventLoop::new(0, Vec::new(), post, tally, Clock::start()).unwrap();
    let wake = Arc::new(Mutex::new(None));
    let (told, woken) = mpsc::channel();
    let (wakes, stop) = (Arc::clone(&wake), mailbox.clone());
    let handle = move |now: u64, event: Event<'_>, _: &mut Actions| match event {
        Event::Received { .. } => {
            thread::sleep(STOOD_STILL);
            *wake.lock().unwrap() = Some(now);
        }
        Event::Woken => {
            let since = wake.lock().unwrap().take().expect("it was to be woken");
            told.send(Duration::from_nanos(now - since)).unwrap();
            stop.post(Letter::Stop);
        }
        _ => {}
    };
    let next_wake = move || *wakes.lock().unwrap();
    let thread =
        thread::spawn(move || event_loop.run(handle, |_, _, _| Background::Rests, next_wake));
    let (mut here, there) = UnixStream::pair().unwrap();
    mailbox.post(Letter::Adopt { fd: there.into(), tls: None });
    here.write_all(b"x").unwrap();
    assert!(woken.recv().unwrap() >= STOOD_STILL);
    thread.join().unwrap().unwrap();
}
