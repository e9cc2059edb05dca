//! A Kubernetes that only listens: plain, or by TLS as in every cluster.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::Folder;

/// The first line, the headers and the body of a request.
pub type Heard = (String, Vec<String>, String);

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// Answers every request with this status.
pub fn kubernetes(
    status: &'static str,
    tls: Option<Arc<ServerConfig>>,
) -> (SocketAddr, Receiver<Heard>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it listens");
    let (told, heard) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.expect("a connection");
            let stream: Box<dyn Stream> = match &tls {
                None => Box::new(stream),
                Some(tls) => {
                    let session = ServerConnection::new(Arc::clone(tls)).expect("a session");
                    Box::new(StreamOwned::new(session, stream))
                }
            };
            // Who does not trust it hangs up.
            let Some(request) = answer(BufReader::new(stream), status) else { continue };
            if told.send(request).is_err() {
                return;
            }
        }
    });
    (address, heard)
}

fn answer(mut stream: BufReader<Box<dyn Stream>>, status: &str) -> Option<Heard> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let length = lines
        .iter()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    let said = r#"{"message":"statefulsets.apps is forbidden"}"#;
    let length = said.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{said}");
    stream.get_mut().write_all(head.as_bytes()).ok()?;
    stream.get_mut().flush().ok()?;
    let first = (!lines.is_empty()).then(|| lines.remove(0))?;
    Some((first, lines, String::from_utf8(body).expect("text")))
}

/// `ca.crt` in the folder, as every pod has it, and a certificate for 127.0.0.1 that this authority has signed. None without openssl.
pub fn certified(folder: &Folder) -> Option<Arc<ServerConfig>> {
    let at = |name: &str| folder.0.join(name);
    let openssl = |line: &str| {
        let path = |word: &str| word.replace('@', &format!("{}/", folder.0.display()));
        let words = line.split(' ').map(path);
        Command::new("openssl").args(words).output().is_ok_and(|ran| ran.status.success())
    };
    std::fs::write(at("san"), "subjectAltName=IP:127.0.0.1\n").expect("it can be written");
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    if !openssl(&format!("req -x509 {key} -subj /CN=kubernetes -keyout @ca.key -out @ca.crt")) {
        return None;
    }
    assert!(openssl(&format!("req {key} -subj /CN=api -keyout @api.key -out @asked.pem")));
    assert!(openssl(
        "x509 -req -in @asked.pem -CA @ca.crt -CAkey @ca.key -CAcreateserial -extfile @san -out @api.crt"
    ));
    let chain = CertificateDer::from_pem_file(at("api.crt")).expect("a certificate");
    let secret = PrivateKeyDer::from_pem_file(at("api.key")).expect("a key");
    let provider = rustls::crypto::ring::default_provider().into();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![chain], secret);
    Some(Arc::new(config.expect("its own key")))
}
