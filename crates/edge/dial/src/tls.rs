//! TLS over a connection, which may block or not.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

use crate::pem;

/// A server that does not shake hands for so long is given up.
const HANDSHAKE_MAX: Duration = Duration::from_secs(30);

/// Where systems keep the certificates of authorities: Debian, Fedora, SUSE, Alpine and the BSDs.
const SYSTEM_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Whose certificates are taken.
pub(crate) enum Trust {
    Anybody,
    /// Those that one of these has signed, and these.
    Certificates(Vec<CertificateDer<'static>>),
}

pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    pem::authorities(file).map_err(|why| format!("{}: {why}", file.display()))
}

/// The file that SSL_CERT_FILE names, as for OpenSSL, or one of [`SYSTEM_FILES`].
pub(crate) fn of_the_system() -> Result<Vec<CertificateDer<'static>>, String> {
    if let Some(file) = std::env::var_os("SSL_CERT_FILE") {
        return certificates(Path::new(&file));
    }
    let file = SYSTEM_FILES.iter().map(Path::new).find(|file| file.exists());
    certificates(file.ok_or("--tls: this system has no file of authorities; name one by --tls-ca")?)
}

/// `shown`: the files of a client's certificate and its key.
pub(crate) fn config(
    trust: Trust,
    shown: Option<(&Path, &Path)>,
) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Anybody => Arc::new(AnyCertificate(Arc::clone(&provider))),
        Trust::Certificates(own) => Arc::new(Known::new(own, &provider)?),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match shown {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let failed = |why: String| format!("{}: {why}", key.display());
            let secret = pem::private_key(key).map_err(failed)?;
            let chain = pem::chain(chain).map_err(|why| format!("{}: {why}", chain.display()))?;
            builder
                .with_client_auth_cert(chain, secret)
                .map_err(|error| failed(format!("{error}; {}", pem::USABLE_KEYS)))?
        }
    };
    Ok(Arc::new(config))
}

pub struct Tls {
    pub socket: TcpStream,
    session: ClientConnection,
}

impl Tls {
    /// Returns when hands are shaken. The socket goes on blocking.
    pub fn shake_hands(
        socket: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut tls = Self { socket, session };
        tls.socket.set_read_timeout(Some(HANDSHAKE_MAX))?;
        while tls.session.is_handshaking() {
            tls.session.complete_io(&mut tls.socket).map_err(explained)?;
        }
        tls.socket.set_read_timeout(None)?;
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

/// What went wrong with the handshake, and the flag that would help.
fn explained(error: io::Error) -> io::Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    let help = match cause {
        // What `openssl req -x509` makes is an authority's certificate, and another error.
        Some(Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::Other(_),
        )) => "; --tls-ca FILE names who signed it, or the certificate itself",
        Some(Error::InvalidMessage(_)) => "; does this port speak TLS?",
        _ => "",
    };
    io::Error::new(error.kind(), format!("TLS: {error}{help}"))
}

/// Takes certificates that authorities have signed. One that was named itself is taken as it is: what
/// `openssl req -x509` makes is an authority's, which cannot be a server's by the rules of authorities.
#[derive(Debug)]
struct Known {
    named: Vec<CertificateDer<'static>>,
    by_authority: Arc<WebPkiServerVerifier>,
}

impl Known {
    fn new(
        named: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        // A system's file may have some that are no longer understood.
        let (added, _) = roots.add_parsable_certificates(named.iter().cloned());
        if added == 0 {
            return Err("none of the certificates can be read".into());
        }
        let by_authority =
            WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(provider))
                .build()
                .map_err(|error| error.to_string())?;
        Ok(Self { named, by_authority })
    }
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer,
        intermediates: &[CertificateDer],
        name: &ServerName,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.named.iter().any(|named| named == end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        self.by_authority.verify_server_cert(end_entity, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_authority.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_authority.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}

/// Takes any certificate, but its holder must have the key.
#[derive(Debug)]
pub struct AnyCertificate(pub Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
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
