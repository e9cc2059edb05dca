//! TLS on a link: bytes in, bytes out. Whom it leads to is proved by the cluster's secret, over this session's own
//! keys, so certificates are taken as they come.

use std::io::{self, Read, Write};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

const BINDING_BYTES: usize = 32;
const BINDING_LABEL: &[u8] = b"EXPORTER-mbal-link";

pub(crate) struct LinkTls(Box<Connection>);

impl LinkTls {
    pub fn dial(config: &Arc<ClientConfig>) -> io::Result<LinkTls> {
        let name = ServerName::try_from("mbal").expect("a name");
        let session = ClientConnection::new(Arc::clone(config), name);
        Ok(LinkTls::of(session.map_err(io::Error::other)?.into()))
    }

    pub fn accept(config: &Arc<ServerConfig>) -> io::Result<LinkTls> {
        let session = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        Ok(LinkTls::of(session.into()))
    }

    fn of(mut session: Connection) -> LinkTls {
        // What is written is sent, or queued where its bound is known.
        session.set_buffer_limit(None);
        LinkTls(Box::new(session))
    }

    /// What only the two ends of this session know; `None` while it shakes hands.
    pub fn binding(&self) -> Option<[u8; BINDING_BYTES]> {
        if self.0.is_handshaking() {
            return None;
        }
        self.0.export_keying_material([0; BINDING_BYTES], BINDING_LABEL, None).ok()
    }

    /// Takes what has arrived; appends what was sent to `plain`, and what is to be sent to `cipher`.
    pub fn receive(
        &mut self,
        mut arrived: &[u8],
        plain: &mut Vec<u8>,
        cipher: &mut Vec<u8>,
    ) -> Result<(), String> {
        while !arrived.is_empty() {
            self.0.read_tls(&mut arrived).map_err(|error| error.to_string())?;
            let state = self.0.process_new_packets().map_err(|error| error.to_string());
            let state = match state {
                Ok(state) => state,
                Err(why) => {
                    // An alert says why.
                    self.flush(cipher);
                    return Err(why);
                }
            };
            let start = plain.len();
            plain.resize(start + state.plaintext_bytes_to_read(), 0);
            self.0.reader().read_exact(&mut plain[start..]).map_err(|error| error.to_string())?;
        }
        self.flush(cipher);
        Ok(())
    }

    /// Appends to `cipher` what sends `plain`.
    pub fn send(&mut self, plain: &[u8], cipher: &mut Vec<u8>) {
        self.0.writer().write_all(plain).expect("its buffer has no limit");
        self.flush(cipher);
    }

    fn flush(&mut self, cipher: &mut Vec<u8>) {
        while self.0.wants_write() {
            self.0.write_tls(cipher).expect("a Vec takes everything");
        }
    }
}
