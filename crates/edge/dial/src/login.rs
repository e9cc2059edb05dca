//! Logging in: by a first `set` in memcached's text protocol, by SASL PLAIN in its binary one.

use std::io::{self, Read, Write};

use mbal_wire::{BINARY_HEAD_BYTES, BinaryReply, Status, binary_request, opcode};

/// A reply to a login is one line, or a packet with a short text.
const REPLY_BYTES_MAX: usize = 4096;

#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    pub password: String,
}

/// Passwords are not for logs.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The protocol in which a login is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speech {
    /// Text and meta commands; a server's `-Y`.
    Text,
    /// A server's `-S`.
    Binary,
}

impl Login {
    /// The request, as bytes.
    pub fn request(&self, speech: Speech) -> Vec<u8> {
        let Login { user, password } = self;
        match speech {
            Speech::Text => {
                let value = format!("{user} {password}");
                format!("set login 0 0 {}\r\n{value}\r\n", value.len()).into_bytes()
            }
            Speech::Binary => {
                let value = format!("\0{user}\0{password}");
                binary_request(opcode::SASL_AUTH, b"PLAIN", value.as_bytes())
            }
        }
    }

    /// Logs in, and waits for the reply. A server that asks for no login is not told the password: by text it
    /// would be stored as an item.
    pub fn say(&self, speech: Speech, stream: &mut (impl Read + Write)) -> io::Result<()> {
        let refused = |why: &str| {
            let user = &self.user;
            Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("the login of {user:?}: {why}"),
            ))
        };
        match speech {
            Speech::Text => {
                if greet(stream)? == Greeting::Served {
                    return Ok(());
                }
                stream.write_all(&self.request(speech))?;
                match line(stream)?.as_str() {
                    "STORED" => Ok(()),
                    told => refused(told),
                }
            }
            Speech::Binary => {
                const UNKNOWN_COMMAND: u16 = Status::UnknownCommand as u16;
                stream.write_all(&self.request(speech))?;
                let mut head = [0; BINARY_HEAD_BYTES];
                stream.read_exact(&mut head)?;
                let reply = BinaryReply::parse(&head)
                    .ok_or_else(|| io::Error::other("it is no memcached"))?;
                let mut text = vec![0; reply.body_bytes.min(REPLY_BYTES_MAX)];
                stream.read_exact(&mut text)?;
                match reply.status {
                    0 | UNKNOWN_COMMAND => Ok(()),
                    _ => refused(&String::from_utf8_lossy(&text)),
                }
            }
        }
    }
}

/// As long as a packet's head: a server that knows binary alone waits for one, and hangs up on this.
const GREETING: &[u8; 26] = b"version                 \r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    Served,
    WantsLogin,
}

/// What a server makes of a first command in text.
pub(crate) fn greet(stream: &mut (impl Read + Write)) -> io::Result<Greeting> {
    stream.write_all(GREETING)?;
    let told = line(stream)?;
    match told.as_str() {
        "CLIENT_ERROR unauthenticated" => Ok(Greeting::WantsLogin),
        _ if told.starts_with("VERSION ") => Ok(Greeting::Served),
        _ => {
            let told = told.escape_debug();
            Err(io::Error::other(format!(
                "it is no memcached: asked for its version it says {told}"
            )))
        }
    }
}

fn line(stream: &mut impl Read) -> io::Result<String> {
    /// The first byte of what a TLS server says to whoever does not speak TLS.
    const TLS_ALERT: u8 = 0x15;
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') && line.len() < REPLY_BYTES_MAX {
        stream.read_exact(&mut byte)?;
        if line.is_empty() && byte == [TLS_ALERT] {
            return Err(io::Error::other(
                "this port speaks TLS: --tls, --tls-ca or --tls-insecure",
            ));
        }
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// Answers whatever is asked.
    struct Peer {
        said: Vec<u8>,
        reply: Cursor<Vec<u8>>,
    }

    impl Read for Peer {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.reply.read(bytes)
        }
    }

    impl Write for Peer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.said.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn said(speech: Speech, reply: &[u8]) -> (Vec<u8>, Result<(), String>) {
        let login = Login { user: "ann".into(), password: "se cret".into() };
        let mut peer = Peer { said: Vec::new(), reply: Cursor::new(reply.to_vec()) };
        let result = login.say(speech, &mut peer).map_err(|error| error.to_string());
        (peer.said, result)
    }

    #[test]
    fn a_login_is_said_in_the_protocol_of_the_connection() {
        let (bytes, result) = said(Speech::Text, b"CLIENT_ERROR unauthenticated\r\nSTORED\r\n");
        let expected = [&GREETING[..], b"set login 0 0 11\r\nann se cret\r\n"].concat();
        assert_eq!((bytes, result), (expected, Ok(())));
        let mut ok = [0; 24];
        ok[0] = 0x81;
        let (bytes, result) = said(Speech::Binary, &ok);
        assert_eq!(bytes[..12], [0x80, 0x21, 0, 5, 0, 0, 0, 0, 0, 0, 0, 17]);
        assert_eq!((&bytes[24..], result), (&b"PLAIN\0ann\0se cret"[..], Ok(())));
    }

    #[test]
    fn a_refusal_is_told_in_the_servers_words() {
        let replies = b"CLIENT_ERROR unauthenticated\r\nCLIENT_ERROR authentication failure\r\n";
        let (_, result) = said(Speech::Text, replies);
        let told = "the login of \"ann\": CLIENT_ERROR authentication failure";
        assert_eq!(result, Err(told.into()));
        let mut refused = b"\x81\x21\0\0\0\0\0\x20\0\0\0\x0dREST12345678Auth failure.".to_vec();
        refused[11] = 13;
        let (_, result) = said(Speech::Binary, &refused);
        assert_eq!(result, Err("the login of \"ann\": Auth failure.".into()));
        let (_, result) = said(Speech::Text, b"");
        assert_eq!(result, Err("failed to fill whole buffer".into()));
    }

    #[test]
    fn a_password_goes_to_nobody_who_does_not_ask_for_it() {
        let (bytes, result) = said(Speech::Text, b"VERSION 1.6.45\r\n");
        assert_eq!((&*bytes, result), (&GREETING[..], Ok(())));
        let mut unknown = b"\x81\x21\0\0\0\0\0\x81\0\0\0\x0fREST12345678Unknown command".to_vec();
        unknown[11] = 15;
        assert_eq!(said(Speech::Binary, &unknown).1, Ok(()));
    }

    #[test]
    fn what_is_no_memcached_is_told_by_what_it_says() {
        let (_, result) = said(Speech::Text, b"HTTP/1.1 400 Bad Request\r\n");
        let told = "it is no memcached: asked for its version it says HTTP/1.1 400 Bad Request";
        assert_eq!(result, Err(told.into()));
        let (_, result) = said(Speech::Text, b"\x15\x03\x03\0\x02\x02\x0a");
        let told = "this port speaks TLS: --tls, --tls-ca or --tls-insecure";
        assert_eq!(result, Err(told.into()));
    }
}
