//! TLS over a connection of the generator. Encrypts; whom it talks to it does not ask: that is not measured.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

/// A server that does not shake hands for so long is given up.
const HANDSHAKE_MAX: Duration = Duration::from_secs(30);

pub struct Tls {
    pub socket: TcpStream,
    session: ClientConnection,
}

impl Tls {
    /// Shakes hands, then does not block any more.
    pub fn connect(address: &SocketAddr) -> io::Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
            .with_no_client_auth();
        let name = ServerName::from(address.ip());
        let session = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        let mut tls = Self { socket: TcpStream::connect(address)?, session };
        tls.socket.set_nodelay(true)?;
        tls.socket.set_read_timeout(Some(HANDSHAKE_MAX))?;
        while tls.session.is_handshaking() {
            tls.session.complete_io(&mut tls.socket)?;
        }
        tls.socket.set_nonblocking(true)?;
        Ok(tls)
    }

    /// Sealed bytes that the socket has not taken yet.
    pub fn holds_back(&self) -> bool {
        self.session.wants_write()
    }

    /// Sends what is sealed, as far as the socket takes it.
    pub fn push(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if self.session.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            self.session.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Seals nothing as long as the socket is full: so no more than a buffer is held back.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push()?;
        if self.holds_back() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let sealed = self.session.writer().write(bytes)?;
        self.push()?;
        Ok(sealed)
    }
}

/// Takes any certificate, but its holder must have the key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer,
        _intermediates: &[CertificateDer],
        _name: &ServerName,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
