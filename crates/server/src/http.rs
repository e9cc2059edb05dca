//! Answers of HTTP/1.1 to one request, after which the connection ends.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};

/// Name and value of each header.
pub(crate) type Headers<'a> = &'a [(&'a str, &'a str)];

pub(crate) const PLAIN: Headers<'static> = &[("Content-Type", "text/plain; charset=utf-8")];

/// What is before the body; without `length` that goes on until the connection ends.
pub(crate) fn head(status: &str, headers: Headers<'_>, length: Option<usize>) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    if let Some(length) = length {
        head += &format!("Content-Length: {length}\r\n");
    }
    (head + "\r\n").into_bytes()
}

pub(crate) fn send(
    mut stream: &TcpStream,
    status: &str,
    headers: Headers<'_>,
    body: &[u8],
) -> io::Result<()> {
    stream.write_all(&head(status, headers, Some(body.len())))?;
    stream.write_all(body)?;
    stream.shutdown(Shutdown::Write)
}
