//! What a server asks of those who connect: TLS, a name and a password.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types;

use crate::login::{self, Greeting, Login, Speech};
use crate::name::ServerName;
use crate::stream::Stream;
use crate::tls::{self, Tls, Trust};

/// The variable that holds a password, where no file does.
const PASSWORD: &str = "MBAL_PASSWORD";
/// An address that does not answer for so long is passed over.
const CONNECT_MAX: Duration = Duration::from_secs(5);

const HEADING: &str = "TLS and login";

// TLS and login: the flags that tools share. (A doc comment would become their help.)
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Access {
    /// Speak TLS; the server's certificate is checked against the system's authorities
    #[arg(help_heading = HEADING, long)]
    pub tls: bool,

    /// Speak TLS; check against the certificates of this PEM file: authorities, or the server's own
    #[arg(help_heading = HEADING, long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// Speak TLS, and take any certificate: whoever answers can read the password
    #[arg(help_heading = HEADING, long, conflicts_with = "tls_ca")]
    pub tls_insecure: bool,

    /// Client certificate to show, with its chain, a PEM file
    #[arg(help_heading = HEADING, long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Its private key, a PEM file
    #[arg(help_heading = HEADING, long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Log in by this name; the password is the first line of --password-file, or in MBAL_PASSWORD
    #[arg(help_heading = HEADING, long, value_name = "NAME")]
    pub user: Option<String>,

    /// File whose first line is the password
    #[arg(help_heading = HEADING, long, value_name = "FILE", requires = "user")]
    pub password_file: Option<PathBuf>,
}

impl Access {
    pub fn is_tls(&self) -> bool {
        self.tls || self.tls_insecure || self.tls_ca.is_some() || self.tls_cert.is_some()
    }

    /// Reads what the flags name. The error names the file or the flag.
    pub fn open(&self) -> Result<Dialer, String> {
        let tls = if self.is_tls() { Some(self.config()?) } else { None };
        Ok(Dialer { tls, login: self.login()? })
    }

    fn config(&self) -> Result<Arc<ClientConfig>, String> {
        let trust = match &self.tls_ca {
            _ if self.tls_insecure => Trust::Anybody,
            Some(file) => Trust::Certificates(tls::certificates(file)?),
            None => Trust::Certificates(tls::of_the_system()?),
        };
        tls::config(trust, self.tls_cert.as_deref().zip(self.tls_key.as_deref()))
    }

    fn login(&self) -> Result<Option<Login>, String> {
        let Some(user) = &self.user else { return Ok(None) };
        let password = match &self.password_file {
            Some(file) => {
                let text = fs::read_to_string(file)
                    .map_err(|error| format!("--password-file {}: {error}", file.display()))?;
                text.lines().next().unwrap_or_default().to_owned()
            }
            None => std::env::var(PASSWORD)
                .map_err(|_| format!("--user needs --password-file, or {PASSWORD}"))?,
        };
        Ok(Some(Login { user: user.clone(), password }))
    }
}

/// Connects as the flags say. Certificates and the password have been read.
#[derive(Clone, Debug, Default)]
pub struct Dialer {
    tls: Option<Arc<ClientConfig>>,
    login: Option<Login>,
}

impl Dialer {
    /// A connection that blocks, over TLS if it is asked for; not logged in.
    pub fn connect(&self, server: &ServerName) -> io::Result<Stream> {
        if let ServerName::Unix(path) = server {
            if self.tls.is_some() {
                return Err(io::Error::other("a unix socket is always without TLS"));
            }
            return UnixStream::connect(path).map(Stream::Unix);
        }
        let mut refused = io::Error::other("no such host");
        for address in server.addresses()? {
            match TcpStream::connect_timeout(&address, CONNECT_MAX) {
                Ok(socket) => return self.over(socket, server),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// The same over a socket that is connected to one of the server's addresses.
    pub fn over(&self, socket: TcpStream, server: &ServerName) -> io::Result<Stream> {
        socket.set_nodelay(true)?;
        let Some(config) = &self.tls else { return Ok(Stream::Tcp(socket)) };
        let ServerName::Tcp { host, .. } = server else {
            return Err(io::Error::other("a unix socket is always without TLS"));
        };
        let name = pki_types::ServerName::try_from(host.clone()).map_err(io::Error::other)?;
        Ok(Stream::Tls(Box::new(Tls::shake_hands(socket, Arc::clone(config), name)?)))
    }

    /// Logs in, if a name was given.
    pub fn log_in(&self, speech: Speech, stream: &mut Stream) -> io::Result<()> {
        match &self.login {
            Some(login) => login.say(speech, stream),
            None => Ok(()),
        }
    }

    /// A connection that is logged in, and the protocol that is spoken on it: text, or binary where the server knows
    /// that alone. The server has `patience` for every reply.
    pub fn greet(&self, server: &ServerName, patience: Duration) -> io::Result<(Stream, Speech)> {
        let connect = || {
            let stream = self.connect(server)?;
            stream.set_read_timeout(Some(patience))?;
            io::Result::Ok(stream)
        };
        let mut stream = connect()?;
        let greeted = match &self.login {
            Some(login) => login.say(Speech::Text, &mut stream),
            None => match login::greet(&mut stream) {
                Ok(Greeting::WantsLogin) => Err(wants_login()),
                greeted => greeted.map(drop),
            },
        };
        match greeted {
            Ok(()) => Ok((stream, Speech::Text)),
            // A server of -S, or of -B binary, hangs up on a first byte of text.
            Err(error) if is_closed(&error) => {
                let mut stream = connect()?;
                self.log_in(Speech::Binary, &mut stream)?;
                Ok((stream, Speech::Binary))
            }
            Err(error) => Err(error),
        }
    }

    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub fn has_login(&self) -> bool {
        self.login.is_some()
    }
}

/// The error of a server that serves only those who have logged in.
pub fn wants_login() -> io::Error {
    let why = "it asks for a login: --user NAME --password-file FILE";
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}
