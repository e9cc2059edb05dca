//! The control socket: an operator on this host asks, one line a connection, and is answered.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use mbal_model::{Prefix, WorkerId};

use crate::balancing::{Note, OperatorCall};
use crate::control_path::{Served, folders, trusted_paths};
use crate::deadline_read::read_until;
use crate::side_doors;

/// An operator who is slower than this is not served.
const PATIENCE: Duration = Duration::from_secs(5);
/// The balancer answers at once, unless it gets no time at all.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// Operators at a time.
const OPERATORS_MAX: usize = 16;
/// A question with a key.
const LINE_BYTES_MAX: usize = 1024;

/// Serves operators until the process ends.
pub(crate) fn start(listener: UnixListener, balancer: Sender<Note>) -> std::io::Result<()> {
    listener.set_nonblocking(false)?;
    let next = move || listener.accept().map(|(stream, _)| stream);
    // One that went away is no loss.
    let answer = move |stream: UnixStream| drop(answer(&stream, &balancer));
    side_doors::serve("mbal-control", OPERATORS_MAX, next, answer)
}

fn answer(mut stream: &UnixStream, balancer: &Sender<Note>) -> std::io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let said = read_until(b"\n", stream, LINE_BYTES_MAX, Instant::now() + PATIENCE)?;
    let line = said.iter().position(|byte| *byte == b'\n').map(|end| &said[..end]);
    let Some(asked) = line.and_then(OperatorCall::parse) else {
        return stream.write_all(
            b"error: status, status json, hotkeys, move CACHELET WORKER or explain WHAT\n",
        );
    };
    let (asker, answer) = channel();
    let told = balancer.send(Note::OperatorCall(asked, asker)).ok();
    let text = told.and_then(|()| answer.recv_timeout(ANSWERS_WITHIN).ok());
    stream.write_all(text.as_deref().unwrap_or("error: no answer\n").as_bytes())
}

fn folder_names() -> String {
    let names: Vec<String> = folders().iter().map(|one| one.path.display().to_string()).collect();
    names.join(", ")
}

impl OperatorCall {
    fn parse(line: &[u8]) -> Option<OperatorCall> {
        let (word, rest) = match line.iter().position(|byte| *byte == b' ') {
            Some(blank) => (&line[..blank], &line[blank + 1..]),
            None => (line, &b""[..]),
        };
        match word {
            b"status" if rest.is_empty() => Some(OperatorCall::Status { json: false }),
            b"status" if rest == b"json" => Some(OperatorCall::Status { json: true }),
            b"hotkeys" if rest.is_empty() => Some(OperatorCall::HotKeys),
            b"explain" if !rest.is_empty() => Some(OperatorCall::Explain(rest.to_vec())),
            b"move" => {
                let (cachelet, worker) = std::str::from_utf8(rest).ok()?.split_once(' ')?;
                let cachelet = Prefix::parse(cachelet.as_bytes())?;
                Some(OperatorCall::Move { cachelet, to: WorkerId(worker.parse().ok()?) })
            }
            _ => None,
        }
    }
}

/// Asks the server that serves `served`, wherever its control socket is; the answer, or what was wrong.
pub fn ask_server(served: &Served, line: &[u8]) -> Result<String, String> {
    let sockets = trusted_paths(served);
    let connected = sockets.iter().find_map(|path| Some((UnixStream::connect(path).ok()?, path)));
    if let Some((stream, path)) = connected {
        return ask_on(stream, path, line);
    }
    // One that is there and cannot be had says more than that there is none.
    match sockets.first() {
        Some(path) => ask(path, line),
        None => Err(format!("no control socket of {served}: looked in {}", folder_names())),
    }
}

/// Asks a server's control socket; the answer, or what the server found wrong.
pub fn ask(path: &Path, line: &[u8]) -> Result<String, String> {
    match UnixStream::connect(path) {
        Ok(stream) => ask_on(stream, path, line),
        Err(error) => Err(match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                format!("no server at {}", path.display())
            }
            _ => format!("{}: {error}", path.display()),
        }),
    }
}

fn ask_on(mut stream: UnixStream, path: &Path, line: &[u8]) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    stream.set_read_timeout(Some(2 * ANSWERS_WITHIN)).map_err(failed)?;
    stream.write_all(&[line, b"\n"].concat()).map_err(failed)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(failed)?;
    match text.strip_prefix("error: ") {
        Some(error) => Err(error.trim_end().to_owned()),
        None => Ok(text),
    }
}
