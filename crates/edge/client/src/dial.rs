//! A connection to one address: TCP, TLS and the login, within a time.

use std::io;
use std::time::Duration;

use mbal_model::Address;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::options::{Login, Options};

/// A socket, with TLS or without.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

pub type Stream = Box<dyn Socket>;

/// The reply to a login is one line.
const LINE_BYTES_MAX: usize = 4096;

/// Connected, and logged in.
pub async fn dial(address: &Address, options: &Options) -> io::Result<Stream> {
    within(options.connect_timeout, connect(address, options)).await
}

async fn within<T>(time: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(time, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn connect(address: &Address, options: &Options) -> io::Result<Stream> {
    let socket = TcpStream::connect((address.host.as_str(), address.port)).await?;
    socket.set_nodelay(true)?;
    #[cfg(feature = "tls")]
    let mut stream = match &options.tls {
        None => Box::new(socket) as Stream,
        Some(tls) => {
            let name = tls.server_name.clone().unwrap_or_else(|| address.host.clone());
            let name = rustls::pki_types::ServerName::try_from(name).map_err(io::Error::other)?;
            let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::clone(&tls.config));
            Box::new(connector.connect(name, socket).await?)
        }
    };
    #[cfg(not(feature = "tls"))]
    let mut stream: Stream = Box::new(socket);
    if let Some(login) = &options.login {
        log_in(login, &mut stream).await?;
    }
    Ok(stream)
}

/// A server that asks for no login is not told the password: it would store it as an item.
async fn log_in(login: &Login, stream: &mut Stream) -> io::Result<()> {
    stream.write_all(b"version\r\n").await?;
    stream.flush().await?;
    let told = line(stream).await?;
    if told.starts_with("VERSION ") {
        return Ok(());
    }
    let value = format!("{} {}", login.user, login.password);
    let request = format!("set login 0 0 {}\r\n{value}\r\n", value.len());
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    match line(stream).await?.as_str() {
        "STORED" => Ok(()),
        told => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the login of {:?}: {told}", login.user),
        )),
    }
}

async fn line(stream: &mut Stream) -> io::Result<String> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') && line.len() < LINE_BYTES_MAX {
        line.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}
