//! Reads from whoever may be slow on purpose: the whole has a deadline, not each of its parts.

use std::io::{self, Read};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A stream whose reads can be told how long they may wait.
pub(crate) trait Timed: Read {
    fn wait_at_most(&self, time: Duration) -> io::Result<()>;
}

impl Timed for &TcpStream {
    fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

impl Timed for &UnixStream {
    fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

/// What comes until `end` is among it, nothing more comes, or `bytes_max` are reached.
pub(crate) fn read_until(
    end: &[u8],
    mut stream: impl Timed,
    bytes_max: usize,
    deadline: Instant,
) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < bytes_max && !bytes.windows(end.len()).any(|window| window == end) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.wait_at_most(left)?;
        let mut more = [0; 1024];
        match stream.read(&mut more)? {
            0 => break,
            count => bytes.extend_from_slice(&more[..count]),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use super::*;

    #[test]
    fn bytes_one_by_one_do_not_put_off_the_deadline() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_millis(50);
        // Half a second of them, then the end.
        let writing = thread::spawn(move || {
            for _ in 0..100 {
                thread::sleep(Duration::from_millis(5));
                if there.write_all(b"x").is_err() {
                    break;
                }
            }
        });
        let read = read_until(b"\n", &here, usize::MAX, deadline);
        let error = read.expect_err("the line has no end").kind();
        assert!(matches!(error, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        drop(here);
        writing.join().unwrap();
    }

    #[test]
    fn reading_ends_with_what_is_asked_for_or_with_enough() {
        let deadline = Instant::now() + Duration::from_secs(60);
        for (sent, end, bytes_max, read) in [
            (&b"a line\n and more"[..], &b"\n"[..], 100, &b"a line\n and more"[..]),
            (b"GET / HTTP/1.0\r\n\r\n", b"\r\n\r\n", 100, b"GET / HTTP/1.0\r\n\r\n"),
            (b"endless", b"\n", 7, b"endless"),
        ] {
            let (here, mut there) = UnixStream::pair().unwrap();
            there.write_all(sent).unwrap();
            assert_eq!(read_until(end, &here, bytes_max, deadline).unwrap(), read);
        }
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(b"half a li").unwrap();
        drop(there);
        assert_eq!(read_until(b"\n", &here, 100, deadline).unwrap(), b"half a li");
    }
}
