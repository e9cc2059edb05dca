//! A connection to a server's ordinary port, by text or, where the server knows nothing else, by binary.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

use mbal_dial::{Dialer, ServerName, Speech, Stream, wants_login};
use mbal_wire::{BINARY_HEAD_BYTES, BinaryReply, Status, binary_request, is_error, opcode};

/// A server that takes longer is as good as lost.
const PATIENCE: Duration = Duration::from_secs(5);
/// What one answer may come to: far more than any server tells.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

pub struct Connection {
    server: ServerName,
    dialer: Dialer,
    speech: Speech,
    stream: BufReader<Stream>,
}

impl Connection {
    pub fn connect(server: &ServerName, dialer: Dialer) -> io::Result<Connection> {
        let (stream, speech) = dialer.greet(server, PATIENCE)?;
        Ok(Connection { server: server.clone(), dialer, speech, stream: BufReader::new(stream) })
    }

    pub fn name(&self) -> String {
        self.server.to_string()
    }

    /// What `stats` tells of a topic, line by line; nothing if the server does not know it.
    pub fn stats(&mut self, topic: &str) -> io::Result<Vec<String>> {
        match self.speech {
            Speech::Text => self.stats_by_text(topic),
            Speech::Binary => self.stats_by_binary(topic),
        }
    }

    fn stats_by_text(&mut self, topic: &str) -> io::Result<Vec<String>> {
        let command = format!("stats {topic}");
        self.stream.get_mut().write_all(format!("{}\r\n", command.trim_end()).as_bytes())?;
        let mut lines = Vec::new();
        let mut left = ANSWER_BYTES_MAX;
        loop {
            let line = self.line(&mut left)?;
            match line.as_str() {
                "END" => return Ok(lines),
                _ if is_error(line.as_bytes()) => {
                    return Ok(Vec::new());
                }
                _ => lines.push(line),
            }
        }
    }

    fn line(&mut self, left: &mut u64) -> io::Result<String> {
        let mut line = Vec::new();
        let count = (&mut self.stream).take(*left).read_until(b'\n', &mut line)?;
        *left -= count as u64;
        if line.pop() != Some(b'\n') {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server is gone"));
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// Each statistic is a packet of a name and a value; one without either ends them.
    fn stats_by_binary(&mut self, topic: &str) -> io::Result<Vec<String>> {
        self.stream.get_mut().write_all(&binary_request(opcode::STAT, topic.as_bytes(), b""))?;
        let mut lines = Vec::new();
        let mut left = ANSWER_BYTES_MAX;
        loop {
            let mut head = [0; BINARY_HEAD_BYTES];
            self.stream.read_exact(&mut head)?;
            let reply = BinaryReply::parse(&head).ok_or(io::ErrorKind::InvalidData)?;
            let body = reply.body_bytes as u64;
            left = left.checked_sub(body).ok_or(io::ErrorKind::InvalidData)?;
            let mut text = Vec::new();
            if ((&mut self.stream).take(body).read_to_end(&mut text)? as u64) < body {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            const AUTH_ERROR: u16 = Status::AuthError as u16;
            match (reply.status, reply.key_bytes) {
                (AUTH_ERROR, _) => return Err(wants_login()),
                (0, 0) => return Ok(lines),
                (0, key) => {
                    let (name, value) = text.split_at(key);
                    let words = [name, value].map(String::from_utf8_lossy);
                    lines.push(format!("STAT {} {}", words[0], words[1]));
                }
                _ => return Ok(Vec::new()),
            }
        }
    }

    /// What the server says in so long a time when asked to tell all that is fetched and stored, over
    /// a connection of its own; nothing if it will not. There is no such thing in binary.
    pub fn watch(&self, moment: Duration) -> io::Result<Vec<u8>> {
        if self.speech == Speech::Binary {
            return Ok(Vec::new());
        }
        let (mut stream, _) = self.dialer.greet(&self.server, PATIENCE)?;
        stream.write_all(b"watch fetchers mutations\r\n")?;
        let end = Instant::now() + moment;
        let mut said = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(said);
            }
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut buffer) {
                Ok(0) => return Ok(said),
                Ok(count) => said.extend_from_slice(&buffer[..count]),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
