//! A process that has run out of descriptors. Alone in its binary: the limit is the process's.

mod served;

use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use mbal_reactor::process::raise_descriptor_limit;
use served::{Setup, connect, echo, eventually};

#[test]
fn accepting_pauses_without_spinning_until_a_descriptor_is_free() {
    raise_descriptor_limit(1024).unwrap();
    let (setup, address) = Setup::new(1).listen("127.0.0.1");
    let served = setup.serve(echo);
    let mut stream = connect(address);
    // The client's end is open; now nothing is left for the server's.
    let mut hoard = Vec::new();
    let mut waiting = loop {
        match File::open("/dev/null") {
            Ok(file) => hoard.push(file),
            Err(_) => {
                hoard.pop();
                break connect(address);
            }
        }
    };
    waiting.write_all(b"later").unwrap();
    eventually("accepting pauses", || !served.tally.accepting());
    let before = served.tally.pauses();
    let turns_before = served.background_calls.load(SeqCst);
    std::thread::sleep(Duration::from_millis(200));
    let pauses = served.tally.pauses() - before;
    assert!((5..=25).contains(&pauses), "{pauses} attempts in 200 ms");
    let turns = served.background_calls.load(SeqCst) - turns_before;
    assert!(turns <= 2, "{turns} turns of the worker in 200 ms");

    stream.write_all(b"still here").unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"still here");

    drop(hoard);
    let mut answer = [0; 5];
    waiting.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"later");
    served.end();
}
