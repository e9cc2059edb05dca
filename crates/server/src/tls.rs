//! `-Z` and `-o ssl_*`: what OpenSSL is told for memcached, said to rustls.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use mbal_dial::pem;
use mbal_reactor::{ClientCertificate, Load, TlsDoor};
use mbal_worker::TlsSettings;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoClientAuth, NoServerSessionStorage, ResolvesServerCert,
    ServerSessionMemoryCache, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{
    CipherSuite, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme, SupportedProtocolVersion,
};

use crate::Listen;
use crate::passwords::warn_if_open;

/// Sessions that clients may take up again, if `ssl_session_cache` is on.
const SESSIONS_KEPT: usize = 20 * 1024;

/// Names of OpenSSL's, with those of the suites that there are.
const SUITES: &[(&str, CipherSuite)] = &[
    ("ECDHE-ECDSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];
/// OpenSSL's names for many suites at once: all that there are here are good enough for them.
const GROUPS: &[&str] = &["DEFAULT", "ALL", "HIGH", "MEDIUM", "EECDH", "kEECDH", "ECDHE", "AESGCM"];

/// Certificates as they are in their files now, and again whenever they are to be refreshed.
pub(crate) fn door(settings: TlsSettings, listen: &[Listen]) -> Result<TlsDoor, String> {
    let mut certificates = vec![ClientCertificate::AsConfigured];
    certificates.extend(listen.iter().filter_map(|place| place.tls));
    certificates.sort_unstable();
    certificates.dedup();
    let load: Load = Box::new(move |of| load(&settings, of).map(Arc::new));
    TlsDoor::new(load, &certificates)
}

fn load(settings: &TlsSettings, certificate: ClientCertificate) -> Result<ServerConfig, String> {
    let provider = Arc::new(provider(settings.ciphers.as_deref())?);
    let certified = certified(settings, &provider)?;
    let versions: &[&SupportedProtocolVersion] = match settings.min_version {
        "tlsv1.3" => &[&TLS13],
        _ => &[&TLS12, &TLS13],
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|why| format!("Error choosing the version: {why}"))?;
    const REQUIRE: u32 = 2;
    let verify_mode = match certificate {
        ClientCertificate::AsConfigured => settings.verify_mode,
        ClientCertificate::NotAsked => 0,
        ClientCertificate::Required => REQUIRE,
    };
    let builder = match (verify_mode, &settings.ca_cert) {
        (0, _) => builder.with_client_cert_verifier(Arc::new(NoClientAuth)),
        (_, None) if certificate == ClientCertificate::Required => {
            builder.with_client_cert_verifier(Arc::new(Nobody(Arc::clone(&provider))))
        }
        (mode, file) => {
            let mut roots = RootCertStore::empty();
            let file = file.as_ref().ok_or("ssl_verify_mode needs -o ssl_ca_cert")?;
            let failed = |why: String| format!("Error loading the CA certificate: {file} : {why}");
            for certificate in pem::authorities(Path::new(file)).map_err(failed)? {
                roots.add(certificate).map_err(|why| failed(why.to_string()))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
            let verifier =
                if mode == REQUIRE { verifier } else { verifier.allow_unauthenticated() };
            builder.with_client_cert_verifier(verifier.build().map_err(|why| why.to_string())?)
        }
    };
    let mut config = builder.with_cert_resolver(certified);
    if settings.session_cache {
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS_KEPT);
    } else {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}

/// The certificate that the options name, with its key.
pub(crate) fn certified(
    settings: &TlsSettings,
    provider: &CryptoProvider,
) -> Result<Arc<dyn ResolvesServerCert>, String> {
    let chain_file = settings.chain_cert.as_ref().ok_or("-Z needs -o ssl_chain_cert")?;
    let chain = pem::chain(Path::new(chain_file))
        .map_err(|why| format!("Error loading the certificate chain: {chain_file} : {why}"))?;
    let key_file = settings.key.as_ref().unwrap_or(chain_file);
    let key = private_key(key_file, settings.key_format)
        .map_err(|why| format!("Error loading the key: {key_file} : {why}"))?;
    let key = provider.key_provider.load_private_key(key).map_err(|why| {
        format!("Error loading the key: {key_file} : {why}; {}", pem::USABLE_KEYS)
    })?;
    let certified = CertifiedKey::new(chain, key);
    // Rustls cannot always tell whether they belong together (an X.509 v1 certificate); when it can, it must.
    if let Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) =
        certified.keys_match()
    {
        return Err("Error validating the certificate: it is another key's".into());
    }
    Ok(Arc::new(Only(Arc::new(certified))))
}

/// The one certificate, whatever name the client asks for.
#[derive(Debug)]
struct Only(Arc<CertifiedKey>);

impl ResolvesServerCert for Only {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// `-l mtls:` without -o ssl_ca_cert: memcached serves, and trusts no certificate.
#[derive(Debug)]
struct Nobody(Arc<CryptoProvider>);

impl ClientCertVerifier for Nobody {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Err(rustls::CertificateError::UnknownIssuer.into())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::CertificateError::UnknownIssuer.into())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::CertificateError::UnknownIssuer.into())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn private_key(file: &str, format: u32) -> Result<PrivateKeyDer<'static>, String> {
    const DER: u32 = 2;
    warn_if_open(Path::new(file));
    if format == DER {
        let bytes = fs::read(Path::new(file)).map_err(|why| why.to_string())?;
        return PrivateKeyDer::try_from(bytes).map_err(|why| why.to_string());
    }
    pem::private_key(Path::new(file))
}

fn provider(ciphers: Option<&str>) -> Result<CryptoProvider, String> {
    let mut provider = ring::default_provider();
    let Some(ciphers) = ciphers else { return Ok(provider) };
    let mut wanted = Vec::new();
    for name in ciphers.split([':', ',', ' ']).filter(|name| !name.is_empty()) {
        match SUITES.iter().find(|(known, _)| *known == name) {
            Some((_, suite)) => wanted.push(*suite),
            None if GROUPS.contains(&name) => {
                wanted.extend(SUITES.iter().map(|(_, suite)| *suite));
            }
            // What is taken away is not there.
            None if name.starts_with(['!', '-', '@']) => {}
            None => return Err(format!("Error setting the provided cipher(s): {ciphers}")),
        }
    }
    let is_tls13 = |suite: CipherSuite| !SUITES.iter().any(|(_, known)| *known == suite);
    provider
        .cipher_suites
        .retain(|suite| is_tls13(suite.suite()) || wanted.contains(&suite.suite()));
    Ok(provider)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ciphers_by_openssls_names() {
        let suites = |ciphers| provider(Some(ciphers)).map(|provider| provider.cipher_suites.len());
        assert_eq!(suites("ECDHE-RSA-AES128-GCM-SHA256"), Ok(1 + 3));
        assert_eq!(suites("HIGH:!aNULL"), Ok(6 + 3));
        assert!(suites("NO-SUCH-CIPHER").is_err());
    }

    #[test]
    fn what_is_wrong_is_said_as_memcached_does() {
        let settings =
            |chain: &str| TlsSettings { chain_cert: Some(chain.into()), ..TlsSettings::default() };
        let wrong = |settings| door(settings, &[]).err().expect("there is no such file");
        assert_eq!(wrong(TlsSettings::default()), "-Z needs -o ssl_chain_cert");
        let said = wrong(settings("/nowhere"));
        assert!(said.starts_with("Error loading the certificate chain: /nowhere : "), "{said}");
    }

    /// Whether somebody without a certificate is let in.
    fn lets_in(config: ServerConfig, roots: RootCertStore) -> bool {
        let client = rustls::ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .expect("the provider has suites")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = "test".try_into().expect("a name");
        let mut client = rustls::ClientConnection::new(client.into(), name).expect("a client");
        let mut server = rustls::ServerConnection::new(config.into()).expect("a server");
        let mut wire = Vec::new();
        while client.is_handshaking() || server.is_handshaking() {
            wire.clear();
            client.write_tls(&mut wire).expect("a Vec takes everything");
            server.read_tls(&mut wire.as_slice()).expect("a slice can be read");
            if server.process_new_packets().is_err() {
                return false;
            }
            wire.clear();
            while server.wants_write() {
                server.write_tls(&mut wire).expect("a Vec takes everything");
            }
            client.read_tls(&mut wire.as_slice()).expect("a slice can be read");
            client.process_new_packets().expect("the server is trusted");
        }
        true
    }

    #[test]
    fn a_listening_place_says_whether_clients_show_a_certificate() {
        let folder = std::env::temp_dir().join(format!("mbal-tls-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (key, chain) = (folder.join("key.pem"), folder.join("chain.pem"));
        let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=test \
                     -addext subjectAltName=DNS:test -addext basicConstraints=critical,CA:FALSE -keyout";
        let made = std::process::Command::new("openssl")
            .args(words.split_whitespace())
            .args([&key, Path::new("-out"), &chain])
            .stderr(std::process::Stdio::null())
            .status();
        if !made.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: this needs openssl");
            return;
        }
        let path = |path: &Path| Some(path.to_str().expect("text").to_owned());
        use ClientCertificate::{AsConfigured, NotAsked, Required};
        for (verify_mode, with_ca, certificate, lets) in [
            (0, false, AsConfigured, true),
            (0, false, NotAsked, true),
            // Nobody is trusted.
            (0, false, Required, false),
            (0, true, Required, false),
            (2, true, AsConfigured, false),
            (2, true, NotAsked, true),
            (1, true, AsConfigured, true),
            (1, true, Required, false),
        ] {
            let settings = TlsSettings {
                verify_mode,
                chain_cert: path(&chain),
                key: path(&key),
                ca_cert: path(&chain).filter(|_| with_ca),
                ..TlsSettings::default()
            };
            let mut roots = RootCertStore::empty();
            for root in pem::chain(Path::new(settings.chain_cert.as_ref().expect("a path")))
                .expect("a certificate")
            {
                roots.add(root).expect("a root");
            }
            let config = load(&settings, certificate).expect("all is there");
            assert_eq!(lets_in(config, roots), lets, "{verify_mode} {with_ca} {certificate:?}");
        }
        fs::remove_dir_all(folder).expect("it is ours");
    }

    /// Runs openssl in a folder; false where there is none.
    fn openssl(folder: &Path, words: &str) -> bool {
        let command = std::process::Command::new("openssl")
            .args(words.split_whitespace())
            .current_dir(folder)
            .stderr(std::process::Stdio::null())
            .status();
        command.is_ok_and(|status| status.success())
    }

    /// What is wrong with a file of a certificate beside one of a key; empty if nothing is.
    fn wrong_with(folder: &Path, chain: &str, key: &str) -> String {
        let path = |name: &str| Some(folder.join(name).to_str().expect("text").to_owned());
        let settings =
            TlsSettings { chain_cert: path(chain), key: path(key), ..TlsSettings::default() };
        let why = certified(&settings, &ring::default_provider()).err().unwrap_or_default();
        why.replace(&format!("{}/", folder.display()), "")
    }

    /// memcached 1.6.18 with OpenSSL serves with all of the first table, and a few less than we do.
    #[test]
    fn pem_files_are_read_as_openssl_reads_them() {
        let folder = std::env::temp_dir().join(format!("mbal-pem-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let request = "req -x509 -nodes -subj /CN=test -newkey";
        if !openssl(&folder, &format!("{request} rsa:2048 -keyout rsa -out rsa.crt")) {
            eprintln!("SKIPPED: this needs openssl");
            return;
        }
        for words in [
            &format!("{request} ec -pkeyopt ec_paramgen_curve:P-256 -keyout ec -out ec.crt"),
            &format!("{request} ec -pkeyopt ec_paramgen_curve:P-521 -keyout p521 -out p521.crt"),
            "rsa -traditional -in rsa -out rsa.pkcs1",
            "ec -in ec -out ec.sec1",
            "ec -in ec -no_public -out ec.half",
            "ecparam -name prime256v1 -out parameters",
            "rsa -traditional -in rsa -aes128 -passout pass:x -out rsa.locked",
            "pkey -in rsa -aes128 -passout pass:x -out rsa.locked8",
            "x509 -in rsa.crt -trustout -addtrust serverAuth -out trusted.crt",
            "x509 -in rsa.crt -text -out told.crt",
        ] {
            assert!(openssl(&folder, words), "{words}");
        }
        let read = |name: &str| fs::read_to_string(folder.join(name)).expect(name);
        let write = |text: &str| fs::write(folder.join("key"), text).expect("room");
        let relabelled = |name: &str, label: &str| {
            let text = read(name);
            let old = text.split("-----").nth(1).and_then(|old| old.strip_prefix("BEGIN "));
            text.replace(old.expect("a label"), label)
        };
        let (rsa, certificate) = (read("rsa"), read("rsa.crt"));
        for (what, chain, key) in [
            ("PKCS#8", "rsa.crt", rsa.clone()),
            ("PKCS#1", "rsa.crt", read("rsa.pkcs1")),
            ("SEC1", "ec.crt", read("ec.sec1")),
            ("PKCS#8 as RSA", "rsa.crt", relabelled("rsa", "RSA PRIVATE KEY")),
            ("PKCS#8 as EC", "ec.crt", relabelled("ec", "EC PRIVATE KEY")),
            ("SEC1 as PKCS#8", "ec.crt", relabelled("ec.sec1", "PRIVATE KEY")),
            ("PKCS#1 as PKCS#8", "rsa.crt", relabelled("rsa.pkcs1", "PRIVATE KEY")),
            ("parameters first", "ec.crt", read("parameters") + &read("ec.sec1")),
            ("attributes", "rsa.crt", format!("Bag Attributes\n    localKeyID: 01\n{rsa}")),
            ("\\r\\n", "rsa.crt", rsa.replace('\n', "\r\n")),
            ("blanks behind", "rsa.crt", rsa.replace('\n', "  \n")),
            ("a byte order mark", "rsa.crt", format!("\u{feff}{rsa}")),
            ("no last line end", "rsa.crt", rsa.trim_end().to_owned()),
            ("behind the certificate", "rsa.crt", format!("{certificate}{rsa}")),
            ("before the certificate", "rsa.crt", format!("{rsa}{certificate}")),
            ("before another key", "ec.crt", read("ec") + &rsa),
        ] {
            write(&key);
            assert_eq!(wrong_with(&folder, chain, "key"), "", "{what}");
        }
        let x509 = relabelled("rsa.crt", "X509 CERTIFICATE");
        for (what, chain) in [
            ("told as text", read("told.crt")),
            ("trusted", read("trusted.crt")),
            ("X509", x509),
            ("behind its key", format!("{rsa}{certificate}")),
            ("a chain", format!("{certificate}{}", read("ec.crt"))),
        ] {
            write(&chain);
            assert_eq!(wrong_with(&folder, "key", "rsa"), "", "{what}");
        }
        // Shown to others it may be; whom it vouches for is not taken from it.
        let trusted = pem::authorities(&folder.join("trusted.crt"));
        assert_eq!(trusted, Err("no certificate in it".into()));
        for (chain, key, why) in [
            (
                "rsa.crt",
                "rsa.locked",
                "Error loading the key: rsa.locked : it is encrypted, and nob",
            ),
            (
                "rsa.crt",
                "rsa.locked8",
                "Error loading the key: rsa.locked8 : it is encrypted, and n",
            ),
            ("rsa.crt", "rsa.crt", "Error loading the key: rsa.crt : no private key in it"),
            ("rsa", "rsa", "Error loading the certificate chain: rsa : no certificate in it"),
            ("rsa.crt", "ec", "Error validating the certificate: it is another key's"),
        ] {
            let said = wrong_with(&folder, chain, key);
            assert!(said.starts_with(why), "{key}: {said}");
        }
        // OpenSSL could use these two.
        for (chain, key) in [("p521.crt", "p521"), ("ec.crt", "ec.half")] {
            let said = wrong_with(&folder, chain, key);
            assert!(said.ends_with(pem::USABLE_KEYS), "{key}: {said}");
        }
        write(rsa.trim_end().trim_end_matches("-----END PRIVATE KEY-----"));
        let said = wrong_with(&folder, "rsa.crt", "key");
        assert_eq!(said, "Error loading the key: key : -----END PRIVATE KEY----- is missing");
        fs::remove_dir_all(folder).expect("it is ours");
    }
}
