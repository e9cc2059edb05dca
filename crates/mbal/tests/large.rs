//! Large values that many clients store at once, in memory that holds few of them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

mod running;

use running::{Folder, Running};

const CLIENTS: usize = 16;
const SETS: usize = 40;

fn read_until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let (mut reply, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
    while !reply.ends_with(end) {
        let count = stream.read(&mut bytes).expect("it answers");
        assert!(count > 0, "it closed");
        reply.extend_from_slice(&bytes[..count]);
    }
    reply
}

/// Each client stores a value of 0.1 to 4.9 MB and reads it back.
#[test]
fn large_values_that_were_just_stored_are_found() {
    let folder = Folder::new("large");
    let server = Running::serve(&folder, &["-p", "-1", "-m", "100", "-I", "5m", "-t", "4"]);
    let (stored, missed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, stored, missed) = (&server, &stored, &missed);
            scope.spawn(move || {
                let mut stream = server.connect();
                for n in 0..SETS {
                    let bytes = 100_000 + (client * 7_919 + n * 104_729) * 37 % 4_800_000;
                    let mut request = format!("set c{client}:{n} 0 0 {bytes}\r\n").into_bytes();
                    request.resize(request.len() + bytes, b'v');
                    request.extend_from_slice(b"\r\n");
                    stream.write_all(&request).expect("it listens");
                    if read_until(&mut stream, b"\r\n") != b"STORED\r\n" {
                        continue;
                    }
                    stored.fetch_add(1, Relaxed);
                    let request = format!("mg c{client}:{n} s\r\nmn\r\n");
                    stream.write_all(request.as_bytes()).expect("it listens");
                    let reply = read_until(&mut stream, b"MN\r\n");
                    let is_there = reply == format!("HD s{bytes}\r\nMN\r\n").as_bytes();
                    missed.fetch_add(usize::from(!is_there), Relaxed);
                }
            });
        }
    });
    let (stored, missed) = (stored.into_inner(), missed.into_inner());
    println!("{missed} of {stored} missed");
    assert!(stored * 100 >= CLIENTS * SETS * 95, "{stored} were stored");
    assert!(missed * 100 <= stored * 2, "{missed} of {stored} missed");
}
