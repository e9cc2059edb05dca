//! TLS on a connection: bytes in, bytes out, no socket.
//!
//! A handshake goes on when bytes have arrived, on the thread of the [`crate::TlsAcceptor`].

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mbal_locks::{RwLock, ranks};
use rustls::{HandshakeKind, ServerConfig, ServerConnection};

/// Whether a listening socket's clients have to show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientCertificate {
    AsConfigured,
    NotAsked,
    Required,
}

/// Makes the configuration from certificates and keys as they are now, or says what is wrong.
pub type Load = Box<dyn Fn(ClientCertificate) -> Result<Arc<ServerConfig>, String> + Send + Sync>;

/// What is counted of all connections.
#[derive(Default)]
pub struct TlsTally {
    handshake_errors: AtomicU64,
    errors: AtomicU64,
    new_sessions: AtomicU64,
}

/// Where connections get their certificates from; they may be read again.
pub struct TlsDoor {
    load: Load,
    configs: RwLock<ranks::Certificates, Vec<(ClientCertificate, Arc<ServerConfig>)>>,
    tally: TlsTally,
}

impl TlsDoor {
    /// `certificates` is all that listening sockets ask for.
    pub fn new(load: Load, certificates: &[ClientCertificate]) -> Result<TlsDoor, String> {
        let load_one = |of: &ClientCertificate| Ok((*of, load(*of)?));
        let configs = certificates.iter().map(load_one).collect::<Result<_, String>>()?;
        Ok(TlsDoor { load, configs: RwLock::new(configs), tally: TlsTally::default() })
    }

    /// For connections to come; those that are there keep what they have.
    pub fn refresh(&self) -> Result<(), String> {
        let mut configs = self.configs.read().clone();
        for (certificate, config) in &mut configs {
            *config = (self.load)(*certificate)?;
        }
        *self.configs.write() = configs;
        Ok(())
    }

    /// Handshakes that failed.
    pub fn handshake_errors(&self) -> u64 {
        self.tally.handshake_errors.load(Relaxed)
    }

    /// Connections that broke after their handshake.
    pub fn errors(&self) -> u64 {
        self.tally.errors.load(Relaxed)
    }

    /// Handshakes that took up no earlier session.
    pub fn new_sessions(&self) -> u64 {
        self.tally.new_sessions.load(Relaxed)
    }

    pub(crate) fn open(self: &Arc<TlsDoor>, certificate: ClientCertificate) -> Option<Box<Tls>> {
        let configs = self.configs.read();
        let (_, config) = configs.iter().find(|(of, _)| *of == certificate)?;
        let mut session = ServerConnection::new(Arc::clone(config)).ok()?;
        // What is written is sent, or queued where its bound is known.
        session.set_buffer_limit(None);
        Some(Box::new(Tls { session, door: Arc::clone(self), counted: false }))
    }
}

/// One connection's TLS.
pub(crate) struct Tls {
    session: ServerConnection,
    door: Arc<TlsDoor>,
    /// Its handshake has been counted.
    counted: bool,
}

/// The other side does not speak TLS, or not ours; and how that was noticed.
pub(crate) struct Broken(pub String);

impl Tls {
    pub fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Takes what has arrived; appends what the client sent to `plain`, and what is to be sent to `cipher`.
    pub fn receive(
        &mut self,
        mut arrived: &[u8],
        plain: &mut Vec<u8>,
        cipher: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        while !arrived.is_empty() {
            let taken = self.session.read_tls(&mut arrived).map_err(|why| Broken(why.to_string()));
            let state = taken.and_then(|_| {
                self.session.process_new_packets().map_err(|why| {
                    // An alert says why.
                    self.flush(cipher);
                    Broken(why.to_string())
                })
            });
            let state = match state {
                Ok(state) => state,
                Err(broken) => {
                    if self.counted {
                        self.door.tally.errors.fetch_add(1, Relaxed);
                    }
                    self.gone();
                    return Err(broken);
                }
            };
            let start = plain.len();
            plain.resize(start + state.plaintext_bytes_to_read(), 0);
            self.session
                .reader()
                .read_exact(&mut plain[start..])
                .map_err(|why| Broken(why.to_string()))?;
        }
        self.flush(cipher);
        if !self.session.is_handshaking() && !std::mem::replace(&mut self.counted, true) {
            let resumed = self.session.handshake_kind() == Some(HandshakeKind::Resumed);
            self.door.tally.new_sessions.fetch_add((!resumed).into(), Relaxed);
        }
        Ok(())
    }

    /// Appends to `cipher` what sends `plain`.
    pub fn send(&mut self, plain: &[u8], cipher: &mut Vec<u8>) {
        self.session.writer().write_all(plain).expect("its buffer has no limit");
        self.flush(cipher);
    }

    /// Appends the goodbye.
    pub fn close(&mut self, cipher: &mut Vec<u8>) {
        self.session.send_close_notify();
        self.flush(cipher);
    }

    /// The connection went before its handshake was over.
    pub fn gone(&mut self) {
        if !std::mem::replace(&mut self.counted, true) {
            self.door.tally.handshake_errors.fetch_add(1, Relaxed);
        }
    }

    fn flush(&mut self, cipher: &mut Vec<u8>) {
        while self.session.wants_write() {
            self.session.write_tls(cipher).expect("a Vec takes everything");
        }
    }
}
